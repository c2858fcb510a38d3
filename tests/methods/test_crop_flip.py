"""Batches: what a part does to a batch is what the model sees; random crops, mirror images and holes."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import toys
from methods import float64
from rounding import FORMULA, SUM

from fedjax_bal.data.batches import append_rows
from fedjax_bal.parts import Batches, CropAndFlip, Cutout, part, static
from fedjax_bal.recipes import Recipe, fedavg
from fedjax_bal.types import Batch

MEAN, STD = np.array([0.25, 0.5], np.float32), np.array([0.5, 0.25], np.float32)
CONTEXT = SimpleNamespace(federation=SimpleNamespace(mean=MEAN, std=STD))
BATCH = jax.jit(lambda part, key, batch: part.batch(key, batch, CONTEXT))


def images(count, height=5, width=4):
    return np.random.default_rng(0).normal(size=(count, height, width, 2)).astype(np.float32)


def seen(part, originals, seed=0):
    count = len(originals)
    batch = Batch(originals, np.arange(count), np.arange(count), np.ones(count, bool))
    return np.asarray(BATCH(part, jax.random.key(seed), batch).images)


def windows(image, pad):
    """All that may come out: window and mirroring -> pixels."""
    height, width, _ = image.shape
    bordered = np.empty((height + 2 * pad, width + 2 * pad, 2), np.float32)
    bordered[:] = -MEAN / STD
    bordered[pad : pad + height, pad : pad + width] = image
    cut = lambda y, x: bordered[y : y + height, x : x + width]
    places = [(y, x) for y in range(2 * pad + 1) for x in range(2 * pad + 1)]
    return {(*at, step): cut(*at)[:, ::step] for at in places for step in (1, -1)}


def test_each_image_is_one_of_its_windows_and_all_windows_come_equally_often():
    image, count = images(1)[0], 3000
    choices = windows(image, 1)
    numbers = {pixels.tobytes(): place for place, pixels in choices.items()}
    assert len(numbers) == len(choices) == 18
    got = [numbers[np.ascontiguousarray(one).tobytes()] for one in seen(CropAndFlip(pad=1), np.stack([image] * count))]
    often = np.array([got.count(place) for place in choices])
    assert ((often - count / 18) ** 2 / (count / 18)).sum() < 40.8  # chi-squared, 17 degrees: one seed in a thousand


def test_each_image_has_a_window_of_its_own():
    originals = images(64)
    got = seen(CropAndFlip(pad=2), originals)
    for image, pixels in zip(originals, got, strict=True):
        assert any(np.array_equal(pixels, window) for window in windows(image, 2).values())
    again, other = seen(CropAndFlip(pad=2), originals), seen(CropAndFlip(pad=2), originals, seed=1)
    assert np.array_equal(got, again)
    assert not np.array_equal(got, other)


def test_without_border_and_mirror_images_are_left_alone():
    originals = images(64)
    assert np.array_equal(seen(CropAndFlip(pad=0, flip=False), originals), originals)
    shifted = seen(CropAndFlip(pad=1, flip=False), np.stack([originals[0]] * 64))
    straight = [window for (_, _, step), window in windows(originals[0], 1).items() if step == 1]
    assert all(any(np.array_equal(pixels, window) for window in straight) for pixels in shifted)


def test_a_hole_is_a_square_around_any_pixel():
    count, side = 2000, 4
    got = seen(Cutout(side), np.stack([images(1)[0] + 9] * count))
    centres = {}
    for y, x in np.ndindex(5, 4):
        kept = np.ones((5, 4), bool)
        kept[max(y - 2, 0) : y + 2, max(x - 2, 0) : x + 2] = False
        centres.setdefault(kept.tobytes(), []).append((y, x))
    assert len(centres) == 20
    often = np.zeros((5, 4))
    for pixels in got:
        ((at,),) = [centres[(pixels[..., 0] != 0).tobytes()]]
        often[at] += 1
    np.testing.assert_array_equal(got[..., 0] != 0, got[..., 1] != 0)
    assert ((often - count / 20) ** 2 / (count / 20)).sum() < 43.8  # chi-squared, 19 degrees: one seed in a thousand


@pytest.mark.parametrize("side", [1, 3])
def test_a_hole_of_odd_width_is_no_narrower(side):
    holes = seen(Cutout(side), np.ones((500, 5, 4, 2), np.float32)) == 0
    assert holes.sum((1, 2, 3)).max() == 2 * side**2


def test_rows_that_another_part_has_added_are_left_alone():
    originals, count = images(6), 4
    rows = np.arange(count, dtype=np.int32)
    own = Batch(originals[:count], rows, rows, np.array([True, True, False, False]))
    both = append_rows(own, originals[count:], rows[:2])
    cropped = BATCH(CropAndFlip(pad=2), jax.random.key(0), both)
    np.testing.assert_array_equal(cropped.images[count:], originals[count:])
    holed = BATCH(Cutout(4), jax.random.key(0), both)
    np.testing.assert_array_equal(holed.images[count:], originals[count:])
    for image, pixels in zip(originals[:count], cropped.images[:count], strict=True):
        assert any(np.array_equal(pixels, window) for window in windows(image, 2).values())
        assert not np.array_equal(pixels, image)
    for before, after in zip(both[1:], cropped[1:], strict=True):
        np.testing.assert_array_equal(after, before)


@part
class Scaled(Batches):
    factor: float = static(2.0)
    shift: float = static(1.0)

    @property
    def slot(self):
        return f"Scaled {self.factor}"

    def batch(self, key, batch, ctx):
        return batch._replace(images=self.factor * batch.images + self.shift)


@pytest.mark.slow
def test_clients_train_on_what_the_parts_make_in_their_order():
    plain = toys.federation()
    ready = plain._replace(images=0.5 * (2.0 * plain.images + 1.0) - 3.0)
    run = lambda recipe, federation: float64.run(float64.simulation(recipe, federation=federation)).variables.params
    made = run(Recipe("scaled", (Scaled(), Scaled(0.5, -3.0))), plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=FORMULA), made, run(fedavg(), ready))
    swapped = run(Recipe("scaled", (Scaled(0.5, -3.0), Scaled())), plain)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max() > 1e-3, made, swapped)))


KEYS = []


@part
class Watched(Batches):
    def batch(self, key, batch, ctx):
        jax.debug.callback(lambda words: KEYS.append(tuple(np.asarray(words).tolist())), jax.random.key_data(key))
        return batch


@pytest.mark.slow
def test_each_step_of_each_visit_has_a_key_of_its_own():
    KEYS.clear()
    sim = float64.simulation(Recipe("watched", (Watched(),)))
    float64.run(sim)
    jax.effects_barrier()
    sizes = [toys.SIZES[client] for _, cohort in float64.cohorts(sim) for client in cohort]
    steps = sum(float64.OPTIONS.epochs * -(-size // float64.OPTIONS.batch_size) for size in sizes)
    assert len(KEYS) == len(set(KEYS)) == steps > len(sizes)
