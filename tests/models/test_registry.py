import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from rounding import STEPS

from fedjax_bal.models import BATCH_NORMALISED, MODELS, build, normalisation, normalisation_of, num_params
from fedjax_bal.models.registry import _ENTRIES, options_of, read_options
from fedjax_bal.types import Variables

SMALL = {
    "mlp": (4, 4, 1), "rebafl_fmnist": (12, 12, 1), "rebafl_cifar": (16, 16, 3), "fedavg_cnn": (4, 4, 1),
    "astraea_cnn": (13, 13, 1), "conv2_pfl": (5, 5, 1), "conv2_lenet": (4, 4, 1), "vgg9": (8, 8, 3),
    "flcir_cnn": (18, 18, 3), "keras_cifar10": (10, 10, 3), "simple_cnn": (16, 16, 1), "resnet8": (4, 4, 1),
    "pfllib_cnn": (16, 16, 1), "resnet20": (4, 4, 1), "tiny_bn": (6, 6, 2), "text_mean": (6,),
}  # fmt: skip


@functools.cache
def small(name):
    """A model on the smallest images, its variables, and a batch."""
    model = build(name, 3, SMALL[name])
    images = np.random.default_rng(1).normal(size=(4, *SMALL[name])).astype(model.input_dtype)
    return model, jax.jit(model.init)(jax.random.key(0)), images


@functools.cache
def applied(name, train):
    model, variables, images = small(name)
    key = jax.random.key(2)
    return jax.jit(lambda variables, images: model.apply(variables, images, train=train, key=key))(variables, images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        ("mlp", (28, 28, 1), {}, 50_890),
        ("mlp", (28, 28, 1), {"hidden": (200, 200)}, 199_210),
        ("linear", (28, 28, 1), {}, 7_850),
        ("text_mean", (100,), {}, 320_000 + 33 * 64 + 650),
        ("text_mean", (100,), {"vocabulary": 50, "embedding": 4, "hidden": 0}, 200 + 50),
        ("rebafl_fmnist", (28, 28, 1), {}, 117_066),
        ("rebafl_cifar", (32, 32, 3), {}, 107_680),
        ("fedavg_cnn", (28, 28, 1), {}, 1_663_370),
        ("fedavg_cnn", (28, 28, 1), {"conv_relu": False}, 1_663_370),
        ("astraea_cnn", (28, 28, 1), {}, 312 + 1962 + 1752 + 57_750 + 1_510),
        ("vgg9", (32, 32, 3), {}, 3_491_530),
        ("flcir_cnn", (32, 32, 3), {}, 122_570),
        ("keras_cifar10", (32, 32, 3), {}, 1_250_858),
        ("conv2_pfl", (32, 32, 3), {}, 896 + 18_496 + 14_400 * 128 + 128 + 1_290),
        ("conv2_lenet", (28, 28, 1), {}, 416 + 12_832 + 1_568 * 128 + 128 + 1_290),
        ("resnet8", (32, 32, 3), {}, 464 + 4_672 + 14_528 + 57_728 + 650),
        ("resnet8", (32, 32, 3), {"norm": "group"}, 464 + 4_672 + 14_528 + 57_728 + 650),
        ("simple_cnn", (32, 32, 3), {}, 456 + 2_416 + 400 * 120 + 120 + 10_164 + 850),
        ("simple_cnn", (28, 28, 1), {}, 156 + 2_416 + 256 * 120 + 120 + 10_164 + 850),
        ("pfllib_cnn", (28, 28, 1), {}, 832 + 51_264 + 1_024 * 512 + 512 + 5_130),
        ("tiny_bn", (8, 8, 1), {}, 36 + 8 + 650),
        ("mobilenetv2", (32, 32, 3), {}, 2_296_922),
    ],
)
def test_parameter_counts(name, shape, options, expected):
    assert num_params(build(name, 10, shape, **options)) == expected


def counted(channels, units, classes, large=False):
    """A residual network's parameters, from its layers: kernels, and two numbers for each normalised channel."""
    layers, inputs = [(49 if large else 9, 3, channels[0])], channels[0]
    for stage, outputs in enumerate(channels):
        for unit in range(units):
            layers += [(9, inputs, outputs), (9, outputs, outputs)]
            layers += [(1, inputs, outputs)] if stage > 0 and unit == 0 else []
            inputs = outputs
    return sum(size * into * out + 2 * out for size, into, out in layers) + (inputs + 1) * classes


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("name", "channels", "units", "classes", "published"),
    [
        ("resnet18_cifar", (64, 128, 256, 512), 2, 10, 11_173_962),
        ("resnet18_cifar", (64, 128, 256, 512), 2, 100, 11_220_132),
        ("resnet18", (64, 128, 256, 512), 2, 1000, 11_689_512),
        ("resnet18", (64, 128, 256, 512), 2, 1010, 11_694_642),
        ("creff_resnet8", (64, 128, 256), 1, 10, 1_227_594),
        ("resnet20", (16, 32, 64), 3, 10, 272_474),
        ("resnet20", (16, 32, 64), 3, 100, 278_324),
    ],
)
def test_parameter_counts_of_residual_networks(name, channels, units, classes, published, norm):
    side = 224 if name == "resnet18" else 32
    assert counted(channels, units, classes, large=name == "resnet18") == published
    assert num_params(build(name, classes, (side, side, 3), norm=norm)) == published


def test_group_normalisation_has_no_statistics():
    model = build("resnet8", 3, (4, 4, 1), norm="group")
    assert normalisation_of(model) == normalisation("resnet8", {"norm": "group"}) == (True, False)
    assert jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats) == []


@pytest.mark.parametrize("name", SMALL)
def test_model_describes_itself(name):
    model = build(name, 3, SMALL[name])
    variables = jax.eval_shape(model.init, jax.random.key(0))
    assert (model.name, model.num_classes, model.input_shape) == (name, 3, SMALL[name])
    assert set(variables.params) == {"body", "head"}
    assert bool(variables.stats) == (name in BATCH_NORMALISED)
    assert normalisation_of(model) == normalisation(name, {})
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


def test_tiny_bn_shows_its_maps_before_and_after_pooling():
    outputs = applied("tiny_bn", False)[0]
    maps, pooled = outputs.taps
    assert maps.shape == (4, 6, 6, 4)
    np.testing.assert_array_equal(pooled, maps.reshape(4, 3, 2, 3, 2, 4).max((2, 4)))
    np.testing.assert_array_equal(pooled.reshape(4, -1), outputs.features)


@pytest.mark.slow
def test_norm_inputs_in_evaluation_are_those_of_the_batch():
    trained, evaluated = applied("tiny_bn", True)[0], applied("tiny_bn", False)[0]
    jax.tree.map(np.testing.assert_array_equal, trained.norm_inputs, evaluated.norm_inputs)
    assert applied("mlp", True)[0].norm_inputs == ()


@pytest.mark.parametrize("name", quick.only(["mlp", "rebafl_cifar"], "mlp"))
def test_initial_weights_are_uniform_within_one_over_the_root_of_fan_in(name):
    params = small(name)[1].params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        layer = functools.reduce(lambda node, key: node[key.key], path[:-1], params)
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        assert np.abs(leaf).max() <= bound
        if leaf.size > 300:
            assert np.abs(leaf).max() > 0.98 * bound
            np.testing.assert_allclose(np.std(leaf), bound / np.sqrt(3), rtol=0.1)


@pytest.mark.slow
def test_rebafl_activations():
    assert float(applied("rebafl_cifar", False)[0].features.min()) < -0.05
    features = applied("rebafl_fmnist", False)[0].features
    model, variables, images = small("rebafl_fmnist")
    dense = variables.params["body"]["dense"]["dense"]
    shifted = dense | {"bias": dense["bias"] - 100.0}
    body = variables.params["body"] | {"dense": {"dense": shifted}}
    changed = Variables(variables.params | {"body": body}, {})
    negative, _ = jax.jit(lambda variables: model.apply(variables, images, train=False))(changed)
    before = jnp.where(features < 0, 100 * features, features)
    np.testing.assert_allclose(negative.features, 0.01 * (before - 100), rtol=STEPS)


@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_image_is_the_smallest(name):
    least = _ENTRIES[name].smallest
    build(name, 3, (least, least, 3))
    if least > 1:
        with pytest.raises(ValueError, match=f"at least {least}x{least}"):
            build(name, 3, (least, least - 1, 3))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("rebafl_fmist", 10, (28, 28, 1)), {}, "model: received 'rebafl_fmist'; did you mean 'rebafl_fmnist'?"),
        (("fedavg_cnn", 10, (28, 28, 1)), {"hidden": (3,)}, "no option 'hidden'; its options: conv_relu"),
        (("fedavg_cnn", 10, (28, 28, 1)), {"conv_relu": 0}, "conv_relu: received 0, must be true or false"),
        (("astraea_cnn", 47, (28, 28, 1)), {"dropout": 1.0}, "dropout: received 1.0, must be a number in [0, 1)"),
        (("vgg9", 10, (32, 32, 3)), {"dropout": (0.1, 0.1)}, "(0.1, 0.1), must be a number in [0, 1), or a list of 3"),
        (("resnet8", 10, (28, 28, 1)), {"norm": "layer"}, "norm: received 'layer'; allowed: batch, group"),
        (("mlp", 10, (28, 28, 1)), {"hiden": (3,)}, "its options: hidden; did you mean 'hidden'?"),
        (("mlp", 10, (28, 28, 1)), {"hidden": 128}, "hidden: received 128, must be a list, not empty, each item an"),
        (("mlp", 10, (28, 28, 1)), {"convolution": "quick"}, "received 'quick'; allowed: auto, fast, grouped"),
        (("mlp", 0, (28, 28, 1)), {}, "num_classes: received 0, must be an integer"),
        (("fedavg_cnn", 10, (28, 28)), {}, "(height, width, channels)"),
    ],
)
def test_errors_say_what_is_allowed(arguments, options, message):
    with pytest.raises(ValueError) as error:
        build(*arguments, **options)
    assert message in str(error.value)


def test_equal_sizes_of_another_type_make_the_same_model():
    with pytest.raises(ValueError, match=r"num_classes: received 7\.0"):
        build("mlp", 7.0, (2, 2, 1))
    for shape in (28, (28.0, 28, 1)):
        with pytest.raises(ValueError, match=r"must be \(height, width, channels\)"):
            build("mlp", 7, shape)
    model = build("mlp", 7, (2, 2, 1))
    assert build("mlp", np.int64(7), [2, 2, np.uint8(1)]) is model and num_params(model) == 5 * 64 + 65 * 7


def test_a_switch_of_a_network_is_an_option_without_further_ado():
    class Switched(nn.Module):
        convolve: object
        conv_relu: bool = False

    offered = options_of(Switched)
    assert list(offered) == ["conv_relu"] and offered["conv_relu"][1] is False
    assert read_options("mine", offered, {"conv_relu": True}) == {"conv_relu": True}
    with pytest.raises(ValueError, match="model 'mine': conv_relu: received 1"):
        read_options("mine", offered, {"conv_relu": 1})


def test_a_model_knows_its_options_so_that_it_can_be_built_again():
    model = build("mlp", 10, (28, 28, 1), hidden=[np.int64(20), 30])
    again = build(model.name, model.num_classes, model.input_shape, **dict(model.options))
    assert model.options == again.options == (("hidden", (20, 30)),)
    assert num_params(model) == num_params(again) == 785 * 20 + 21 * 30 + 31 * 10
