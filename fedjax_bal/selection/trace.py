"""Availability read from a file, the same for every seed and method."""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_bal.annotations import checked
from fedjax_bal.selection.tables import LARGEST_ARRAY, read_csv, read_npz, whole

AtEnd = Literal["repeat", "hold"]


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """A table of available clients by round.

    Build it with `trace`, which reads and checks a file.

    Attributes:
        available: `Bool[T, M]`, by round and client. Clients from M on are never available.
        at_end: continuation after T rounds: "repeat": the table from its start; "hold": its last round.
        source: the table's file, for messages.
        whole: whether the table must have a column for each client; if not, missing clients are never available.
    """

    available: np.ndarray
    at_end: str = "repeat"
    source: str = "trace"
    whole: bool = False

    def mask(self, seed: int, purpose: str, round: int, eligible: np.ndarray) -> np.ndarray:
        """Returns the eligible clients `Bool[N]` that are available in a round, possibly none; ignores the rest."""
        del seed, purpose
        last = len(self.available) - 1
        row = self.available[round % (last + 1) if self.at_end == "repeat" else min(round, last)]
        mask = np.zeros(len(eligible), bool)
        mask[: len(row)] = row
        return mask & eligible

    def check_clients(self, clients: int) -> None:
        """Raises `ValueError` if the table doesn't match the number of clients."""
        named = self.available.shape[1]
        if self.whole and named != clients:
            raise ValueError(
                f"{self.source}: its array has shape {self.available.shape}, but there are {clients} clients; must be "
                "rounds by clients"
            )
        if named > clients:
            raise ValueError(
                f"{self.source}: names client {named - 1}, but there are {clients} clients, numbered from 0 to "
                f"{clients - 1}"
            )

    @property
    def digest(self) -> bytes:
        """SHA-256 of the table."""
        return hashlib.sha256(repr(self.available.shape).encode() + np.packbits(self.available).tobytes()).digest()


@checked
def trace(file: str | os.PathLike[str], at_end: AtEnd = "repeat") -> Trace:
    r"""Reads the available clients of each round from a file.

    Args:
        file: an npz file with an array `[rounds, clients]` of 0 and 1, called `available` if the file has several; or a
            CSV file with the columns `round,client`, which lists available clients, or `round,client,available` with 0
            or 1 in the last one. Rounds and clients count from 0. A CSV file may omit unavailable clients.
        at_end: continuation after the last round of the file: "repeat": from its start; "hold": its last round.

    Returns:
        The trace.

    Raises:
        ValueError: the file can't be used; the message says where and why.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "trace.csv"
        ...     _ = file.write_text("round,client\n0,0\n0,2\n1,1\n")
        ...     read = trace(file)
        >>> [read.mask(0, "availability", t, np.ones(3, bool)).tolist() for t in (0, 1, 2)]
        [[True, False, True], [False, True, False], [True, False, True]]
    """
    path = Path(file)
    if path.suffix == ".npz":
        table = read_npz(path, "available", 2)
        if not ((table == 0) | (table == 1)).all():
            raise ValueError(f"{path}: its array holds other numbers than 0 and 1")
        table = table.astype(bool)
    else:
        kinds = {"round": whole(), "client": whole(), "available": whole(0, 1)}
        headers = [("round", "client"), ("round", "client", "available")]
        lines = read_csv(path, headers, kinds).astype(np.int64)
        rounds, clients = (int(column.max()) + 1 for column in lines[:, :2].T)
        if lines[:, 0].min() > 0:
            raise ValueError(
                f"{path}: has no line of round 0, with which rounds begin; if no client is available in it, say so: "
                "round,client,available and 0,0,0"
            )
        if rounds * clients > LARGEST_ARRAY:
            raise ValueError(
                f"{path}: names round {rounds - 1} and client {clients - 1}, a table of {rounds * clients:,} places; "
                f"at most {LARGEST_ARRAY:,} are read"
            )
        places = lines[:, 0] * clients + lines[:, 1]
        listed, times = np.unique(places, return_counts=True)
        if times.max() > 1:
            number, client = divmod(int(listed[times.argmax()]), clients)
            raise ValueError(f"{path}: has more than one line for round {number}, client {client}; leave one")
        table = np.zeros(rounds * clients, bool)
        table[places] = lines[:, 2] if lines.shape[1] == 3 else True
        table = table.reshape(rounds, clients)
    if not table.any():
        raise ValueError(
            f"{path}: no client is ever available; a client that a round doesn't list as available (1) is absent"
        )
    return Trace(table, at_end, str(path), whole=path.suffix == ".npz")
