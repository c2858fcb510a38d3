"""Computing speeds of clients, which determine who misses a deadline and how long a round takes."""

import dataclasses
import functools
import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from fedjax_bal.annotations import NonNegative, Positive, PositiveShare, checked
from fedjax_bal.selection.selectors import generator
from fedjax_bal.selection.tables import positive, read_csv, read_npz, whole
from fedjax_bal.types import Plan

Late = Literal["partial", "drop"]
_MOST = 2**31 - 1
_SLACK = 1 + 1e-9  # factor on a deadline, so that 0.3 seconds at 10 steps per second are 3 steps


@dataclasses.dataclass(frozen=True, eq=False)
class Speed:
    """Local steps per second of each client, and the treatment of late clients.

    Build it with one of the functions of this module.

    Attributes:
        law: "constant", "uniform", "lognormal" or "file".
        numbers: parameters of the law.
        table: `Float64[N]` for "file", else None.
        deadline: seconds that a client has for its work in a round; None for no deadline.
        late: treatment of a client that would take longer: "partial": it takes the steps that fit; "drop": it doesn't
            deliver.
        per_round: whether speeds are drawn in each round, rather than once for each client.
        source: the table's file, for messages.
    """

    law: str
    numbers: tuple[float, ...] = ()
    table: np.ndarray | None = None
    deadline: float | None = None
    late: str = "partial"
    per_round: bool = False
    source: str = ""

    def drawn(self, seed: int, round: int, clients: int) -> np.ndarray:
        """Returns the steps per second of each client in a round, `Float64[clients]`."""
        if self.table is not None:
            return self.table
        return _drawn(self.law, self.numbers, seed, round if self.per_round else 0, clients)

    def durations(self, seed: int, round: int, clients: np.ndarray, steps: np.ndarray, total: int) -> np.ndarray:
        """Returns the seconds that some of `total` clients take for numbers of steps, an array of the same shape."""
        return steps / self.drawn(seed, round, total)[clients]

    def limited(self, seed: int, round: int, plan: Plan, steps: np.ndarray, passes: int, clients: int) -> Plan:
        """Limits a plan to the steps that fit before the deadline.

        The full numbers of steps per pass are `steps`, `Int[G, L]`. With "partial" the result has limits, and clients
        that can't take a step in each pass don't deliver; with "drop" no late client delivers.
        """
        if self.deadline is None:
            return plan
        pace = self.drawn(seed, round, clients)[np.minimum(plan.clients, clients - 1)]
        fit = np.floor(np.minimum(self.deadline * pace / passes * _SLACK, _MOST)).astype(np.int32)
        if self.late == "drop":
            return plan._replace(delivered=plan.delivered & (steps <= fit))
        return plan._replace(delivered=plan.delivered & (fit >= 1), limits=fit)

    def seconds(self, seed: int, round: int, plan: Plan, steps: np.ndarray, passes: int, clients: int) -> float:
        """Computes a round's duration in seconds, for a plan from `limited` and full `steps` per pass, `Int[G, L]`.

        The server waits for the slowest chain. A client takes the duration of its steps, at most until the deadline;
        for a client that doesn't deliver, the server waits until the deadline, or not at all without a deadline.
        """
        seconds = self._seconds(seed, round, plan, passes * steps, clients)
        deadline = self._deadline(seconds, plan.clients < clients)
        missing = 0.0 if deadline is None else deadline
        in_time = seconds if deadline is None else np.minimum(seconds, deadline)
        seconds = np.where(plan.delivered, in_time, missing)
        return float((seconds * (plan.clients < clients)).sum(1).max(initial=0.0))

    def _seconds(self, seed: int, round: int, plan: Plan, steps: np.ndarray, clients: int) -> np.ndarray:
        """Looks up the seconds of each place of a plan, `Float64[G, L]`; meaningless at empty places."""
        return self.durations(seed, round, np.minimum(plan.clients, clients - 1), steps, clients)

    def _deadline(self, seconds: np.ndarray, places: np.ndarray) -> float | None:
        """Returns a round's deadline, for the seconds of a plan and its places that aren't empty."""
        return self.deadline

    def check_clients(self, clients: int) -> None:
        """Raises `ValueError` if the table has a different number of clients."""
        if self.table is not None and len(self.table) != clients:
            raise ValueError(f"{self.source}: has {len(self.table)} speeds, but there are {clients} clients")

    def check_deadline(self, steps: np.ndarray, passes: int) -> None:
        """Raises `ValueError` if no client can meet the deadline with its `steps` per pass, `Int[N]`."""
        if self.deadline is None or self.law == "lognormal":  # lognormal speeds have no upper limit
            return
        fastest = np.full(len(steps), max(self.numbers)) if self.table is None else self.table
        needed = steps if self.late == "drop" else np.minimum(steps, 1)
        shortest = np.where(steps > 0, needed * passes / fastest, np.inf).min()
        if self.deadline * _SLACK < shortest:
            raise ValueError(
                f"speed.deadline: received {self.deadline:g}, before which no client can "
                f"{'finish' if self.late == 'drop' else 'take a single step in each local training'}; the fastest "
                f"needs {shortest:.3g} seconds: give them longer, or higher speeds"
            )

    @property
    def limit(self) -> str:
        """The key and value of what leaves late clients out; empty if nothing does."""
        return "" if self.deadline is None else f"deadline: received {self.deadline:g}"

    @property
    def digest(self) -> bytes | None:
        """SHA-256 of the table; None without a table."""
        return None if self.table is None else hashlib.sha256(self.table.tobytes()).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class Latency(Speed):
    """Seconds that clients take for a round, whatever their number of steps. Build it with `latency`.

    Attributes:
        on_time: the share of a cohort for which the server waits; None if there is a deadline or none.
    """

    on_time: float | None = None

    def drawn(self, seed: int, round: int, clients: int) -> np.ndarray:
        """Returns the seconds of each client in a round, `Float64[clients]`."""
        mean, deviation = self.numbers
        draws = generator(seed, "speed", round if self.per_round else 0).standard_normal(clients)
        return np.maximum(mean + deviation * draws, 0.0)

    def durations(self, seed: int, round: int, clients: np.ndarray, steps: np.ndarray, total: int) -> np.ndarray:
        """Returns the seconds that clients take; 0 for one that takes no step."""
        return self.drawn(seed, round, total)[clients] * (steps > 0)

    def limited(self, seed: int, round: int, plan: Plan, steps: np.ndarray, passes: int, clients: int) -> Plan:
        """Leaves out the clients that are late."""
        seconds = self._seconds(seed, round, plan, passes * steps, clients)
        deadline = self._deadline(seconds, plan.clients < clients)
        return plan if deadline is None else plan._replace(delivered=plan.delivered & (seconds <= deadline * _SLACK))

    def check_deadline(self, steps: np.ndarray, passes: int) -> None:
        """Raises `ValueError` if a client would have to be eight deviations faster than the mean."""
        mean, deviation = self.numbers
        if self.deadline is not None and self.deadline < mean - 8 * deviation:
            raise ValueError(
                f"speed.deadline: received {self.deadline:g}, before which no client can finish; they take {mean:g} "
                f"seconds on average, with a deviation of {deviation:g}: give them longer"
            )

    @property
    def limit(self) -> str:
        """The key and value of what leaves late clients out; empty if nothing does."""
        return super().limit if self.on_time is None else f"on_time: received {self.on_time:g}"

    def _deadline(self, seconds: np.ndarray, places: np.ndarray) -> float | None:
        if self.on_time is None:
            return self.deadline
        ordered = np.sort(seconds[places])
        return float(ordered[max(int(np.rint(len(ordered) * self.on_time)) - 1, 0)]) if len(ordered) else 0.0


@checked
def latency(
    mean: Positive = 55.0,
    deviation: NonNegative = 4.36,
    deadline: Positive | None = None,
    on_time: PositiveShare | None = None,
    per_round: bool = True,
) -> Latency:
    """Draws the seconds in which a client downloads, trains and uploads from a normal distribution, whatever its steps.

    Late updates are lost.

    Args:
        mean: mean number of seconds, above 0.
        deviation: standard deviation, at least 0; a negative draw is 0 seconds.
        deadline: seconds that a client has in a round; None for no deadline.
        on_time: the share of the cohort for which the server waits, in (0, 1]; excludes `deadline`.
        per_round: draw in each round, rather than once for each client.

    Raises:
        ValueError: a value out of range, or both a deadline and a share.

    Example:
        >>> latency(on_time=0.8).drawn(0, 0, 1000).mean().round().item()
        55.0

    References:
        DPFL (Lee et al., 2025, arXiv 2511.16523), whose code adds normal latencies of 10 +- 3 (download), 30 +- 1
        (training) and 15 +- 3 seconds (upload): the defaults; its `deadline_percentile` is `on_time`. There a late
        client goes on training and its update counts in the round in which it arrives, as with the selector `buffered`
        here.
    """
    if deadline is not None and on_time is not None:
        raise ValueError(f"on_time: received {on_time:g} and deadline={deadline:g}; leave one of the two out")
    return Latency("latency", (mean, deviation), deadline=deadline, late="drop", per_round=per_round, on_time=on_time)


@checked
def constant(steps_per_s: Positive, deadline: Positive | None = None, late: Late = "partial") -> Speed:
    """Gives every client the same speed.

    Args:
        steps_per_s: local steps per second, above 0.
        deadline: seconds that a client has for its work in a round; None for no deadline.
        late: "partial", a late client does the steps that fit; "drop", it doesn't deliver.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> constant(4.0).drawn(0, 0, 2).tolist()
        [4.0, 4.0]
    """
    return Speed("constant", (steps_per_s,), deadline=deadline, late=late)


@checked
def uniform(
    low: Positive, high: Positive, deadline: Positive | None = None, late: Late = "partial", per_round: bool = False
) -> Speed:
    """Draws speeds uniformly from a range.

    Args:
        low: lowest number of steps per second, above 0.
        high: highest number of steps per second, at least `low`.
        deadline: seconds that a client has for its work in a round; None for no deadline.
        late: "partial", a late client does the steps that fit; "drop", it doesn't deliver.
        per_round: draw in each round, rather than once for each client.

    Raises:
        ValueError: a value out of range.

    References:
        FedProx (Li et al., 2020), section 5.2, where stragglers do a random number of epochs: with `per_round`.
    """
    if high < low:
        raise ValueError(f"high: received {high:g}, must be at least low={low:g}")
    return Speed("uniform", (low, high), deadline=deadline, late=late, per_round=per_round)


@checked
def lognormal(
    median: Positive,
    sigma: Annotated[float, Ge(0), Le(10)],
    deadline: Positive | None = None,
    late: Late = "partial",
    per_round: bool = False,
) -> Speed:
    r"""Draws speeds $m e^{\sigma z}$ with z normal: a few devices are far slower than most.

    Args:
        median: m, steps per second, above 0.
        sigma: the standard deviation of the logarithm, from 0 to 10.
        deadline: seconds that a client has for its work in a round; None for no deadline.
        late: "partial", a late client does the steps that fit; "drop", it doesn't deliver.
        per_round: draw in each round, rather than once for each client.

    Raises:
        ValueError: a value out of range.
    """
    return Speed("lognormal", (median, sigma), deadline=deadline, late=late, per_round=per_round)


@checked
def table(file: str | os.PathLike[str], deadline: Positive | None = None, late: Late = "partial") -> Speed:
    """Reads speeds from a file.

    Args:
        file: a CSV file with the columns `client,steps_per_s`, a line for each client, counted from 0; or an npz file
            with one array `[clients]`, called `steps_per_s` if the file has several.
        deadline: seconds that a client has for its work in a round; None for no deadline.
        late: "partial", a late client does the steps that fit; "drop", it doesn't deliver.

    Raises:
        ValueError: the file can't be used; the message says where and why.
    """
    path = Path(file)
    if path.suffix == ".npz":
        speeds = read_npz(path, "steps_per_s", 1).astype(np.float64)
        if not (speeds > 0).all():
            raise ValueError(f"{path}: client {int(np.argmin(speeds))}: received {speeds.min():g}, must be above 0")
    else:
        lines = read_csv(path, [("client", "steps_per_s")], {"client": whole(), "steps_per_s": positive})
        order = np.argsort(lines[:, 0], kind="stable")
        if not np.array_equal(lines[order, 0], np.arange(len(lines))):
            raise ValueError(f"{path}: must have one line for each client, numbered from 0, here to {len(lines) - 1}")
        speeds = lines[order, 1]
    return Speed("file", table=speeds, deadline=deadline, late=late, source=str(path))


def unlimited() -> None:
    """Simulates no time: no client is ever late."""
    return


SPEEDS: dict[str, Any] = {
    "unlimited": unlimited,
    "constant": constant,
    "uniform": uniform,
    "lognormal": lognormal,
    "latency": latency,
    "file": table,
}
"""The functions that build speeds, by the name of their law."""


@functools.lru_cache(maxsize=4)
def _drawn(law: str, numbers: tuple[float, ...], seed: int, round: int, clients: int) -> np.ndarray:
    if law == "constant":
        speeds = np.full(clients, numbers[0])
    elif law == "uniform":
        speeds = generator(seed, "speed", round).uniform(numbers[0], numbers[1], clients)
    else:
        speeds = numbers[0] * np.exp(numbers[1] * generator(seed, "speed", round).standard_normal(clients))
    speeds.flags.writeable = False
    return speeds
