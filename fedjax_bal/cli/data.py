"""The commands `fedjax-bal data list`, `prepare` and `describe`."""

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from fedjax_bal.caches import drawing
from fedjax_bal.cli.arguments import DataDir, Plugins, is_change
from fedjax_bal.cli.console import names_table
from fedjax_bal.files import check_replaceable

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


_MOST_NAMED, _SHOWN_OF_MANY = 20, 5
_MOST_DRAWN = 200  # clients of a picture
_PICTURES = (".png", ".svg")


def describe(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG|DATASET [KEY=VALUE ...]",
            help="A YAML file or a data set's name, then changes: of the partition, such as alpha=0.1, clients=50 or "
            "imbalance_factor=100, or of any key by its full path.",
        ),
    ],
    partition: Annotated[
        str | None,
        typer.Option(metavar="SCHEME", help="Another scheme; for a data set the one to draw, for 10 clients, seed 0."),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw a picture too.")] = None,
    plugin: Plugins = None,
) -> Iterator[str]:
    """Describe a data set and a partition: classes, sizes, imbalance, and who holds what."""
    from fedjax_bal.config import UnresolvedConfig
    from fedjax_bal.data import DATASETS, load
    from fedjax_bal.data import describe as in_numbers
    from fedjax_bal.lab import split_rows
    from fedjax_bal.metrics import evenly_spaced

    named = [argument for argument in arguments if not is_change(argument)]
    if len(named) != 1:
        raise ValueError(
            f"data describe: received {len(named)} names ({', '.join(named) or 'none'}); give one configuration or "
            "data set, and changes to it as key=value"
        )
    # Keys without a dot are the partition's, unless a section has that name.
    changes = [
        text if "." in (key := text.partition("=")[0]) or key in UnresolvedConfig.model_fields else f"partition.{text}"
        for text in arguments
        if is_change(text)
    ]
    alone = named[0] in DATASETS and partition is None
    others = [change for change in changes if not change.startswith("dataset.")]
    if alone and others:
        raise ValueError(f"data describe: received {others[0]!r}, but no partition; give one with --partition SCHEME")
    if out is not None:
        if alone:
            raise ValueError(f"--out: received {str(out)!r}, but a picture shows a partition: add --partition SCHEME")
        if out.suffix.lower() not in _PICTURES:
            raise ValueError(f"--out: received {str(out)!r}, must end in {' or '.join(_PICTURES)}")
        if not out.parent.is_dir():
            raise ValueError(f"--out: there is no folder {str(out.parent)!r}; make it first")
        check_replaceable(out)
    config = _config(named[0], partition, changes)
    dataset = load(config.dataset.name, data_dir, **config.dataset.parameters)
    classes = len(dataset.class_names)
    counts = {
        "training": np.bincount(dataset.train_labels, minlength=classes),
        "test": np.bincount(dataset.test_labels, minlength=classes),
    }
    title, description = config.dataset.name, None
    if not alone:
        pool, rows, _ = split_rows(dataset, config)
        parts = [np.searchsorted(pool.rest, own) for own in rows]  # `rest` is in ascending order
        description = in_numbers(pool.labels[pool.rest], parts, classes)
        title += f": {_in_words(config.partition)}"
        counts["clients"] = description.class_counts.sum(axis=0)

    yield title
    yield f"{len(dataset.train_labels):,} training and {len(dataset.test_labels):,} test samples"
    yield ""
    yield f"{'class':<18}" + "".join(f"{name:>10}" for name in counts)
    places = list(range(classes))
    if classes > _MOST_NAMED:
        ranked = (-list(counts.values())[-1 if description else 0]).argsort(kind="stable").tolist()
        places = ranked[:_SHOWN_OF_MANY] + ranked[-_SHOWN_OF_MANY:]
    for rank, place in enumerate(places):
        if classes > _MOST_NAMED and rank == _SHOWN_OF_MANY:
            yield f"... {classes - len(places):,} classes in between"
        name = " ".join(dataset.class_names[place].split())
        yield f"{name:<18.17}" + "".join(f"{column[place]:>10,}" for column in counts.values())
    if description is not None:
        yield ""
        yield from _clients(description)
    different = [
        own.name
        for own in map(config.for_method, range(len(config.methods)))
        if any(getattr(own, key) != getattr(config, key) for key in ("dataset", "partition", "auxiliary"))
    ]
    if different:
        yield f"methods with other data: {', '.join(different)}"
    if out is not None and description is not None:
        with drawing():
            from fedjax_bal.report import write_partition_picture

            shown = evenly_spaced(len(description.class_counts), _MOST_DRAWN)
            clients = [f"{number:,}" for number in shown]
            write_partition_picture(out, description.class_counts[shown], clients, dataset.class_names, title)
        yield f"picture: {out}"


def _config(what: str, scheme: str | None, changes: Sequence[str]) -> Any:
    from fedjax_bal.config import builtin_configs, load_config
    from fedjax_bal.data import DATASETS

    if what in DATASETS:
        # All else is the quickstart's, but for the server's rows; a cohort of one fits any number of clients.
        wanted = f"partition={{scheme: {json.dumps('iid' if scheme is None else scheme)}, clients: 10, seed: 0}}"
        others = [f"dataset.name={what}", "selection.clients_per_round=1", "auxiliary.per_class=0", "partition=null"]
        return load_config(None, [*others, wanted, *changes], needs=False)
    if not Path(what).exists() and not what.endswith((".yaml", ".yml")) and what not in builtin_configs():
        near = difflib.get_close_matches(what, [*DATASETS, *builtin_configs()], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"data describe: there is no file {what!r}, and no data set or built-in configuration of that name{hint}"
        )
    schemes = [f"partition.scheme={json.dumps(scheme)}"] * (scheme is not None)
    return load_config(what, [*schemes, *changes], needs=False)


def _in_words(wanted: Any) -> str:
    """A partition in one line: the values that differ from the defaults."""
    fields = type(wanted).model_fields
    written = lambda value: f"{value:g}" if isinstance(value, float) else str(value)
    changes = [
        f"{key}={written(getattr(wanted, key))}"
        for key in fields
        if key not in ("scheme", "clients", "seed") and getattr(wanted, key) != fields[key].default
    ]
    clients = f"{wanted.clients:,} client{'s' * (wanted.clients > 1)}" if wanted.known_clients else "all clients"
    return ", ".join([f"{wanted.scheme}, {clients}", *changes, f"seed={wanted.seed}"])


def _clients(description: Any) -> Iterator[str]:
    """The sizes, classes and imbalance of the clients of a partition."""
    sizes, held = description.sizes, (description.class_counts > 0).sum(axis=1)
    low, quarter, median, more, high = np.percentile(sizes, [0, 25, 50, 75, 100])
    yield (
        f"samples of a client: {low:,.0f} to {high:,.0f}, median {median:,.0f}, quartiles {quarter:,.0f} and "
        f"{more:,.0f}, mean {sizes.mean():,.1f}"
    )
    yield f"classes of a client: {held.min()} to {held.max()}, mean {held.mean():.1f}"
    if description.unused:
        yield f"samples that no client has: {description.unused:,}"
    if description.repeated:
        yield f"samples counted again because several clients have them: {description.repeated:,}"
    kls = description.kl_of_clients
    yield f"KL from even classes, in nats (0 is even): {description.kl_of_all:.3f} for all clients together;"
    yield f"    of a client {kls.min():.3f} to {kls.max():.3f}, mean {kls.mean():.3f}"
    yield f"MID {description.mid:.3f}: imbalance of all classes, from 0 (even) to 1 (a single class)"
    yield f"WCS {description.wcs:.3f}: how alike clients' classes are to those of all, 1 (the same) and less"
