"""AutoAugment: each image is changed by two random operations on colours and shape, as found for CIFAR-10."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_bal.balance import affine_matrix, warp
from fedjax_bal.data import check_images, with_images
from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.roles import Batches, CheckContext, part
from fedjax_bal.types import Array, Batch, Context, Federation, Key

POLICY = """
    0.1 invert 7 0.2 contrast 6; 0.7 rotate 2 0.3 translate_x 9; 0.8 sharpness 1 0.9 sharpness 3;
    0.5 shear_y 8 0.7 translate_y 9; 0.5 autocontrast 8 0.9 equalize 2; 0.2 shear_y 7 0.3 posterize 7;
    0.4 color 3 0.6 brightness 7; 0.3 sharpness 9 0.7 brightness 9; 0.6 equalize 5 0.5 equalize 1;
    0.6 contrast 7 0.6 sharpness 5; 0.7 color 7 0.5 translate_x 8; 0.3 equalize 7 0.4 autocontrast 8;
    0.4 translate_y 3 0.2 sharpness 6; 0.9 brightness 6 0.2 color 8; 0.5 solarize 2 0.0 invert 3;
    0.2 equalize 0 0.6 autocontrast 0; 0.2 equalize 8 0.6 equalize 4; 0.9 color 9 0.6 equalize 6;
    0.8 autocontrast 4 0.2 solarize 8; 0.1 brightness 3 0.7 color 0; 0.4 solarize 5 0.9 autocontrast 3;
    0.9 translate_y 9 0.7 translate_y 9; 0.9 autocontrast 2 0.8 solarize 3; 0.8 equalize 8 0.1 invert 3;
    0.7 translate_y 9 0.9 autocontrast 1
"""
"""The 25 sub-policies for CIFAR-10: twice a probability, an operation and its strength, from 0 to 9."""

_GREY = 128.0  # the background of a moved image


def _move(image: Array, matrix: Array) -> Array:
    """Warps an image by a map of `fedjax_bal.balance.warp`, over grey."""
    return jnp.round(warp(image[None] - _GREY, matrix[None])[0] + _GREY)


def _luminance(image: Array) -> Array:
    """Returns the image in grey, `Float[H, W, 1]`, with Pillow's weights of red, green and blue."""
    if image.shape[-1] == 3:
        weighted = (image * jnp.array([19595.0, 38470.0, 7471.0], image.dtype)).sum(-1, keepdims=True)
        return jnp.floor((weighted + 32768.0) / 65536.0)
    return jnp.floor(image.mean(-1, keepdims=True) + 0.5)


def _blend(other: Array, image: Array, factor: Array) -> Array:
    """Moves an image away from another one, or towards it if the factor is below 1, as `PIL.ImageEnhance` does."""
    # Not ideal: where a compiler fuses product and sum, a few sharpened pixels are one grey level off Pillow's.
    return jnp.clip(jnp.floor(other + factor * (image - other)), 0.0, 255.0)


def shear_x(image: Array, amount: Array) -> Array:
    """Moves each row sideways by `amount` times its distance from the top."""
    matrix = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    return _move(image, matrix.at[1, 0].set(amount).at[1, 2].set(amount * image.shape[0] / 2))


def shear_y(image: Array, amount: Array) -> Array:
    """Moves each column up or down by `amount` times its distance from the left."""
    matrix = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    return _move(image, matrix.at[0, 1].set(amount).at[0, 2].set(amount * image.shape[1] / 2))


def translate_x(image: Array, amount: Array) -> Array:
    """Shifts by a share of the width."""
    return _move(image, affine_matrix(jnp.array([0.0, -image.shape[1]]) * amount, 0.0, 0.0, 1.0))


def translate_y(image: Array, amount: Array) -> Array:
    """Shifts by a share of the height."""
    return _move(image, affine_matrix(jnp.array([-image.shape[0], 0.0]) * amount, 0.0, 0.0, 1.0))


def rotate(image: Array, amount: Array) -> Array:
    """Rotates anticlockwise, in degrees."""
    return _move(image, affine_matrix(jnp.zeros(2), amount, 0.0, 1.0))


def color(image: Array, factor: Array) -> Array:
    """Moves colours away from grey, or towards it."""
    return _blend(jnp.broadcast_to(_luminance(image), image.shape), image, factor)


def contrast(image: Array, factor: Array) -> Array:
    """Moves pixels away from the mean luminance, or towards it."""
    return _blend(jnp.floor(_luminance(image).mean() + 0.5), image, factor)


def brightness(image: Array, factor: Array) -> Array:
    """Moves pixels away from black, or towards it."""
    return _blend(jnp.zeros_like(image), image, factor)


def sharpness(image: Array, factor: Array) -> Array:
    """Moves pixels away from a smoothed image, or towards it; those at the border stay."""
    height, width, _ = image.shape
    framed = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
    around = sum(framed[down : down + height, right : right + width] for down in range(3) for right in range(3))
    inner = np.zeros((height, width, 1), bool)
    inner[1:-1, 1:-1] = True
    smooth = jnp.floor((around + 4.0 * image) / 13.0 + 0.5)
    return _blend(jnp.where(inner, smooth, image), image, factor)


def posterize(image: Array, amount: Array) -> Array:
    """Keeps the highest bits of a pixel, `amount` of 8."""
    size = 2.0 ** (8.0 - amount)
    return jnp.floor(image / size) * size


def solarize(image: Array, amount: Array) -> Array:
    """Inverts pixels from a threshold on."""
    return jnp.where(image < amount, image, 255.0 - image)


def invert(image: Array, amount: Array) -> Array:
    """Inverts all pixels."""
    return 255.0 - image


def autocontrast(image: Array, amount: Array) -> Array:
    """Stretches each channel's pixels to the whole range."""
    low = image.min((0, 1))
    spread = image.max((0, 1)) - low
    return jnp.where(spread > 0, jnp.floor((image - low) * 255.0 / jnp.maximum(spread, 1.0)), image)


def equalize(image: Array, amount: Array) -> Array:
    """Maps each channel's pixels so that their values are spread evenly."""
    pixels = image.reshape(-1, image.shape[-1]).astype(jnp.int32)
    histogram = jax.vmap(lambda channel: jnp.bincount(channel, length=256), 1)(pixels)
    below = jnp.cumsum(histogram, axis=1) - histogram  # pixels below each value, by channel
    brightest = (pixels == pixels.max(0)).sum(0)
    step = (len(pixels) - brightest) // 255
    even = (step[:, None] // 2 + below) // jnp.maximum(step[:, None], 1)
    table = jnp.where(step[:, None] > 0, jnp.minimum(even, 255), jnp.arange(256))
    return jnp.take_along_axis(table, pixels.T, axis=1).T.reshape(image.shape).astype(image.dtype)


_SHIFT = 150 / 331  # the largest shift, as a share of the side: AutoAugment was made for images of 331 pixels

OPERATIONS = {
    shear_x: (0.0, 0.3, True), shear_y: (0.0, 0.3, True), translate_x: (0.0, _SHIFT, True),
    translate_y: (0.0, _SHIFT, True), rotate: (0.0, 30.0, False), color: (1.0, 1.9, True),
    contrast: (1.0, 1.9, True), brightness: (1.0, 1.9, True), sharpness: (1.0, 1.9, True),
    posterize: (8.0, 4.0, False), solarize: (256.0, 0.0, False), invert: (0.0, 0.0, False),
    autocontrast: (0.0, 0.0, False), equalize: (0.0, 0.0, False),
}  # fmt: skip
"""Each operation with its amounts at strength 0 and 9, and whether its direction from strength 0 is random."""


def _table() -> np.ndarray:
    """Returns the policy as probability, operation, and the amounts in both directions, `Float[25, 2, 4]`."""
    names = [operation.__name__ for operation in OPERATIONS]
    ranges = list(OPERATIONS.values())
    steps = []
    for words in (entry.split() for entry in POLICY.split(";")):
        for chance, name, strength in (words[:3], words[3:]):
            number = names.index(name)
            first, last, signed = ranges[number]
            amount = first + (last - first) * int(strength) / 9
            amount = round(amount) if name == "posterize" else amount
            # In 64 bits: 1 - 0.6, rounded once to 32, is not what 32 bits subtract.
            steps.append((float(chance), number, amount, 2 * first - amount if signed else amount))
    return np.array(steps).reshape(-1, 2, 4)


@jax.jit
def augmented(key: Key, pixels: Array) -> Array:
    """Applies a random sub-policy of AutoAugment to each image.

    Args:
        key: a JAX random key.
        pixels: `Float[B, H, W, K]`, whole numbers from 0 to 255.

    Returns:
        The changed images, likewise whole numbers from 0 to 255.

    Example:
        >>> jax.eval_shape(augmented, jax.random.key(0), jnp.full((2, 8, 8, 3), 100.0)).shape
        (2, 8, 8, 3)
    """
    policy = jnp.asarray(_table(), pixels.dtype)

    def augment(key: Key, image: Array) -> Array:
        choice_key, chance_key, sign_key = jax.random.split(key, 3)
        steps = policy[jax.random.randint(choice_key, (), 0, len(policy))]
        signs = jax.random.rademacher(sign_key, (2,), pixels.dtype)
        draws = jax.random.uniform(chance_key, (2,))

        def apply(image: Array, step: tuple[Array, Array, Array]) -> tuple[Array, None]:
            (chance, number, forth, back), draw, sign = step
            amount = jnp.where(sign > 0, forth, back)
            changed = lax.switch(number.astype(int), list(OPERATIONS), image, amount)
            return jnp.where(draw < chance, changed, image), None

        return lax.scan(apply, image, (steps, draws, signs))[0]

    return jax.vmap(augment)(jax.random.split(key, len(pixels)), pixels)


def as_pixels(images: Array, federation: Federation) -> Array:
    """Returns normalised images as whole numbers from 0 to 255, `Float[B, H, W, K]`; others are clipped."""
    return jnp.clip(jnp.round((images * federation.std + federation.mean) * 255.0), 0.0, 255.0)


def as_images(pixels: Array, federation: Federation) -> Array:
    """Returns pixels as normalised images, `Float[B, H, W, K]`."""
    return (pixels / 255.0 - federation.mean) / federation.std


@part
class AutoAugment(Batches):
    """Changes each image by one of 25 pairs of operations, drawn in each local step; an operation may be skipped.

    Colours: `color`, `contrast`, `brightness`, `sharpness`, `posterize`, `solarize`, `invert`, `autocontrast`,
    `equalize`. Shape: rotation, shear and translation over grey. As with `CropAndFlip`, evaluation, probes and
    prototypes use the unchanged images. Images of floats are taken as pixels from 0 to 1.

    References:
        AutoAugment (Cubuk et al., 2019), the policy for CIFAR-10, with the operations of Pillow as in FedYoYo's code.
        Interpolation is bilinear here; there it is bicubic for shears, and the nearest pixel for the others.
    """

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images."""
        check_images("AutoAugment", context.federation.images)

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with changed images."""
        pixels = augmented(key, as_pixels(batch.images, ctx.federation))
        return with_images(batch, as_images(pixels, ctx.federation))


@recipe("sampling", "cubuk2019autoaugment")
def auto_augment() -> Recipe:
    """Random operations on colours and shape, redrawn each time that a client draws an image; put it after `crop_flip`.

    Example:
        >>> auto_augment().parts
        (AutoAugment(),)
    """
    return Recipe("auto_augment", (AutoAugment(),))
