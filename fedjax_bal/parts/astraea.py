"""Astraea's augmentation: rare classes get copies, before training."""

import jax
import numpy as np

from fedjax_bal.balance import augmentation_copies, augmentation_counts
from fedjax_bal.data import augment, copy_options
from fedjax_bal.parts.part import Part, part, static
from fedjax_bal.types import Federation

_DRAWN = ("stochastic", "target")
_ENDLESS = 2**31 - 1  # the most that a device's integers hold, and more than any federation can


@part
class Augmentation(Part):
    """Gives clients warped copies of their samples of classes that are rare in the whole federation.

    Attributes:
        alpha: degree of augmentation.
        mode: how ratios become numbers of copies, see `fedjax_bal.balance.augmentation_counts`; those that draw, draw
            for each sample.
        max_copies: the most copies of one sample; None for no limit.
        seed: decides the copies' maps and what is drawn, from 0 to 2**32 - 1.
        shift: of the maps, as the next three, see `fedjax_bal.data.augment`.
        rotate: degrees.
        shear: tangent.
        zoom: relative.
        store: whether the copies' pixels are made once and kept.

    References:
        Astraea (Duan et al., 2019), Algorithm 2. The ranges of the maps are not given there.
    """

    alpha: float = static(0.67)
    mode: str = static("floor")
    max_copies: int | None = static(None)
    seed: int = static(0)
    shift: float = static(0.1)
    rotate: float = static(15.0)
    shear: float = static(0.2)
    zoom: float = static(0.2)
    store: bool = static(True)

    def prepare_federation(self, federation: Federation) -> Federation:
        """The federation with copies."""
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
