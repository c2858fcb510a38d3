"""Weights of PyTorch's networks: the same logits as PyTorch's own arithmetic, written here in NumPy, channels first."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx
from rounding import FORMULA, STEPS

from fedjax_bal import data
from fedjax_bal.models import build, from_linen, from_nnx, weights_from_torch, weights_to_torch, with_weights

SHAPE = (10, 8, 3)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, *SHAPE)).astype(np.float32)


def drawn(**shapes):
    """A state dict: arrays of these shapes, by name, `__` for the point."""
    return {name.replace("__", "."): RNG.normal(size=shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}


def conv(maps, kernel, bias=0.0, stride=1, padding=0, groups=1):
    """`torch.nn.functional.conv2d`: maps `[B, I, H, W]`, kernel `[O, I / groups, h, w]`."""
    maps = np.pad(maps, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(maps, kernel.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    parts = zip(np.split(windows, groups, 1), np.split(kernel, groups), strict=True)
    found = np.concatenate([np.einsum("bihwkl,oikl->bohw", *part) for part in parts], 1)
    return found + np.reshape(bias, (-1, 1, 1))


def pool(maps):
    rows, columns = (side // 2 * 2 for side in maps.shape[2:])
    return np.maximum.reduce([maps[:, :, i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1)])


def batch_norm(maps, state, name):
    shift, scale, mean, var = (
        state[f"{name}.{kind}"].reshape(-1, 1, 1) for kind in ("bias", "weight", "running_mean", "running_var")
    )
    return (maps - mean) / np.sqrt(var + 1e-5) * scale + shift


def dense(rows, state, name):
    return rows @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0.0)


def relu(values):
    return np.maximum(values, 0)


def logits_of(model, state):
    """The model's logits, from its start."""
    start = with_weights(model, weights_from_torch(model, state))
    return jax.jit(lambda key: start.apply(start.init(key), IMAGES, train=False)[0].logits)(jax.random.key(0))


def compare(model, state, expected):
    """Compares the logits, and that the way back gives the same state."""
    np.testing.assert_allclose(logits_of(model, state), expected, rtol=STEPS, atol=STEPS)
    like = {name: np.zeros_like(array) if array.ndim else array for name, array in state.items()}
    back = weights_to_torch(model, weights_from_torch(model, state), like, federation=None)
    assert list(back) == list(state)
    for name, array in state.items():
        np.testing.assert_array_equal(back[name], array, strict=True)


@pytest.mark.slow
def test_a_network_of_the_package_with_pooled_maps_that_are_flattened():
    # torch.nn.Sequential(Conv2d(3, 16, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(16, 32, 5, padding=2), ReLU(),
    #                     MaxPool2d(2), Flatten(), Linear(128, 128), ReLU(), Linear(128, 4))
    state = drawn(
        **{"0__weight": (16, 3, 5, 5), "0__bias": 16, "3__weight": (32, 16, 5, 5), "3__bias": 32},
        **{"7__weight": (128, 128), "7__bias": 128, "9__weight": (4, 128), "9__bias": 4},
    )
    model = build("conv2_lenet", 4, SHAPE)
    maps = relu(pool(conv(IMAGES.transpose(0, 3, 1, 2), state["0.weight"], state["0.bias"], padding=2)))
    maps = relu(pool(conv(maps, state["3.weight"], state["3.bias"], padding=2)))
    compare(model, state, dense(relu(dense(maps.reshape(3, -1), state, "7")), state, "9"))


class Net(nn.Module):
    """Normalisation, groups, strides, a kernel that is not square."""

    @nn.compact
    def __call__(self, images, train=False):
        maps = nn.Conv(6, (3, 2), strides=2, padding="VALID", use_bias=False)(images)
        maps = nn.relu(nn.BatchNorm(use_running_average=not train)(maps))
        maps = nn.Conv(4, (1, 1), feature_group_count=2)(maps)
        return nn.Dense(4)(maps.reshape(len(maps), -1))


def test_a_users_network_with_normalisation():
    state = drawn(conv__weight=(6, 3, 3, 2), norm__weight=6, norm__bias=6, norm__running_mean=6)
    state |= {"norm.running_var": np.float32([1, 2, 3, 4, 5, 6]), "norm.num_batches_tracked": np.array(7)}
    state |= drawn(mix__weight=(4, 3, 1, 1), mix__bias=4, out__weight=(4, 4 * 4 * 4), out__bias=4)
    maps = relu(batch_norm(conv(IMAGES.transpose(0, 3, 1, 2), state["conv.weight"], stride=2), state, "norm"))
    maps = conv(maps, state["mix.weight"], state["mix.bias"], groups=2)
    compare(from_linen(Net(), SHAPE, 4), state, dense(maps.reshape(3, -1), state, "out"))


class Rows(nnx.Module):
    """More than ten layers, whose names are not in the order of the alphabet."""

    def __init__(self, rngs):
        self.z = nnx.Linear(240, 5, rngs=rngs)
        self.a = nnx.Linear(5, 5, rngs=rngs)
        self.out = nnx.Linear(5, 4, use_bias=False, rngs=rngs)

    def __call__(self, images):
        return self.out(nnx.relu(self.a(nnx.relu(self.z(images.reshape(len(images), -1))))))


@pytest.mark.parametrize("network", quick.only(["mlp", "nnx"], "mlp"))
def test_images_that_are_flattened_have_their_channels_first(network):
    state = drawn(z__weight=(5, 240), z__bias=5, a__weight=(5, 5), a__bias=5, out__weight=(4, 5))
    if network == "mlp":
        state["out.bias"] = np.ones(4, np.float32)
    model = from_nnx(Rows, SHAPE, 4) if network == "nnx" else build("mlp", 4, SHAPE, hidden=[5, 5])
    rows = IMAGES.transpose(0, 3, 1, 2).reshape(3, -1)
    compare(model, state, dense(relu(dense(relu(dense(rows, state, "z")), state, "a")), state, "out"))


def test_rows_of_a_table_and_means_over_maps_stay_as_they_are():
    class Pooled(nn.Module):
        @nn.compact
        def __call__(self, images):
            return nn.Dense(2)(nn.Conv(4, (3, 3))(images).mean((1, 2)))

    state = drawn(**{"0__weight": (4, 3, 3, 3), "0__bias": 4, "1__weight": (2, 4), "1__bias": 2})
    kernel = weights_from_torch(from_linen(Pooled(), SHAPE, 2), state).params["head"]["kernel"]
    np.testing.assert_array_equal(kernel, state["1.weight"].T)
    state = drawn(**{"0__weight": (5, 6), "0__bias": 5, "1__weight": (3, 5), "1__bias": 3})
    kernel = weights_from_torch(build("mlp", 3, (6,), hidden=[5]), state).params["body"]["dense_0"]["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, state["0.weight"].T)


class Dense2(nn.Module):
    """Maps of two layers together; pooled, the classifier has twice as many inputs as the last layer has channels."""

    flatten: bool = False
    first: bool = False

    @nn.compact
    def __call__(self, images):
        early = nn.relu(nn.Conv(4, (3, 3))(images))
        late = nn.relu(nn.Conv(4, (3, 3))(early))
        if self.flatten:
            pieces = [maps.reshape(len(maps), -1) for maps in (early, late)]
            return nn.Dense(2)(jnp.concatenate(pieces, -1))
        maps = jnp.concatenate([early, late], -1)
        return nn.Dense(2)(maps.transpose(0, 3, 1, 2).reshape(len(maps), -1) if self.first else maps.mean((1, 2)))


def test_a_multiple_of_the_last_channels_need_not_be_flattened_maps():
    state = drawn(a__weight=(4, 3, 3, 3), a__bias=4, b__weight=(4, 4, 3, 3), b__bias=4, out__weight=(2, 8), out__bias=2)
    early = relu(conv(IMAGES.transpose(0, 3, 1, 2), state["a.weight"], state["a.bias"], padding=1))
    late = relu(conv(early, state["b.weight"], state["b.bias"], padding=1))
    means = np.concatenate([early, late], 1).mean((2, 3))
    compare(from_linen(Dense2(), SHAPE, 2), state, dense(means, state, "out"))


@pytest.mark.parametrize("order", ["flatten", "first"])
def test_flattened_maps_in_another_order_are_refused(order):
    model = from_linen(Dense2(**{order: True}), SHAPE, 2)
    with pytest.raises(ValueError, match="received inputs of head that are flattened maps"):
        weights_from_torch(model, {})


def test_a_scaled_kernel_is_still_that_of_flattened_maps():
    class Cosines(nn.Module):
        @nn.compact
        def __call__(self, rows):
            kernel = self.param("kernel", nn.initializers.lecun_normal(), (rows.shape[1], 2))
            return rows @ (kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True))

    class Standardised(nn.Module):
        @nn.compact
        def __call__(self, images):
            return Cosines(name="out")(images.reshape(len(images), -1))

    state = drawn(out__weight=(2, 240))
    scaled = {"out.weight": state["out.weight"] / np.linalg.norm(state["out.weight"], axis=1, keepdims=True)}
    rows = IMAGES.transpose(0, 3, 1, 2).reshape(3, -1)
    compare(from_linen(Standardised(), SHAPE, 2), state, dense(rows, scaled, "out"))


def test_without_the_last_layer_the_classifier_is_left_out():
    model = build("mlp", 4, (6,), hidden=[5])
    variables = weights_from_torch(model, drawn(**{"0__weight": (5, 6), "0__bias": 5}))
    assert set(variables.params) == {"body"} and variables.stats == {}
    assert "head" in jax.eval_shape(with_weights(model, variables).init, jax.random.key(0)).params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.weight": None}, "received bias for 0"),
        ({"4.weight": (2, 2)}, r"received 3 layers with weights \(0, 2, 4\)"),
        ({"2.weight": (3, 5)}, r"received \[3, 5\] for 2.weight"),
        (
            {"1.weight": (5, 5), "1.bias": (5,)},
            "received the layers 0, 2, 1",
        ),
        ({"0.weight_ih": (3, 5)}, "received bias, weight, weight_ih for 0"),
    ],
)
def test_other_layers_are_refused(change, message):
    state = drawn(**{"0__weight": (5, 6), "0__bias": 5, "2__weight": (4, 5), "2__bias": 4})
    state |= {name: np.zeros(shape) for name, shape in change.items() if shape}
    state = {name: array for name, array in state.items() if change.get(name, ()) is not None}
    with pytest.raises(ValueError, match=f"state: {message}"):
        weights_from_torch(build("mlp", 4, (6,), hidden=[5]), state)


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, rows):
        return nn.Dense(4)(rows * self.param("gain", nn.initializers.ones, (6,)))


def test_networks_with_other_layers_are_refused():
    with pytest.raises(ValueError, match="model Scaled: received the array params.gain"):
        weights_from_torch(from_linen(Scaled(), (6,), 4), {})


class Upsampling(nn.Module):
    strides: int = 1
    swapped: bool = False

    @nn.compact
    def __call__(self, images):
        maps = nn.ConvTranspose(3, (3, 3), strides=(self.strides,) * 2, transpose_kernel=self.swapped, name="up")(
            images
        )
        return nn.Dense(4)(maps.mean((1, 2)))


class NnxUpsampling(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.ConvTranspose(3, 3, (3, 3), rngs=rngs)
        self.out = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, images):
        return self.out(self.up(images).mean((1, 2)))


class Rows1d(nn.Module):
    @nn.compact
    def __call__(self, rows):
        return nn.Dense(4)(nn.ConvTranspose(3, (3,), name="up")(rows).mean(1))


class ByHand(nn.Module):
    """A transposed convolution by hand: an ordinary one with a flipped kernel."""

    @nn.compact
    def __call__(self, images):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, 3, 3))
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, jnp.flip(kernel, (0, 1)), (1, 1), "SAME", dimension_numbers=layout)


class Flipped(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(4)(ByHand(name="up")(images).mean((1, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_linen(Flipped(), SHAPE, 4),
        lambda: from_linen(Upsampling(), SHAPE, 4),
        lambda: from_linen(Upsampling(2), SHAPE, 4),
        lambda: from_linen(Upsampling(swapped=True), SHAPE, 4),
        lambda: from_nnx(NnxUpsampling, SHAPE, 4),
        lambda: from_linen(Rows1d(), (8, 3), 4),
    ],
    ids=["flipped", "stride 1", "stride 2", "kernel turned", "nnx", "one axis"],
)
def test_transposed_convolutions_are_refused_by_name(make):
    with pytest.raises(ValueError, match="received the transposed convolution up"):
        weights_from_torch(make(), {})


def two_layers(**changes):
    return drawn(**{"0__weight": (5, 6), "0__bias": 5, "2__weight": (4, 5), "2__bias": 4}) | changes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full((4, 5), np.nan), "2.weight with numbers that aren't finite"),
        (np.full((4, 5), -np.inf), "2.weight with numbers that aren't finite"),
        (np.full((4, 5), "1.0x"), "2.weight, ndarray"),
        (np.full((4, 5), 1j), "2.weight, ndarray"),
        (np.full((4, 5), 1e200), "2.weight with numbers that aren't finite|2.weight, ndarray"),
    ],
)
def test_an_array_without_finite_numbers_is_refused_by_name(value, message):
    with pytest.raises(ValueError, match=f"state: received {message}"), np.errstate(over="ignore"):
        weights_from_torch(build("mlp", 4, (6,), hidden=[5]), two_layers(**{"2.weight": value}))


def test_arrays_of_fewer_bits_become_float32():
    state = two_layers()
    model = build("mlp", 4, (6,), hidden=[5])
    for dtype in (jnp.bfloat16, np.float16):
        few = {name: array.astype(dtype) for name, array in state.items()}
        kernel = weights_from_torch(model, few).params["head"]["dense"]["kernel"]
        np.testing.assert_array_equal(kernel, few["2.weight"].T.astype(np.float32), strict=True)


def test_neither_a_network_nor_a_state_dict():
    with pytest.raises(ValueError, match="state: received str"):
        weights_from_torch(build("mlp", 4, (6,), hidden=[5]), "weights.pt")


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 255), (np.float32, 1)])
def test_the_way_back_has_the_normalisation_of_raw_inputs(dtype, scale):
    model = build("mlp", 2, (4, 4, 3), hidden=[3])
    rows, labels = np.zeros((2, 4, 4, 3), dtype), np.array([0, 1])
    mean, std = np.float32([0.1, 0.2, 0.3]), np.float32([0.25, 0.5, 1])
    federation = data.federate(rows, labels, [[0, 1]], 2, mean=mean, std=std)
    state = drawn(**{"0__weight": (3, 48), "0__bias": 3, "2__weight": (2, 3), "2__bias": 2})
    back = weights_to_torch(model, weights_from_torch(model, state), state, federation=federation)
    assert list(back) == [*state, "mean", "std"]
    np.testing.assert_allclose(back["mean"], scale * mean.reshape(3, 1, 1), rtol=FORMULA)
    np.testing.assert_allclose(back["std"], scale * std.reshape(3, 1, 1), rtol=FORMULA)


def test_rows_of_a_table_are_normalised_by_column_and_token_ids_are_not():
    model = build("mlp", 2, (3,), hidden=[3])
    rows, labels = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1])
    state = drawn(**{"0__weight": (3, 3), "0__bias": 3, "2__weight": (2, 3), "2__bias": 2})
    federation = data.federate(rows, labels, [[0, 1]], 2, mean=[1.0, 2, 3], std=[4.0, 5, 6])
    back = weights_to_torch(model, weights_from_torch(model, state), state, federation=federation)
    np.testing.assert_array_equal([back["mean"], back["std"]], [[1, 2, 3], [4, 5, 6]])

    texts = build("text_mean", 2, (5,), vocabulary=9, embedding=3, hidden=0)
    ids = data.federate(np.ones((2, 5), np.int32), labels, [[0, 1]], 2)
    state = drawn(embed__weight=(9, 3), out__weight=(2, 3), out__bias=2)
    assert list(weights_to_torch(texts, weights_from_torch(texts, state), state, federation=ids)) == list(state)
