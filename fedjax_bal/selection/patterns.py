"""Patterns of presence over rounds: clients that come and go, take turns, arrive or leave."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedjax_bal.annotations import Count, CountOrZero, PositiveShare, checked
from fedjax_bal.selection.selectors import generator


@dataclasses.dataclass(frozen=True)
class Markov:
    """Presence of clients that depends on whether they were present in the previous round.

    Attributes:
        probabilities: client i is present in a share `probabilities[i % len(probabilities)]` of all rounds, and in
            round 0 with this probability; each in (0, 1].
        arrival: the probability that an absent client is present in the next round, in (0, 1]; lower for a client that
            could otherwise not be absent often enough.
    """

    probabilities: tuple[float, ...]
    arrival: float

    def mask(self, seed: int, purpose: str, round: int, eligible: np.ndarray) -> np.ndarray:
        """Draws the eligible clients that are present, `Bool[N]`, possibly none."""
        clients = len(eligible)
        share = np.resize(self.probabilities, clients)
        arrives = np.minimum(self.arrival, share / np.maximum(1 - share, 1e-300))
        stays = 1 - np.minimum(arrives * (1 / share - 1), 1.0)
        # A number u is drawn for each client and round: an absent client comes if u < arrives, a present one stays if
        # u < stays. If both hold, or neither, the client's earlier state doesn't matter, so that few rounds are looked
        # at, from the last one backwards, and any round can be drawn without those before it.
        present = np.zeros(clients, bool)
        flipped = np.zeros(clients, bool)
        unknown = np.ones(clients, bool)
        for number in range(round, 0, -1):
            draws = generator(seed, purpose, number).random(clients)
            comes = draws < arrives
            known = unknown & (comes == (draws < stays))
            present[known] = comes[known] ^ flipped[known]
            unknown &= ~known
            flipped ^= comes & (draws >= stays)
            if not unknown.any():
                break
        first = generator(seed, purpose, 0).random(clients) < share
        present[unknown] = first[unknown] ^ flipped[unknown]
        return present & eligible


@checked
def markov(p: Sequence[PositiveShare] = (0.5,), arrival: PositiveShare = 0.2) -> Markov:
    """Clients come and go: whether a client is present depends on whether it was in the previous round.

    An absent client comes with probability a, a present one leaves with probability a (1 / p - 1), so that it is
    present in a share p of all rounds. The defaults are those of DPFL, where a client stays as it is with probability
    0.8. If a present client would have to leave with a probability above 1, it always leaves, and a is p / (1 - p).

    Args:
        p: shares of rounds, each in (0, 1]; client i has `p[i % len(p)]`.
        arrival: a, in (0, 1].

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> pattern = markov([0.5], arrival=0.01)
        >>> masks = np.array([pattern.mask(0, "availability", t, np.ones(500, bool)) for t in (0, 1, 2)])
        >>> bool((masks[0] == masks[1]).mean() > 0.95), bool(0.4 < masks[2].mean() < 0.6)
        (True, True)

    References:
        DPFL (Lee et al., 2025, arXiv 2511.16523), whose code makes a random client present in a round without any, and
        FedAU (Wang and Ji, 2024), "markov".
    """
    return Markov(tuple(p), arrival)


@dataclasses.dataclass(frozen=True)
class Cyclic:
    """Presence of clients for some consecutive rounds of each cycle.

    Attributes:
        probabilities: client i is present in a share `probabilities[i % len(probabilities)]` of a cycle, rounded to
            whole rounds, at least 1 and at most all but one.
        cycle: the length of the cycle in rounds.
    """

    probabilities: tuple[float, ...]
    cycle: int

    def mask(self, seed: int, purpose: str, round: int, eligible: np.ndarray) -> np.ndarray:
        """Returns the eligible clients that are present, `Bool[N]`; when a client's cycle begins is drawn once."""
        clients = len(eligible)
        here = np.clip(np.rint(self.cycle * np.resize(self.probabilities, clients)), 1, self.cycle - 1)
        begins = np.floor(generator(seed, purpose, 0).random(clients) * (self.cycle - here))
        return ((round - begins) % self.cycle < here) & eligible


@checked
def cyclic(p: Sequence[PositiveShare] = (0.5,), cycle: Annotated[Count, Ge(2)] = 100) -> Cyclic:
    """Each client alternates between some consecutive rounds of presence and some of absence.

    Args:
        p: shares of a cycle, each in (0, 1]; client i has `p[i % len(p)]`, rounded to whole rounds, of which it is
            present in at least one, and absent in at least one.
        cycle: length of a cycle in rounds, at least 2.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> masks = [cyclic([0.4], 5).mask(0, "availability", t, np.ones(1, bool))[0] for t in range(10)]
        >>> sum(map(int, masks)), masks[:5] == masks[5:]
        (4, True)

    References:
        FedAU (Wang and Ji, 2024), "cyclic": when a client's first presence begins is drawn from the rounds of its
        absence, as in the authors' code.
    """
    return Cyclic(tuple(p), cycle)


@dataclasses.dataclass(frozen=True)
class Window:
    """A range of consecutive clients, numbered in a circle, that changes every few rounds.

    Attributes:
        clients: the number of clients before the first change; None for all.
        growth: the number of clients by which it grows with every change.
        shift: the number of clients by which its first client moves with every change.
        start: the round, from 0, of the first change.
        interval: rounds from one change to the next.
    """

    clients: int | None
    growth: int
    shift: int
    start: int
    interval: int

    def mask(self, seed: int, purpose: str, round: int, eligible: np.ndarray) -> np.ndarray:
        """Returns the eligible clients that are present, `Bool[N]`; ignores seed and purpose."""
        total = len(eligible)
        changes = 0 if round < self.start else (round - self.start) // self.interval + 1
        size = (total if self.clients is None else self.clients) + self.growth * changes
        return ((np.arange(total) - self.shift * changes) % total < size) & eligible


@checked
def arrival(
    initial_clients: CountOrZero = 5,
    round_start: CountOrZero = 50,
    interval: Count = 10,
    clients_per_interval: Count = 1,
) -> Window:
    """The first clients are present from the start; the others arrive one by one, in order, and stay.

    Args:
        initial_clients: the number of clients that are present from the beginning.
        round_start: the round, from 0, in which the next ones arrive.
        interval: rounds from one arrival to the next.
        clients_per_interval: the number of clients that arrive at a time.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> pattern = arrival(initial_clients=1, round_start=2, interval=2)
        >>> [pattern.mask(0, "availability", t, np.ones(3, bool)).sum().item() for t in range(6)]
        [1, 1, 2, 2, 3, 3]

    References:
        DPFL (Lee et al., 2025, arXiv 2511.16523), "incremental-arrival", with the defaults of its code.
    """
    return Window(initial_clients, clients_per_interval, 0, round_start, interval)


@checked
def departure(round_start: CountOrZero = 50, interval: Count = 10, clients_per_interval: Count = 1) -> Window:
    """All clients are present at the start and leave for good, one by one, the last one first.

    Args:
        round_start: the round, from 0, in which the first ones leave.
        interval: rounds from one departure to the next.
        clients_per_interval: the number of clients that leave at a time.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> pattern = departure(round_start=2, interval=2)
        >>> [pattern.mask(0, "availability", t, np.ones(3, bool)).sum().item() for t in range(6)]
        [3, 3, 2, 2, 1, 1]

    References:
        DPFL (Lee et al., 2025, arXiv 2511.16523), "incremental-departure", with the defaults of its code.
    """
    return Window(None, -clients_per_interval, 0, round_start, interval)


@checked
def rotation(interval: Count = 10, clients_per_interval: Count = 1, overlap_clients: CountOrZero = 0) -> Window:
    """A group of clients is present for an interval, then the next group, in order and cyclically.

    Args:
        interval: rounds for which the same clients are present.
        clients_per_interval: the number of clients that are present in a round.
        overlap_clients: how many of them are still present in the next interval; below `clients_per_interval`.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> pattern = rotation(interval=2, clients_per_interval=2, overlap_clients=1)
        >>> [np.flatnonzero(pattern.mask(0, "availability", t, np.ones(4, bool))).tolist() for t in (0, 1, 2, 4, 6)]
        [[0, 1], [0, 1], [1, 2], [2, 3], [0, 3]]

    References:
        DPFL (Lee et al., 2025, arXiv 2511.16523), "round-robin". In its code one client is present, and one overlaps,
        by default, so that no other client ever is.
    """
    if overlap_clients >= clients_per_interval:
        raise ValueError(
            f"overlap_clients: received {overlap_clients}, must be below clients_per_interval={clients_per_interval}, "
            "or the same clients would always be present"
        )
    return Window(clients_per_interval, 0, clients_per_interval - overlap_clients, interval, interval)
