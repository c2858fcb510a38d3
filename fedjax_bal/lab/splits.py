"""Splits a data set's rows between server, validation and clients, and describes how many are used."""

import contextlib
import functools
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal import data
from fedjax_bal.config import AuxiliarySection, Sections, received_value
from fedjax_bal.engine.device import VALIDATION
from fedjax_bal.parts import BALANCED
from fedjax_bal.types import Dataset, Federation

_SHOWN = 10  # names of columns in a line about a table
_FEW = 3  # names of classes without training rows


class RowsUsed(NamedTuple):
    """What a run uses of its data set, as labels and values on one line.

    Attributes:
        text: the line, such as `npz: 114 of 120 rows, 12 clients; held back: auxiliary.per_class=2`.
        clients: number of clients.
        empty: number of clients without rows.
        untrained: the names of the test set's classes of which no client has training rows.
        input_names: the columns of a table that are inputs; None for other data.
    """

    text: str
    clients: int
    empty: int
    untrained: tuple[str, ...] = ()
    input_names: tuple[str, ...] | None = None


def whole_line(partitions: Collection[RowsUsed]) -> str:
    """Returns the text of all partitions, with what differs between them: empty clients and classes without rows."""
    first = next(iter(partitions))
    names = list(dict.fromkeys(name for used in partitions for name in used.untrained))
    untrained = ""
    if names:
        shown = ", ".join(map(received_value, names[:_FEW])) + ", ..." * (len(names) > _FEW)
        differ = any(len(used.untrained) < len(names) for used in partitions)
        depending = ", depending on the partition" * differ
        untrained = f"classes that no training client has: {len(names):,} ({shown}){depending}"
    empty = data.empty_clients([used.empty for used in partitions], first.clients)
    return "; ".join(filter(None, (first.text, untrained, empty)))


def rows_used(config: Sections, dataset: Dataset, federation: Federation, new: Federation | None = None) -> RowsUsed:
    """Counts the rows and clients that a federation uses, and names the keys that hold back rows.

    Args:
        config: the sections that describe the federation.
        dataset: its data set.
        federation: the partition, without augmented copies.
        new: the clients that don't train; None for none.
    """
    everything = len(dataset.train_labels)
    rows = len(np.unique(federation.rows))
    clients = federation.num_clients
    users = 0 if dataset.train_clients is None else len(np.unique(dataset.train_clients))
    by_owner = data.partition.takes_owners(config.partition.scheme)
    everyone = users + dataset.test_users

    counted = f"all {rows:,} rows" if rows == everything else f"{rows:,} of {everything:,} rows"
    taking_part = f"{clients:,} of {everyone:,} users" if by_owner and clients < everyone else f"{clients:,} clients"
    if new is not None:
        taking_part += f", {new.num_clients:,} new after training"
    items: dict[str, str] = {}
    if rows < everything:
        held_back = _held_back(config)
        if config.evaluation.client_test.fraction is not None:
            held_back.append(f"client_test.fraction={config.evaluation.client_test.fraction:g}")
        server = functools.reduce(np.union1d, federation.auxiliary.values(), np.zeros(0, int))
        rest = np.setdiff1d(np.arange(everything), server)
        kept = rest[data.partition.thin_out(dataset.train_labels[rest], **_long_tail(config))]
        if new is not None:
            held_back.append(f"partition.new_clients={config.partition.new_clients:g}")
        parts = [part for part in (federation, new) if part is not None]
        given = [part.rows for part in parts] + [part.tests.rows for part in parts if part.tests is not None]
        if len(np.setdiff1d(kept, np.concatenate(given))):
            held_back.append(f"partition={config.partition.scheme}")
        items["held back"] = ", ".join(held_back)
    if dataset.input_names is not None:
        items["inputs"] = name_inputs(dataset.input_names)
        items["classes"] = f"{len(dataset.class_names):,}"
    if dataset.test_share is not None:
        items["test rows"] = f"{len(dataset.test_labels):,}, {dataset.test_share:.3g} of each class"
    elif dataset.test_users:
        items["test rows"] = f"{len(dataset.test_labels):,}"
    if dataset.test_users:
        items["users with test rows only"] = f"{dataset.test_users:,}"
    if users and not by_owner:
        items["users"] = f"{users:,}, not used as clients (partition=natural uses them)"
    text = "; ".join([f"{config.dataset.name}: {counted}, {taking_part}", *map(": ".join, items.items())])
    untrained = np.setdiff1d(dataset.test_labels, np.flatnonzero(federation.class_counts.any(0)))
    missing = tuple(dataset.class_names[label] for label in untrained)
    return RowsUsed(text, clients, int((federation.sizes == 0).sum()), missing, dataset.input_names)


def name_inputs(names: Sequence[str]) -> str:
    """Lists the first columns of a table, so that a forgotten column of users or record numbers stands out."""
    return f"{len(names):,} ({', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)})"


def rows_left(config: Sections, labels: np.ndarray, everything: int) -> str:
    """Counts the rows that are left for the partition, for a message about too few rows; empty if all are left.

    Args:
        config: the sections that describe the federation.
        labels: labels of the rows before long-tail thinning.
        everything: number of rows of the data set.
    """
    left = len(data.partition.thin_out(labels, **_long_tail(config)))
    if left == everything:
        return ""
    return f" ({left:,} of {everything:,} training rows are left; held back: {', '.join(_held_back(config))})"


def _held_back(config: Sections) -> list[str]:
    """Lists the keys that remove rows before the partition is drawn."""
    validation = config.evaluation.validation
    values = {
        "imbalance_factor": config.partition.imbalance_factor if config.partition.imbalance_factor != 1 else None,
        "auxiliary.per_class": config.auxiliary.per_class if config.auxiliary.source == "train" else None,
        "validation.fraction": validation.fraction,
        "validation.per_class": validation.per_class,
    }
    return [f"{key}={value:g}" for key, value in values.items() if value]


def _long_tail(config: Sections) -> dict[str, Any]:
    keys = ("seed", "imbalance_factor", "imbalance_profile", "imbalance_order")
    return {key: getattr(config.partition, key) for key in keys}


class SetupError(ValueError):
    """A configuration whose values are valid individually but not together; the message says where and why."""


class TrainingRows(NamedTuple):
    """Images with the row numbers that clients may get (`rest`) and those of each server set, by name."""

    images: np.ndarray  # UInt8[D, H, W, K]
    labels: np.ndarray  # Int[D]
    rest: np.ndarray
    auxiliary: dict[str, np.ndarray]


@contextlib.contextmanager
def prefix_errors(section: str) -> Iterator[None]:
    """Prefixes the message of a `ValueError` with the section's name."""
    try:
        yield
    except SetupError:
        raise
    except ValueError as error:
        raise SetupError(f"{section}: {error}") from error


def split_rows(
    dataset: Dataset, config: Sections
) -> tuple[TrainingRows, Sequence[np.ndarray], Sequence[np.ndarray] | None]:
    """Returns the images, each client's training rows, and each client's test rows if the configuration has any.

    Raises:
        SetupError: a section has too few rows.
    """
    partition = config.partition
    with prefix_errors("auxiliary"):
        pool = _take_auxiliary(dataset, config.auxiliary, partition.seed)
    with prefix_errors("evaluation.validation"):
        pool = _take_validation(pool, config)
    with prefix_errors("partition"):
        given = data.partition.from_dataset(data.partition.SCHEMES[partition.scheme], dataset, pool.rest)
        labels = pool.labels[pool.rest]
        try:
            drawn = data.partition.draw(labels, **partition.drawing, given=given)
        except ValueError as error:
            if data.partition.takes_owners(partition.scheme) and dataset.train_clients is None:
                raise  # no number of rows would do
            raise ValueError(f"{error}{rows_left(config, labels, len(dataset.train_labels))}") from error
    rows = [pool.rest[numbers] for numbers in drawn]
    if not config.evaluation.client_test.wanted:
        return pool, rows, None
    with prefix_errors("evaluation.client_test"):
        return _take_client_tests(pool, rows, dataset, config)


def _take_auxiliary(dataset: Dataset, wanted: AuxiliarySection, seed: int) -> TrainingRows:
    """Sets aside the server's images before the rest are partitioned."""
    images = dataset.train_images
    labels = dataset.train_labels
    everything = np.arange(len(labels))
    if not wanted.per_class:
        return TrainingRows(images, labels, everything, {})
    if wanted.source == "train":
        taken, rest = data.carve(generator(seed, "auxiliary"), labels, wanted.per_class)
        return TrainingRows(images, labels, rest, {BALANCED: taken})
    # The first rows of each class of the test set, in class order.
    numbers = [np.flatnonzero(dataset.test_labels == label) for label in range(len(dataset.class_names))]
    scarce = min(range(len(numbers)), key=lambda label: len(numbers[label]))
    if len(numbers[scarce]) < wanted.per_class:
        raise ValueError(
            f"per_class: received {wanted.per_class}, but the test set has only {len(numbers[scarce])} images of class "
            f"{scarce}; use at most that many"
        )
    taken = np.concatenate([rows[: wanted.per_class] for rows in numbers])
    images = np.concatenate([images, dataset.test_images[taken]])
    labels = np.concatenate([labels, dataset.test_labels[taken]])
    return TrainingRows(images, labels, everything, {BALANCED: len(everything) + np.arange(len(taken))})


def _take_validation(pool: TrainingRows, config: Sections) -> TrainingRows:
    """Moves validation rows out of the rows for clients."""
    wanted = config.evaluation.validation
    rest = pool.rest
    if not wanted.wanted:
        return pool
    rng = generator(config.partition.seed, "validation")
    labels = pool.labels[rest]
    if wanted.fraction is not None:
        key = "fraction"
        value = wanted.fraction
        taken, left = data.carve_share(rng, labels, wanted.fraction)
    else:
        key = "per_class"
        value = wanted.per_class
        taken, left = data.carve(rng, labels, value)  # type: ignore[arg-type]
    if not len(left):
        raise ValueError(f"{key}: received {value}, which leaves none of {len(rest)} images to train on: use fewer")
    return pool._replace(rest=rest[left], auxiliary=pool.auxiliary | {VALIDATION: rest[taken]})


def _take_client_tests(
    pool: TrainingRows, rows: Sequence[np.ndarray], dataset: Dataset, config: Sections
) -> tuple[TrainingRows, Sequence[np.ndarray], Sequence[np.ndarray]]:
    """Holds out test rows of each client, or assigns clients rows of the test set, which is appended to the images."""
    wanted = config.evaluation.client_test
    rng = generator(config.partition.seed, "client test")
    if wanted.fraction is not None:
        training, tests = data.hold_out(rng, rows, wanted.fraction)
        if not any(map(len, tests)):
            raise ValueError("fraction: no client has two or more rows, so none can be held out; use per_client")
        return pool, training, tests
    classes = int(max(pool.labels.max(), dataset.test_labels.max())) + 1
    counts = np.stack([np.bincount(pool.labels[own], minlength=classes) for own in rows])
    drawn = data.rows_by_share(rng, counts, dataset.test_labels, wanted.per_client)  # type: ignore[arg-type]
    images = np.concatenate([pool.images, dataset.test_images])
    labels = np.concatenate([pool.labels, dataset.test_labels])
    return pool._replace(images=images, labels=labels), rows, [len(pool.labels) + own for own in drawn]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Returns the generator of one purpose, so that drawing other rows doesn't change the partition."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
