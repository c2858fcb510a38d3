"""Counted operations against formulas, and against what XLA's own gradients take."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_bal import models
from fedjax_bal.bench.flops import count, model_flops
from fedjax_bal.models.layers import FEW_ROWS
from fedjax_bal.types import Variables


def total(function, *arguments):
    return sum(count(jax.make_jaxpr(function)(*arguments)))


def test_a_batched_product_counts_every_multiply_add():
    a, b = jnp.zeros((7, 2, 3)), jnp.zeros((7, 3, 5))
    assert total(lambda a, b: jnp.einsum("gij,gjk->gik", a, b), a, b) == 2 * 7 * 2 * 3 * 5


@pytest.mark.parametrize(("groups", "outputs"), [(1, 6), (2, 6), (4, 8)])
def test_a_convolution_counts_its_window(groups, outputs):
    images, kernel = jnp.zeros((2, 9, 8, 4)), jnp.zeros((3, 2, 4 // groups, outputs))
    names = ("NHWC", "HWIO", "NHWC")
    convolve = lambda x, k: lax.conv_general_dilated(
        x, k, (2, 1), "VALID", dimension_numbers=names, feature_group_count=groups
    )
    assert total(convolve, images, kernel) == 2 * (2 * 4 * 7 * outputs) * (3 * 2 * 4 // groups)


def test_loops_and_branches():
    a = jnp.zeros((3, 3))
    assert total(lambda a: lax.scan(lambda c, _: (c @ a, None), a, None, length=5)[0], a) == 5 * 54
    branch = lambda on, a: lax.cond(on, lambda a: a @ a @ a, lambda a: a @ a, a)
    assert total(branch, True, a) == 2 * 54
    assert total(jax.jit(lambda a: jax.checkpoint(lambda a: a @ a)(a)), a) == 54


def test_a_network_with_convolutions_by_hand():
    layers = [24 * 24 * 25 * 16, 10 * 10 * 25 * 16 * 32, 5 * 5 * 32 * 128, 128 * 10]
    forward = 2 * sum(layers)
    model = models.build("rebafl_fmnist", 10, (28, 28, 1), convolution="plain")
    assert model_flops(model) == (forward, 3 * forward - 2 * layers[0])


def test_training_counts_what_the_gradient_computes():
    model = models.build("mlp", 10, (28, 28, 1), hidden=(20, 30))
    variables = jax.eval_shape(model.init, jax.random.key(0))
    rows = FEW_ROWS + 1  # with fewer, a product is written as a sum

    def loss(params):
        logits = model.apply(Variables(params, {}), jnp.ones((rows, 28, 28, 1)), train=True)[0].logits
        return (logits**2).sum()

    program = jax.make_jaxpr(jax.grad(loss))(variables.params).jaxpr
    needed, _ = dce_jaxpr(program, [True] * len(program.outvars))  # as the compiler drops the images' gradient
    assert sum(count(needed)) == rows * model_flops(model).training
