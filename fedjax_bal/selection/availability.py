"""Masks of clients: availability before selection, delivery after training."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fedjax_bal.annotations import Count, PositiveShare, checked
from fedjax_bal.selection.patterns import Cyclic, Markov, Window, arrival, cyclic, departure, markov, rotation
from fedjax_bal.selection.selectors import generator
from fedjax_bal.selection.trace import Trace, trace

_FEW = 400  # number of clients per eligible client above which jumping to each draw is faster than drawing all


@dataclasses.dataclass(frozen=True)
class Presence:
    """Independent presence of clients, by probability.

    Attributes:
        probabilities: client i has `probabilities[i % len(probabilities)]`; each in (0, 1].
        period: rounds for which a draw is kept.
    """

    probabilities: tuple[float, ...] = (1.0,)
    period: int = 1

    def mask(self, seed: int, purpose: str, round: int, eligible: np.ndarray) -> np.ndarray:
        """Draws the eligible clients that are present, `Bool[N]`, possibly none.

        Each purpose, "availability" or "delivery", is drawn independently.
        """
        if min(self.probabilities) >= 1:
            return eligible
        rng = generator(seed, purpose, round // self.period)
        clients = len(eligible)
        if _FEW * np.count_nonzero(eligible) >= clients:
            chances = self.probabilities if len(self.probabilities) == 1 else np.resize(self.probabilities, clients)
            return (rng.random(clients) < chances) & eligible
        # Client i's draw is the generator's i-th word, to which it can jump: these are the same draws as above.
        mask = np.zeros(clients, bool)
        following = 0
        for client in np.flatnonzero(eligible).tolist():
            rng.bit_generator.advance(client - following)  # type: ignore[attr-defined]
            mask[client] = rng.random() < self.probabilities[client % len(self.probabilities)]
            following = client + 1
        return mask


def always() -> Presence:
    """All clients are present in every round.

    Example:
        >>> import numpy as np
        >>> always().mask(0, "availability", 0, np.ones(3, bool)).tolist()
        [True, True, True]
    """
    return Presence()


@checked
def bernoulli(p: PositiveShare) -> Presence:
    """Each client is present with the same probability, drawn independently in every round.

    In some rounds no client is present, especially if there are few clients. If used as availability, such a round
    trains no client and leaves the model unchanged.

    Args:
        p: probability, in (0, 1].

    Raises:
        ValueError: p is out of range.

    Example:
        >>> bernoulli(0.5)
        Presence(probabilities=(0.5,), period=1)

    References:
        ReBaFL (Xu et al., 2023), section 5.2.
    """
    return Presence((p,))


@checked
def periodic(p: PositiveShare, period: Count) -> Presence:
    """Like `bernoulli`, but each draw is kept for several rounds.

    Args:
        p: probability, in (0, 1].
        period: s, the number of rounds, at least 1.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import numpy as np
        >>> held = periodic(0.5, 5)
        >>> masks = [held.mask(0, "availability", t, np.ones(9, bool)).tolist() for t in range(5)]
        >>> all(mask == masks[0] for mask in masks)
        True

    References:
        ReBaFL, Figure 10.
    """
    return Presence((p,), period)


@checked
def clustered(p: Sequence[PositiveShare] = (0.5, 0.5, 0.3, 0.3, 0.2), period: Count = 1) -> Presence:
    """Like `bernoulli`, but client i has the probability `p[i % len(p)]`.

    Args:
        p: probabilities, each in (0, 1].
        period: rounds for which a draw is kept.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> clustered([0.5, 0.2]).probabilities
        (0.5, 0.2)

    References:
        ReBaFL, the clustered setting of Table II and Figures 4 and 5.
    """
    return Presence(tuple(p), period)


Pattern = Presence | Markov | Cyclic | Window | Trace
"""Which clients are present in a round."""

PATTERNS: dict[str, Callable[..., Pattern]] = {
    "always": always,
    "arrival": arrival,
    "bernoulli": bernoulli,
    "clustered": clustered,
    "cyclic": cyclic,
    "departure": departure,
    "markov": markov,
    "periodic": periodic,
    "round_robin": rotation,
    "trace": trace,
}
"""The functions that build patterns, by name, for availability as for delivery."""
