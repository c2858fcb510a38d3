"""Feature skew: clients whose images differ in their noise or their rotation."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge, Le

from fedjax_bal.balance import affine_matrix, warp
from fedjax_bal.data import check_images, with_images
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Batches, CheckContext, part
from fedjax_bal.types import Array, Batch, Context, Key


@part
class NoiseByClient(Batches):
    r"""Adds Gaussian noise with standard deviation $\sigma i / (N - 1)$ to the images of client i of N.

    The noise is redrawn in each local step. Unchanged are the first client's images, images that another part has added
    to the batch, and the images of evaluation, reports and prototypes.

    Attributes:
        level: sigma, the last client's standard deviation, in units of pixels scaled to [0, 1].

    References:
        NIID-Bench (Li et al., 2022), "noise-based feature imbalance", as in the authors' code, which calls sigma a
        variance. Pixels aren't clipped, as there. That code also adds every client's noise to a copy of the test set.
        The paper has no rotations.
    """

    level: float = 0.1

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with noise on its images."""
        noise = jax.random.normal(key, batch.images.shape) * self.level * _share(ctx) / ctx.federation.std
        return with_images(batch, batch.images + noise)

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images."""
        check_images("noise", context.federation.images)


@part
class RotationByClient(Batches):
    r"""Rotates all images of client i of N by the angle $\phi i / (N - 1)$.

    The corners become black. `NoiseByClient` lists the images that stay unchanged.

    Attributes:
        degrees: phi, the last client's angle, anticlockwise.
    """

    degrees: float = 90.0

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with rotated images."""
        mean = ctx.federation.mean
        std = ctx.federation.std
        matrix = affine_matrix(jnp.zeros(2), self.degrees * _share(ctx), 0.0, 1.0)
        turned = warp(batch.images * std + mean, jnp.broadcast_to(matrix, (len(batch.images), 2, 3)))
        return with_images(batch, (turned - mean) / std)

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images."""
        check_images("rotations", context.federation.images)


def _share(ctx: Context) -> Array:
    """Returns the client's relative position, from 0 for the first client to 1 for the last, `Float[]`."""
    return ctx.client / max(ctx.federation.num_clients - 1, 1)


Degrees = Annotated[float, Ge(-360), Le(360)]


@recipe("sampling", "li2022niidbench")
def feature_skew(noise: NonNegative = 0.1, rotate: Degrees = 0.0) -> Recipe:
    """Clients whose images differ: noise or rotation increases from the first client to the last.

    This isn't a federated method; combine it with one, and with any label skew of the partition:
    `combine(scaffold(), feature_skew(rotate=45))`. The test set is unchanged.

    Args:
        noise: standard deviation of the last client's Gaussian noise, on pixels from 0 to 1; at least 0.
        rotate: the last client's angle in degrees, anticlockwise.

    Example:
        >>> feature_skew(rotate=45).parts
        (RotationByClient(degrees=45.0), NoiseByClient(level=0.1))
    """
    parts = (RotationByClient(float(rotate)),) if rotate else ()
    return Recipe("feature_skew", (*parts, NoiseByClient(noise)) if noise else parts)
