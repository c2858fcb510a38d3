"""Counts from round to round: clients, bytes and simulated time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_bal.metrics.faults import Fault, FaultCounts

if TYPE_CHECKING:
    from fedjax_bal.types import Plan


class Traffic(NamedTuple):
    """Bytes between the server and one client.

    Of the model, leaves that stay with the clients, and those that never change, aren't sent.

    Attributes:
        down: in a round, of the model and the broadcasts of server parts.
        up: in a round, of the update, the reports, the probes, and the loss if the server uses it.
        closing_down: before an evaluation, of the model; 0 without a closing round.
        closing_up: before an evaluation, of the reports of a closing round.
    """

    down: int
    up: int
    closing_down: int = 0
    closing_up: int = 0


class Counts(NamedTuple):
    """Counts since the last evaluation, as NumPy scalars so that they can be saved."""

    clients: Any = np.int64(0)
    dropped: Any = np.int64(0)
    bytes_up: Any = np.int64(0)
    bytes_down: Any = np.int64(0)
    simulated_s: Any = np.float64(0)
    broken: FaultCounts | None = None

    def record(self, timed: bool) -> dict[str, Any]:
        """The keys of a line of `metrics.jsonl`; the time if clients have speeds, faults if they don't end the run."""
        numbers = ("clients", "dropped", "bytes_up", "bytes_down")
        counts = {name: int(getattr(self, name)) for name in numbers}
        timing = {"simulated_s": float(self.simulated_s)} if timed else {}
        return counts | timing | (self.broken.record() if self.broken is not None else {})

    def closed(self, clients: int, bytes_: Traffic) -> "Counts":
        """Adds a closing round of all clients."""
        return self._replace(
            bytes_up=self.bytes_up + clients * bytes_.closing_up,
            bytes_down=self.bytes_down + clients * bytes_.closing_down,
        )

    def noted(self, faults: Sequence[Fault]) -> "Counts":
        """Adds the faults of a round."""
        return self if self.broken is None else self._replace(broken=self.broken.plus(faults))


def count_round(
    counts: Counts,
    plan: "Plan",
    num_clients: int,
    passes: int,
    bytes_: Traffic,
    exact: bool = False,
    seconds: float = 0.0,
) -> Counts:
    r"""Adds a round.

    A chain has a mediator, which exchanges models with its clients and once with the server, unless it is one client
    that trains once. The bytes of models are then $2 |w| (\lceil c / \gamma \rceil + c)$ for c clients, gamma a chain;
    exactly, the second c counts once a pass.

    Args:
        counts: the counts before the round.
        plan: the round's plan.
        num_clients: N.
        passes: how often a chain goes through its clients.
        bytes_: of one exchange.
        exact: count a client's exchanges in every pass, and not once, as the formula does.
        seconds: how long the round takes by the clients' speeds.

    Returns:
        The counts after it; a client that doesn't deliver has received the model all the same.

    Example:
        >>> from fedjax_bal.types import Plan
        >>> plan = Plan(np.array([[0, 1], [2, 5]]), np.array([[True, False], [True, False]]))
        >>> [int(number) for number in count_round(Counts(), plan, 5, 1, Traffic(down=10, up=7), seconds=3.0)[:5]]
        [2, 1, 28, 50, 3]

    References:
        Astraea (Duan et al., 2019), section IV-C.
    """
    selected = plan.clients < num_clients
    asked, delivered = int(selected.sum()), int(plan.delivered.sum())
    mediated, exchanges = plan.clients.shape[1] * passes > 1, passes if exact else 1
    opened, returned = (int(mask.any(1).sum()) if mediated else 0 for mask in (selected, plan.delivered))
    return counts._replace(
        clients=counts.clients + delivered,
        dropped=counts.dropped + asked - delivered,
        bytes_up=counts.bytes_up + (delivered * exchanges + returned) * bytes_.up,
        bytes_down=counts.bytes_down + (asked * exchanges + opened) * bytes_.down,
        simulated_s=counts.simulated_s + seconds,
    )
