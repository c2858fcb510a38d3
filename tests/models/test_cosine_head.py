"""The classifier of cosines, which several methods put in place of a network's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import FORMULA

from fedjax_bal import models


@pytest.mark.slow
def test_a_classifier_of_cosines_equals_its_transcription(double):
    below = models.build("mlp", 4, (1, 5, 1), hidden=(6,))
    model = models.with_cosine_head(below, "trained", 8.0)
    assert model is models.with_cosine_head(below, "trained", 8.0)
    variables = model.init(jax.random.key(0))
    images = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 5, 1)))
    assert images.dtype == float and variables.params["head"]["kernel"].dtype == np.float32  # narrowed, without a word
    outputs, after = model.apply(variables, images, train=True)
    features, kernel = np.asarray(outputs.features), np.asarray(variables.params["head"]["kernel"])
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=FORMULA)
    wanted = [[8 * f @ k / np.linalg.norm(f) / np.linalg.norm(k) for k in kernel.T] for f in features]
    np.testing.assert_allclose(outputs.logits, wanted, rtol=FORMULA)
    np.testing.assert_allclose(model.head(variables.params, outputs.features), wanted, rtol=FORMULA)
    assert jax.tree.structure(after) == jax.tree.structure(variables)
    assert "body" in after.params and after.params["body"].keys() == below.init(jax.random.key(0)).params["body"].keys()
    zero = jax.grad(lambda f: model.head(variables.params, f).sum())(jnp.zeros((1, 6)))
    assert not np.asarray(zero).any()  # a dead row has no direction, and no gradient of one


def test_a_network_without_a_named_classifier_is_refused():
    with pytest.raises(ValueError, match=r"model: received toy with parameters \['w1', 'w2'\]"):
        models.with_cosine_head(toys.network(), "trained", 8.0)


def test_two_classifiers_of_cosines_are_refused():
    once = models.with_cosine_head(models.build("mlp", 2, (4, 4, 1)), "trained", 8.0)
    with pytest.raises(ValueError, match="received mlp with a classifier of cosines already"):
        models.with_cosine_head(once, "simplex", 1.0)
