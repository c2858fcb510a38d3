"""Astraea: warped copies of rare classes are added before training, and mediators train their clients in turn."""

from typing import Literal

import jax
import numpy as np

from fedjax_bal.balance import augmentation_copies, augmentation_counts
from fedjax_bal.data import augment, copy_options
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Part, part, static
from fedjax_bal.selection import Choice
from fedjax_bal.types import Federation

_DRAWN = ("stochastic", "target")


_ENDLESS = 2**31 - 1  # the largest int32, more copies than any federation can hold


@part
class Augmentation(Part):
    """Gives clients warped copies of their samples of classes that are rare in the whole federation.

    Attributes:
        alpha: degree of augmentation.
        mode: how ratios become numbers of copies, see `fedjax_bal.balance.augmentation_counts`; the random modes draw
            for each sample.
        max_copies: the maximum number of copies of one sample; None for no limit.
        seed: seeds the copies' maps and the random modes, from 0 to 2**32 - 1.
        shift: range of the maps, like the next three, see `fedjax_bal.data.augment`.
        rotate: degrees.
        shear: tangent.
        zoom: relative.
        store: whether the copies' pixels are computed once and kept.

    References:
        Astraea (Duan et al., 2019), Algorithm 2, which doesn't state the ranges of the maps.
    """

    alpha: float = static(0.67)
    mode: Literal["floor", "round", "stochastic", "target"] = static("floor")
    max_copies: int | None = static(None)
    seed: int = static(0)
    shift: float = static(0.1)
    rotate: float = static(15.0)
    shear: float = static(0.2)
    zoom: float = static(0.2)
    store: bool = static(True)

    def prepare_federation(self, federation: Federation) -> Federation:
        """Returns the federation with copies."""
        counts = np.asarray(federation.class_counts).sum(0, dtype=np.int64)
        ranges = {"shift": self.shift, "rotate": self.rotate, "shear": self.shear, "zoom": self.zoom}
        asked = copy_options({"seed": self.seed, "store": self.store, **ranges})
        most = None if self.max_copies is None else min(self.max_copies, _ENDLESS)
        if self.mode not in _DRAWN:
            by_class = np.asarray(augmentation_counts(counts, self.alpha, self.mode, None, most))
            return augment(federation, by_class, **asked)
        labels = np.asarray(federation.labels)[federation.rows]
        key = jax.random.key(asked["seed"])
        by_row = augmentation_copies(labels, counts, self.alpha, self.mode, key, most)
        return augment(federation, copies_per_row=np.asarray(by_row), **asked)


@recipe("selection", "duan2019astraea")
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
    """Astraea: rare classes are augmented, and mediators train groups of clients with balanced classes in turn.

    Either half can be turned off: `alpha=None` augments nothing; `size=1, mediator_epochs=1` gives each client a
    mediator, which is FedAvg.

    Args:
        alpha: degree of augmentation, 0 or more; None for no augmentation.
        size: gamma, the number of clients of a mediator.
        mediator_epochs: a mediator's number of passes over its clients.
        mode: how ratios become copies, see `fedjax_bal.balance.augmentation_counts`.
        max_copies: the maximum number of copies of one sample; None for no limit.
        resched: group the clients of each round ("per_round"), or all clients once ("once").
        order: the order in which a mediator's clients train, "fixed" or "shuffled".
        pool: the quantity that grouping sums, see `fedjax_bal.selection.mediators`.
        optimizer_state: the local optimizer's state, "fresh" for each client, or "carried" along a mediator's clients.
        shift: largest shift of a copy, as a share of the side.
        rotate: largest rotation, in degrees.
        shear: largest shear, as a tangent.
        zoom: largest relative change of size, below 1.
        store: whether copies are computed once and kept, or computed whenever they are drawn.
        seed: seeds the copies, from 0 to 2**32 - 1; the same for all runs.

    Example:
        >>> astraea(alpha=None, size=5).selector.options[-1]
        ('size', 5)

    References:
        Duan et al., 2019, Algorithms 1 to 3. The paper states neither whether clients pass on the optimizer's state nor
        the ranges of the augmentation; the defaults are common for small images, as in Keras. Of the readings of
        Algorithm 2, "floor" is the default: with English letter frequencies and alpha 0.67, copies then take 25.6% more
        storage, against 25.5% in the paper ("stochastic" 32%, "target" 12%). The paper subtracts the mediators'
        updates, final minus initial weights, from the global weights, a sign error; here they are added. The n of its
        weights n_m / n isn't explained; here it is the number of samples of the round's mediators, so that weights sum
        to 1.
    """
    options = {"order": order, "passes": mediator_epochs, "pool": pool, "resched": resched, "size": size}
    chains = Choice("mediated", tuple(options.items())) if (size, mediator_epochs) != (1, 1) else None
    ranges = {"shift": shift, "rotate": rotate, "shear": shear, "zoom": zoom}
    maps = copy_options({"seed": seed, "store": store, **ranges}, "astraea: ")
    copies = () if alpha is None else (Augmentation(alpha, mode, max_copies, **maps),)
    return Recipe("astraea", copies, selector=chains, carried=True if optimizer_state == "carried" else None)
