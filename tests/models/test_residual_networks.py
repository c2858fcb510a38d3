"""ResNet and MobileNetV2: layers against NumPy in float64, shapes of what they show."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import initializers

from fedjax_bal.models import build, layers
from fedjax_bal.models.convolution import of_name
from fedjax_bal.models.mobilenet import InvertedResidual
from fedjax_bal.models.normalization import normalise
from fedjax_bal.models.registry import _ENTRIES
from fedjax_bal.models.resnet import ResNet, he_normal_of_outputs


def numbers(shapes):
    """Something for every leaf, of either sign but for variances: no layer is an identity, and ReLU matters."""
    rng = np.random.default_rng(0)

    def one(path, leaf):
        drawn = rng.uniform(0.5, 1.5, leaf.shape) if path[-1].key == "var" else rng.normal(size=leaf.shape)
        return drawn.astype(np.float32)

    return jax.tree_util.tree_map_with_path(one, shapes)


def evaluated(network, images):
    """Variables, output and taps in evaluation."""
    start = jax.eval_shape(lambda: network.init(jax.random.key(0), images, None, train=False))
    variables = numbers({name: start[name] for name in ("params", "stats")})
    run = jax.jit(lambda variables, images: network.apply(variables, images, None, train=False, mutable=["taps"]))
    output, shown = run(variables, images)
    return variables, output, shown.get("taps", {})


def convolved(maps, kernel, stride):
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
    result = convolved(maps, np.asarray(params["conv"]["kernel"], np.float64), stride)
    return (result - mean) / np.sqrt(var + 1e-5) * scale + shift


def below(variables, name):
    return {part: variables[part][name] for part in ("params", "stats")}


def relu(values):
    return np.maximum(values, 0)


def around_every_second_pixel(maps):
    """3x3 maximum, stride 2, in a frame of values that are never the largest."""
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-2, -1))


def unit(maps, variables, stride):
    inner = normed(relu(normed(maps, variables, "conv_0", stride)), variables, "conv_1")
    return relu(inner + (normed(maps, variables, "shortcut", stride) if stride > 1 else maps))


def block(maps, variables, stride):
    inner = relu(normed(relu(normed(maps, variables, "expand")), variables, "depthwise", stride))
    result = normed(inner, variables, "project")
    if stride > 1:
        return result
    return result + (normed(maps, variables, "shortcut") if "shortcut" in variables["params"] else maps)


@pytest.mark.parametrize(("channels", "stride"), [(3, 1), (2, 1), (2, 2), (3, 2)])
def test_an_inverted_residual_against_numpy(channels, stride):
    images = np.random.default_rng(1).normal(size=(2, 5, 4, 2)).astype(np.float32)
    network = InvertedResidual(3, channels, stride, of_name("fast"))
    variables, output, _ = evaluated(network, images)
    assert ("shortcut" in variables["params"]) == (channels == 3 and stride == 1)
    assert variables["params"]["depthwise"]["conv"]["kernel"].shape == (3, 3, 1, 6)
    expected = block(np.asarray(images, np.float64), variables, stride)
    assert (expected < 0).any()
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("large", [True, False])
def test_a_residual_network_against_numpy(large):
    images = np.random.default_rng(2).normal(size=(2, 9, 12, 1)).astype(np.float32)
    network = ResNet(of_name("fast"), channels=(2, 3), units=1, large=large)
    variables, output, taps = evaluated(network, images)
    maps = relu(normed(np.asarray(images, np.float64), variables, "stem", 2 if large else 1))
    maps = around_every_second_pixel(maps) if large else maps
    expected = [unit(maps, below(variables, "unit_0"), 1)]
    expected.append(unit(expected[0], below(variables, "unit_1"), 2))
    for tap, wanted in zip(taps["units"], expected, strict=True):
        np.testing.assert_allclose(tap, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output, expected[-1].mean((1, 2)), rtol=1e-4, atol=1e-4)


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
    np.testing.assert_allclose(Grouped().apply(variables, images), expected * scale + bias, rtol=1e-4, atol=1e-5)


def test_convolutions_start_as_the_network_says():
    network = ResNet(of_name("fast"), channels=(2, 3), units=1, start=initializers.constant(3.0))
    params = jax.jit(lambda: network.init(jax.random.key(0), jnp.zeros((1, 4, 4, 1)), None, train=False))()["params"]
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 4]
    assert len(kernels) == 6 and all((kernel == 3).all() for kernel in kernels)
    drawn = np.asarray(he_normal_of_outputs(jax.random.key(0), (3, 3, 40, 90)))
    np.testing.assert_allclose(drawn.std(), np.sqrt(2 / (9 * 90)), rtol=0.02)
    assert np.abs(drawn).max() > 3 * drawn.std()
    assert _ENTRIES["resnet18"].body(of_name("fast")).start is he_normal_of_outputs


def test_the_relu_is_jax_s_with_all_of_its_derivatives():
    maps, weights = jnp.array([-jnp.inf, -2.0, -0.0, 0.0, 3.0, jnp.inf, jnp.nan]), jnp.arange(1.0, 8)

    def found(relu):
        slope = jax.grad(lambda maps: (relu(maps) * weights).sum())
        curvature = jax.grad(lambda maps: (relu(maps[1:5]) ** 3).sum())
        return relu(maps), slope(maps), jax.jvp(relu, (maps,), (weights,)), jax.jvp(curvature, (maps,), (weights,))

    jax.tree.map(np.testing.assert_array_equal, found(layers.relu), found(nn.relu))
