"""Batch normalisation with the handler's sums against XLA's in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from models import onednn

from fedjax_bal.models import build
from fedjax_bal.models.derivatives import any_derivative
from fedjax_bal.models.forms.rules import REDUCTIONS
from fedjax_bal.models.normalization import XLA_REDUCTIONS, BatchNorm

CLIENTS, BATCH = 3, 4
# height, width, channels
IMAGES = {"W5": (32, 32, 16), "W5 last": (8, 8, 64), "odd": (5, 3, 7), "one pixel": (1, 1, 5), "one channel": (4, 6, 1)}
REAL = {"all": np.ones((CLIENTS, BATCH), bool), "some": np.array([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)}


@pytest.fixture(autouse=True)
def _handler():
    onednn.needed()


def operands(shape, offset=1.0):
    rng, channels = np.random.default_rng(0), shape[-1]
    draw = lambda *sizes: rng.normal(size=(CLIENTS, *sizes))
    params = {"scale": draw(channels), "bias": draw(channels)}
    stats = {"mean": draw(channels), "var": np.exp(draw(channels))}
    return jax.tree.map(np.float32, (offset + 2 * draw(BATCH, *shape), params, stats))


def step(reductions, images, params, stats, real):
    """What a step of training sees and gives, with gradients through the output and the moments."""

    def loss(images, params):
        layer, variables = BatchNorm(reductions=reductions), {"params": params, "stats": stats}
        output, changed = layer.apply(variables, images, real, train=True, mutable=["stats", "norm_inputs"])
        (mean, var), *_ = changed["norm_inputs"]["moments"]
        weights = jnp.cos(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape)
        return (output * weights).sum() + (2 * mean + 3 * var).sum(), (output, changed)

    return jax.grad(loss, (0, 1), has_aux=True)(images, params)


def in_float64(*operands):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else jnp.float64(leaf), operands)
        return jax.tree.map(np.asarray, jax.vmap(functools.partial(step, XLA_REDUCTIONS))(*wide))


def assert_close(actual, expected, bound=1e-5):
    def close(got, wanted):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound * np.abs(wanted).max(initial=1e-3))

    jax.tree.map(close, actual, expected)


@pytest.mark.parametrize("rows", REAL)
@pytest.mark.parametrize("name", quick.only(IMAGES, "odd"))
def test_a_step_is_that_of_float64_one_by_one_and_stacked(name, rows):
    given = (*operands(IMAGES[name]), REAL[rows])
    own = functools.partial(step, REDUCTIONS["onednn"])
    wanted = in_float64(*given)
    assert_close(jax.jit(jax.vmap(own))(*given), wanted)
    assert_close(jax.jit(lambda *all_of: lax.map(lambda client: own(*client), all_of))(*given), wanted)
    if rows == "all":
        first = jax.tree.map(lambda leaf: leaf[0], (given[:3], wanted))
        assert_close(jax.jit(own)(*first[0], None), first[1])


def test_padded_rows_don_t_count_and_no_client_sees_another_s():
    images = operands(IMAGES["odd"])[0]
    own = jax.jit(jax.vmap(REDUCTIONS["onednn"].moments))
    images[~REAL["some"]] = np.nan
    mean, var, count = own(images, REAL["some"])
    np.testing.assert_array_equal(count, [45, 15, 0])
    for client, real in enumerate(REAL["some"][:2]):
        np.testing.assert_allclose(mean[client], images[client, real].mean((0, 1, 2), np.float64), rtol=1e-6)
        np.testing.assert_allclose(var[client], images[client, real].var((0, 1, 2), np.float64), rtol=1e-6)
    np.testing.assert_array_equal((mean[2], var[2]), np.zeros((2, 7)))


def test_moments_of_far_away_values_keep_their_precision():
    images = operands(IMAGES["W5"], offset=1000.0)[0][0]
    mean, var, _ = REDUCTIONS["onednn"].moments(images, None)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2), np.float64), rtol=1e-7)
    np.testing.assert_allclose(var, images.var((0, 1, 2), np.float64), rtol=1e-5)


def test_other_derivatives_are_those_of_xla_s_sums():
    images, params, stats = jax.tree.map(lambda leaf: leaf[0], operands(IMAGES["odd"]))

    def gradient(reductions, scale):
        return step(reductions, images, {**params, "scale": scale}, stats, REAL["some"][0])[0][0]

    own, plain = functools.partial(gradient, REDUCTIONS["onednn"]), functools.partial(gradient, XLA_REDUCTIONS)
    wanted = jax.jit(jax.jacrev(plain))(params["scale"])
    assert_close(jax.jit(jax.jacrev(own))(params["scale"]), wanted)
    with any_derivative(True):
        assert_close(jax.jit(jax.jacfwd(own))(params["scale"]), wanted)


def test_only_float32_is_the_handler_s():
    text = lambda images: str(jax.make_jaxpr(REDUCTIONS["onednn"].moments)(images, None))
    assert "fedjax_bal_onednn_moments" in text(jnp.ones((2, 3, 3, 1)))
    assert "fedjax_bal_onednn_moments" not in text(jnp.ones((2, 3, 3, 1), jnp.bfloat16))


def gradients(name, convolution, images, **options):
    """A function without arguments: the gradients of a network's loss, and what the network shows."""
    model = build(name, 3, images.shape[1:], convolution=convolution, **options)

    def loss(params, variables):
        real = jnp.arange(len(images)) > 0
        outputs, after = model.apply(variables._replace(params=params), images, train=True, real=real)
        return (outputs.logits**2).sum(), (outputs, after.stats)

    def run():
        variables = model.init(jax.random.key(0))
        return jax.grad(loss, has_aux=True)(variables.params, variables)

    return run


@pytest.mark.parametrize(("name", "norm"), [("tiny_bn", None), ("resnet8", "batch"), ("resnet8", "group")])
def test_batch_normalisation_of_networks_is_the_handler_s(name, norm):
    options = {"norm": norm} if norm else {}
    text = str(jax.make_jaxpr(gradients(name, "onednn", np.ones((2, 6, 6, 1), np.float32), **options))())
    assert all((f"fedjax_bal_onednn_{piece}" in text) == (norm != "group") for piece in ("moments", "slopes"))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_network_learns_the_same_in_both_forms(norm):
    images = np.float32(np.random.default_rng(0).normal(size=(4, 8, 8, 3)))
    own, wanted = (jax.jit(gradients("resnet8", form, images, norm=norm))() for form in ("onednn", "fast"))
    assert_close(own, wanted, 1e-4)


@pytest.mark.slow
def test_two_devices_at_once_give_the_same_bits_every_time():
    given = jax.tree.map(jnp.asarray, (*operands(IMAGES["W5"]), REAL["some"]))

    def device():
        results = lax.map(lambda _: jax.vmap(functools.partial(step, REDUCTIONS["onednn"]))(*given), jnp.arange(50))
        return jax.tree.map(lambda leaf: leaf[None], results)

    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    both = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=(), out_specs=PartitionSpec("devices"), check_vma=False))()
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0, 0], leaf.shape)), both)
