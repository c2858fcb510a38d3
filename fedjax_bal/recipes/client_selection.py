"""Methods with a hand in who trains, with whom, and in which order."""

from typing import Literal

from fedjax_bal.data import copy_options
from fedjax_bal.parts import Augmentation, CompositionProbe, ParticipatingShare
from fedjax_bal.recipes.recipe import Recipe
from fedjax_bal.selection import Choice
from fedjax_bal.validate import finite_number, one_of, whole_number


def astraea(
    alpha: float | None = 0.67,
    size: int = 10,
    mediator_epochs: int = 2,
    mode: Literal["floor", "round", "stochastic", "target"] = "floor",
    max_copies: int | None = None,
    resched: Literal["per_round", "once"] = "per_round",
    order: Literal["fixed", "shuffled"] = "fixed",
    pool: Literal["counts", "distributions"] = "counts",
    optimizer_state: Literal["fresh", "carried"] = "fresh",
    shift: float = 0.1,
    rotate: float = 15.0,
    shear: float = 0.2,
    zoom: float = 0.2,
    store: bool = True,
    seed: int = 0,
) -> Recipe:
    """Astraea: rare classes augmented, and mediators whose clients train in turn and are balanced together.

    Of its two halves either can be left out: `alpha=None` augments nothing; `size=1, mediator_epochs=1` has a mediator
    for each client, which is FedAvg.

    Args:
        alpha: degree of augmentation, 0 or more; None for no augmentation.
        size: gamma, clients a mediator.
        mediator_epochs: how often a mediator goes through its clients.
        mode: how ratios become copies, see `fedjax_bal.balance.augmentation_counts`.
        max_copies: the most copies of one sample; None for no limit.
        resched: group the clients of each round, or all clients once.
        order: in which a mediator's clients train, "fixed" or "shuffled".
        pool: what grouping adds up, see `fedjax_bal.selection.mediators`.
        optimizer_state: of the local optimizer, "fresh" at each visit, or "carried" along a mediator's clients.
        shift: largest shift of a copy, as a share of the side.
        rotate: largest rotation, in degrees.
        shear: largest shear, as a tangent.
        zoom: largest relative change of size, below 1.
        store: make copies once and keep them, or anew whenever they are drawn.
        seed: decides what copies look like, from 0 to 2**32 - 1; the same for all runs.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> astraea(alpha=None, size=5).selector.options[-1]
        ('size', 5)

    References:
        Duan et al., 2019, Algorithms 1 to 3. Whether clients hand on the optimizer's state is not said there. Nor are
        ranges of the augmentation; those above are customary ones for small images, as in Keras. Of the readings of
        Algorithm 2 "floor" is the default, because with English letter frequencies copies then take 25.6% more storage
        at alpha 0.67, against 25.5% in the paper ("stochastic" 32%, "target" 12%). The paper subtracts the mediators'
        updates, final minus initial weights, from the global ones, a slip of the sign; here they are added.
    """
    options = {
        "order": one_of("astraea: order", order, ("fixed", "shuffled")),
        "passes": whole_number("astraea: mediator_epochs", mediator_epochs),
        "pool": one_of("astraea: pool", pool, ("counts", "distributions")),
        "resched": one_of("astraea: resched", resched, ("per_round", "once")),
        "size": whole_number("astraea: size", size),
    }
    chains = Choice("mediated", tuple(options.items())) if (size, mediator_epochs) != (1, 1) else None
    one_of("astraea: optimizer_state", optimizer_state, ("fresh", "carried"))
    carried = True if optimizer_state == "carried" else None
    ranges = {"shift": shift, "rotate": rotate, "shear": shear, "zoom": zoom}
    copies = Augmentation(
        alpha=0.0 if alpha is None else finite_number("astraea: alpha", alpha),
        mode=one_of("astraea: mode", mode, ("floor", "round", "stochastic", "target")),
        max_copies=None if max_copies is None else whole_number("astraea: max_copies", max_copies, low=0),
        **copy_options({"seed": seed, "store": store, **ranges}, "astraea: "),
    )
    return Recipe("astraea", () if alpha is None else (copies,), selector=chains, carried=carried)


def flcir(
    choose: Literal["cucb", "greedy", "random"] = "cucb",
    alpha: float = 0.2,
    rho: float = 0.99,
    reward: Literal["bounded", "literal"] = "bounded",
    direction: Literal["from_uniform", "to_uniform"] = "from_uniform",
    composition: Literal["inverse", "softmax_inv", "softmax_rel"] = "inverse",
    scope: Literal["network", "output"] = "network",
    beta: float = 1.0,
    aggregation: Literal["all_clients", "selected"] = "all_clients",
) -> Recipe:
    """FL-CIR: a bandit learns the clients' class compositions and chooses cohorts that are balanced together.

    Args:
        choose: "cucb", the bandit; "greedy", without exploration; "random", the comparison, which estimates nothing.
        alpha: weight of the bandit's bonus for exploring; of no account to the other two.
        rho: discount of older estimates, above 0 and at most 1.
        reward: see `fedjax_bal.balance.composition_reward`.
        direction: of the divergence from uniform, see `fedjax_bal.selection.class_balancing_set`.
        composition: see `fedjax_bal.balance.composition_from_gradients`.
        scope: gradients of the whole "network", or of the "output" layer.
        beta: sharpness of the softmaxes.
        aggregation: "all_clients": those who are not there count as having kept the model; "selected": FedAvg's.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> flcir().selector.name, [part.slot for part in flcir().parts]
        ('cucb', ['composition', 'ParticipatingShare'])

    References:
        Yang et al., 2021, Algorithms 1 and 2. The server needs balanced images of its own (`auxiliary.per_class`), 32 a
        class in the authors' code; the paper says only that they are few. Where paper and code differ, alpha and rho
        are the paper's (the code has 0.8 and 1); reward, direction and composition are the code's, for eq. 9 has no
        bound, eq. 8 takes the divergence the other way round, and eq. 7 ("softmax_inv") comes out one-hot.
    """
    one_of("flcir: choose", choose, ("cucb", "greedy", "random"))
    options = {
        "direction": one_of("flcir: direction", direction, ("from_uniform", "to_uniform")),
        "reward": one_of("flcir: reward", reward, ("bounded", "literal")),
        "rho": finite_number("flcir: rho", rho, high=1.0),
    }
    if options["rho"] == 0:
        raise ValueError("flcir: rho: received 0, must be above 0 and at most 1")
    alpha = finite_number("flcir: alpha", alpha)
    if choose == "cucb":
        options = {"alpha": alpha, **options}
    probe = CompositionProbe(
        mode=one_of("flcir: composition", composition, ("inverse", "softmax_inv", "softmax_rel")),
        scope=one_of("flcir: scope", scope, ("network", "output")),
        beta=finite_number("flcir: beta", beta),
    )
    one_of("flcir: aggregation", aggregation, ("all_clients", "selected"))
    damped = (ParticipatingShare(),) if aggregation == "all_clients" else ()
    if choose == "random":
        return Recipe("flcir", damped)
    return Recipe("flcir", (probe, *damped), selector=Choice(choose, tuple(options.items())))
