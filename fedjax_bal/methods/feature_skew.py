"""Feature skew: clients whose images differ by how much noise they have, or how far they are turned."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge, Le

from fedjax_bal.balance import affine_matrix, warp
from fedjax_bal.data import check_images
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.part import RunSetting, part
from fedjax_bal.methods.roles import Batches
from fedjax_bal.types import Array, Batch, Context, Key


@part
class NoiseByClient(Batches):
    r"""Adds Gaussian noise to a client's images, of standard deviation $\sigma i / (N - 1)$ for client i of N.

    It is drawn again in each local step. The first client's images stay as they are, and so do those that another part
    has added to the batch, evaluation, and what reports and prototypes are made of.

    Attributes:
        level: sigma, the last client's, in units of pixels scaled to [0, 1].

    References:
        NIID-Bench (Li et al., 2022), "noise-based feature imbalance", the authors' code, which calls sigma a variance
        and doesn't clip either. It adds every client's noise to a copy of the test set besides. Rotations are not in
        that paper.
    """

    level: float = 0.1

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """The batch with noise on its images."""
        noise = jax.random.normal(key, batch.images.shape) * self.level * _share(ctx) / ctx.federation.std
        return _with_images(batch, batch.images + noise)

    def check(self, setting: RunSetting) -> None:
        """Refuses inputs that are no images."""
        check_images("noise", setting.federation.images)


@part
class RotationByClient(Batches):
    r"""Turns a client's images by $\phi i / (N - 1)$, for client i of N, always by the same angle.

    The corners become black. What stays as it is, see `NoiseByClient`.

    Attributes:
        degrees: phi, the last client's angle, anticlockwise.
    """

    degrees: float = 90.0

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """The batch with its images turned."""
        mean = ctx.federation.mean
        std = ctx.federation.std
        matrix = affine_matrix(jnp.zeros(2), self.degrees * _share(ctx), 0.0, 1.0)
        turned = warp(batch.images * std + mean, jnp.broadcast_to(matrix, (len(batch.images), 2, 3)))
        return _with_images(batch, (turned - mean) / std)

    def check(self, setting: RunSetting) -> None:
        """Refuses inputs that are no images."""
        check_images("rotations", setting.federation.images)


def _share(ctx: Context) -> Array:
    """From 0 for the first client to 1 for the last, `Float[]`."""
    return ctx.client / max(ctx.federation.num_clients - 1, 1)


def _with_images(batch: Batch, images: Array) -> Batch:
    if batch.extra is not None:
        images = jnp.where(batch.extra[:, None, None, None], batch.images, images)
    return batch._replace(images=images)


Degrees = Annotated[float, Ge(-360), Le(360)]


@recipe("sampling", "li2022niidbench")
def feature_skew(noise: NonNegative = 0.1, rotate: Degrees = 0.0) -> Recipe:
    """Clients whose images differ: more and more noise, or a larger and larger angle, from the first to the last.

    Not a method of federated learning but something to add to one, and to a partition with label skew:
    `combine(scaffold(), feature_skew(rotate=45))`. The test set stays as it is.

    Args:
        noise: standard deviation of the last client's Gaussian noise, on pixels from 0 to 1; at least 0.
        rotate: the last client's angle in degrees, anticlockwise.

    Example:
        >>> feature_skew(rotate=45).parts
        (RotationByClient(degrees=45.0), NoiseByClient(level=0.1))
    """
    parts = (RotationByClient(float(rotate)),) if rotate else ()
    return Recipe("feature_skew", (*parts, NoiseByClient(noise)) if noise else parts)
