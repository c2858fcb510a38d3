"""The networks: layers against NumPy in float64, dropout, how they start, and the shapes of what they show."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from jax.nn import initializers
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.models import build
from fedjax_bal.models.convolution import of_name
from fedjax_bal.models.layers import glorot, he_fan_out, standardised_kernel
from fedjax_bal.models.networks import InvertedResidual, KerasCifar10, ResNet, Vgg9, he_normal_of_outputs
from fedjax_bal.models.normalization import normalise
from fedjax_bal.models.registry import _ENTRIES
from fedjax_bal.types import Variables

# Odd ones, so that pooling leaves a row out.
SIDES = {
    "simple_cnn": 19,
    "vgg9": 11,
    "flcir_cnn": 21,
    "keras_cifar10": 13,
    "astraea_cnn": 13,
    "fedavg_cnn": 7,
    "pfllib_cnn": 19,
}
DROPPING = {"vgg9": (Vgg9, (0.05, 0.1, 0.1)), "keras_cifar10": (KerasCifar10, (0.25, 0.25, 0.5))}


@functools.cache
def initial(name):
    """A model on small images and what it starts with."""
    side = SIDES.get(name, 7)
    shape = side, side, 3
    model = build("fedavg_cnn", 4, shape, conv_relu=False) if name == "linear" else build(name, 4, shape)
    return model, jax.jit(model.init)(jax.random.key(0)).params


WORDS = [[7, 3, 0, 0, 0, 0], [3, 3, 9, 0, 0, 0], [1, 2, 4, 5, 6, 8], [0, 0, 0, 0, 0, 0]]


@functools.cache
def text_model(hidden):
    """A model of texts, its variables, and what evaluates it."""
    model = build("text_mean", 3, (6,), vocabulary=10, embedding=4, hidden=hidden)
    evaluate = jax.jit(lambda variables, ids: model.apply(variables, ids, train=False)[0])
    return jax.jit(model.init)(jax.random.key(0)), evaluate


@pytest.mark.parametrize("hidden", quick.only([5, 0], 5))
def test_a_text_is_the_mean_of_its_words(hidden):
    """Every word counts as often as it occurs, padding never; a text of padding alone is a vector of zeros."""
    variables, evaluate = text_model(hidden)
    outputs = evaluate(variables, np.array(WORDS))
    body, head = (jax.tree.map(np.float64, variables.params[name]) for name in ("body", "head"))
    table = body["embedding"]["embedding"]
    features = np.stack([np.mean([table[word] for word in text if word] or [np.zeros(4)], axis=0) for text in WORDS])
    assert not features[3].any()
    if hidden:
        layer = body["dense"]["dense"]
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    np.testing.assert_allclose(outputs.features, features, rtol=SUM, atol=FORMULA)
    logits = features @ head["dense"]["kernel"] + head["dense"]["bias"]
    np.testing.assert_allclose(outputs.logits, logits, rtol=SUM, atol=FORMULA)
    assert abs(table.std() - 1) < 0.3


@pytest.mark.slow
def test_longer_padding_changes_neither_logits_nor_gradients():
    models = [build("text_mean", 3, (length,), vocabulary=10, embedding=4, hidden=5) for length in (6, 40)]
    variables = jax.jit(models[0].init)(jax.random.key(0))
    texts = np.array(WORDS)

    def loss(params, model, ids):
        outputs, _ = model.apply(Variables(params, {}), ids, train=True)
        return (outputs.logits**2).sum(), outputs.logits

    results = []
    for model, ids in zip(models, (texts, np.pad(texts, ((0, 0), (0, 34)))), strict=True):
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, variables)
        slopes, logits = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)(variables.params, model, ids)
        assert not slopes["body"]["embedding"]["embedding"][0].any()  # padding's vector never trains
        results.append((logits, slopes))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=SUM, atol=FORMULA), *results)


def test_an_unknown_word_gives_no_number():
    """Not another word's embedding, as JAX's indexing would."""
    variables, evaluate = text_model(5)
    logits = np.asarray(evaluate(variables, np.array([[10, 1, 0, 0, 0, 0], *WORDS[1:]])).logits)
    assert np.isnan(logits[0]).all() and np.isfinite(logits[1:]).all()


def small(name):
    """A model, its variables with biases that matter, and a batch."""
    model, params = initial(name)
    params = jax.tree.map(lambda leaf: leaf + 0.1 if leaf.ndim == 1 else leaf, params)
    return model, Variables(params, {}), jax.random.normal(jax.random.key(1), (3, *model.input_shape))


def evaluated(name):
    model, variables, images = small(name)
    return jax.jit(lambda variables: model.apply(variables, images, train=False)[0])(variables)


def convolved(maps, layer, padding):
    """A convolution with bias, in float64."""
    padded = np.pad(maps, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    kernel, bias = (np.asarray(layer["conv"][part], np.float64) for part in ("kernel", "bias"))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[:2], axis=(1, 2))
    return np.einsum("bhwkij,ijko->bhwo", windows, kernel) + bias


def pooled(maps):
    height, width = (side // 2 * 2 for side in maps.shape[1:3])
    blocks = maps[:, :height, :width].reshape(len(maps), height // 2, 2, width // 2, 2, -1)
    return blocks.max(axis=(2, 4))


def dense(values, layer):
    kernel, bias = (np.asarray(layer["dense"][part], np.float64) for part in ("kernel", "bias"))
    return values.reshape(len(values), -1) @ kernel + bias


def relu(values):
    return np.maximum(values, 0)


def simple_cnn(maps, body):
    for name in ("conv_0", "conv_1"):
        maps = pooled(relu(convolved(maps, body[name], 0)))
    return relu(dense(relu(dense(maps, body["dense_0"])), body["dense"]))


def vgg9(maps, body):
    for block in range(3):
        maps = relu(convolved(maps, body[f"conv_{2 * block}"], 1))
        maps = pooled(relu(convolved(maps, body[f"conv_{2 * block + 1}"], 1)))
    return relu(dense(relu(dense(maps, body["dense_0"])), body["dense_1"]))


def flcir_cnn(maps, body):
    maps = pooled(relu(convolved(maps, body["conv_0"], 0)))
    maps = pooled(relu(convolved(maps, body["conv_1"], 0)))
    return relu(dense(relu(convolved(maps, body["conv_2"], 0)), body["dense"]))


def keras_cifar10(maps, body):
    for first, second in (("conv_0", "conv_1"), ("conv_2", "conv_3")):
        maps = pooled(relu(convolved(relu(convolved(maps, body[first], 1)), body[second], 0)))
    return relu(dense(maps, body["dense"]))


def fedavg_cnn(maps, body, activation=relu, padding=2):
    for name in ("conv_0", "conv_1"):
        maps = pooled(activation(convolved(maps, body[name], padding)))
    return relu(dense(maps, body["dense"]))


def pfllib_cnn(maps, body):
    return fedavg_cnn(maps, body, padding=0)


def linear(maps, body):
    """The same without activations of its convolutions."""
    return fedavg_cnn(maps, body, lambda maps: maps)


@pytest.mark.slow
@pytest.mark.parametrize("forward", [simple_cnn, vgg9, flcir_cnn, keras_cifar10, fedavg_cnn, pfllib_cnn, linear])
def test_evaluation_equals_the_layers_written_out(forward):
    _, variables, images = small(forward.__name__)
    outputs = evaluated(forward.__name__)
    features = forward(np.asarray(images, np.float64), variables.params["body"])
    np.testing.assert_allclose(outputs.features, features, rtol=STEPS, atol=1e-5 * np.abs(features).max())
    logits = dense(features, variables.params["head"])
    np.testing.assert_allclose(outputs.logits, logits, rtol=STEPS, atol=1e-5 * np.abs(logits).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DROPPING, "astraea_cnn"])
def test_dropout_needs_a_key_and_is_off_in_evaluation_and_at_shares_of_zero(name):
    model, variables, images = small(name)
    with pytest.raises(ValueError, match="key="):
        model.apply(variables, images, train=True)
    for off in (0, (0.0, 0, 0)) if name in DROPPING else (0.0,):
        without = build(name, 4, model.input_shape, dropout=off)
        features = jax.jit(lambda without=without: without.apply(variables, images, train=True)[0].features)()
        np.testing.assert_allclose(features, evaluated(name).features, rtol=SUM, atol=FORMULA)


@functools.cache
def dropped(name):
    """What comes out of each dropout of a network with its own shares, and what goes in."""
    network, _ = DROPPING[name]
    _, variables, images = small(name)
    body, images = network(of_name("fast")), jnp.tile(images[:1], (64, 1, 1, 1))

    @jax.jit
    def outputs(key):
        collected = []

        def keep(next_function, arguments, keywords, context):
            result = next_function(*arguments, **keywords)
            if isinstance(context.module, nn.Dropout):
                collected.append((arguments[0], result))
            return result

        with nn.intercept_methods(keep):
            body.apply({"params": variables.params["body"]}, images, None, train=True, rngs={"dropout": key})
        return collected

    return outputs(jax.random.key(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPING)
def test_each_dropout_has_its_share_and_keeps_the_mean(name):
    pairs = dropped(name)
    assert len(pairs) == 3
    for (before, after), share in zip(pairs, DROPPING[name][1], strict=True):
        alive = np.asarray(before) > 0
        kept = alive & (np.asarray(after) > 0)
        np.testing.assert_allclose(after[kept], before[kept] / (1 - share), rtol=SUM)
        assert (np.asarray(after)[~kept] == 0).all()
        units = alive.any((1, 2)).sum() if name == "vgg9" and before.ndim == 4 else alive.sum()
        error = 5 * np.sqrt(share * (1 - share) / units)
        assert abs(1 - kept.sum() / alive.sum() - share) < error


@pytest.mark.slow
def test_vgg9_drops_whole_channels_in_its_maps_and_single_values_behind_them():
    before, after = (np.asarray(maps) for maps in dropped("vgg9")[0])
    gone = (before > 0) & (after == 0)
    whole = gone.any((1, 2))
    assert before.shape[1:] == (2, 2, 128)
    assert 0 < whole.sum() < whole.size
    np.testing.assert_array_equal(gone, whole[:, None, None, :] & (before > 0))
    assert len(np.unique(whole, axis=0)) > 1  # drawn for each image of the batch
    before, after = (np.asarray(maps) for maps in dropped("keras_cifar10")[0])
    gone, present = (before > 0) & (after == 0), before > 0
    assert (gone.any((1, 2)) & (present & ~gone).any((1, 2))).any()


def drawn_layers(name):
    """Path, kernel and bias of each layer of a new model."""
    _, params = initial(name)
    for path, kernel in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key == "kernel":
            layer = functools.reduce(lambda node, key: node[key.key], path[:-1], params)
            yield jax.tree_util.keystr(path), np.asarray(kernel, np.float64), np.asarray(layer["bias"])


@pytest.mark.slow
def test_flcir_cnn_starts_normal():
    seen = 0
    for path, kernel, bias in drawn_layers("flcir_cnn"):
        deviation = np.sqrt(2 / (9 * kernel.shape[-1])) if kernel.ndim == 4 else 0.01
        assert kernel.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * kernel.size)), path
        assert abs(kernel.mean()) < 5 * deviation / np.sqrt(kernel.size)
        assert (kernel**4).mean() / deviation**4 == pytest.approx(3, abs=5 * np.sqrt(96 / kernel.size))  # of a normal
        assert (bias == 0).all()
        seen += 1
    assert seen == 5


def test_keras_cifar10_starts_as_keras_does():
    seen = 0
    for path, kernel, bias in drawn_layers("keras_cifar10"):
        fans = np.prod(kernel.shape[:-2]) * sum(kernel.shape[-2:])
        bound = np.sqrt(6 / fans)
        assert 0.99 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6), path
        assert kernel.std() == pytest.approx(bound / np.sqrt(3), rel=5 / np.sqrt(kernel.size))
        assert (bias == 0).all()
        seen += 1
    assert seen == 6


@pytest.mark.parametrize("start", [he_fan_out, glorot])
def test_a_start_depends_on_the_key_alone_and_differs_between_layers(start):
    params = {"a": {"kernel": jnp.ones((3, 4))}, "b": {"kernel": jnp.zeros((3, 4))}, "c": jnp.ones((2, 2, 3, 4))}
    one, again = start(jax.random.key(0), params), start(jax.random.key(0), jax.tree.map(jnp.zeros_like, params))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert not np.array_equal(one["a"]["kernel"], one["b"]["kernel"])
    other = start(jax.random.key(1), params)
    assert all(not np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def numbers(shapes):
    """Something for every leaf, of either sign but for variances: no layer is an identity, and ReLU matters."""
    rng = np.random.default_rng(0)

    def one(path, leaf):
        drawn = rng.uniform(0.5, 1.5, leaf.shape) if path[-1].key == "var" else rng.normal(size=leaf.shape)
        return drawn.astype(np.float32)

    return jax.tree_util.tree_map_with_path(one, shapes)


def evaluated_residual(network, images):
    """Variables, output and taps in evaluation."""
    start = jax.eval_shape(lambda: network.init(jax.random.key(0), images, None, train=False))
    variables = numbers({name: start[name] for name in ("params", "stats")})
    run = jax.jit(lambda variables, images: network.apply(variables, images, None, train=False, mutable=["taps"]))
    output, shown = run(variables, images)
    return variables, output, shown.get("taps", {})


def convolved_strided(maps, kernel, stride):
    """A convolution padded by half its kernel; one input channel for each output where the kernel has one alone."""
    size = kernel.shape[0]
    half = size // 2
    padded = np.pad(maps, ((0, 0), (half, half), (half, half), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    if kernel.shape[2] < maps.shape[-1]:
        return np.einsum("bhwkij,ijk->bhwk", windows, kernel[:, :, 0])
    return np.einsum("bhwkij,ijko->bhwo", windows, kernel)


def normed(maps, variables, name, stride=1):
    """Convolution `name`, then normalisation with running statistics."""
    params, stats = (variables[part][name] for part in ("params", "stats"))
    scale, shift = (np.asarray(params["norm"][leaf], np.float64) for leaf in ("scale", "bias"))
    mean, var = (np.asarray(stats["norm"][leaf], np.float64) for leaf in ("mean", "var"))
    result = convolved_strided(maps, np.asarray(params["conv"]["kernel"], np.float64), stride)
    return (result - mean) / np.sqrt(var + 1e-5) * scale + shift


def below(variables, name):
    return {part: variables[part][name] for part in ("params", "stats")}


def rectified(values):
    return np.maximum(values, 0)


def around_every_second_pixel(maps):
    """3x3 maximum, stride 2, in a frame of values that are never the largest."""
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-2, -1))


def unit(maps, variables, stride):
    inner = normed(rectified(normed(maps, variables, "conv_0", stride)), variables, "conv_1")
    return rectified(inner + (normed(maps, variables, "shortcut", stride) if stride > 1 else maps))


def block(maps, variables, stride):
    inner = rectified(normed(rectified(normed(maps, variables, "expand")), variables, "depthwise", stride))
    result = normed(inner, variables, "project")
    if stride > 1:
        return result
    return result + (normed(maps, variables, "shortcut") if "shortcut" in variables["params"] else maps)


@pytest.mark.parametrize(("channels", "stride"), quick.only([(3, 1), (2, 1), (2, 2), (3, 2)], (3, 1)))
def test_an_inverted_residual_against_numpy(channels, stride):
    images = np.random.default_rng(1).normal(size=(2, 5, 4, 2)).astype(np.float32)
    network = InvertedResidual(3, channels, stride, of_name("fast"))
    variables, output, _ = evaluated_residual(network, images)
    assert ("shortcut" in variables["params"]) == (channels == 3 and stride == 1)
    assert variables["params"]["depthwise"]["conv"]["kernel"].shape == (3, 3, 1, 6)
    expected = block(np.asarray(images, np.float64), variables, stride)
    assert (expected < 0).any()
    np.testing.assert_allclose(output, expected, rtol=STEPS, atol=STEPS)


@pytest.mark.parametrize("large", quick.only([True, False], True))
def test_a_residual_network_against_numpy(large):
    images = np.random.default_rng(2).normal(size=(2, 9, 12, 1)).astype(np.float32)
    network = ResNet(of_name("fast"), channels=(2, 3), units=1, large=large)
    variables, output, taps = evaluated_residual(network, images)
    maps = rectified(normed(np.asarray(images, np.float64), variables, "stem", 2 if large else 1))
    maps = around_every_second_pixel(maps) if large else maps
    expected = [unit(maps, below(variables, "unit_0"), 1)]
    expected.append(unit(expected[0], below(variables, "unit_1"), 2))
    for tap, wanted in zip(taps["units"], expected, strict=True):
        np.testing.assert_allclose(tap, wanted, rtol=STEPS, atol=STEPS)
    np.testing.assert_allclose(output, expected[-1].mean((1, 2)), rtol=STEPS, atol=STEPS)


CASES = {
    "resnet8": (32, 9, [(32, 32, 16), (16, 16, 32), (8, 8, 64)]),
    "creff_resnet8": (32, 9, [(32, 32, 64), (16, 16, 128), (8, 8, 256)]),
    "resnet20": (32, 21, [(32, 32, 16)] * 3 + [(16, 16, 32)] * 3 + [(8, 8, 64)] * 3),
    "mobilenetv2": (
        32,
        2 + 17 * 3 + 4,
        [(32, 32, 16)]
        + [(32, 32, 24)] * 2
        + [(16, 16, 32)] * 3
        + [(8, 8, 64)] * 4
        + [(8, 8, 96)] * 3
        + [(4, 4, 160)] * 3
        + [(4, 4, 320)],
    ),
    "resnet18": (224, 20, [(56, 56, 64)] * 2 + [(28, 28, 128)] * 2 + [(14, 14, 256)] * 2 + [(7, 7, 512)] * 2),
    "resnet18_cifar": (32, 20, [(32, 32, 64)] * 2 + [(16, 16, 128)] * 2 + [(8, 8, 256)] * 2 + [(4, 4, 512)] * 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_unit_and_every_normalisation_is_shown(name):
    side, norms, units = CASES[name]
    model = build(name, 7, (side, side, 3))

    def forward(images):
        variables = model.init(jax.random.key(0))
        return *model.apply(variables, images, train=False), variables

    outputs, after, before = jax.eval_shape(forward, jnp.zeros((2, side, side, 3)))
    assert [tap.shape for tap in outputs.taps] == [(2, *shape) for shape in units]
    assert outputs.logits.shape == (2, 7)
    assert outputs.features.shape == (2, 1280 if name == "mobilenetv2" else units[-1][-1])
    shown = [moment.shape for pair in outputs.norm_inputs for moment in pair]
    assert shown == [leaf.shape for leaf in jax.tree.leaves(before.stats)]
    assert len(outputs.norm_inputs) == norms
    assert jax.tree.structure(after) == jax.tree.structure(before)


class Grouped(nn.Module):
    @nn.compact
    def __call__(self, maps):
        return normalise("group", maps, None, train=True)


def test_group_normalisation_against_numpy():
    images = np.random.default_rng(3).normal(2, 3, size=(3, 4, 5, 6)).astype(np.float32)
    variables = numbers(jax.eval_shape(Grouped().init, jax.random.key(0), images))
    groups = images.astype(float).reshape(3, 20, 2, 3)
    mean, var = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    expected = ((groups - mean) / np.sqrt(var + 1e-5)).reshape(images.shape)
    scale, bias = (variables["params"]["norm"][name] for name in ("scale", "bias"))
    found = jax.jit(Grouped().apply)(variables, images)
    np.testing.assert_allclose(found, expected * scale + bias, rtol=STEPS, atol=SUM)


@pytest.mark.slow
def test_convolutions_start_as_the_network_says():
    network = ResNet(of_name("fast"), channels=(2, 3), units=1, start=initializers.constant(3.0))
    params = jax.jit(lambda: network.init(jax.random.key(0), jnp.zeros((1, 4, 4, 1)), None, train=False))()["params"]
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 4]
    assert len(kernels) == 6 and all((kernel == 3).all() for kernel in kernels)
    drawn = np.asarray(he_normal_of_outputs(jax.random.key(0), (3, 3, 40, 90)))
    np.testing.assert_allclose(drawn.std(), np.sqrt(2 / (9 * 90)), rtol=0.02)
    assert np.abs(drawn).max() > 3 * drawn.std()
    assert _ENTRIES["resnet18"].body(of_name("fast")).start is he_normal_of_outputs


def test_standardised_kernels_equal_their_transcription_in_numpy():
    kernel = np.random.default_rng(0).normal(1.0, 2.0, (3, 3, 4, 5)).astype(np.float32)
    wanted = np.zeros(kernel.shape)
    for channel in range(5):
        weights = kernel[..., channel].astype(np.float64)
        centred = weights - weights.mean()
        wanted[..., channel] = centred / (centred.std(ddof=1) + 1e-5) * 0.7
    compute = jax.jit(standardised_kernel, static_argnums=1)
    np.testing.assert_allclose(compute(kernel, 0.7), wanted, rtol=SUM, atol=FORMULA)
    assert np.isfinite(compute(np.ones((1, 1, 1, 2), np.float32), 1.0)).all()


@pytest.mark.parametrize("shape", [(3, 3, 2, 2), (1, 1, 1, 2)])
def test_a_constant_kernel_has_a_finite_gradient(shape):
    slope = jax.jit(jax.grad(lambda kernel: (standardised_kernel(kernel, 0.001) * jnp.arange(shape[3])).sum()))
    for kernel in (np.zeros(shape, np.float32), np.ones(shape, np.float32)):
        np.testing.assert_allclose(slope(kernel), np.zeros(shape), atol=STEPS)
    half = np.ones(shape, np.float32)
    half[..., 0] += np.random.default_rng(0).normal(size=shape[:3])
    assert np.isfinite(slope(half)).all()


@pytest.mark.slow
def test_a_network_with_standardised_kernels_is_one_on_kernels_that_are():
    plain, standardised = (build("resnet8", 3, (8, 8, 3), norm="group", standardise=x) for x in (0, 0.5))
    variables = jax.jit(standardised.init)(jax.random.key(0))
    images = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    changed = lambda leaf: standardised_kernel(leaf, 0.5) if leaf.ndim == 4 else leaf
    kernels = jax.jit(lambda params: jax.tree.map(changed, params))(variables.params)
    ours, theirs = (jax.jit(functools.partial(model.apply, train=True)) for model in (standardised, plain))
    got, _ = ours(variables, images)
    want, _ = theirs(variables._replace(params=kernels), images)
    np.testing.assert_allclose(got.logits, want.logits, rtol=SUM, atol=FORMULA)
    # A shift and a larger scale of a kernel matter only through the small number that is added to its deviation.
    moved = jax.tree.map(lambda leaf: 3 * np.asarray(leaf) + 1 if leaf.ndim == 4 else leaf, variables.params)
    got, _ = ours(variables._replace(params=moved), images)
    np.testing.assert_allclose(got.logits, want.logits, rtol=2e-3, atol=2e-3)
