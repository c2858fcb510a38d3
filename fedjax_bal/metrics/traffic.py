"""Counts over rounds: clients, bytes, simulated time, and faults of updates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fedjax_bal.types import Plan

NOT_FINITE, OUTDATED, LONG, HUGE = range(1, 5)
"""Codes of the faults of an update; 0 is no fault."""

FAULT_WORDS = {NOT_FINITE: "not finite", OUTDATED: "of an earlier round", LONG: "too long", HUGE: "huge"}
"""The descriptions of the faults."""


class Fault(NamedTuple):
    """A fault of a client in a round: its update was left out or scaled down.

    Attributes:
        round: the round, from 1.
        client: the client's id.
        why: the code of the fault; an update with `LONG` is scaled down, others are left out.
    """

    round: int
    client: int
    why: int


MOST_NAMED = 16
"""The largest number of faults that are recorded one by one between two evaluations."""

MOST_SUMMARISED = 8
"""The largest number of them that a run's summary names."""


class FaultCounts(NamedTuple):
    """Counts of broken clients since the last evaluation, in arrays of fixed size so that they can be saved.

    Attributes:
        excluded: the number of updates left out.
        clipped: the number of updates scaled down.
        named: round, client and code of the first faults, `Int64[16, 3]`, padded with zeros.
    """

    excluded: Any = np.int64(0)
    clipped: Any = np.int64(0)
    named: Any = np.zeros((MOST_NAMED, 3), np.int64)

    def plus(self, faults: Sequence[Fault]) -> "FaultCounts":
        """Adds the faults of a round."""
        long = sum(fault.why == LONG for fault in faults)
        rows = np.array([*self.named[self.named[:, 0] > 0], *sorted(faults), *np.zeros((MOST_NAMED, 3))], np.int64)
        return FaultCounts(self.excluded + len(faults) - long, self.clipped + long, rows[:MOST_NAMED])

    def record(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Returns the counts under their keys in `metrics.jsonl`; clients by their `names`, or their numbers."""
        called = lambda client: int(client) if names is None else names[client]
        rows = [[int(round), called(client), FAULT_WORDS[int(why)]] for round, client, why in self.named if round]
        return {"excluded": int(self.excluded), "clipped": int(self.clipped), "broken_clients": rows}


class Traffic(NamedTuple):
    """Bytes between the server and one client, in one round or before one evaluation.

    Leaves of the model that stay with the clients or never change aren't sent.

    Attributes:
        down: bytes of the model and of server parts' broadcasts.
        up: bytes of the update, the reports, the probes, and the loss if the server uses it.
    """

    down: int
    up: int


class RoundCounts(NamedTuple):
    """Counts since the last evaluation, as NumPy scalars so that they can be saved."""

    clients: Any = np.int64(0)
    dropped: Any = np.int64(0)
    bytes_up: Any = np.int64(0)
    bytes_down: Any = np.int64(0)
    simulated_s: Any = np.float64(0)
    broken: FaultCounts | None = None

    def record(self, timed: bool, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Returns the counts under their keys in `metrics.jsonl`; time only if `timed`, faults only if counted.

        `names` are the clients'.
        """
        numbers = ("clients", "dropped", "bytes_up", "bytes_down")
        counts = {name: int(getattr(self, name)) for name in numbers}
        timing = {"simulated_s": float(self.simulated_s)} if timed else {}
        return counts | timing | (self.broken.record(names) if self.broken is not None else {})

    def closed(self, clients: int, bytes_: Traffic) -> "RoundCounts":
        """Adds the bytes that all clients exchange with the server before an evaluation."""
        up = self.bytes_up + clients * bytes_.up
        down = self.bytes_down + clients * bytes_.down
        return self._replace(bytes_up=up, bytes_down=down)

    def noted(self, faults: Sequence[Fault]) -> "RoundCounts":
        """Adds the faults of a round."""
        return self if self.broken is None else self._replace(broken=self.broken.plus(faults))


def count_round(
    counts: RoundCounts,
    plan: "Plan",
    num_clients: int,
    passes: int,
    bytes_: Traffic,
    exact: bool = False,
    seconds: float = 0.0,
) -> RoundCounts:
    r"""Adds a round to the counts.

    A chain has a mediator, which exchanges models with its clients and once with the server, unless it is one client
    that trains once. The bytes of models are then $2 |w| (\lceil c / \gamma \rceil + c)$ for c clients, gamma per
    chain; if `exact`, the second c counts once per pass.

    Args:
        counts: the counts before the round.
        plan: the round's plan.
        num_clients: N.
        passes: the number of passes of a chain through its clients.
        bytes_: the bytes of one exchange.
        exact: count a client's exchanges in every pass, and not once, as the formula does.
        seconds: the duration of the round, from the clients' speeds.

    Returns:
        The counts after the round, with the bytes that clients receive even if they don't deliver.

    Example:
        >>> from fedjax_bal.types import Plan
        >>> plan = Plan(np.array([[0, 1], [2, 5]]), np.array([[True, False], [True, False]]))
        >>> [int(number) for number in count_round(RoundCounts(), plan, 5, 1, Traffic(down=10, up=7), seconds=3.0)[:5]]
        [2, 1, 28, 50, 3]

    References:
        Astraea (Duan et al., 2019), section IV-C.
    """
    selected = plan.clients < num_clients
    asked = int(selected.sum())
    delivered = int(plan.delivered.sum())
    exchanges = passes if exact else 1
    opened = returned = 0
    if plan.clients.shape[1] * passes > 1:
        opened = int(selected.any(1).sum())
        returned = int(plan.delivered.any(1).sum())
    return counts._replace(
        clients=counts.clients + delivered,
        dropped=counts.dropped + asked - delivered,
        bytes_up=counts.bytes_up + (delivered * exchanges + returned) * bytes_.up,
        bytes_down=counts.bytes_down + (asked * exchanges + opened) * bytes_.down,
        simulated_s=counts.simulated_s + seconds,
    )


def name_faults(rows: Sequence[Any], total: int, most: int = MOST_SUMMARISED) -> str | None:
    """Names the first of `total` faults, at most `most`; None if there are none.

    `rows` are round, client and description of some of them, perhaps from a damaged file: invalid ones are left out.
    """
    complete = [row for row in rows if isinstance(row, list) and len(row) == 3]
    named = [f"client {client} in round {round} ({why})" for round, client, why in complete[:most]]
    rest = total - len(named)
    return ", ".join(named) + (f", and {rest} more" if rest > 0 else "") if total else None
