"""How many of a data set's rows and users are trained on, and the keys that leave out the others."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_bal import data
from fedjax_bal.config import Sections, received_value
from fedjax_bal.types import Dataset, Federation


def rows_used(config: Sections, dataset: Dataset, federation: Federation, needing: Sequence[str] = ()) -> str:
    """Says how many rows and clients of how many a federation has, and why not all.

    Args:
        config: the sections that describe the federation.
        dataset: its data set.
        federation: the partition, without augmented copies.
        needing: the methods that need the server's rows.
    """
    rows, clients = len(np.unique(federation.rows)), federation.num_clients
    everything, empty = len(dataset.train_labels), int((np.diff(federation.offsets) == 0).sum())
    users = 0 if dataset.train_clients is None else len(np.unique(dataset.train_clients))
    by_owner = data.partition.takes_owners(config.partition.scheme)
    whole = rows == everything and (not by_owner or clients == users)
    parts = [
        f"all {everything:,} rows" if rows == everything else f"{rows:,} of {everything:,} rows",
        f"{clients:,} of {users:,} users" if by_owner and clients < users else f"{clients:,} clients",
    ]
    text = f"{config.dataset.name}, {', '.join(parts)}"
    if not whole:
        reasons = _reasons(config, dataset, federation, needing)
        text = f"{config.dataset.name}, trained on {' and '.join(parts)} ({', '.join(reasons)})"
    if empty:
        text += f"; empty clients: {empty / clients:.0%} ({empty:,} of {clients:,})"
    if users and not by_owner:
        text += f"; its {users:,} users are not the clients (partition=natural makes them so)"
    return text


def rows_left(config: Sections, labels: np.ndarray, everything: int) -> str:
    """Says what is left for the partition, for a message about too few rows; empty where all rows are.

    Args:
        config: the sections that describe the federation.
        labels: those of the rows that the partition begins with, before a long tail.
        everything: rows of the data set.
    """
    left = len(data.partition.thinned(labels, **_long_tail(config)))
    if left == everything:
        return ""
    reasons = [*_tail_reasons(config), *_server_reasons(config, ()), *_validation_reasons(config)]
    return f" ({left:,} of the {everything:,} training rows are left, because of {', '.join(reasons)})"


def _reasons(config: Sections, dataset: Dataset, federation: Federation, needing: Sequence[str]) -> list[str]:
    """The keys that leave rows or users out."""
    server = functools.reduce(np.union1d, federation.auxiliary.values(), np.zeros(0, int))
    rest = np.setdiff1d(np.arange(len(dataset.train_labels)), server)
    kept = rest[data.partition.thinned(dataset.train_labels[rest], **_long_tail(config))]
    given = federation.rows if federation.tests is None else np.union1d(federation.rows, federation.tests.rows)
    reasons = [*_tail_reasons(config), *_server_reasons(config, needing), *_validation_reasons(config)]
    if config.evaluation.client_test.fraction is not None:
        reasons.append(f"client_test.fraction={config.evaluation.client_test.fraction:g}")
    return reasons + (_scheme_reasons(config.partition) if len(np.setdiff1d(kept, given)) else [])


def _long_tail(config: Sections) -> dict[str, Any]:
    wanted = config.partition
    keys = ("seed", "imbalance_factor", "imbalance_profile", "imbalance_order")
    return {key: getattr(wanted, key) for key in keys}


def _tail_reasons(config: Sections) -> list[str]:
    factor = config.partition.imbalance_factor
    return [] if factor == 1 else [f"imbalance_factor={factor:g}"]


def _server_reasons(config: Sections, needing: Sequence[str]) -> list[str]:
    wanted = config.auxiliary
    why = f", which {', '.join(needing)} need{'s' * (len(needing) == 1)}" if needing else ""
    return [f"auxiliary.per_class={wanted.per_class}{why}"] if wanted.per_class and wanted.source == "train" else []


def _validation_reasons(config: Sections) -> list[str]:
    wanted = config.evaluation.validation
    share = {"fraction": wanted.fraction, "per_class": wanted.per_class}
    return [f"validation.{key}={value:g}" for key, value in share.items() if value]


def _scheme_reasons(wanted: Any) -> list[str]:
    """A scheme that leaves out rows, and those of its parameters that aren't at their defaults."""
    fields, values = type(wanted).model_fields, {"clients": wanted.clients, **wanted.parameters}
    chosen = [f"{key}={received_value(value)}" for key, value in values.items() if value != fields[key].default]
    return chosen if data.partition.takes_owners(wanted.scheme) else [f"scheme={wanted.scheme}", *chosen]
