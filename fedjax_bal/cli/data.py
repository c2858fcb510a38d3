"""The commands `fedjax-bal data list`, `prepare` and `describe`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from fedjax_bal.caches import drawing
from fedjax_bal.cli.arguments import DataDir, Plugins, is_change
from fedjax_bal.cli.console import names_table
from fedjax_bal.files import check_replaceable
from fedjax_bal.validate import suggestion

_MEBIBYTE = 2**20
_MOST_CLASSES = 20
_SHOWN_OF_MANY = 5  # largest and smallest classes shown if there are many
_MOST_DRAWN = 200  # clients in a picture
_PICTURES = (".png", ".svg")


def list_datasets(data_dir: DataDir = None, plugin: Plugins = None) -> Iterator[Table]:
    """List the data sets, and show which of them are in a folder."""
    from fedjax_bal.data import DATASETS, folder_of, prepared_status

    folder = None if data_dir is None else folder_of("the data sets", data_dir)
    entries = []
    for name, reader in DATASETS.items():
        text = reader.description + ("; assigns images to clients" if reader.clients else "")
        if reader.counts:
            text += f" ({sum(reader.counts) * int(np.prod(reader.image_shape)) / _MEBIBYTE:,.1f} MiB in memory)"
        home = [f"from {reader.home}"] if reader.home else []
        status = prepared_status(name, folder)
        entries.append((status == "not found", (name, [text, status, *home])))
    yield names_table(entry for _, entry in sorted(entries, key=lambda entry: entry[0]))


def prepare(
    name: Annotated[str, typer.Argument(help="The data set, see fedjax-bal data list.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]", help="For your own files: path=..., side=64.")
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    check: Annotated[bool, typer.Option("--check", help="Read and report, but write nothing.")] = False,
) -> Iterator[str]:
    """Check a data set's files, and convert them to a format that loads quickly."""
    from fedjax_bal.data import find_reader, inventory, inventory_digest, load

    if find_reader(name).origin == "own":
        parameters = _own_files(name, options or [])
        dataset = load(name, data_dir, **parameters)
        prepared = None
        yield f"{name}: {parameters['path']}"
    elif options and find_reader(name).origin == "official":
        raise ValueError(f"{name} takes no options, received {', '.join(options)}")
    else:
        made = inventory.prepare(name, data_dir, write=not check)
        dataset = made.dataset
        prepared = made.file
        yield f"{name}: {made.kind} in {inventory.common_folder(made.places)}"

    counts = []
    for half in ("train", "test"):
        images = getattr(dataset, f"{half}_images")
        counts.append(np.bincount(getattr(dataset, f"{half}_labels"), minlength=len(dataset.class_names)))
        present = counts[-1][counts[-1] > 0]
        classes = f"{len(counts[-1])} classes"
        if len(present) < len(counts[-1]):
            classes = f"{len(present)} of {classes}"
        size = images.nbytes / _MEBIBYTE
        yield f"  {half}: {len(images):,} {_inputs(images)}, {size:,.1f} MiB; {classes}, of {_range(present)}"
    if dataset.test_share is not None:
        yield f"  the test set is held out: {dataset.test_share:.3g} of each class"
    if dataset.test_users:
        yield f"  users with test rows only: {dataset.test_users:,}"
    if dataset.train_clients is not None:
        sizes = np.bincount(dataset.train_clients)
        sizes = sizes[sizes > 0]
        yield f"  writers or users: {len(sizes):,}, of {_range(sizes)} training rows"
    yield f"  SHA-256 of images and labels: {inventory_digest(dataset)}"
    if len(dataset.class_names) <= _MOST_CLASSES:
        names = [" ".join(name.split()) for name in dataset.class_names]
        width = max(map(len, names))
        for name, train, test in zip(names, *counts, strict=True):
            yield f"    {name:<{width}}  {train:>7,} + {test:,}"
    if prepared is not None:
        size = prepared.stat().st_size / _MEBIBYTE
        yield f"prepared: {prepared} ({size:,.1f} MiB), read from now on in place of the files above"


def _inputs(inputs: np.ndarray) -> str:
    """Names the inputs by their kind, with their shape."""
    shape = "x".join(map(str, inputs.shape[1:]))
    if inputs.ndim == 4:
        return f"images {shape}"
    kind = "token id" if inputs.dtype.kind == "i" else "number"
    return f"rows of {shape} {kind}{'' if shape == '1' else 's'}"


def _range(counts: np.ndarray) -> str:
    low = counts.min()
    high = counts.max()
    return f"{low:,} each" if low == high else f"{low:,} to {high:,}"


def _own_files(name: str, options: list[str]) -> dict[str, Any]:
    """Validates the options as the section `dataset` of a configuration."""
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
        typer.Option(metavar="SCHEME", help="Another partition scheme; of a data set for 10 clients, with seed 0."),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Also draw the partition.")] = None,
    plugin: Plugins = None,
) -> Iterator[str]:
    """Describe a data set and a partition: classes, sizes, imbalance, and the clients' shares."""
    from fedjax_bal.config import Config, builtin_configs, load_config
    from fedjax_bal.data import DATASETS, load, users_of_clients
    from fedjax_bal.data import describe as in_numbers
    from fedjax_bal.lab import split_rows
    from fedjax_bal.metrics import evenly_spaced

    named = [argument for argument in arguments if not is_change(argument)]
    if len(named) != 1:
        raise ValueError(
            f"data describe: received {len(named)} names ({', '.join(named) or 'none'}); give one configuration or "
            "data set, and changes to it as key=value"
        )
    (source,) = named
    # Keys without a dot belong to the partition, unless they name a section.
    changes = []
    for text in filter(is_change, arguments):
        key = text.partition("=")[0]
        changes.append(text if "." in key or key in Config.model_fields else f"partition.{text}")
    alone = source in DATASETS and partition is None
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

    if source in DATASETS:
        # A cohort of one fits any number of clients. The method isn't trained.
        scheme = f"partition={{scheme: {json.dumps(partition or 'iid')}, clients: 10, seed: 0}}"
        fixed = [
            f"dataset.name={source}",
            "selection.clients_per_round=1",
            "auxiliary.per_class=0",
            "methods=fedavg",
            "partition=null",
        ]
        config = load_config(None, [*fixed, scheme, *changes], needs=False)
    elif not Path(source).exists() and not source.endswith((".yaml", ".yml")) and source not in builtin_configs():
        near = suggestion(source, [*DATASETS, *builtin_configs()])
        raise ValueError(
            f"data describe: there is no file {source!r}, and no data set or built-in configuration of that name"
            + (near and f"; {near}")
        )
    else:
        schemes = [] if partition is None else [f"partition.scheme={json.dumps(partition)}"]
        config = load_config(source, [*schemes, *changes], needs=False)

    dataset = load(config.dataset.name, data_dir, **config.dataset.parameters)
    classes = len(dataset.class_names)
    title = config.dataset.name
    counts = {
        "training": np.bincount(dataset.train_labels, minlength=classes),
        "test": np.bincount(dataset.test_labels, minlength=classes),
    }
    description = None
    if not alone:
        pool, rows, _ = split_rows(dataset, config)
        parts = [np.searchsorted(pool.rest, of_client) for of_client in rows]  # `rest` is sorted
        description = in_numbers(pool.labels[pool.rest], parts, classes)
        title += f": {_in_words(config.partition)}"
        counts["clients"] = description.class_counts.sum(axis=0)

    yield title
    yield f"{len(dataset.train_labels):,} training and {len(dataset.test_labels):,} test samples"
    yield ""
    yield f"{'class':<18}" + "".join(f"{name:>10}" for name in counts)
    lines = []
    for place, name in enumerate(dataset.class_names):
        cells = "".join(f"{column[place]:>10,}" for column in counts.values())
        lines.append(f"{' '.join(name.split()):<18.17}{cells}")
    if classes > _MOST_CLASSES:
        ranked = (-counts["clients" if description else "training"]).argsort(kind="stable")
        lines = [lines[place] for place in ranked]
        between = f"... {classes - 2 * _SHOWN_OF_MANY:,} classes in between"
        lines = [*lines[:_SHOWN_OF_MANY], between, *lines[-_SHOWN_OF_MANY:]]
    yield from lines
    if description is not None:
        yield from ("", *_clients(description))
    different = [
        method.name
        for method in config.methods
        if any(getattr(method, key) != getattr(config, key) for key in ("dataset", "partition", "auxiliary"))
    ]
    if different:
        yield f"methods with other data: {', '.join(different)}"
    if out is not None and description is not None:
        with drawing():
            from fedjax_bal.report import write_partition_picture

            shown = evenly_spaced(len(description.class_counts), _MOST_DRAWN)
            clients = [f"{number:,}" for number in shown]
            users = users_of_clients(dataset, rows)
            if users is not None and dataset.client_names is not None:
                clients = [dataset.client_names[users[number]] for number in shown]
            notes: list[str] = []
            counts = description.class_counts[shown]
            write_partition_picture(out, counts, clients, dataset.class_names, title, notes.append)
        yield from (f"picture: {out}", *notes)


def _in_words(wanted: Any) -> str:
    """Describes a partition in one line: the values that differ from the defaults."""
    changes = []
    for key, field in type(wanted).model_fields.items():
        value = getattr(wanted, key)
        if key not in ("scheme", "clients", "seed") and value != field.default:
            changes.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    clients = f"{wanted.clients:,} client{'s' * (wanted.clients > 1)}" if wanted.known_clients else "all clients"
    return ", ".join([f"{wanted.scheme}, {clients}", *changes, f"seed={wanted.seed}"])


def _clients(description: Any) -> Iterator[str]:
    """Describes the sizes, classes and imbalance of the clients of a partition."""
    from fedjax_bal.data import DISTANCES, empty_clients

    sizes = description.sizes
    classes = (description.class_counts > 0).sum(axis=1)
    low, quarter, median, three_quarters, high = np.percentile(sizes, [0, 25, 50, 75, 100])
    yield (
        f"samples of a client: {low:,.0f} to {high:,.0f}, median {median:,.0f}, quartiles {quarter:,.0f} and "
        f"{three_quarters:,.0f}, mean {sizes.mean():,.1f}"
    )
    empty = empty_clients([int((sizes == 0).sum())], len(sizes))
    if empty:
        yield empty
    yield f"classes of a client: {classes.min()} to {classes.max()}, mean {classes.mean():.1f}"
    if description.unused:
        yield f"samples that no client has: {description.unused:,}"
    if description.repeated:
        yield f"samples counted again because several clients have them: {description.repeated:,}"
    kls = description.kl_of_clients
    yield f"KL from even classes, in nats (0 is even): {description.kl_of_all:.3f} for all clients together;"
    yield f"    of a client {kls.min():.3f} to {kls.max():.3f}, mean {kls.mean():.3f}"
    yield f"MID {description.mid:.3f}: imbalance of all classes, from 0 (even) to 1 (a single class)"
    yield f"WCS {description.wcs:.3f}: similarity of clients' class distributions to the overall one, at most 1 (equal)"
    yield "distances of class distributions (0 is equal): mean (least to greatest)"
    yield f"    {'':<16}{'client to all':<26}client to client"
    for name, distances in description.distances.items():
        columns = (
            f"{values.mean():.3f} ({values.min():.3f} to {values.max():.3f})" if values.size else "none"
            for values in distances
        )
        cells = "".join(f"{column:<26}" for column in columns)
        yield f"    {name:<16}{cells}{DISTANCES[name].scale}"
