"""Updates that can't be used: their codes, and how many there were."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

NOT_FINITE, OUTDATED, LONG, HUGE = 1, 2, 3, 4
"""Codes of what can be wrong with an update; 0 is for nothing."""

FAULT_WORDS = {NOT_FINITE: "not finite", OUTDATED: "of an earlier round", LONG: "too long", HUGE: "huge"}
"""What is wrong, in words."""


class Fault(NamedTuple):
    """One client in one round that was left out, or whose update was scaled down.

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
    """What became of broken clients since the last evaluation, in arrays of fixed size so that they can be saved.

    Attributes:
        excluded: left out.
        clipped: scaled down.
        named: round, client and code of the first of them, `Int64[NAMED, 3]`; zeros behind.
    """

    excluded: Any = np.int64(0)
    clipped: Any = np.int64(0)
    named: Any = np.zeros((MOST_NAMED, 3), np.int64)

    def plus(self, faults: Sequence[Fault]) -> "FaultCounts":
        """With the faults of a round."""
        long = sum(fault.why == LONG for fault in faults)
        rows = np.array([*self.named[self.named[:, 0] > 0], *sorted(faults), *np.zeros((MOST_NAMED, 3))], np.int64)
        return FaultCounts(self.excluded + len(faults) - long, self.clipped + long, rows[:MOST_NAMED])

    def record(self) -> dict[str, Any]:
        """What to write down."""
        names = [[int(round), int(client), FAULT_WORDS[int(why)]] for round, client, why in self.named if round]
        return {"excluded": int(self.excluded), "clipped": int(self.clipped), "broken_clients": names}


def name_faults(rows: Sequence[Any], total: int) -> str | None:
    """The first few broken clients of a run, in words.

    Args:
        rows: round, client and why of those that are known by name, maybe from a file: what isn't that is passed over.
        total: how many there are.

    Returns:
        The text; None where there are none.

    Example:
        >>> name_faults([[5, 3, "not finite"]], 2)
        'client 3 in round 5 (not finite), and 1 more'
    """
    known = [row for row in rows if isinstance(row, list) and len(row) == 3]
    named = [f"client {client} in round {round} ({why})" for round, client, why in known[:MOST_SUMMARISED]]
    rest = total - len(named)
    return ", ".join(named) + (f", and {rest} more" if rest > 0 else "") if total else None
