"""Faults of updates: their codes and counts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

NOT_FINITE, OUTDATED, LONG, HUGE = 1, 2, 3, 4
"""Codes of the faults of an update; 0 is for none."""

FAULT_WORDS = {NOT_FINITE: "not finite", OUTDATED: "of an earlier round", LONG: "too long", HUGE: "huge"}
"""The faults in words."""


class Fault(NamedTuple):
    """A client in a round that was left out, or whose update was scaled down.

    Attributes:
        round: from 1.
        client: its id.
        why: a code; `LONG` is scaled down, the others are left out.
    """

    round: int
    client: int
    why: int


MOST_NAMED = 16
"""How many broken clients are recorded by name between two evaluations."""

MOST_SUMMARISED = 8
"""How many of them a run's summary names."""


class FaultCounts(NamedTuple):
    """Counts of broken clients since the last evaluation, in arrays of fixed size so that they can be saved.

    Attributes:
        excluded: left out.
        clipped: scaled down.
        named: round, client and code of the first of them, `Int64[16, 3]`, padded with zeros.
    """

    excluded: Any = np.int64(0)
    clipped: Any = np.int64(0)
    named: Any = np.zeros((MOST_NAMED, 3), np.int64)

    def plus(self, faults: Sequence[Fault]) -> "FaultCounts":
        """Adds the faults of a round."""
        long = sum(fault.why == LONG for fault in faults)
        rows = np.array([*self.named[self.named[:, 0] > 0], *sorted(faults), *np.zeros((MOST_NAMED, 3))], np.int64)
        return FaultCounts(self.excluded + len(faults) - long, self.clipped + long, rows[:MOST_NAMED])

    def record(self) -> dict[str, Any]:
        """The keys of a line of `metrics.jsonl`."""
        names = [[int(round), int(client), FAULT_WORDS[int(why)]] for round, client, why in self.named if round]
        return {"excluded": int(self.excluded), "clipped": int(self.clipped), "broken_clients": names}


def name_faults(rows: Sequence[Any], total: int) -> str | None:
    """Names the first few of `total` broken clients of a run; None without any.

    `rows` are round, client and fault of some of them, maybe from a damaged file: other entries are left out.
    """
    known = [row for row in rows if isinstance(row, list) and len(row) == 3]
    named = [f"client {client} in round {round} ({why})" for round, client, why in known[:MOST_SUMMARISED]]
    rest = total - len(named)
    return ", ".join(named) + (f", and {rest} more" if rest > 0 else "") if total else None
