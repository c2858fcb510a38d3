"""Methods that choose the clients that train, their groups and their order."""

from typing import Literal

from fedjax_bal.data import copy_options
from fedjax_bal.parts import Augmentation, CompositionProbe, ParticipatingShare
from fedjax_bal.recipes.recipe import Count, CountOrZero, NonNegative, Recipe, Share, checked, readings
from fedjax_bal.selection import Choice


@checked
def astraea(
    alpha: NonNegative | None = 0.67,
    size: Count = 10,
    mediator_epochs: Count = 2,
    mode: Literal["floor", "round", "stochastic", "target"] = "floor",
    max_copies: CountOrZero | None = None,
    resched: Literal["per_round", "once"] = "per_round",
    order: Literal["fixed", "shuffled"] = "fixed",
    pool: Literal["counts", "distributions", "halves"] = "counts",
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
        optimizer_state: of the local optimizer, "fresh" for each client, or "carried" along a mediator's clients.
        shift: largest shift of a copy, as a share of the side.
        rotate: largest rotation, in degrees.
        shear: largest shear, as a tangent.
        zoom: largest relative change of size, below 1.
        store: make copies once and keep them, or again whenever they are drawn.
        seed: decides what copies look like, from 0 to 2**32 - 1; the same for all runs.

    Example:
        >>> astraea(alpha=None, size=5).selector.options[-1]
        ('size', 5)

    References:
        Duan et al., 2019, Algorithms 1 to 3. Whether clients hand on the optimizer's state is not said there. Nor are
        ranges of the augmentation; those above are customary ones for small images, as in Keras. Of the readings of
        Algorithm 2 "floor" is the default, because with English letter frequencies copies then take 25.6% more storage
        at alpha 0.67, against 25.5% in the paper ("stochastic" 32%, "target" 12%). The paper subtracts the mediators'
        updates, final minus initial weights, from the global ones, a slip of the sign; here they are added. The n of
        its weights n_m / n isn't explained; here it is the samples of the round's mediators, so that weights sum to 1.
    """
    options = {"order": order, "passes": mediator_epochs, "pool": pool, "resched": resched, "size": size}
    chains = Choice("mediated", tuple(options.items())) if (size, mediator_epochs) != (1, 1) else None
    ranges = {"shift": shift, "rotate": rotate, "shear": shear, "zoom": zoom}
    maps = copy_options({"seed": seed, "store": store, **ranges}, "astraea: ")
    copies = () if alpha is None else (Augmentation(alpha, mode, max_copies, **maps),)
    return Recipe("astraea", copies, selector=chains, carried=True if optimizer_state == "carried" else None)


@readings(
    paper={
        "composition": "softmax_inv",
        "scope": "output",
        "reward": "literal",
        "direction": "to_uniform",
        "first": "left_out",
    },
    code={"alpha": 0.8, "rho": 1.0},
)
@checked
def flcir(
    choose: Literal["cucb", "greedy", "random"] = "cucb",
    alpha: NonNegative = 0.2,
    rho: Share = 0.99,
    reward: Literal["bounded", "literal"] = "bounded",
    direction: Literal["from_uniform", "to_uniform"] = "from_uniform",
    first: Literal["counted", "left_out"] = "counted",
    composition: Literal["inverse", "softmax_inv", "softmax_rel"] = "inverse",
    scope: Literal["network", "output"] = "network",
    beta: NonNegative = 1.0,
    aggregation: Literal["all_clients", "selected"] = "all_clients",
) -> Recipe:
    """FL-CIR: a bandit learns the clients' class compositions and chooses cohorts that are balanced together.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; what is
    given beside it comes first.

    Args:
        choose: "cucb", the bandit; "greedy", without exploration; "random", the comparison, which estimates nothing.
        alpha: weight of the bandit's bonus for exploring; ignored by the other two.
        rho: discount of older estimates, above 0 and at most 1.
        reward: see `fedjax_bal.balance.composition_reward`.
        direction: of the divergence from uniform, see `fedjax_bal.selection.class_balancing_set`.
        first: whether the first client's classes count when others are added to it, see the same.
        composition: see `fedjax_bal.balance.composition_from_gradients`.
        scope: gradients of the whole "network", or of the "output" layer.
        beta: sharpness of the softmaxes.
        aggregation: "all_clients": absent clients count as having kept the model; "selected": FedAvg's.

    Example:
        >>> flcir().selector.name, [part.slot for part in flcir().parts]
        ('cucb', ['composition', 'ParticipatingShare'])

    References:
        Yang et al., 2021, Algorithms 1 and 2. The server needs balanced images of its own (`auxiliary.per_class`), 32 a
        class in the authors' code; the paper says only that they are few. Where paper and code differ, alpha and rho
        are the paper's (the code has 0.8 and 1); reward, direction, first and composition are the code's, for eq. 9 has
        no bound, eq. 8 takes the divergence the other way round, Algorithm 2 leaves the first client out of R_total,
        and eq. 7 ("softmax_inv") comes out one-hot.
    """
    if rho == 0:
        raise ValueError("flcir: rho: received 0, must be above 0 and at most 1")
    damped = (ParticipatingShare(),) if aggregation == "all_clients" else ()
    if choose == "random":
        return Recipe("flcir", damped)
    options = {"direction": direction, "first": first, "reward": reward, "rho": rho}
    if choose == "cucb":
        options = {"alpha": alpha, **options}
    return Recipe(
        "flcir", (CompositionProbe(composition, scope, beta), *damped), selector=Choice(choose, tuple(options.items()))
    )
