"""Models that start from given weights."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import toys
from flax import nnx
from rounding import SUM

from fedjax_bal import LocalTraining, optimizer, recipes, simulate
from fedjax_bal.models import build, from_linen, from_nnx, with_projection, with_weights
from fedjax_bal.types import Variables

SHAPE = (4, 4, 2)


class Net(nn.Module):
    """Two layers whose names differ from the model's, and statistics."""

    classes: int = 3

    @nn.compact
    def __call__(self, images, train=False):
        rows = nn.BatchNorm(use_running_average=not train)(images.reshape(len(images), -1))
        hidden = nn.relu(nn.Dense(5)(rows))
        return nn.Dense(self.classes)(hidden)


def pretrained(classes=3):
    return drawn(jax.eval_shape(Net(classes).init, jax.random.key(5), np.zeros((1, *SHAPE))))


def drawn(shapes):
    """Numbers for every leaf, positive as variances are."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.uniform(0.2, 0.8, leaf.shape).astype(np.float32), shapes)


def test_a_module_starts_from_weights_under_its_own_names():
    weights = pretrained()
    model = from_linen(Net(), SHAPE, 3, variables=weights)
    images = np.random.default_rng(0).normal(size=(6, *SHAPE)).astype(np.float32)
    run = jax.jit(lambda key: model.apply(model.init(key), images, train=False)[0].logits)
    wanted = jax.jit(Net().apply)(weights, images)
    for seed in (0, 1):
        np.testing.assert_allclose(run(jax.random.key(seed)), wanted, rtol=SUM, atol=SUM)


def test_a_classifier_that_is_left_out_is_drawn():
    weights = pretrained(classes=100)
    del weights["params"]["Dense_1"]
    model = from_linen(Net(), SHAPE, 3, variables=weights)
    plain, start = jax.jit(lambda key: (from_linen(Net(), SHAPE, 3).init(key), model.init(key)))(jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, start.params["head"], plain.params["head"])
    np.testing.assert_array_equal(start.params["Dense_0"]["kernel"], weights["params"]["Dense_0"]["kernel"])
    np.testing.assert_array_equal(start.stats["BatchNorm_0"]["mean"], weights["batch_stats"]["BatchNorm_0"]["mean"])


def test_all_kinds_of_models_and_of_numbers_are_taken():
    class Nnx(nnx.Module):
        def __init__(self, rngs):
            self.out = nnx.Linear(32, 3, rngs=rngs)

        def __call__(self, images):
            return self.out(images.reshape(len(images), -1))

    for model in (build("mlp", 3, SHAPE), build("tiny_bn", 3, SHAPE), from_nnx(Nnx, SHAPE, 3)):
        weights = drawn(jax.eval_shape(model.init, jax.random.key(9)))
        few, many = (jax.tree.map(kind, weights) for kind in (np.float16, np.float64))
        models = [with_weights(model, given) for given in (few, many, weights._asdict())]
        starts = jax.jit(lambda key, models=models: [each.init(key) for each in models])(jax.random.key(0))
        for start, given in zip(starts, (few, many, weights), strict=True):
            jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(ours, np.float32(theirs)), start, given)
            assert {leaf.dtype for leaf in jax.tree.leaves(start)} == {np.dtype(np.float32)}


def test_layers_that_a_method_adds_are_drawn():
    model = build("mlp", 3, SHAPE, hidden=[4])
    weights = drawn(jax.eval_shape(model.init, jax.random.key(9)))
    models = [with_projection(each, "side", 2) for each in (model, with_weights(model, weights))]
    plain, start = jax.jit(lambda key: [each.init(key) for each in models])(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, start.params["projection"], plain.params["projection"])
    jax.tree.map(np.testing.assert_array_equal, start.params["head"], weights.params["head"])


def test_other_weights_are_refused_by_name_with_what_is_allowed():
    model = from_linen(Net(), SHAPE, 3)
    weights = pretrained()
    wide = {**weights["params"], "Dense_0": {"kernel": np.zeros((32, 7)), "bias": np.zeros(5)}}
    half = {**weights["params"], "Dense_1": {"kernel": weights["params"]["Dense_1"]["kernel"]}}
    allowed = r"its arrays: params.BatchNorm_0.bias \[32\], .*params.head.kernel \[5, 3\]"
    for params, message in (
        (wide, r"\[32, 7\] for params.Dense_0.kernel, where the model Net has \[32, 5\]"),
        (half, r"nothing for params.head.bias, .* has \[3\] \(the module.s `Dense_1` is called `head` here\)"),
        ({**weights["params"], "Dense_9": {"bias": np.zeros(2)}}, r"\[2\] for params.Dense_9.bias, .* has nothing"),
    ):
        with pytest.raises(ValueError, match=f"variables: received {message}.*{allowed}"):
            with_weights(model, {**weights, "params": params})
    with pytest.raises(ValueError, match=r"nothing for stats.BatchNorm_0.mean, where the model Net has \[32\]"):
        with_weights(model, {"params": weights["params"]})
    weights["params"]["Dense_0"]["bias"][1] = np.nan
    with pytest.raises(ValueError, match="aren't finite in params.Dense_0.bias"):
        with_weights(model, weights)


@pytest.mark.slow
def test_runs_of_all_seeds_start_from_them():
    model = build("mlp", toys.CLASSES, (1, toys.WIDTH, 1))
    weights = drawn(jax.eval_shape(model.init, jax.random.key(9)))
    for seed in (0, 1):
        result = simulate(
            recipes.fedavg(), with_weights(model, weights), toys.federation(), toys.test_set(), rounds=1, seed=seed,
            local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", 1e-30)),
        )  # fmt: skip
        jax.tree.map(np.testing.assert_array_equal, result.variables, weights)
    assert isinstance(result.variables, Variables)
