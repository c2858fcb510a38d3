import re
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.engine.device.setting import at_precision, matmul_precision
from fedjax_bal.models import build
from fedjax_bal.options import Execution


@pytest.fixture(scope="module")
def tiny():
    model = build("tiny_bn", 3, (6, 6, 2))
    return model, model.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (8, 6, 6, 2))


def loss_of(model, variables, images):
    def loss(params):
        outputs, after = model.apply(variables._replace(params=params), images, train=True)
        return (outputs.logits**2).mean(), (outputs, after)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables.params)


def test_float32_and_tensorfloat32_leave_the_model_as_it_is(tiny):
    assert at_precision(tiny[0], "float32") is at_precision(tiny[0], "tensorfloat32") is tiny[0]


@pytest.mark.slow
def test_bfloat16_rounds_what_is_computed_and_nothing_that_is_kept():
    model = build("astraea_cnn", 3, (13, 13, 1), dropout=0.0)
    variables, images = model.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (8, 13, 13, 1))
    low = at_precision(model, "bfloat16")
    (exact, _), gradients = loss_of(model, variables, images)
    (rounded, (outputs, after)), low_gradients = loss_of(low, variables, images)
    for leaf in jax.tree.leaves((outputs, after, low_gradients)):
        assert leaf.dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, after.params, variables.params)
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=0.05)
    for low_leaf, leaf in zip(*map(jax.tree.leaves, (low_gradients, gradients)), strict=True):
        assert 0 < np.linalg.norm(low_leaf - leaf) < 0.05 * np.linalg.norm(leaf)


def test_token_ids_are_not_rounded_to_bfloat16():
    model = build("text_mean", 2, (3,), vocabulary=300, embedding=4, hidden=0)
    variables = model.init(jax.random.key(0))
    low, _ = at_precision(model, "bfloat16").apply(variables, jnp.array([[256, 0, 0], [257, 0, 0]]), train=True)
    table = variables.params["body"]["embedding"]["embedding"]
    np.testing.assert_array_equal(low.features, table[256:258].astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.slow
def test_batch_statistics_and_their_gradients_stay_float32_in_bfloat16(tiny):
    model, variables, images = tiny
    (_, (outputs, after)), gradients = loss_of(at_precision(model, "bfloat16"), variables, images)
    _, (_, exact) = loss_of(model, variables, images)[0]
    for leaf in jax.tree.leaves((outputs, after, gradients)):
        assert leaf.dtype == jnp.float32
    for low_leaf, leaf in zip(*map(jax.tree.leaves, (after.stats, exact.stats)), strict=True):
        np.testing.assert_allclose(low_leaf, leaf, rtol=0.01, atol=0.005)


def test_bfloat16_really_multiplies_in_bfloat16(tiny):
    model, variables, images = tiny
    low = at_precision(model, "bfloat16")
    text = str(jax.make_jaxpr(lambda images: low.apply(variables, images, train=False)[0].logits)(images))
    products = [line for line in text.splitlines() if "dot_general[" in line or "conv_general_dilated[" in line]
    products = [line for line in products if not re.search(r":f32\[1,", line)]  # sums, written as products with ones
    assert products
    assert all("bf16" in line for line in products)


def test_the_head_alone_agrees_with_the_whole(tiny):
    model, variables, images = tiny
    low = at_precision(model, "bfloat16")
    outputs, _ = low.apply(variables, images, train=False)
    np.testing.assert_array_equal(low.head(variables.params, outputs.features), outputs.logits)


@pytest.mark.parametrize("ask", [matmul_precision, lambda name: at_precision(build("mlp", 2, (2, 2, 1)), name)])
def test_unknown_precisions_are_refused_with_the_known(ask):
    with pytest.raises(ValueError, match=r"float16.*float32.*tensorfloat32.*bfloat16"):
        ask("float16")


def test_every_precision_is_one_of_jax():
    for name in get_args(Execution.__annotations__["precision"]):
        with jax.default_matmul_precision(matmul_precision(name)):
            assert jnp.isfinite(jnp.ones((2, 2)) @ jnp.ones((2, 2))).all()
