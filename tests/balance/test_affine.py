"""Warped images against a loop over pixels, in exact cases, and the law of the maps that are drawn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import SUM

from fedjax_bal.balance import affine_matrix, random_affine, random_matrices, warp

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 5, 7, 2)).astype(np.float32)
SQUARE = RNG.integers(0, 256, (2, 6, 6, 3)).astype(np.uint8)
KEYS = jax.random.split(jax.random.key(0), 3)


def looped(image, matrix):
    """One image, pixel by pixel in float64."""
    height, width, _ = image.shape
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    result = np.zeros(image.shape)
    for i in range(height):
        for j in range(width):
            row, column = middle + np.asarray(matrix, np.float64) @ np.array([i - middle[0], j - middle[1], 1.0])
            for y in (math.floor(row), math.floor(row) + 1):
                for x in (math.floor(column), math.floor(column) + 1):
                    if 0 <= y < height and 0 <= x < width:
                        result[i, j] += (1 - abs(row - y)) * (1 - abs(column - x)) * image[y, x]
    return result


def moved(matrix, count=1):
    return np.broadcast_to(np.array(matrix, np.float32), (count, 2, 3))


ENTRIES = st.one_of(st.floats(-3, 3, width=32), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]))


@given(values=st.lists(ENTRIES, min_size=18, max_size=18))
def test_warp_equals_the_loop_for_any_matrix(values):
    matrices = np.array(values, np.float32).reshape(3, 2, 3)
    wanted = np.stack([looped(image, matrix) for image, matrix in zip(IMAGES, matrices, strict=True)])
    np.testing.assert_allclose(warp(IMAGES, matrices), wanted, rtol=0, atol=2e-5)  # places round by 1e-6


@pytest.mark.parametrize(
    ("matrix", "wanted"),
    [
        ([[1, 0, 0], [0, 1, 0]], lambda image: image),
        ([[0, 1, 0], [-1, 0, 0]], lambda image: np.rot90(image)),
        ([[-1, 0, 0], [0, -1, 0]], lambda image: np.rot90(image, 2)),
        ([[0, -1, 0], [1, 0, 0]], lambda image: np.rot90(image, 3)),
        ([[1, 0, 0], [0, -1, 0]], lambda image: image[:, ::-1]),
        ([[0, 1, 0], [1, 0, 0]], lambda image: image.transpose(1, 0, 2)),
        ([[1, 0, -2], [0, 1, 1]], lambda image: np.pad(image, ((2, 0), (0, 1), (0, 0)))[:6, 1:]),
        ([[1, 0, 6], [0, 1, 0]], np.zeros_like),
        ([[1, 0, -1e30], [0, 1, 1e30]], np.zeros_like),
    ],
)
def test_exact_maps_move_pixels_and_change_none(matrix, wanted):
    for images in (SQUARE, SQUARE.astype(np.float32) / 7):
        got = warp(images, moved(matrix, 2))
        assert got.dtype == images.dtype
        np.testing.assert_array_equal(got, np.stack([wanted(image) for image in images]))


def test_between_pixels_is_their_mean_and_beyond_the_edge_half_is_zero():
    image = jnp.array([[10.0, 20.0, 40.0]])[None, :, :, None]
    assert warp(image, moved([[1, 0, 0], [0, 1, 0.5]]))[0, 0, :, 0].tolist() == [15, 30, 20]
    assert warp(image, moved([[1, 0, 0], [0, 1, -0.25]]))[0, 0, :, 0].tolist() == [7.5, 17.5, 35]
    assert warp(image, moved([[1, 0, 0.25], [0, 1, 0]]))[0, 0, :, 0].tolist() == [7.5, 15, 30]


def test_integers_are_rounded_and_never_wrap_around():
    matrices = random_matrices(KEYS[:2], 6, 6, 0.2, 30.0, 0.3, 0.3)
    exact = np.stack([looped(image, matrix) for image, matrix in zip(SQUARE, np.asarray(matrices), strict=True)])
    got = np.asarray(warp(SQUARE, matrices))
    assert got.dtype == np.uint8
    assert np.abs(got - exact).max() <= 0.5 + 1e-3
    white = np.asarray(warp(np.full_like(SQUARE, 255), matrices)).astype(int)
    assert (white[:, 2:4, 2:4] == 255).all()


@settings(max_examples=50)
@given(st.floats(-180, 180), st.floats(-1, 1), st.floats(0.2, 3), st.floats(-9, 9), st.floats(-9, 9))
def test_matrices_undo_zoom_shear_rotation_and_shift(rotate, shear, zoom, down, right):
    cosine, sine = math.cos(math.radians(rotate)), math.sin(math.radians(rotate))
    forth = np.array([[cosine, -sine], [sine, cosine]]) @ np.array([[1, 0], [shear, 1]]) * zoom
    back = np.asarray(affine_matrix(np.array([down, right]), rotate, shear, zoom), np.float64)
    start = np.array([[2.0, -3.0, 0.5], [1.0, 4.0, -2.5]])
    end = forth @ start + [[down], [right]]
    np.testing.assert_allclose(back[:, :2] @ end + back[:, 2:], start, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        (((0, 0), 90.0, 0.0, 1.0), lambda image: np.rot90(image)),
        (((0, 0), -90.0, 0.0, 1.0), lambda image: np.rot90(image, -1)),
        (((1, -2), 0.0, 0.0, 1.0), lambda image: np.pad(image, ((1, 0), (0, 2), (0, 0)))[:6, 2:]),
        (((1, 0), 90.0, 0.0, 1.0), lambda image: np.pad(np.rot90(image), ((1, 0), (0, 0), (0, 0)))[:6]),
    ],
)
def test_directions_as_seen_on_the_screen(parameters, wanted):
    shift, *others = parameters
    image = SQUARE[:1].astype(np.float32)
    got = warp(image, affine_matrix(np.array(shift), *others)[None])
    np.testing.assert_allclose(got[0], wanted(image[0]), rtol=0, atol=1e-3)


def test_zoom_enlarges_and_shear_moves_lower_rows_to_the_right():
    image = np.zeros((1, 7, 7, 1), np.float32)
    image[0, 3, 2:5] = 1
    twice = warp(image, affine_matrix(np.zeros(2), 0.0, 0.0, 2.0)[None])[0, :, :, 0]
    assert np.asarray(twice)[3].tolist() == [0.5, 1, 1, 1, 1, 1, 0.5]
    image = np.zeros((1, 7, 7, 1), np.float32)
    image[0, :, 3] = 1
    slanted = np.asarray(warp(image, affine_matrix(np.zeros(2), 0.0, 1.0, 1.0)[None])[0, :, :, 0])
    np.testing.assert_array_equal(slanted, np.eye(7))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float32, jnp.bfloat16])
def test_ranges_of_zero_give_the_images_back(dtype):
    for images in (SQUARE.astype(dtype), np.abs(IMAGES * 60)[:2].astype(dtype)):
        got = random_affine(KEYS[:2], images, 0.0, 0.0, 0.0, 0.0)
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), images)


def test_a_random_map_is_the_loop_with_the_matrices_drawn():
    ranges = (0.1, 15.0, 0.2, 0.2)
    matrices = np.asarray(random_matrices(KEYS, 5, 7, *ranges))
    wanted = np.stack([looped(image, matrix) for image, matrix in zip(IMAGES, matrices, strict=True)])
    got = np.asarray(random_affine(KEYS, IMAGES, *ranges))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=SUM)
    assert (np.abs(got - IMAGES).reshape(3, -1).max(1) > 0.1).all()


def test_amounts_are_uniform_in_their_ranges_and_independent():
    count, height, width = 4000, 20, 30
    keys = jax.random.split(jax.random.key(7), count)
    back = np.asarray(random_matrices(keys, height, width, 0.1, 15.0, 0.2, 0.3), np.float64)
    forth = np.linalg.inv(back[:, :, :2])
    shift = -np.einsum("nij,nj->ni", forth, back[:, :, 2]) / [height, width]
    zoom = np.hypot(forth[:, 0, 1], forth[:, 1, 1])
    angle = np.arctan2(-forth[:, 0, 1], forth[:, 1, 1])
    shear = (np.sin(-angle) * forth[:, 0, 0] + np.cos(angle) * forth[:, 1, 0]) / zoom
    amounts = np.stack([*shift.T / 0.1, np.degrees(angle) / 15, shear / 0.2, (zoom - 1) / 0.3])
    assert np.abs(amounts).max() <= 1 + 1e-4
    for amount in amounts:
        assert scipy.stats.kstest(amount, "uniform", (-1, 2)).pvalue > 1e-3
    assert np.abs(np.corrcoef(amounts) - np.eye(5)).max() < 4.5 / np.sqrt(count)


def test_an_image_depends_on_its_own_key_alone():
    ranges = (0.1, 15.0, 0.2, 0.2)
    together = random_affine(KEYS, IMAGES, *ranges)
    for i in range(3):
        alone = random_affine(KEYS[i : i + 1], IMAGES[i : i + 1], *ranges)[0]
        np.testing.assert_allclose(together[i], alone, rtol=0, atol=SUM)
    same = random_affine(jnp.stack([KEYS[0]] * 3), np.stack([IMAGES[0]] * 3), *ranges)
    np.testing.assert_allclose(same, np.stack([together[0]] * 3), rtol=0, atol=SUM)
    words = random_affine(jax.random.key_data(KEYS), IMAGES, *ranges)
    np.testing.assert_allclose(words, together, rtol=0, atol=SUM)


def test_warp_is_linear_in_the_image_and_its_gradient_is_the_transpose():
    matrices = random_matrices(KEYS, 5, 7, 0.2, 40.0, 0.3, 0.3)
    product = lambda images: (warp(images, matrices) * IMAGES[::-1]).sum()
    gradient = jax.jit(jax.grad(product))(jnp.zeros(IMAGES.shape))
    assert float((gradient * IMAGES).sum()) == pytest.approx(float(product(IMAGES)), abs=1e-3)


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        images = IMAGES.astype(np.float64)
        matrix = np.array([[0.9, 0.1, 0.3], [-0.2, 1.1, 0.7]])
        got = warp(images, np.stack([matrix] * 3))
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, np.stack([looped(image, matrix) for image in images]), rtol=0, atol=1e-13)
