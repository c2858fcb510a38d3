"""The command `fedjax-bal data describe`: a data set and a partition in numbers, as text and as a picture."""

import difflib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedjax_bal.caches import drawing
from fedjax_bal.cli.arguments import DataDir, Plugins, is_change
from fedjax_bal.files import check_replaceable

if TYPE_CHECKING:
    import numpy as np

    from fedjax_bal.data import Description

_MOST_NAMED, _SHOWN_OF_MANY = 20, 5
_LONGEST_NAME, _LONGEST_BAR = 18, 30
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
    changes = [_placed(argument) for argument in arguments if is_change(argument)]
    what = _the_one([argument for argument in arguments if not is_change(argument)])
    _check_picture(out)
    from fedjax_bal.data import DATASETS

    alone = what in DATASETS and partition is None
    others = [change for change in changes if not change.startswith("dataset.")]
    if alone and others:
        raise ValueError(f"data describe: received {others[0]!r}, but no partition; give one with --partition SCHEME")
    config = _config(what, partition, changes)
    dataset, description = _drawn(config, data_dir, partitioned=not alone)
    title = config.dataset.name if description is None else f"{config.dataset.name}: {_in_words(config.partition)}"
    yield from _text(dataset, description, title, _others(config))
    if out is not None:
        with drawing():
            from fedjax_bal.report import write_partition_picture

            write_partition_picture(out, dataset, description, title)
        yield f"picture: {out}"


def _the_one(named: Sequence[str]) -> str:
    if len(named) == 1:
        return named[0]
    raise ValueError(
        f"data describe: received {len(named)} names ({', '.join(named) or 'none'}); give one configuration or data "
        "set, and changes to it as key=value"
    )


def _placed(change: str) -> str:
    """A change with its full path: keys without a dot are the partition's, unless a section has that name."""
    from fedjax_bal.config import UnresolvedConfig

    key = change.partition("=")[0]
    return change if "." in key or key in UnresolvedConfig.model_fields else f"partition.{change}"


def _check_picture(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix.lower() not in _PICTURES:
        raise ValueError(f"--out: received {str(out)!r}, must end in {' or '.join(_PICTURES)}")
    if not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {str(out.parent)!r}; make it first")
    if out.is_dir():
        raise ValueError(f"--out: {str(out)!r} is a folder; give the name of a file")
    check_replaceable(out)


def _config(what: str, scheme: str | None, changes: Sequence[str]) -> Any:
    from fedjax_bal.config import builtin_configs, load_config
    from fedjax_bal.data import DATASETS

    if what in DATASETS:
        # All else is the quickstart's, but for the server's rows; a cohort of one fits any number of clients.
        wanted = f"partition={{scheme: {json.dumps('iid' if scheme is None else scheme)}, clients: 10, seed: 0}}"
        others = [
            f"dataset.name={what}",
            "selection.clients_per_round=1",
            "auxiliary.per_class=0",
            "partition=null",
            wanted,
        ]
        return load_config(None, [*others, *changes], needs=False)
    if not Path(what).exists() and not what.endswith((".yaml", ".yml")) and what not in builtin_configs():
        near = difflib.get_close_matches(what, [*DATASETS, *builtin_configs()], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"data describe: there is no file {what!r}, and no data set or built-in configuration of that name{hint}"
        )
    schemes = [f"partition.scheme={json.dumps(scheme)}"] * (scheme is not None)
    return load_config(what, [*schemes, *changes], needs=False)


def _drawn(config: Any, data_dir: Path | None, *, partitioned: bool) -> "tuple[Any, Description | None]":
    """The data set, and the partition in numbers if one is wanted."""
    import numpy as np

    from fedjax_bal.data import describe as in_numbers
    from fedjax_bal.data import load
    from fedjax_bal.experiments import split_rows

    dataset = load(config.dataset.name, data_dir, **config.dataset.parameters)
    if not partitioned:
        return dataset, None
    pool, rows, _ = split_rows(dataset, config)
    parts = [np.searchsorted(pool.rest, own) for own in rows]  # `rest` is in ascending order
    return dataset, in_numbers(pool.labels[pool.rest], parts, len(dataset.class_names))


def _in_words(wanted: Any) -> str:
    """A partition in one line: the values that differ from the defaults."""
    fields = type(wanted).model_fields
    changes = [
        f"{key}={_value(getattr(wanted, key))}"
        for key in fields
        if key not in ("scheme", "clients", "seed") and getattr(wanted, key) != fields[key].default
    ]
    clients = f"{wanted.clients:,} client{'s' * (wanted.clients > 1)}" if wanted.known_clients else "all clients"
    return ", ".join([f"{wanted.scheme}, {clients}", *changes, f"seed={wanted.seed}"])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _others(config: Any) -> list[str]:
    """The methods of a configuration whose data differ from those described."""
    sections = ("dataset", "partition", "auxiliary")
    own = [config.for_method(index) for index in range(len(config.methods))]
    return [each.name for each in own if any(getattr(each, key) != getattr(config, key) for key in sections)]


def _text(dataset: Any, description: "Description | None", title: str, others: Sequence[str]) -> Iterator[str]:
    yield title
    yield f"{len(dataset.train_labels):,} training and {len(dataset.test_labels):,} test samples"
    yield ""
    yield from _class_table(dataset, description)
    if description is not None:
        yield ""
        yield from _size_lines(description)
        yield ""
        yield from _imbalance_lines(description)
    if others:
        yield f"methods with other data: {', '.join(others)}"


def _class_table(dataset: Any, description: "Description | None") -> Iterator[str]:
    import numpy as np

    classes = len(dataset.class_names)
    columns = {
        "training": np.bincount(dataset.train_labels, minlength=classes),
        "test": np.bincount(dataset.test_labels, minlength=classes),
    }
    if description is not None:
        columns["clients"] = description.class_counts.sum(axis=0)
    ranked = columns["training" if description is None else "clients"]
    yield f"{'class':<{_LONGEST_NAME}}" + "".join(f"{name:>10}" for name in columns)
    for label in _shown(ranked):
        if label is None:
            yield f"... {classes - 2 * _SHOWN_OF_MANY:,} classes in between"
            continue
        numbers = "".join(f"{counts[label]:>10,}" for counts in columns.values())
        name = _short(dataset.class_names[label])
        yield f"{name:<{_LONGEST_NAME}}{numbers}  {_bar(ranked[label], ranked.max())}".rstrip()


def _shown(counts: "np.ndarray") -> "list[int | None]":
    """All classes in their order; of many the largest, None, and the smallest."""
    if len(counts) <= _MOST_NAMED:
        return list(range(len(counts)))
    falling = (-counts).argsort(kind="stable").tolist()
    return [*falling[:_SHOWN_OF_MANY], None, *falling[-_SHOWN_OF_MANY:]]


def _size_lines(description: "Description") -> Iterator[str]:
    import numpy as np

    from fedjax_bal.data import size_bins

    sizes, held = description.sizes, (description.class_counts > 0).sum(axis=1)
    yield (
        f"samples of a client: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, "
        f"mean {sizes.mean():,.1f}"
    )
    edges = size_bins(sizes)
    clients = np.histogram(sizes, edges)[0]
    for low, high, number in zip(edges[:-1], edges[1:], clients, strict=True):
        span = f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        yield f"{span:>22} {number:>7,}  {_bar(number, clients.max())}".rstrip()
    yield f"classes of a client: {held.min()} to {held.max()}, mean {held.mean():.1f}"
    if description.unused:
        yield f"samples that no client has: {description.unused:,}"
    if description.repeated:
        yield f"samples counted again because several clients have them: {description.repeated:,}"


def _imbalance_lines(description: "Description") -> Iterator[str]:
    low, high = (float(value) for value in (description.kl_of_clients.min(), description.kl_of_clients.max()))
    mean = float(description.kl_of_clients.mean())
    yield f"KL from even classes, in nats (0 is even): {description.kl_of_all:.3f} for all clients together;"
    yield f"    of a client {low:.3f} to {high:.3f}, mean {mean:.3f}"
    yield f"MID {description.mid:.3f}: imbalance of all classes, from 0 (even) to 1 (a single class)"
    yield f"WCS {description.wcs:.3f}: how alike clients' classes are to those of all, 1 (the same) and less"


def _bar(value: int, largest: int) -> str:
    width = max(8, min(_LONGEST_BAR, shutil.get_terminal_size().columns - 52))
    filled = round(width * value / max(largest, 1))
    return _sign() * (max(filled, 1) if value else 0)


def _sign() -> str:
    try:
        "\N{FULL BLOCK}".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return "#"
    return "\N{FULL BLOCK}"


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) < _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]}…"
