"""AutoAugment: its operations against Pillow's, and what is drawn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import hand
from PIL import Image, ImageEnhance, ImageOps

from fedjax_bal.data.batches import append_rows
from fedjax_bal.methods import auto_augment as MODULE
from fedjax_bal.parts import AutoAugment

SIDE = 48
COMPILED = {operation: jax.jit(operation) for operation in MODULE.OPERATIONS}


def photograph(channels=3):
    """Noise in a grey frame, so that what Pillow does at the border doesn't matter."""
    image = np.full((SIDE, SIDE, channels), 128, np.uint8)
    image[16:32, 14:34] = np.random.default_rng(2).integers(20, 240, (16, 20, channels))
    return image


def moved(*matrix):
    """An affine map of Pillow's, from output to input."""
    return lambda image, amount: image.transform(
        image.size,
        Image.Transform.AFFINE,
        [one(amount) for one in matrix],
        Image.Resampling.BILINEAR,
        fillcolor=(128,) * 3,
    )


zero, one = (lambda amount: 0), (lambda amount: 1)
PILLOW = {
    "shear_x": moved(one, lambda m: m, zero, zero, one, zero),
    "shear_y": moved(one, zero, zero, lambda m: m, one, zero),
    "translate_x": moved(one, zero, lambda m: m * SIDE, zero, one, zero),
    "translate_y": moved(one, zero, zero, zero, one, lambda m: m * SIDE),
    "rotate": lambda image, m: image.rotate(m, Image.Resampling.BILINEAR, fillcolor=(128,) * 3),
    "color": lambda image, m: ImageEnhance.Color(image).enhance(m),
    "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
    "posterize": lambda image, m: ImageOps.posterize(image, round(m)),
    "solarize": ImageOps.solarize,
    "invert": lambda image, m: ImageOps.invert(image),
    "autocontrast": lambda image, m: ImageOps.autocontrast(image),
    "equalize": lambda image, m: ImageOps.equalize(image),
}
AMOUNTS = {"rotate": [6.7, -30.0], "posterize": [5, 4], "solarize": [142.2, 28.4]}
AMOUNTS |= {name: [1.9, 0.3] for name in ("color", "contrast", "brightness", "sharpness")}


@pytest.mark.parametrize("operation", MODULE.OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_equals_pillows(operation):
    name, image = operation.__name__, photograph()
    for amount in AMOUNTS.get(name, [0.2, -0.13]):
        wanted = np.asarray(PILLOW[name](Image.fromarray(image), amount), float)
        found = np.asarray(COMPILED[operation](image.astype(np.float32), np.float32(amount)))
        assert np.abs(found - wanted).max() <= 1, amount  # Pillow rounds some products down
        assert np.abs(found - wanted).mean() < 0.2
        assert not np.array_equal(found, image)
        np.testing.assert_array_equal(found, np.round(found))


@pytest.mark.parametrize("name", ["brightness", "contrast", "color", "sharpness"])
def test_all_grey_levels_at_all_strengths_equal_pillows(name):
    operation = next(each for each in MODULE.OPERATIONS if each.__name__ == name)
    first, last, _ = MODULE.OPERATIONS[operation]
    image = np.repeat(np.random.default_rng(0).permutation(256).astype(np.uint8).reshape(16, 16, 1), 3, 2)
    image[..., 1] = image[::-1, :, 1]
    compiled = jax.jit(operation)
    for strength, sign in itertools.product(range(10), (1, -1)):
        factor = first + sign * (last - first) * strength / 9
        wanted = np.asarray(PILLOW[name](Image.fromarray(image), factor), int)
        pixels = jnp.asarray(image, jnp.float32)
        np.testing.assert_array_equal(operation(pixels, jnp.float32(factor)), wanted, str(factor))
        gap = np.abs(compiled(pixels, jnp.float32(factor)) - wanted)
        assert gap.max() <= (name == "sharpness") and gap.mean() < 0.05


def test_the_table_has_the_factors_that_pillow_is_given():
    names = [operation.__name__ for operation in MODULE.OPERATIONS]
    for chance, number, forth, back in MODULE._table().reshape(-1, 4).tolist():
        assert 0 <= chance <= 1
        if names[int(number)] in ("brightness", "contrast", "color", "sharpness"):
            assert np.float32([forth, back]).tolist() == np.float32([round(forth, 1), round(back, 1)]).tolist()


@pytest.mark.parametrize("value", [0, 77, 255])
def test_an_image_of_one_colour_stays_in_range(value):
    for operation, (_, last, _) in MODULE.OPERATIONS.items():
        found = np.asarray(COMPILED[operation](np.full((SIDE, SIDE, 3), value, np.float32), np.float32(last)))
        assert found.min() >= 0 and found.max() <= 255, operation


@pytest.mark.slow
def test_each_image_has_its_own_pair_of_operations():
    image, names = jnp.asarray(photograph(1)[12:36, 12:36], float), {f.__name__: f for f in MODULE.OPERATIONS}
    outcomes, numbers = [], []
    for number, entry in enumerate(MODULE.POLICY.split(";")):
        words, choices = entry.split(), []
        for name, strength in ((words[1], int(words[2])), (words[4], int(words[5]))):
            first, last, signed = MODULE.OPERATIONS[names[name]]
            amount = first + (last - first) * strength / 9
            amount = round(amount) if name == "posterize" else amount
            signs = (1, -1) if signed else (1,)
            choices.append([None, *((names[name], first + sign * (amount - first)) for sign in signs)])
        for pair in itertools.product(*choices):
            made = image
            for step in pair:
                made = made if step is None else step[0](made, jnp.asarray(step[1], float))
            outcomes.append(np.asarray(made))
            numbers.append(number)
    assert number == 24
    found = np.asarray(MODULE.augmented(jax.random.key(0), jnp.stack([image] * 300)))
    away = np.array([np.abs(own - np.array(outcomes)).max((1, 2, 3)) for own in found])
    assert away.min(1).max() <= 1  # compiled products round otherwise
    assert len({numbers[place] for place in away.argmin(1)}) > 15


def test_pixels_are_changed_between_the_normalisations_and_added_rows_stay(monkeypatch):
    monkeypatch.setattr(MODULE, "augmented", lambda key, pixels: 255.0 - pixels)
    rows, mean, std = np.arange(4, dtype=np.int32), np.array([0.4], np.float32), np.array([0.2], np.float32)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.float32)
    pixels[0, 0, 0] = -300.0  # an image of floats may be darker than black
    images = (pixels / 255 - mean) / std
    batch = append_rows(
        hand.batch()._replace(images=images, labels=rows, rows=rows, real=rows > 0), images[:2], rows[:2]
    )
    ctx = hand.context(federation=hand.context().federation._replace(mean=mean, std=std))
    found = AutoAugment().batch(jax.random.key(1), batch, ctx)
    np.testing.assert_array_equal(found.images[4:], images[:2])
    wanted = 255 - np.maximum(pixels, 0)
    np.testing.assert_allclose((np.asarray(found.images[:4]) * std + mean) * 255, wanted, rtol=0, atol=1e-3)
    assert all(np.array_equal(a, b) for a, b in zip(found[1:], batch[1:], strict=True))
