"""Batch normalisation against float64, JAX's own derivative, and numbers that PyTorch gave."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.models.derivatives import any_derivative
from fedjax_bal.models.layers import channel_sums, sums_in_one_pass
from fedjax_bal.models.normalization import BatchNorm, moments
from fedjax_bal.target import compiling_for

CHANNELS, USUAL = 3, BatchNorm()


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(3, 2, (6, 4, 5, CHANNELS)), jnp.float32)
    params = {"scale": jnp.array([1.0, 2.0, -0.5]), "bias": jnp.array([0.0, 1.0, -1.0])}
    stats = {"mean": jnp.array([0.5, -1.0, 2.0]), "var": jnp.array([1.5, 0.5, 3.0])}
    return images, {"params": params, "stats": stats}


@functools.partial(jax.jit, static_argnums=2)
def evaluate(variables, images, layer=USUAL):
    return layer.apply(variables, images, None, train=False)


@functools.partial(jax.jit, static_argnums=3)
def train(variables, images, real, layer=USUAL):
    return layer.apply(variables, images, real, train=True, mutable=["stats", "norm_inputs"])


def in_float64(values, mean, var, layer, params):
    scale, shift = (np.float64(params[name]) for name in ("scale", "bias")) if layer.affine else (1.0, 0.0)
    return (np.float64(values) - mean) / np.sqrt(np.float64(var) + layer.epsilon) * scale + shift


LAYERS = {"usual": USUAL, "0.8": BatchNorm(0.8), "plain": BatchNorm(affine=False)}
REAL = {"all": None, "some": [1, 0, 1, 1, 0, 0], "the last": [0, 0, 0, 0, 0, 1]}


@pytest.mark.parametrize("name", quick.only(LAYERS, "usual"))
@pytest.mark.parametrize("rows", quick.only(REAL, "some"))
def test_training_and_evaluation_against_float64(case, rows, name):
    (images, variables), layer, real = case, LAYERS[name], REAL[rows]
    params, stats = variables["params"] if layer.affine else {}, variables["stats"]
    there, given = (slice(None), None) if real is None else (np.array(real, bool), jnp.array(real, bool))
    both = {"params": params, "stats": stats}
    output, changed = train(both, images, given, layer)
    rows = np.float64(images)[there]
    mean, var, unbiased = rows.mean((0, 1, 2)), rows.var((0, 1, 2)), rows.var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(output[there], in_float64(rows, mean, var, layer, params), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(changed["stats"]["mean"], 0.9 * np.float64(stats["mean"]) + 0.1 * mean, rtol=FORMULA)
    np.testing.assert_allclose(changed["stats"]["var"], 0.9 * np.float64(stats["var"]) + 0.1 * unbiased, rtol=FORMULA)
    np.testing.assert_allclose(changed["norm_inputs"]["moments"][0], (mean, var), rtol=FORMULA)
    evaluated = evaluate(both, images, layer)
    wanted = in_float64(images, np.float64(stats["mean"]), stats["var"], layer, params)
    np.testing.assert_allclose(evaluated, wanted, rtol=2e-5, atol=2e-5)
    start = jax.eval_shape(lambda: layer.init(jax.random.key(0), images, None, train=False))
    assert start.get("params", {}).keys() == params.keys()


@jax.jit
def gradient(params, stats, images, real):
    """The gradient of a loss of the real rows, its first four rows, and the statistics."""

    def loss(params):
        output, changed = train({"params": params, "stats": stats}, images, real)
        rows = jnp.where(real[:, None, None, None], output, 0)
        return (jnp.sin(rows) ** 2 * real[:, None, None, None]).sum(), (rows[:4], changed)

    return jax.grad(loss, has_aux=True)(params)


@pytest.mark.parametrize("filling", [0.0, 1e6, jnp.inf, jnp.nan])
def test_padded_rows_change_neither_statistics_nor_gradients(case, filling):
    images, variables = np.array(case[0]), case[1].values()
    real = np.array([True] * 4 + [False] * 2)
    expected = gradient(*variables, images[:4], real[:4])
    images[4:] = filling
    actual = gradient(*variables, images, real)
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=SUM, atol=SUM), actual[1], expected[1])
    if np.isfinite(filling):
        jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=STEPS, atol=SUM), actual[0], expected[0])


def test_no_real_row_leaves_the_running_statistics_to_the_bit(case):
    images, variables = case
    output, changed = train(variables, images, jnp.zeros(6, bool))
    for name in ("mean", "var"):
        np.testing.assert_array_equal(changed["stats"][name], variables["stats"][name])
    evaluated = evaluate(variables, images)
    np.testing.assert_allclose(output, evaluated, rtol=FORMULA, atol=FORMULA)


@pytest.mark.slow
def test_one_value_in_all_stays_finite():
    images, real = jnp.array([5.0, 7.0]).reshape(2, 1, 1, 1), jnp.array([True, False])
    variables = jax.jit(lambda: BatchNorm().init(jax.random.key(0), images, real, train=True))()
    output, changed = train({"params": variables["params"], "stats": variables["stats"]}, images, real)
    assert float(output[0, 0, 0, 0]) == 0.0
    np.testing.assert_allclose(changed["stats"]["mean"], [0.5], rtol=FORMULA)
    np.testing.assert_allclose(changed["stats"]["var"], [0.9], rtol=FORMULA)


def test_initialisation_does_not_move_the_statistics():
    images = jnp.full((2, 3, 3, CHANNELS), 9.0)
    stats = jax.jit(lambda: BatchNorm().init(jax.random.key(0), images, None, train=True))()["stats"]
    np.testing.assert_array_equal(stats["mean"], np.zeros(CHANNELS))
    np.testing.assert_array_equal(stats["var"], np.ones(CHANNELS))


@pytest.mark.parametrize(("height", "width"), quick.only([(1, 1), (5, 37), (41, 1), (50, 32)], (5, 37)))
def test_sums_of_few_and_of_many_rows_against_float64(height, width):
    values = np.random.default_rng(0).uniform(size=(2, height, width, width, CHANNELS)).astype(np.float32)
    exact = [np.float64(power).sum((1, 2, 3)) for power in (values, values**2)]
    alone, *together = jax.jit(jax.vmap(lambda each: [channel_sums(each), *sums_in_one_pass(each, each**2)]))(values)
    for found, expected in zip((alone, *together), (exact[0], *exact), strict=True):
        np.testing.assert_allclose(found, expected, rtol=SUM)


def test_sums_have_derivatives_where_only_one_of_them_depends_on_the_variable(case):
    images, _ = case
    sums = lambda scale: sums_in_one_pass(images * scale, images**2)
    both = jax.jit(lambda scale: [jax.jacrev(sums)(scale), jax.jacfwd(sums)(scale)])
    for own, other in both(jnp.ones(CHANNELS)):
        np.testing.assert_allclose(own, np.diag(np.asarray(images, np.float64).sum((0, 1, 2))), rtol=FORMULA)
        np.testing.assert_array_equal(other, np.zeros((CHANNELS, CHANNELS)))


def test_moments_of_far_away_values_keep_their_precision():
    values = 1000 + np.random.default_rng(1).normal(size=(64, 2, 2, 1)).astype(np.float32)
    _, var, count = jax.jit(moments)(values, None)
    np.testing.assert_allclose(var[0], values.astype(np.float64).var(), rtol=1e-3)
    assert int(count) == 256


@pytest.mark.slow
@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("real", [[1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
def test_gpus_compute_the_same_numbers_in_fewer_passes(case, real, flexible):
    images, variables = case

    def loss(params, images):
        layer, seen = BatchNorm(), {**variables, "params": params}
        output, changed = layer.apply(seen, images, jnp.array(real, bool), train=True, mutable=["stats"])
        return jnp.sin(output).sum() + jnp.cos(changed["stats"]["var"]).sum(), changed["stats"]

    def step():
        with any_derivative(flexible):
            return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(variables["params"], images)

    expected = step()
    with compiling_for([SimpleNamespace(platform="cuda")]):
        found = step()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)


@pytest.mark.parametrize(("epsilon", "affine"), quick.only([(0.8, True), (1e-5, False)], (0.8, True)))
def test_the_gradient_equals_jax_s_own(case, epsilon, affine):
    images, variables = case
    layer, params = BatchNorm(epsilon, affine), variables["params"] if affine else {}
    weights = jnp.cos(jnp.arange(images.size)).reshape(images.shape)

    def loss(params, images):
        both = {"params": params, "stats": variables["stats"]}
        return (layer.apply(both, images, None, train=True, mutable=["stats"])[0] * weights).sum()

    def plainly(params, images):
        mean, var = images.mean((0, 1, 2)), images.var((0, 1, 2))
        output = (images - mean) / jnp.sqrt(var + epsilon) * params.get("scale", 1.0) + params.get("bias", 0.0)
        return (output * weights).sum()

    got, wanted = (jax.jit(jax.grad(function, (0, 1)))(params, images) for function in (loss, plainly))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=STEPS, atol=SUM), got, wanted)


FIRST = (np.arange(16) ** 2 / 8).astype(np.float32).reshape(2, 2, 2, 2)
SECOND = (7 * np.arange(24) % 11 / 4).astype(np.float32).reshape(3, 2, 2, 2)
RUNNING = {"mean": [0.6385416984558105, 1.3489583730697632], "var": [4.375179767608643, 11.002189636230469]}
TRAINED = (
    [
        *(-1.280136, -1.247923, -1.151283, -0.9902158, 1.576019, 1.519361, 1.450113, 1.368274),
        *(0.7815211, 1.329149, 1.941203, 2.617685, 0.7702221, 0.6128399, 0.4428671, 0.2603038),
    ],
    [
        *(-1.569005, 1.486923, -0.2593213, 2.796607, 0.9259247, 1.637048, 0.3925821, 1.103706),
        *(-1.132444, 1.923485, 0.1772399, -1.569005, 0.7481438, 1.459267, 0.2148012, 0.9259247),
        *(-0.6958824, 2.360046, 0.6138011, -1.132444, 0.5703629, 1.281486, 1.99261, 0.7481438),
    ],
)
EVALUATED = [
    *(-0.207912, -0.1182718, 0.1506488, 0.5988498, 0.9018615, 0.7322784, 0.52501, 0.2800566),
    *(5.529061, 7.052944, 8.756108, 10.63855, -1.509988, -1.981053, -2.489802, -3.036237),
]


def ours(images):
    """PyTorch's order of axes to this package's."""
    return jnp.asarray(images.transpose(0, 2, 3, 1))


def theirs(images):
    return np.asarray(images).transpose(0, 3, 1, 2).ravel()


def test_two_steps_and_evaluation_are_those_of_pytorch():
    params = {"scale": jnp.array([1.5, -0.5]), "bias": jnp.array([0.25, 1.0])}
    stats = {"mean": jnp.zeros(2), "var": jnp.ones(2)}
    for images, expected in zip((FIRST, SECOND), TRAINED, strict=True):
        output, changed = train({"params": params, "stats": stats}, ours(images), None)
        np.testing.assert_allclose(theirs(output), expected, rtol=2e-5, atol=2e-6)
        stats = changed["stats"]
    for name, expected in RUNNING.items():
        np.testing.assert_allclose(stats[name], expected, rtol=FORMULA)
    output = evaluate({"params": params, "stats": stats}, ours(FIRST))
    np.testing.assert_allclose(theirs(output), EVALUATED, rtol=2e-5, atol=2e-6)
