"""The commands `fedjax-bal data list` and `fedjax-bal data prepare`."""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from fedjax_bal.cli.arguments import DataDir, Plugins
from fedjax_bal.cli.console import names_table

_MOST_CLASSES = 20
_MEBIBYTE = 2**20


def list_datasets(data_dir: DataDir = None, plugin: Plugins = None) -> Iterator[Table]:
    """List the data sets, and which of them a folder holds."""
    from fedjax_bal.data import DATASETS, folder_of, prepared_status

    folder = None if data_dir is None else folder_of("the data sets", data_dir)
    entries = []
    for name, reader in DATASETS.items():
        clients = "; says whose each image is" if reader.clients else ""
        size = sum(reader.counts) * int(np.prod(reader.image_shape)) if reader.counts else 0
        memory = f" ({size / _MEBIBYTE:,.1f} MiB in memory)" if reader.counts else ""
        home = [f"from {reader.home}"] if reader.home else []
        entries.append((name, [f"{reader.description}{clients}{memory}", prepared_status(name, folder), *home]))
    yield names_table(entries)


def prepare(
    name: Annotated[str, typer.Argument(help="The data set, see fedjax-bal data list.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]", help="For your own files: path=..., side=64.")
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    check: Annotated[bool, typer.Option("--check", help="Read and report, but write nothing.")] = False,
) -> Iterator[str]:
    """Check a data set's files, and write it to a file that is read at once."""
    from fedjax_bal.data import find_reader, inventory, load

    if find_reader(name).origin == "own":
        parameters = _own_files(name, options or [])
        dataset = load(name, data_dir, **parameters)
        yield f"{name}: {parameters['path']}"
        yield from _contents(dataset)
        return
    if options:
        raise ValueError(f"{name} takes no options, received {', '.join(options)}")
    made = inventory.prepare(name, data_dir, write=not check)
    yield f"{name}: {made.kind} in {inventory.common_folder(made.places)}"
    yield from _contents(made.dataset)
    if made.file is not None:
        size = made.file.stat().st_size / _MEBIBYTE
        yield f"prepared: {made.file} ({size:,.1f} MiB), read from now on in place of the files above"


def _own_files(name: str, options: list[str]) -> dict[str, Any]:
    """The options, checked as the section `dataset` of a configuration."""
    from fedjax_bal.config import DatasetSection, check_section, parse_yaml, raise_all

    given = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"received {text!r}, must be KEY=VALUE, for instance path=mine.npz")
        if key in given:
            raise ValueError(f"command line: {key}: given twice; give it once")
        given[key] = parse_yaml(value, f"command line: {key}")
    section, problems = check_section(DatasetSection, {**given, "name": name})
    raise_all("command line", problems)
    return section.parameters


def _contents(dataset: Any) -> Iterator[str]:
    """The number of images, their size and classes, and their clients."""
    from fedjax_bal.data import inventory_digest

    counts = []
    for half in ("train", "test"):
        images, labels = getattr(dataset, f"{half}_images"), getattr(dataset, f"{half}_labels")
        counts.append(np.bincount(labels, minlength=len(dataset.class_names)))
        shape, size = "x".join(map(str, images.shape[1:])), images.nbytes / _MEBIBYTE
        yield f"  {half}: {len(images):,} images {shape}, {size:,.1f} MiB; {_classes(counts[-1])}"
    if dataset.train_clients is not None:
        sizes = np.bincount(dataset.train_clients)
        sizes = sizes[sizes > 0]
        yield f"  writers or users: {len(sizes):,}, of {_range(sizes)} training images"
    yield f"  SHA-256 of images and labels: {inventory_digest(dataset)}"
    if len(dataset.class_names) <= _MOST_CLASSES:
        names = [" ".join(name.split()) for name in dataset.class_names]
        width = max(map(len, names))
        for name, train, test in zip(names, *counts, strict=True):
            yield f"    {name:<{width}}  {train:>7,} + {test:,}"


def _classes(counts: np.ndarray) -> str:
    present = counts[counts > 0]
    few = f"{len(present)} of {len(counts)} classes" if len(present) < len(counts) else f"{len(counts)} classes"
    return f"{few}, of {_range(present)}"


def _range(counts: np.ndarray) -> str:
    low, high = counts.min(), counts.max()
    return f"{low:,} each" if low == high else f"{low:,} to {high:,}"
