"""Random crops, mirroring and cutout: the usual augmentation of small photographs, redrawn in each local step."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import check_images, with_images
from fedjax_bal.methods.combine import Count, CountOrZero, Recipe, recipe
from fedjax_bal.methods.roles import Batches, CheckContext, part, static
from fedjax_bal.types import Array, Batch, Context, Key


@part
class CropAndFlip(Batches):
    """Pads images with a black border, crops them to their original size, and mirrors half of the crops.

    Crop and mirroring are drawn for each image in each local step. Evaluation, probes and prototypes use the unchanged
    images; images that another part has added to the batch stay unchanged, too.

    Attributes:
        pad: width of the border in pixels, hence the largest shift to either side.
        flip: whether to mirror, left to right.

    References:
        He et al., 2016, section 4.2, for CIFAR-10. The border is black, pixel value 0 before normalisation.
    """

    pad: int = static(4)
    flip: bool = static(True)

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images."""
        check_images("crops", context.federation.images)

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with crops of its images."""
        federation = ctx.federation
        count, height, width, channels = batch.images.shape
        corner_key, flip_key = jax.random.split(key)
        corners = jax.random.randint(corner_key, (count, 2), 0, 2 * self.pad + 1)
        black = -federation.mean / federation.std
        bordered = jnp.broadcast_to(black, (count, height + 2 * self.pad, width + 2 * self.pad, channels))
        bordered = lax.dynamic_update_slice(bordered, batch.images, (0, self.pad, self.pad, 0))

        def window(image: Array, corner: Array) -> Array:
            return lax.dynamic_slice(image, (corner[0], corner[1], 0), (height, width, channels))

        images = jax.vmap(window)(bordered, corners)
        if self.flip:
            mirrored = jax.random.bernoulli(flip_key, shape=(count, 1, 1, 1))
            images = jnp.where(mirrored, images[:, :, ::-1], images)
        return with_images(batch, images)


@part
class Cutout(Batches):
    """Fills a square of the image with the mean pixel, 0 after normalisation.

    Its centre is drawn anywhere in the image, for each image in each local step; part of the square may lie outside.
    The same uses and images stay unchanged as with `CropAndFlip`.

    Attributes:
        side: side of the square in pixels.

    References:
        DeVries and Taylor, 2017, section 3.2, with 16 pixels for CIFAR-10.
    """

    side: int = static(16)

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images."""
        check_images("holes", context.federation.images)

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with a hole in each of its images."""
        return with_images(batch, jnp.where(holes(key, batch.images.shape, self.side), 0.0, batch.images))


def holes(key: Key, shape: tuple[int, ...], side: int) -> Array:
    """Draws a square for each of some images of the given shape, `Bool[B, H, W, 1]`."""
    count, height, width, _ = shape
    centres = jax.random.randint(key, (count, 2), 0, jnp.array([height, width]))
    away = [jnp.arange(length) - centres[:, axis, None] for axis, length in enumerate((height, width))]
    half = side // 2
    rows, columns = (((own >= -half) & (own < side - half)) for own in away)
    return rows[:, :, None, None] & columns[:, None, :, None]


@recipe("sampling", "he2016deep")
def crop_flip(pad: CountOrZero = 4, flip: bool = True) -> Recipe:
    """Random crops and mirroring, as is usual for CIFAR, redrawn each time that a client draws an image.

    This isn't a federated method; combine it with one: `combine(flcir(), crop_flip())`.

    Args:
        pad: width of the black border in pixels, 0 or more.
        flip: whether half of the images are mirrored, left to right.

    Example:
        >>> crop_flip().parts
        (CropAndFlip(pad=4, flip=True),)
    """
    return Recipe("crop_flip", (CropAndFlip(pad, flip),))


@recipe("sampling", "devries2017cutout")
def cutout(side: Count = 16) -> Recipe:
    """A square hole in each image, redrawn each time that a client draws the image; put it after `crop_flip`.

    Args:
        side: side of the square in pixels, at least 1; the image's border may cut it off.

    Example:
        >>> cutout().parts
        (Cutout(side=16),)
    """
    return Recipe("cutout", (Cutout(side),))
