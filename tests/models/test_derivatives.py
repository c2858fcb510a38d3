"""With `differentiable`, a model computes the same, and has derivatives in every mode; without, it stays fast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import only
from rounding import FORMULA

from fedjax_bal.models import build, differentiable
from fedjax_bal.models.layers import max_pool, overlapping_max_pool
from fedjax_bal.types import Variables

NETWORKS = {
    "mlp": {"hidden": (5,)},
    "conv2_lenet": {},
    "tiny_bn": {},
    "resnet8": {},
}


def loss_of(name):
    """The training loss of a model, and the parameters to try it at; the last row is padding."""
    model = build(name, 3, (8, 8, 1), **NETWORKS[name])
    variables = jax.jit(model.init)(jax.random.key(0))
    images = np.random.default_rng(1).normal(size=(3, 8, 8, 1)).astype(np.float32)
    images[:, :3] = 0  # a margin: many pixels tie

    def loss(params, model):
        own = Variables(params, variables.stats)
        outputs, after = model.apply(own, images, train=True, key=jax.random.key(2), real=jnp.arange(3) < 2)
        moments = sum(jnp.sum(leaf) for pair in outputs.norm_inputs for leaf in pair)
        return (outputs.logits[:2] ** 2).sum() + moments, after.stats

    return loss, variables.params, model


@pytest.mark.parametrize("name", only(NETWORKS, "tiny_bn"))
def test_a_differentiable_model_trains_as_the_fast_one(name):
    loss, params, model = loss_of(name)
    fast, same = (
        jax.jit(jax.value_and_grad(lambda params, own=own: loss(params, own), has_aux=True))(params)
        for own in (model, differentiable(model))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), fast, same)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_forwards_over_backwards_equals_backwards_over_backwards(name):
    loss, params, model = loss_of(name)
    gradient = jax.grad(lambda params: loss(params, differentiable(model))[0])
    direction = jax.tree.map(lambda leaf: np.cos(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape), params)

    def slope(params):
        pairs = zip(jax.tree.leaves(gradient(params)), jax.tree.leaves(direction), strict=True)
        return sum(jnp.vdot(a, b) for a, b in pairs)

    forwards = jax.jit(lambda params: jax.jvp(gradient, (params,), (direction,))[1])(params)
    backwards = jax.jit(jax.grad(slope))(params)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(backwards))
    assert largest > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * largest), forwards, backwards)


def test_a_model_that_was_traced_in_one_way_is_traced_again_in_the_other():
    model = build("tiny_bn", 3, (4, 4, 1))
    variables, images = jax.jit(model.init)(jax.random.key(0)), np.ones((2, 4, 4, 1), np.float32)

    def logits(own):
        return lambda images: own.apply(variables, images, train=False)[0].logits.sum()

    for _ in range(2):
        with pytest.raises(TypeError, match="forward-mode"):
            jax.eval_shape(jax.jacfwd(logits(model)), images)
        with pytest.raises(ValueError, match='differentiated twice.*convolution="plain"'):
            jax.eval_shape(jax.grad(lambda images: jax.grad(logits(model))(images).sum()), images)
        assert jax.eval_shape(jax.hessian(logits(differentiable(model))), images).shape == images.shape * 2
    assert differentiable(model) is differentiable(build("tiny_bn", 3, (4, 4, 1)))


@pytest.mark.parametrize("pool", only([max_pool, overlapping_max_pool], max_pool))
def test_the_first_of_equal_pixels_takes_the_gradient_in_both_ways(pool):
    images = jnp.asarray(np.random.default_rng(0).integers(0, 2, (2, 5, 7, 3)), jnp.float32)
    weights = np.random.default_rng(1).normal(size=jax.eval_shape(pool, images).shape)
    fast = build("mlp", 3, (4,))._replace(head=lambda _, images: (pool(images) * weights).sum())
    ours, theirs = (jax.jit(jax.grad(own.head, 1))(None, images) for own in (fast, differentiable(fast)))
    np.testing.assert_allclose(ours, theirs, rtol=FORMULA)
