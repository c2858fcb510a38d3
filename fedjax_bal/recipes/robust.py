"""Averages that a few outlying clients can't move far, or that hide each client, and faulty clients to try them on."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Lt

from fedjax_bal.parts import Faults, Median, NormClipping, PrivateMean, StaleUpdates, TrimmedMean
from fedjax_bal.recipes.recipe import NonNegative, Positive, Recipe, checked, positive
from fedjax_bal.validate import finite_number, whole_number


@checked
def dp(bound: Positive = 1.0, noise: NonNegative = 1.0, delta: Annotated[Positive, Lt(1)] | None = None) -> Recipe:
    """Differential privacy of clients: updates clipped to a norm, and Gaussian noise on their sum.

    A run is (epsilon, delta)-differentially private up to each round, with the round's metric `epsilon`, which needs
    `pip install 'fedjax_bal[privacy]'`. A cohort hides who is in it if it is drawn uniformly of all clients; with other
    selectors, or clients that aren't always available, each counts as if it were in every round. There is no epsilon
    with `power_of_choice`, which sees clients' losses without noise.

    Args:
        bound: the largest norm S of a client's update; above 0.
        noise: z, the standard deviation of the noise on the sum in units of S; at least 0, where nothing is private.
        delta: in (0, 1); None for N to the power of -1.1, a little below 1 / N for N clients.

    Example:
        >>> dp(0.5).parts
        (PrivateMean(bound=0.5, noise=1.0, delta=None),)

    References:
        McMahan et al., 2018, Algorithm 1. Clients count alike. Methods by which the server sees more of a client than
        the noisy mean are refused, and so are networks with batch normalisation, whose statistics would have no noise.
    """
    return Recipe("dp", (PrivateMean(bound, noise, delta),))


@checked
def faults(
    kind: Literal["not_a_number", "infinite", "huge", "stale"] = "not_a_number",
    clients: Sequence[int] = (0,),
    rounds: Sequence[int] | None = None,
    factor: NonNegative = 1e6,
    tagged: bool = True,
) -> Recipe:
    """Clients that return a broken update, to see how a method copes with it.

    Not a method of federated learning but something to add to one: `combine(median(), faults("huge", [3, 7]))`. Faults
    of several kinds go together too. `execution.broken_clients` says how they are handled; huge ones reach the method
    only with `execution.huge_factor: null`.

    Args:
        kind: "not_a_number" or "infinite", all parameters are; "huge", the change of the parameters times `factor`;
            "stale", the change of the last round that the client delivered, once again.
        clients: the clients that break, by number, from 0.
        rounds: in which rounds, from 1, one of them at least within the run; None for every one.
        factor: for "huge"; 0 or more.
        tagged: for "stale", whether updates name their round, so that the server can tell and treats them like updates
            that aren't finite; nothing in the numbers themselves says so.

    Example:
        >>> faults("huge", [3, 7], rounds=[5]).parts
        (Faults(factor=1000000.0, kind='huge', clients=(3, 7), rounds=(5,)),)

    References:
        Blanchard et al., 2017, whose Byzantine workers may send anything; these are usual ways to break by accident.
    """
    who, when = _numbers("clients", clients, 0), None if rounds is None else _numbers("rounds", rounds, 1)
    part = StaleUpdates(who, when, tagged) if kind == "stale" else Faults(factor, kind, who, when)
    return Recipe("faults", (part,))


def median() -> Recipe:
    """The coordinate-wise median of the updates instead of their mean.

    Example:
        >>> median().parts
        (Median(),)

    References:
        Yin et al., 2018, Algorithm 1, option I. All clients that deliver count alike, whatever their size.
    """
    return Recipe("median", (Median(),))


@checked
def norm_clipping(bound: float = 1.0, adaptive: bool = False) -> Recipe:
    """The mean of the updates, each scaled down to a largest norm.

    Args:
        bound: the largest norm of a client's update; above 0.
        adaptive: the largest norm is `bound` times the median norm of the round's updates instead.

    Example:
        >>> norm_clipping(0.5).parts
        (NormClipping(bound=0.5, adaptive=False),)

    References:
        Sun et al., 2019, norm thresholding of updates, without its noise. The median norm as the bound is FLAME's
        (Nguyen et al., 2022, Algorithm 1). Unlike the median, it weighs clients by their samples as FedAvg does.
    """
    bound = positive("norm_clipping: bound", bound, ": at 0 nothing would change")
    return Recipe("norm_clipping", (NormClipping(bound, adaptive),))


def trimmed_mean(share: float = 0.1) -> Recipe:
    """The coordinate-wise mean of the updates without the largest and the smallest.

    Args:
        share: of the clients that deliver, cut from each end and rounded down; in [0, 0.5).

    Example:
        >>> trimmed_mean(0.2).parts
        (TrimmedMean(share=0.2),)

    References:
        Yin et al., 2018, Algorithm 1, option II. All clients that deliver count alike, whatever their size.
    """
    if finite_number("trimmed_mean: share", share, high=0.5) == 0.5:
        raise ValueError(f"trimmed_mean: share: received {share}, must be below 0.5; median leaves out all but one")
    return Recipe("trimmed_mean", (TrimmedMean(float(share)),))


def _numbers(name: str, values: Sequence[Any], low: int) -> tuple[int, ...]:
    """Sorted integers, each once; at least one."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise ValueError(f"faults: {name}: received {values!r}, must be a list of at least one number")
    return tuple(sorted({whole_number(f"faults: {name}", value, low=low) for value in values}))
