import functools
import re
from itertools import product
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas

from fedjax_bal.models.convolution import convolution, forward, gradients, implicit, of_name, rules
from fedjax_bal.models.convolution.geometry import Geometry
from fedjax_bal.target import compiling_for

LAYOUT = ("NHWC", "HWIO", "NHWC")
SHAPES = (
    # image, kernel, channels in and out, strides, padding: one or more for every form
    ((7, 9), (3, 3), 2, 5, (1, 1), "SAME"),
    ((8, 8), (5, 5), 1, 16, (1, 1), "VALID"),
    ((6, 8), (3, 2), 3, 4, (2, 3), ((1, 0), (2, 1))),
    ((6, 7), (3, 3), 5, 6, (1, 1), ((0, 1), (2, 0))),
    ((6, 6), (3, 3), 6, 18, (1, 1), "VALID"),
    ((4, 4), (3, 3), 6, 18, (1, 1), ((3, 3), (3, 3))),
    ((9, 8), (3, 3), 6, 18, (2, 2), "SAME"),
    ((9, 8), (2, 3), 6, 18, (2, 1), ((-1, 1), (1, -2))),
)


def reference(images, kernel, strides, pads):
    """Correlation written out in float64."""
    images, kernel = np.asarray(images, np.float64), np.asarray(kernel, np.float64)
    images = np.pad(images, ((0, 0), *pads, (0, 0)))
    (height, width), (down, across) = kernel.shape[:2], strides
    rows, columns = (images.shape[1] - height) // down + 1, (images.shape[2] - width) // across + 1
    result = np.zeros((len(images), rows, columns, kernel.shape[-1]))
    for i, j in product(range(rows), range(columns)):
        seen = images[:, i * down : i * down + height, j * across : j * across + width]
        result[:, i, j] = np.tensordot(seen, kernel, 3)
    return result


def plain(images, kernel, strides=(1, 1), padding="SAME"):
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=LAYOUT)


def operands(image, kernel, inputs, outputs, *lead, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(*lead, 2, *image, inputs)).astype(np.float32)
    return jnp.asarray(images), jnp.asarray(rng.normal(size=(*lead, *kernel, inputs, outputs)).astype(np.float32))


def value_and_gradients(convolve, images, kernel):
    """The result and both gradients, for a cotangent that differs everywhere."""
    result, pullback = jax.vjp(convolve, images, kernel)
    weights = jnp.cos(jnp.arange(result.size, dtype=jnp.float32)).reshape(result.shape)
    return result, *pullback(weights)


def assert_close(actual, expected):
    for got, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(jnp.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-6 * scale)


@pytest.mark.parametrize(
    ("image", "kernel", "inputs", "outputs", "strides", "padding"), quick.only(SHAPES, SHAPES[3], SHAPES[6])
)
def test_values_and_gradients_are_those_of_lax(image, kernel, inputs, outputs, strides, padding):
    images, weights = operands(image, kernel, inputs, outputs)
    fast, slow = (
        jax.jit(lambda x, w, f=f: value_and_gradients(lambda x, w: f(x, w, strides, padding), x, w))
        for f in (convolution, plain)
    )
    assert_close(fast(images, weights), slow(images, weights))


@pytest.mark.slow
@settings(max_examples=6)
@given(
    image=st.tuples(st.integers(3, 7), st.integers(3, 7)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    channels=st.tuples(st.sampled_from([1, 3, 6]), st.sampled_from([1, 4, 17])),
)
def test_every_form_agrees_with_correlation_written_out(image, kernel, strides, pads, channels):
    images, weights = operands(image, kernel, *channels)
    geometry = Geometry(strides, pads)
    expected = reference(images, weights, strides, pads)
    cotangent = np.random.default_rng(1).normal(size=expected.shape)
    step = np.zeros(weights.shape)
    for index in np.ndindex(*kernel):
        step[index] = np.einsum("nhwk,nhwo->ko", tap(images, index, geometry, expected.shape), cotangent)
    ways = [forward.direct, forward.by_patches, forward.by_blocks, forward.by_wide_kernel, rules.convolve]
    ways += [rules.convolve_by_products, rules.convolve_by_copies]
    ways += [forward.by_rows, forward.by_columns] * (strides == (1, 1))
    backwards = [gradients.direct, gradients.by_patches, gradients.by_blocks, rules.weight_gradient]
    backwards += [rules.gradient_by_products, gradients.of_patches, gradients.of_blocks]
    backwards += [gradients.by_rows, gradients.of_lines] * (strides == (1, 1))

    @jax.jit
    def all_ways(images, weights, cotangent):
        results = [way(images, weights, geometry) for way in ways]
        return results, [gradient(images, cotangent, kernel, geometry) for gradient in backwards]

    assert geometry.output_size(image, kernel) == expected.shape[1:3]
    actual = all_ways(images, weights, jnp.asarray(cotangent, jnp.float32))
    assert_close(actual, ([expected] * len(ways), [step] * len(backwards)))


def tap(images, index, geometry, shape):
    """What one tap of the kernel sees at every position."""
    padded = np.pad(np.asarray(images, np.float64), ((0, 0), *geometry.pads, (0, 0)))
    (i, j), (down, across) = index, geometry.strides
    return padded[:, i : i + (shape[1] - 1) * down + 1 : down, j : j + (shape[2] - 1) * across + 1 : across]


@functools.partial(jax.jit, static_argnames=("strides", "padding"))
def plainly(images, weights, strides=(1, 1), padding="SAME"):
    return value_and_gradients(lambda x, w: plain(x, w, strides, padding), images, weights)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[6]])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_over_clients(shape, axes):
    image, kernel, inputs, outputs, strides, padding = shape
    images, weights = operands(image, kernel, inputs, outputs, 3)
    arguments = [operand if axis == 0 else operand[0] for operand, axis in zip((images, weights), axes, strict=True)]
    fast = jax.vmap(lambda x, w: value_and_gradients(lambda x, w: convolution(x, w, strides, padding), x, w), axes)
    found = jax.jit(fast)(*arguments)
    for client in range(3):
        own = (operand if axis is None else operand[client] for operand, axis in zip(arguments, axes, strict=True))
        assert_close([part[client] for part in found], plainly(*own, strides, padding))


GROUPED = (
    # image, kernel, channels in and out, groups, strides, padding
    ((6, 7), (3, 3), 4, 4, 4, (1, 1), "SAME"),
    ((7, 6), (3, 2), 3, 6, 3, (2, 3), ((1, 0), (2, 1))),
    ((5, 6), (2, 2), 6, 4, 2, (2, 1), "VALID"),
    ((5, 5), (3, 3), 10, 40, 2, (1, 1), ((-1, 2), (1, 1))),
)


@pytest.mark.slow
@pytest.mark.parametrize(("image", "kernel", "inputs", "outputs", "groups", "strides", "padding"), GROUPED)
def test_feature_groups_are_those_of_lax_one_by_one_and_stacked(
    image, kernel, inputs, outputs, groups, strides, padding
):
    images, weights = operands(image, kernel, inputs, outputs, 3)
    weights = weights[..., : inputs // groups, :]

    def results(convolve, lax_way):
        def single(x, w):
            return convolve(x, w, strides, padding, feature_group_count=groups, **lax_way)

        each = lambda x, w: value_and_gradients(single, x, w)
        return each(images[0], weights[0]), jax.vmap(each)(images, weights)

    fast = jax.jit(lambda: results(convolution, {}))()
    assert_close(fast, jax.jit(lambda: results(lax.conv_general_dilated, {"dimension_numbers": LAYOUT}))())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[6]])
def test_the_grouped_form_is_the_same_map_in_a_loop_and_under_nested_vmap(shape):
    image, kernel, inputs, outputs, strides, padding = shape
    images, weights = operands(image, kernel, inputs, outputs, 2, 2)

    def looped(convolve):
        def step(w, x):
            return w - 0.01 * jax.grad(lambda w: (convolve(x, w, strides, padding) ** 2).mean())(w), 0

        return jax.jit(jax.vmap(lambda x, w: lax.scan(step, w, x)[0], (0, None)))(images, weights[0, 0])

    assert_close(looped(of_name("grouped")), looped(plain))
    nested = lambda convolve: jax.jit(jax.vmap(jax.vmap(lambda x, w: value_and_gradients(convolve, x, w))))
    assert_close(nested(of_name("grouped"))(images, weights), nested(plain)(images, weights))


@pytest.mark.parametrize("chunk", quick.only([1, 2, 3, 6], 3))
def test_a_weight_gradient_in_chunks_is_the_whole_one(chunk, monkeypatch):
    images = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5, 4, 7)), jnp.float32)
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(6, 5, 4, 3)), jnp.float32)
    geometry = Geometry((1, 1), ((1, 1), (1, 1)))
    whole = jax.jit(gradients.direct, static_argnums=(2, 3))(images, cotangent, (3, 3), geometry)
    monkeypatch.setattr(gradients, "FEWEST", 1)
    monkeypatch.setattr(gradients, "CACHED", chunk * 5 * 4 * (3 * 7 + 3 * 3))
    assert gradients._chunk(6, 5 * 4 * 30) == chunk
    by_rows = jax.jit(lambda images: gradients.by_rows(images, cotangent, (3, 3), geometry))
    assert_close(by_rows(images), whole)


def test_phases_do_a_share_of_the_work_that_zeros_between_pixels_do():
    kernel, geometry = jnp.ones((3, 3, 5, 7)), Geometry((2, 2), ((1, 1), (1, 1)))
    phases, back = gradients.phase_kernel(kernel, geometry, (8, 8), (4, 4))
    multiplications = 4 * 4 * phases.size
    assert multiplications == 4 * 4 * 2 * 2 * 4 * 5 * 7 < 8 * 8 * kernel.size
    assert back.strides == (1, 1)


@pytest.mark.slow
def test_vmap_over_cotangents_only():
    images, weights = operands((5, 5), (3, 3), 6, 18)
    cotangents = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2, 5, 5, 18)), jnp.float32)
    fast, slow = (jax.jit(jax.vmap(jax.vjp(f, images, weights)[1]))(cotangents) for f in (convolution, plain))
    assert_close(fast, slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outer", "inner"), [((0, 0), (0, 0)), ((0, 0), (0, None)), ((0, None), (None, 0)), ((None, 0), (0, None))]
)
def test_nested_vmap_clients_inside_seeds(outer, inner):
    operands_ = operands((4, 5), (3, 3), 6, 4, 2, 3)
    seeds, clients = ([slice(None) if axis == 0 else 0 for axis in axes] for axes in (outer, inner))
    arguments = [own[:, client][seed] for own, seed, client in zip(operands_, seeds, clients, strict=True)]
    found = jax.jit(jax.vmap(jax.vmap(lambda x, w: value_and_gradients(convolution, x, w), inner), outer))(*arguments)
    for seed, client in product(range(2), range(3)):
        at = ((seed if o == 0 else 0, client if i == 0 else 0) for o, i in zip(outer, inner, strict=True))
        wanted = plainly(*(own[place] for own, place in zip(operands_, at, strict=True)))
        assert_close([part[seed, client] for part in found], wanted)


def local_training(convolve, remat=False):
    def loss(weights, images):
        return (convolve(images, weights) ** 2).mean()

    loss = jax.checkpoint(loss) if remat else loss

    def train(weights, images):
        return lax.scan(lambda w, x: (w - 0.1 * jax.grad(loss)(w, x), loss(w, x)), weights, images)

    return train


@pytest.mark.parametrize("remat", quick.only([False, True], False))
def test_local_training_in_a_scan_stacked_mapped_and_plain_agree(remat):
    images, weights = operands((6, 6), (3, 3), 5, 4, 3)
    batches = jnp.stack([images, images[::-1]], 1)
    train = local_training(convolution, remat)
    expected = jax.jit(jax.vmap(local_training(plain), (0, 0)))(weights, batches)
    assert_close(jax.jit(jax.vmap(train))(weights, batches), expected)
    assert_close(jax.jit(lambda w, x: lax.map(lambda both: train(*both), (w, x)))(weights, batches), expected)


def test_stacked_kernels_never_become_a_grouped_convolution():
    images, weights = operands((6, 6), (3, 3), 5, 20, 3)
    stacked = jax.vmap(lambda x, w: value_and_gradients(convolution, x, w))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(stacked)(images, weights))
    shared = jax.vmap(convolution, (0, None))
    assert "conv_general_dilated" in str(jax.make_jaxpr(shared)(images, weights[0]))


def test_the_weight_gradient_of_a_large_kernel_is_a_plain_forward_convolution():
    images, weights = operands((8, 8), (7, 7), 5, 20)
    text = str(jax.make_jaxpr(jax.grad(lambda w: convolution(images, w).sum()))(weights))
    assert text.count("rhs_dilation=(1, 1)") == text.count("conv_general_dilated[") > 0
    assert "batch_group_count=1" in text


SECOND = {
    "reverse over reverse": lambda f: jax.grad(lambda w: (jax.grad(f)(w) ** 2).sum()),
    "forward over reverse": jax.hessian,
    "compiled": lambda f: jax.jit(jax.grad(lambda w: (jax.grad(f)(w) ** 2).sum())),
    "stacked": lambda f: lambda w: jax.vmap(jax.grad(lambda w: (jax.grad(f)(w) ** 2).sum()))(w[None]),
    "through training": lambda f: jax.grad(
        lambda w: lax.scan(lambda w, _: (w - jax.grad(f)(w), 0), w, None, 2)[0].sum()
    ),
}


@pytest.mark.parametrize("twice", SECOND.values(), ids=SECOND)
def test_second_derivatives_raise_and_name_the_way_out(twice):
    images, weights = operands((5, 5), (3, 3), 2, 3)
    with pytest.raises(ValueError, match=r'differentiated twice.*convolution="plain"'):
        twice(lambda w: (convolution(images, w) ** 3).sum())(weights)


@pytest.mark.slow
def test_linen_conv_takes_it():
    images, kernel = operands((7, 7), (3, 3), 5, 4)
    variables = {"params": {"kernel": kernel, "bias": jnp.ones(4)}}
    for settings_ in ({}, {"padding": 1, "strides": 2}, {"padding": ((1, 0), (0, 2))}, {"padding": "VALID"}):
        fast, slow = (nn.Conv(4, (3, 3), conv_general_dilated=of_name(name), **settings_) for name in ("fast", "plain"))
        assert_close(*(jax.jit(layer.apply)(variables, images) for layer in (fast, slow)))


@pytest.mark.parametrize("setting", [{"rhs_dilation": (2, 2)}, {"lhs_dilation": (2, 1)}, {"precision": "highest"}])
def test_arguments_of_other_kinds_are_left_to_jax(setting):
    images, weights = operands((7, 7), (3, 3), 2, 3)
    where = (1, 1), ((1, 1), (0, 2))
    wanted = lax.conv_general_dilated(images, weights, *where, dimension_numbers=LAYOUT, **setting)
    np.testing.assert_array_equal(convolution(images, weights, *where, **setting), wanted)


def test_other_layouts_are_left_to_jax_which_refuses_mismatched_channels():
    images, weights = operands((5, 5), (3, 3), 2, 3)
    first = np.asarray(images).transpose(0, 3, 1, 2)
    turned = np.asarray(convolution(first, weights, dimension_numbers=("NCHW", "HWIO", "NCHW")))
    assert_close(turned.transpose(0, 2, 3, 1), convolution(images, weights))
    for kernel, groups in (((3, 3, 4, 3), 1), ((3, 3, 2, 3), 2), ((3, 3, 1, 3), 2)):
        with pytest.raises((TypeError, ValueError), match="feature"):
            convolution(images, jnp.zeros(kernel), feature_group_count=groups)


@pytest.mark.slow
def test_the_form_for_stacked_clients_is_the_platforms():
    """On CPUs patches; on GPUs the form that copies less, rows for an image gradient; on TPUs a grouped convolution."""
    images, kernel = jnp.ones((2, 3, 8, 8, 64)), jnp.ones((2, 3, 3, 64, 32))
    text = {}
    for platform in ("cpu", "gpu", "tpu"):
        with compiling_for([SimpleNamespace(platform=platform)]):
            text[platform] = str(jax.make_jaxpr(jax.vmap(convolution))(images, kernel))
    widest = lambda platform: max(map(int, re.findall(r",(\d+)\] = concatenate", text[platform])))
    assert (widest("cpu"), widest("gpu")) == (9 * 64, 3 * 64)
    assert "feature_group_count=2" in text["tpu"]


@pytest.mark.slow
@pytest.mark.parametrize("number", quick.only([0, 3, 4, 5, 6, 7], 3, 5, 6, others=pytest.mark.nightly))
def test_forms_of_other_platforms_give_the_same_numbers(number):
    image, kernel, inputs, outputs, strides, padding = SHAPES[number]
    stacked = operands(image, kernel, inputs, outputs, 2)
    both = lambda x, w: value_and_gradients(lambda x, w: convolution(x, w, strides, padding), x, w)
    expected = jax.jit(jax.vmap(both))(*stacked)
    for platform in ("gpu", "tpu"):
        with compiling_for([SimpleNamespace(platform=platform)]):
            assert_close(jax.jit(jax.vmap(both))(*stacked), expected)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
def test_gpus_copy_images_and_cotangents_once_for_all_three_passes(stride):
    """The weight gradient repeats only copies that the convolution and the image gradient have made."""
    images, kernel = jnp.ones((2, 3, 8, 8, 16)), jnp.ones((2, 3, 3, 16, 32))
    both = lambda x, w: value_and_gradients(lambda x, w: convolution(x, w, (stride, stride)), x, w)
    with compiling_for([SimpleNamespace(platform="gpu")]):
        text = jax.jit(jax.vmap(both)).lower(images, kernel).compile().as_text()
    assert text.count(" concatenate(") == 2


@pytest.fixture
def interpreted(monkeypatch):
    """Compiles for a GPU, with Pallas's interpreter in place of its compiler; sums have several parts."""
    call = functools.partial(pallas.pallas_call, interpret=True)
    monkeypatch.setattr(pallas, "pallas_call", call)
    monkeypatch.setattr(implicit, "LONGEST_SUM", 40)
    with compiling_for([SimpleNamespace(platform="gpu")]):
        yield


def differentiated(form, *where):
    return lambda x, w: value_and_gradients(lambda x, w: convolution(x, w, *where, form=form), x, w)


LARGER_THAN_A_TILE = ((9, 11), (3, 3), 32, 80, (1, 1), "SAME")
ODD_AND_STRIDED = ((9, 7), (3, 3), 16, 64, (2, 2), "SAME")


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("number", quick.only(range(10), 3, 6, 8, 9, others=pytest.mark.nightly))
def test_implicit_products_are_those_of_lax(number):
    shape = (*SHAPES, LARGER_THAN_A_TILE, ODD_AND_STRIDED)[number]
    stacked = operands(*shape[:4], 2)
    expected = jax.vmap(lambda x, w: value_and_gradients(lambda x, w: plain(x, w, *shape[4:]), x, w))(*stacked)
    assert_close(jax.jit(jax.vmap(differentiated("implicit", *shape[4:])))(*stacked), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_implicit_products_batch_over_seeds_and_clients_that_share_images():
    images, kernels = operands((5, 4), (2, 2), 3, 4, 2, 3)
    nested = lambda form: jax.vmap(jax.vmap(differentiated(form), (None, 0)))
    assert_close(jax.jit(nested("implicit"))(images[:, 0], kernels), jax.jit(nested("fast"))(images[:, 0], kernels))


@pytest.mark.usefixtures("interpreted")
def test_implicit_products_copy_nothing_and_have_the_precision_asked_for():
    stacked = operands((6, 6), (3, 3), 16, 32, 2)
    with jax.default_matmul_precision("highest"):
        text = str(jax.make_jaxpr(jax.vmap(differentiated("implicit")))(*stacked))
    assert "concatenate" not in text
    assert (text.count("pallas_call["), text.count("Precision.HIGHEST")) == (3, 2 * 3)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_implicit_products_are_refused_elsewhere(platform):
    with compiling_for([SimpleNamespace(platform=platform)]), pytest.raises(ValueError, match=platform.upper()):
        jax.eval_shape(jax.vmap(of_name("implicit")), *operands((5, 4), (2, 2), 3, 4, 2))
