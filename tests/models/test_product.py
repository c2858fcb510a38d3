import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_bal.models.sums import FEW_ROWS, dense_product

NUMBERS = (((1,), (0,)), ((), ()))


def results(product, inputs, kernel):
    """The product, both gradients of a curved loss, and a second derivative."""

    def loss(inputs, kernel):
        return (product(inputs, kernel, NUMBERS) ** 3).sum()

    twice = jax.grad(lambda kernel: (jax.grad(loss, 1)(inputs, kernel) ** 2).sum())(kernel)
    return product(inputs, kernel, NUMBERS), jax.grad(loss, (0, 1))(inputs, kernel), twice


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, FEW_ROWS + 1])
def test_values_and_derivatives_are_those_of_lax_alone_and_stacked(rows):
    rng = np.random.default_rng(0)
    inputs, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, rows, 5), (3, 5, 2)))
    for each in (lambda f: f(inputs[0], kernel[0]), lambda f: jax.vmap(f)(inputs, kernel)):
        own, theirs = (each(lambda x, w, p=product: results(p, x, w)) for product in (dense_product, lax.dot_general))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), own, theirs)


def test_inputs_with_more_axes_go_through_lax():
    inputs, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    assert dense_product(inputs, kernel, (((2,), (0,)), ((), ()))).shape == (2, 3, 5)
