"""Astraea's mediators: groups of clients whose joint classes are close to balanced."""

import functools
import math
from typing import Any, Literal

import numpy as np

from fedjax_bal.annotations import Count, checked
from fedjax_bal.selection.greedy import check_clients, check_table, smallest, spans
from fedjax_bal.selection.selectors import Selector, generator, open_loop, sample

Pool = Literal["counts", "distributions", "halves"]

_ABSENT = 1e-30  # in place of a count of 0, so that 0 log 0 is 0
_REWRITE_BELOW = 0.75  # share of columns still in use below which the table is rewritten


@checked
def mediators(class_counts: Any, size: Count, *, pool: Pool = "counts") -> list[np.ndarray]:
    r"""Groups clients greedily, so that the joint class distribution of each group is as balanced as possible.

    A group starts empty and repeatedly adds the client k with the smallest
    $KL(P_{m \cup k} \| U) = \log C - H(P_{m \cup k})$, where P is the class distribution of the group with this client.
    When it is full, the next group is started; its first member is therefore the remaining client with the most uniform
    classes. Equal divergences (within 1e-12 nats) go to the lowest client id.

    Every step scores all remaining clients in 32 bits, and rescores in 64 bits those that are best within rounding
    error. Time grows as N^2 C, regardless of the size of the groups.

    Args:
        class_counts: `[N, C]`, samples of each client by class, augmented copies included.
        size: gamma, clients per group, at least 1.
        pool: quantity that is summed in a group: `"counts"`, samples; `"distributions"`, class shares, as if all
            clients had equally many samples; `"halves"`, the client's class shares plus those of the group's samples,
            as if client and group had equally many.

    Returns:
        ceil(K / size) arrays of client ids for K clients with samples, members in the order they were added; the last
        one may be short. Clients without samples are in no group.

    Raises:
        ValueError: an argument has the wrong type or is out of range.

    Example:
        >>> import numpy as np
        >>> [group.tolist() for group in mediators(np.array([[4, 0], [1, 3], [0, 0], [3, 1], [0, 5]]), 2)]
        [[1, 3], [0, 4]]

    References:
        Astraea (Duan et al., 2019), Algorithm 3. Its P_m + P_i is ambiguous: section III-B calls P_m and P_i the
        probability distributions of mediator and client, literally `"halves"`; the text speaks of the distribution of
        the mediator's data, which is `"counts"`, and gives the most balanced groups of the three.
    """
    counts = check_table("class_counts", class_counts, "the samples of each client by class")
    clients = np.flatnonzero(counts.sum(1) > 0)
    rows = counts[clients]
    if pool != "counts":
        rows /= rows.sum(1, keepdims=True)
    order = clients[_grouping_order(rows, size, counts[clients] if pool == "halves" else None)]
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


@checked
def mediated(
    clients_per_round: Count,
    size: Count,
    passes: Count = 2,
    resched: Literal["per_round", "once"] = "per_round",
    order: Literal["fixed", "shuffled"] = "fixed",
    pool: Pool = "counts",
    *,
    class_counts: Any,
) -> Selector:
    """Groups clients into mediators, which train in parallel; each trains its clients one after another.

    Rescheduled per round, the clients that `uniform` draws are grouped. Rescheduled once, all clients of the federation
    are grouped at the start, and each round draws ceil(c / size) of the groups that have available clients; unavailable
    members are skipped.

    Args:
        clients_per_round: c, at least 1.
        size: gamma, clients per mediator.
        passes: mediator epochs, a mediator's number of passes over its clients.
        resched: when clients are grouped, `"per_round"` or `"once"`.
        order: training order within a mediator: `"fixed"`, as clients were added, or `"shuffled"`, drawn for each seed
            and round. All passes of a round share it.
        pool: see `mediators`.
        class_counts: `[N, C]`, known to the server.

    Returns:
        A selector of ceil(c / size) chains of `size` clients.

    Raises:
        ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> import numpy as np
        >>> selector = mediated(4, 2, class_counts=np.eye(4))
        >>> clients, _ = selector.select(selector.init(0, 4), 0, 0, np.ones(4, bool))
        >>> clients.tolist()
        [[0, 1], [2, 3]]

    References:
        Astraea, Algorithms 1 and 3. Algorithm 3 seems to group all clients, but the paper's cost estimate counts the
        online ones, which are grouped by default here.
    """
    counts = check_table("class_counts", class_counts, "the samples of each client by class")
    wanted = clients_per_round
    groups = math.ceil(wanted / size)
    size = min(size, max(wanted if resched == "per_round" else len(counts), 1))
    all_groups = functools.cache(lambda: mediators(counts, size, pool=pool))

    def select(state: tuple, seed: int, round: int, available: np.ndarray) -> tuple[np.ndarray, tuple]:
        rng = generator(seed, "selection", round)
        if resched == "per_round":
            online = np.sort(sample(rng, available, wanted))
            chosen = [online[group] for group in mediators(counts[online], size, pool=pool)]
        else:
            present = [group[available[group]] for group in all_groups()]
            nonempty = np.array([len(group) > 0 for group in present], bool)
            chosen = [present[i] for i in sample(rng, nonempty, groups)]
        if order == "shuffled":
            chosen = list(map(generator(seed, "order in a chain", round).permutation, chosen))
        clients = np.full((groups, size), len(available), np.int32)  # the number of clients marks empty places
        for chain, group in zip(clients, chosen, strict=False):
            chain[: len(group)] = group
        return clients, state

    def init(seed: int, num_clients: int) -> tuple:
        check_clients("class_counts", len(counts), num_clients)
        return ()

    most = wanted if resched == "per_round" else min(groups * size, len(counts))
    return open_loop(select, groups, init, size, passes, most)


def _grouping_order(rows: np.ndarray, size: int, counts: np.ndarray | None) -> np.ndarray:
    """Returns the order in which the rows `Float[K, C]` join groups.

    A row is added to the sum of the group's rows or, given `counts` `[K, C]`, to the class shares of its members.
    """
    left = _Ungrouped(rows, size)
    order = np.empty(len(rows), np.int64)
    summed = rows if counts is None else counts
    total = np.zeros(rows.shape[1])
    for position in range(len(rows)):
        if position % size == 0:
            total = np.zeros(rows.shape[1])
        halved = counts is not None and total.any()
        order[position] = left.take(total / total.sum() if halved else total)
        total = total + summed[order[position]]
    return order


class _Ungrouped:
    """The ungrouped rows, each distinct row once, as 32-bit columns, the layout that is fastest to scan."""

    def __init__(self, rows: np.ndarray, size: int) -> None:
        numbers_of_row: dict[bytes, list[int]] = {}
        for number, row in enumerate(rows):
            numbers_of_row.setdefault(row.tobytes(), []).append(number)
        self.waiting = [iter(numbers) for numbers in numbers_of_row.values()]
        self.first = np.array([next(numbers) for numbers in self.waiting], np.int64)
        self.kinds = rows[self.first]
        self.classes = rows.shape[1]
        logs = np.abs(np.log(rows.sum(1)[:, None] * (1.0, size))).max(initial=0.0)
        # Twice the rounding error of sum T log T / sum T, because both compared scores have it: a few units in the last
        # place for each T, for its logarithm and for their product, and one for each addition.
        self.slack = 2.0**-23 * (self.classes + 8) * (1 + math.log(self.classes) + logs)
        self._write(np.arange(len(self.kinds)))

    def take(self, total: np.ndarray) -> int:
        """Removes and returns the row that makes the total `Float[C]` most balanced; on ties the first row."""
        rough = self._rough_scores(total)
        near = np.flatnonzero(rough <= rough.min() + self.slack)
        best = near[smallest(_divergences(total + self.kinds[self.listed[near]]))]
        position = best[np.argmin(self.first[self.listed[best]])]
        kind = self.listed[position]
        chosen = int(self.first[kind])
        following = next(self.waiting[kind], None)
        if following is not None:
            self.first[kind] = following
            return chosen
        self.present[position] = False
        self.count -= 1
        if self.count < _REWRITE_BELOW * len(self.listed):
            self._write(self.listed[self.present])
        return chosen

    def _write(self, kinds: np.ndarray) -> None:
        self.listed = kinds
        self.count = len(kinds)
        self.present = np.ones(len(kinds), bool)
        self.columns = np.ascontiguousarray(self.kinds[kinds].T, np.float32)
        self.sums = self.kinds[kinds].sum(1)
        self.spans = list(spans(*self.columns.shape))
        width = max((span.stop - span.start for span in self.spans), default=0)
        self.scratch = np.empty((2, self.classes, width), np.float32)

    def _rough_scores(self, total: np.ndarray) -> np.ndarray:
        """Computes KL(P || U) - log C after adding each column to the total, in 32 bits; infinity for taken columns."""
        start = (total + _ABSENT).astype(np.float32)[:, None]
        scores = np.empty(len(self.listed), np.float32)
        for span in self.spans:
            pooled, logs = self.scratch[:, :, : span.stop - span.start]
            np.add(self.columns[:, span], start, out=pooled)
            np.log(pooled, out=logs)
            np.einsum("ck,ck->k", pooled, logs, out=scores[span])
        sums = self.sums + total.sum()
        return np.where(self.present, scores / sums - np.log(sums), np.inf)


def _divergences(counts: np.ndarray) -> np.ndarray:
    """Computes KL(P || U) of each row of counts `[K, C]`, in 64 bits."""
    shares = counts / counts.sum(1, keepdims=True)
    return (shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1) + math.log(counts.shape[1])
