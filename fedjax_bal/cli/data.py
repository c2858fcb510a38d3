"""The commands `fedjax-bal data list`, `prepare` and `describe`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedjax_bal.cli.arguments import Changes, DataDir, Plugins, split_arguments
from fedjax_bal.cli.console import names_table
from fedjax_bal.cli.listing import format_parameters
from fedjax_bal.files import check_replaceable

_MEBIBYTE = 2**20
_MOST_CLASSES = 20
_SHOWN_OF_MANY = 5  # largest and smallest classes shown if there are many
_MOST_DRAWN = 200  # clients in a picture
_PICTURES = (".png", ".svg")


def list_datasets(data_dir: DataDir = None, plugin: Plugins = None) -> Iterator[Table]:
    """List the data sets, and show which of them are in a folder."""
    from fedjax_bal.data import DATASETS, folder_of, prepared_status

    folder = None if data_dir is None else folder_of("the data sets", data_dir)
    present, absent = [], []
    for name, reader in DATASETS.items():
        text = reader.description + ("; assigns images to clients" if reader.clients else "")
        if reader.counts:
            text += f" ({sum(reader.counts) * int(np.prod(reader.image_shape)) / _MEBIBYTE:,.1f} MiB in memory)"
        status = prepared_status(name, folder)
        entry = (name, [text, status, *([f"from {reader.home}"] if reader.home else [])])
        (absent if status == "not found" else present).append(entry)
    yield names_table([*present, *absent])


def prepare(
    name: Annotated[str, typer.Argument(help="A data set (fedjax-bal data list).")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="Options for your own files, such as path=photos side=64."),
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    check: Annotated[bool, typer.Option("--check", metavar="", help="Only check the files; convert nothing.")] = False,
) -> Iterator[str | Table]:
    """Check the files of a data set, and convert them to a format that loads quickly."""
    from fedjax_bal.data import find_reader, inventory, inventory_digest, load

    prepared = None
    if find_reader(name).origin == "own":
        parameters = _load(None, [f"dataset.name={name}", *(f"dataset.{option}" for option in options or ())]).dataset
        dataset = load(name, data_dir, **parameters.parameters)
        yield f"{name}: {parameters.parameters['path']}"
    elif options:
        raise ValueError(f"{name} takes no options, received {', '.join(options)}")
    else:
        made = inventory.prepare(name, data_dir, write=not check)
        dataset = made.dataset
        prepared = made.file
        yield f"{name}: {made.kind} in {inventory.common_folder(made.places)}"

    counts = {}
    facts = []
    for half in ("train", "test"):
        images = getattr(dataset, f"{half}_images")
        counts[half] = np.bincount(getattr(dataset, f"{half}_labels"), minlength=len(dataset.class_names))
        present = counts[half][counts[half] > 0]
        per_class = f"{_range(present)} in each of {len(present)} classes"
        shape = "x".join(map(str, images.shape[1:]))
        kind = "images" if images.ndim == 4 else "token ids" if images.dtype.kind == "i" else "numbers"
        size = images.nbytes / _MEBIBYTE
        facts.append((half, f"{len(images):,} rows of {shape} {kind}, {size:,.1f} MiB; {per_class}"))
    if dataset.test_share is not None:
        facts.append(("test set", f"{dataset.test_share:.3g} of each class, held out"))
    if dataset.test_users:
        facts.append(("users with test rows only", f"{dataset.test_users:,}"))
    if dataset.train_clients is not None:
        sizes = np.bincount(dataset.train_clients)
        sizes = sizes[sizes > 0]
        facts.append(("writers or users", f"{len(sizes):,}, with {_range(sizes)} training rows"))
    facts.append(("SHA-256", inventory_digest(dataset)))
    yield _facts_table(facts)
    yield _class_table(dataset.class_names, counts)
    if prepared is not None:
        size = prepared.stat().st_size / _MEBIBYTE
        yield f"prepared: {prepared} ({size:,.1f} MiB), from now on used instead of the files above"


def describe(
    arguments: Changes = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Also draw the partition.")] = None,
    plugin: Plugins = None,
) -> Iterator[str | Table]:
    """Describe the data that `run` would train on: classes, clients' sizes and imbalance.

    Example: fedjax-bal data describe dataset=mnist partition=dirichlet alpha=0.1 clients=50
    """
    from fedjax_bal.data import client_names, load, users_of_clients
    from fedjax_bal.data import describe as measure
    from fedjax_bal.lab import split_rows
    from fedjax_bal.metrics import evenly_spaced

    if out is not None:
        if out.suffix.lower() not in _PICTURES:
            raise ValueError(f"--out: received {str(out)!r}, must end in {' or '.join(_PICTURES)}")
        if not out.parent.is_dir():
            raise ValueError(f"--out: the folder {str(out.parent)!r} doesn't exist; create it first")
        check_replaceable(out)
    config = _load(*split_arguments(arguments))
    dataset = load(config.dataset.name, data_dir, **config.dataset.parameters)
    classes = len(dataset.class_names)
    pool, rows, _ = split_rows(dataset, config)
    parts = [np.searchsorted(pool.rest, of_client) for of_client in rows]  # `rest` is sorted
    measured = measure(pool.labels[pool.rest], parts, classes)

    title = f"{config.dataset.name}: {_partition_line(config.partition)}"
    yield title
    counts = {
        "train": np.bincount(dataset.train_labels, minlength=classes),
        "test": np.bincount(dataset.test_labels, minlength=classes),
        "clients": measured.class_counts.sum(axis=0),
    }
    yield _class_table(dataset.class_names, counts)
    yield ""

    sizes = measured.sizes
    held = (measured.class_counts > 0).sum(axis=1)
    low, quarter, median, three_quarters, high = np.percentile(sizes, [0, 25, 50, 75, 100])
    facts = [
        ("samples per client", f"{low:,.0f} to {high:,.0f}, mean {sizes.mean():,.1f}"),
        ("  quartiles", f"{quarter:,.0f}, {median:,.0f}, {three_quarters:,.0f}"),
        ("classes per client", f"{held.min()} to {held.max()}, mean {held.mean():.1f}"),
        ("empty clients", f"{(sizes == 0).sum():,} of {len(sizes):,}"),
        ("samples that no client has", f"{measured.unused:,}"),
        ("samples shared by several clients", f"{measured.repeated:,}"),
        ("KL to uniform classes (nats)", f"{measured.kl_of_all:.3f} over all clients"),
        ("  per client", _spread(measured.kl_of_clients)),
        ("MID (0 even, 1 a single class)", f"{measured.mid:.3f}"),
        ("WCS (1 if clients have equal classes)", f"{measured.wcs:.3f}"),
    ]
    for name, distances in measured.distances.items():
        facts.append((f"{name} distance, client to all", _spread(distances.to_all)))
        facts.append(("  client to client", _spread(distances.between)))
    others = [
        method.name
        for method in config.methods
        if any(getattr(method, key) != getattr(config, key) for key in ("dataset", "partition", "auxiliary"))
    ]
    if others:
        facts.append(("methods with different data", ", ".join(others)))
    yield _facts_table(facts)

    if out is not None:
        from fedjax_bal.report import write_partition_picture

        shown = evenly_spaced(len(measured.class_counts), _MOST_DRAWN)
        names = client_names(dataset, users_of_clients(dataset, rows))
        clients = [f"{number:,}" if names is None else names[number] for number in shown]
        notes: list[str] = []
        write_partition_picture(out, measured.class_counts[shown], clients, dataset.class_names, title, notes.append)
        yield from (f"picture: {out}", *notes)


def _load(file: str | None, changes: list[str]) -> Any:
    from fedjax_bal.config import load_config

    if file is None:
        # A configuration needs methods, and no more clients a round than there are; neither matters for its data.
        changes = ["methods=fedavg", "selection.clients_per_round=1", *changes]
    return load_config(file, changes)


def _partition_line(wanted: Any) -> str:
    """Describes a partition in one line: the values that differ from the defaults."""
    fields = type(wanted).model_fields.items()
    changed = {key: getattr(wanted, key) for key, field in fields if getattr(wanted, key) != field.default}
    options = {key: value for key, value in changed.items() if key not in ("scheme", "clients", "seed")}
    number = f"{wanted.clients:,} clients" if wanted.known_clients else "all clients"
    return f"{wanted.scheme}, {number}, {format_parameters({**options, 'seed': wanted.seed})}"


def _class_table(names: Any, counts: dict[str, np.ndarray]) -> Table:
    """Builds the table of counts by class; of many classes only the largest and smallest."""
    last = list(counts.values())[-1]
    order = np.arange(len(names))
    if len(names) > _MOST_CLASSES:
        ranked = (-last).argsort(kind="stable")
        order = np.concatenate([ranked[:_SHOWN_OF_MANY], ranked[-_SHOWN_OF_MANY:]])
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for half in counts:
        table.add_column(half, justify="right")
    for place, number in enumerate(order):
        if place == _SHOWN_OF_MANY and len(order) < len(names):
            table.add_row(f"... {len(names) - len(order):,} more")
        row = (f"{column[number]:,}" for column in counts.values())
        table.add_row(Text(" ".join(names[number].split())), *row)
    table.add_row("all", *(f"{column.sum():,}" for column in counts.values()))
    return table


def _facts_table(facts: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3))
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    return table


def _range(counts: np.ndarray) -> str:
    return f"{counts.min():,}" if counts.min() == counts.max() else f"{counts.min():,} to {counts.max():,}"


def _spread(values: np.ndarray) -> str:
    return f"{values.min():.3f} to {values.max():.3f}, mean {values.mean():.3f}" if values.size else "none"
