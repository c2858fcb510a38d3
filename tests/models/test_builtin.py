"""Convolutions through jaxlib's oneDNN against sums written out in float64."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_bal.models.convolution import automatic, builtin, convolution, rules

pytestmark = pytest.mark.slow  # whether this machine can is tried in another process

# batch, image, channels in and out, kernel, strides, padding
SHAPES = {
    "unequal": (3, (9, 8), 20, 24, (3, 2), (2, 1), ((1, 2), (0, 1))),
    "in chunks": (20, (10, 9), 3, 17, (3, 3), (1, 1), "SAME"),
    "halving": (50, (14, 13), 16, 32, (3, 3), (2, 2), "SAME"),
    "odd": (7, (13, 11), 5, 17, (5, 4), (1, 2), "VALID"),
    "cropping": (5, (12, 12), 20, 6, (3, 3), (1, 1), ((-1, 2), (3, -2))),
    "much padding": (2, (5, 4), 18, 3, (2, 2), (1, 1), ((4, 3), (0, 4))),
    "kernel of the image's size": (6, (4, 4), 33, 65, (4, 4), (1, 1), "VALID"),
    "one pixel": (11, (1, 1), 19, 21, (3, 3), (1, 1), "SAME"),
    "one row": (4, (1, 30), 8, 40, (1, 7), (1, 1), "SAME"),
    "one image": (1, (16, 16), 17, 1, (3, 3), (1, 1), "SAME"),
}
TARGET = "__onednn$convolution"


@pytest.fixture(autouse=True)
def _every_size(monkeypatch):
    """Skips where this machine can't; elsewhere the smallest layers are oneDNN's, and batches are cut."""
    if automatic.why_not_builtin():
        pytest.skip(automatic.why_not_builtin())
    monkeypatch.setattr(rules, "FEW_PRODUCTS", 1)
    monkeypatch.setattr(rules, "FEW_IN_AN_IMAGE", 1)
    monkeypatch.setattr(builtin, "CACHED", 10_000)


@pytest.fixture(params=["AVX2", "AVX512"])
def instructions(request, monkeypatch):
    """Chooses the weight gradient that suits AVX2, then that for AVX-512; every machine can compute both."""
    monkeypatch.setattr(automatic, "instruction_set", lambda: request.param)
    jax.clear_caches()  # or else programs for the other instructions would be found
    return request.param


def operands(batch, image, inputs, outputs, size, *lead, seed=0):
    rng = np.random.default_rng(seed)
    images, kernel = rng.normal(size=(*lead, batch, *image, inputs)), rng.normal(size=(*lead, *size, inputs, outputs))
    return jnp.asarray(images, jnp.float32), jnp.asarray(kernel / np.sqrt(kernel[..., 0].size), jnp.float32)


def value_and_gradients(images, kernel, strides, padding, form="builtin"):
    each = lambda images, kernel: convolution(images, kernel, strides, padding, form=form)
    result, back = jax.vjp(each, images, kernel)
    return result, *back(jnp.cos(jnp.arange(result.size, dtype=result.dtype)).reshape(result.shape))


def written_out(images, kernel, strides, padding):
    """The same with a sum over the taps of the kernel, in float64."""
    images, kernel = np.asarray(images, np.float64), np.asarray(kernel, np.float64)
    size = kernel.shape[:2]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], size, strides, padding)
    (top, bottom), (left, right) = padding
    room = [max(0, number) for number in (top, bottom, left, right)]
    cut = [max(0, -number) for number in (top, bottom, left, right)]
    kept = np.s_[:, cut[0] : images.shape[1] - cut[1], cut[2] : images.shape[2] - cut[3]]
    padded = np.pad(images[kept], ((0, 0), room[:2], room[2:], (0, 0)))
    sides = zip(padded.shape[1:3], size, strides, strict=True)
    down, across = ((side - taps) // step + 1 for side, taps, step in sides)
    seen = {
        (i, j): np.s_[
            :, i : i + (down - 1) * strides[0] + 1 : strides[0], j : j + (across - 1) * strides[1] + 1 : strides[1]
        ]
        for i in range(size[0])
        for j in range(size[1])
    }
    result = sum(padded[view] @ kernel[tap] for tap, view in seen.items())
    cotangent = np.cos(np.arange(result.size)).reshape(result.shape)
    of_padded, of_kernel, of_images = np.zeros(padded.shape), np.zeros(kernel.shape), np.zeros(images.shape)
    for tap, view in seen.items():
        of_padded[view] += cotangent @ kernel[tap].T
        of_kernel[tap] = np.tensordot(padded[view], cotangent, ((0, 1, 2), (0, 1, 2)))
    inner = np.s_[:, room[0] : padded.shape[1] - room[1], room[2] : padded.shape[2] - room[3]]
    of_images[kept] = of_padded[inner]
    return result, of_images, of_kernel


def assert_close(actual, expected):
    for got, wanted in zip(actual, expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def traced(function, *given):
    return str(jax.make_jaxpr(function)(*given))


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_the_sums_written_out(name):
    *sizes, strides, padding = SHAPES[name]
    images, kernel = operands(*sizes)
    function = lambda images, kernel: value_and_gradients(images, kernel, strides, padding)
    assert traced(function, images, kernel).count(TARGET) >= 3
    assert_close(jax.jit(function)(images, kernel), written_out(images, kernel, strides, padding))


@pytest.mark.usefixtures("instructions")
def test_random_shapes_are_the_sums_written_out():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        while True:
            batch, inputs, outputs = int(rng.integers(1, 65)), int(rng.integers(1, 131)), int(rng.integers(1, 131))
            image, size = tuple(map(int, rng.integers(1, 41, 2))), tuple(map(int, rng.integers(1, 8, 2)))
            strides = tuple(map(int, rng.integers(1, 3, 2)))
            pads = tuple(map(tuple, rng.integers(-1, 5, (2, 2)).tolist()))
            padding = ("SAME", "VALID", pads)[rng.integers(3)]
            known = lax.padtype_to_pads(image, size, strides, padding) if isinstance(padding, str) else padding
            sides = [side + sum(ends) - taps for side, ends, taps in zip(image, known, size, strict=True)]
            cropped = [side + sum(min(0, end) for end in ends) for side, ends in zip(image, known, strict=True)]
            work = batch * image[0] * image[1] * inputs * outputs * size[0] * size[1]
            if min(sides) >= 0 and min(cropped) > 0 and work < 1e9:
                break
        images, kernel = operands(batch, image, inputs, outputs, size, seed=seed)
        found = jax.jit(value_and_gradients, static_argnums=(2, 3))(images, kernel, strides, padding)
        assert_close(found, written_out(images, kernel, strides, padding))


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize(("of_images", "of_kernel"), [(0, None), (None, 0), (0, 0)])
def test_stacked_clients_take_turns_and_come_to_the_same(of_images, of_kernel):
    axes = (of_images, of_kernel)
    *sizes, strides, padding = SHAPES["unequal"]
    stacked = operands(*sizes, 3)
    given = [operand if axis == 0 else operand[0] for operand, axis in zip(stacked, axes, strict=True)]
    found = jax.jit(jax.vmap(lambda x, w: value_and_gradients(x, w, strides, padding), axes))(*given)
    for client in range(3):
        own = [operand[client] if axis == 0 else operand for operand, axis in zip(given, axes, strict=True)]
        assert_close([part[client] for part in found], written_out(*own, strides, padding))


def test_steps_in_a_loop_give_the_same_bits_whenever_they_are_repeated():
    images, kernel = operands(20, (12, 12), 8, 24, (3, 3))
    loss = lambda kernel, images: jnp.tanh(convolution(images, kernel, (2, 2), form="builtin")).sum() / len(images)
    step = lambda kernel, _: (kernel - 0.1 * jax.grad(loss)(kernel, images), loss(kernel, images))
    train = jax.jit(lambda kernel: lax.scan(step, kernel, None, 5))
    first, losses = train(kernel)
    assert losses[-1] < losses[0]
    again = [np.asarray(train(kernel)[0]).tobytes() for _ in range(5)]
    assert set(again) == {np.asarray(first).tobytes()}


def test_jax_does_not_save_programs_with_it_which_xla_can_not(tmp_path):
    program = f"""
import warnings, jax, jax.numpy as jnp
warnings.simplefilter("error")
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
from fedjax_bal.models.convolution import convolution
images, kernel = jnp.ones((9, 40, 40, 20)), jnp.ones((3, 3, 20, 20))
jax.jit(lambda images: convolution(images, kernel, form="fast"))(images)
convolution(images, kernel, form="builtin")
jax.jit(lambda images: jax.lax.map(lambda image: convolution(image[None], kernel, form="builtin"), images))(images)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sum(file.name.startswith("jit__lambda") for file in tmp_path.iterdir()) == 1  # that of the other form


@pytest.mark.parametrize(
    ("batch", "image", "inputs", "outputs"),
    [(0, (5, 5), 3, 4), (2, (5, 5), 0, 4), (2, (5, 5), 3, 0), (2, (0, 5), 3, 4), (2, (2, 5), 3, 4)],
)
def test_operands_without_numbers_are_treated_as_by_fast(batch, image, inputs, outputs):
    images, kernel = operands(1, (5, 5), 3, 4, (3, 3))
    images, kernel = jnp.ones((batch, *image, inputs)), jnp.ones((3, 3, inputs, outputs))
    ends = []
    for form in ("builtin", "fast"):
        try:
            ends.append([part.shape for part in value_and_gradients(images, kernel, (1, 1), "VALID", form)])
        except (ArithmeticError, TypeError, ValueError) as error:
            ends.append((type(error), str(error)))
    assert ends[0] == ends[1]


def test_other_types_and_depthwise_kernels_are_computed_in_other_forms():
    images, kernel = operands(2, (6, 6), 20, 20, (3, 3))
    text = lambda *given, **options: traced(lambda *own: convolution(*own, form="builtin", **options), *given)
    assert TARGET in text(images, kernel)
    assert TARGET not in text(images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
    assert TARGET not in text(images, kernel[:, :, :1], feature_group_count=20)
    assert TARGET not in text(images, kernel[:1, :1])


def test_small_layers_and_without_avx512_weights_between_few_channels_are_left_to_products(instructions, monkeypatch):
    images, kernel = operands(2, (6, 6), 16, 16, (3, 3))
    calls = lambda *given: traced(lambda *own: value_and_gradients(*own, (1, 1), "SAME"), *given).count(TARGET)
    assert calls(images, kernel) == (3 if instructions == "AVX512" else 2)
    assert calls(images[..., :4], kernel[:, :, :4]) == 3
    monkeypatch.setattr(rules, "FEW_IN_AN_IMAGE", 6 * 6 * 9 * 16 * 16 + 1)
    assert calls(images, kernel) == 0
    monkeypatch.setattr(rules, "FEW_IN_AN_IMAGE", 6 * 6 * 9 * 16 * 16)
    monkeypatch.setattr(rules, "FEW_PRODUCTS", 2 * 6 * 6 * 9 * 16 * 16 + 1)
    assert calls(images, kernel) == 0
