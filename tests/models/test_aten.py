"""Operations of PyTorch's graphs against NumPy, by PyTorch's definitions; PyTorch isn't needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import SUM

from fedjax_bal.models import aten, from_torch
from fedjax_bal.models.convolution import of_name

RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)  # channels first


def run(name, *arguments, pointwise=False, key=None):
    """An operation on arrays in PyTorch's order of axes."""
    forward = aten.ForwardPass(of_name("fast"), key, None)
    stored = jax.tree.map(lambda value: aten.channels_last(value) if hasattr(value, "ndim") else value, arguments)
    return jax.tree.map(aten.channels_first, forward.run(name, stored, pointwise))


def compare(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=SUM, atol=SUM)


def test_flattened_maps_have_their_channels_first():
    np.testing.assert_array_equal(run("view.default", MAPS, [2, -1]), MAPS.reshape(2, -1))


def test_axes_are_pytorchs():
    compare(run("mean.dim", MAPS, [2, 3], True, None), MAPS.mean((2, 3), keepdims=True))
    compare(run("cat.default", [MAPS, MAPS], 1), np.concatenate([MAPS, MAPS], 1))
    compare(run("slice.Tensor", MAPS, 1, 0, 2, 1), MAPS[:, :2])
    compare(run("permute.default", MAPS, [0, 2, 3, 1]), MAPS.transpose(0, 2, 3, 1))
    assert run("sym_size.int", MAPS, 1) == 3


def test_arrays_with_fewer_axes_are_broadcast_along_pytorchs():
    scale = RNG.normal(size=(3, 1, 1)).astype(np.float32)
    compare(run("mul.Tensor", MAPS, scale, pointwise=True), MAPS * scale)


def test_a_convolution_has_pytorchs_kernel():
    weight, bias = RNG.normal(size=(2, 3, 1, 1)).astype(np.float32), np.float32([1, 2])
    wanted = np.einsum("bihw,oi->bohw", MAPS, weight[:, :, 0, 0]) + bias[:, None, None]
    compare(run("conv2d.default", MAPS, weight, bias, [1, 1], [0, 0], [1, 1], 1), wanted)
    lines = run("conv1d.default", MAPS[:, :, 0], weight[..., 0], bias, [2], [1], [1], 1)
    padded = np.pad(MAPS[:, :, 0], ((0, 0), (0, 0), (1, 1)))[:, :, ::2]
    compare(lines, np.einsum("bil,oi->bol", padded, weight[:, :, 0, 0]) + bias[:, None])


def test_windows_of_adaptive_averages_overlap():
    wanted = np.stack([MAPS[:, :, :3].mean(2), MAPS[:, :, 2:].mean(2)], 2)  # 5 rows: 0 to 2, 2 to 4
    compare(run("adaptive_avg_pool2d.default", MAPS, [2, None]), wanted)


def test_groups_are_of_neighbouring_channels():
    maps = RNG.normal(size=(2, 4, 3, 3)).astype(np.float32)
    grouped = maps.reshape(2, 2, -1)
    wanted = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    compare(run("group_norm.default", maps, 2, None, None, 1e-5, False), wanted.reshape(maps.shape))


@pytest.mark.parametrize(("name", "slopes"), [("hardtanh.default", [0, 0]), ("clamp.default", [1, 1])])
def test_gradients_at_the_limits_are_pytorchs(name, slopes):
    slope = jax.grad(lambda values: run(name, values, -1.0, 1.0).sum())
    assert slope(jnp.float32([-1, 1])).tolist() == slopes


def test_dropout_keeps_the_mean_and_needs_a_key():
    (kept,) = run("native_dropout.default", np.ones(10_000, np.float32), 0.2, True, key=jax.random.key(0))
    assert set(np.unique(kept)) == {0, np.float32(1.25)}
    assert abs(float(kept.mean()) - 1) < 0.05
    with pytest.raises(ValueError, match="key"):
        run("native_dropout.default", np.ones(3, np.float32), 0.2, True)


def test_padding_of_an_embedding_is_not_trained():
    weight, ids = np.ones((3, 2), np.float32), np.array([[0, 2]])
    slopes = jax.grad(lambda weight: run("embedding.default", weight, ids, 0, False, False).sum())(weight)
    assert slopes.tolist() == [[0, 0], [0, 0], [1, 1]]


def test_unknown_operations_and_settings_are_refused():
    with pytest.raises(aten.UnsupportedError, match="unheard_of"):
        run("unheard_of.default", MAPS)
    with pytest.raises(aten.UnsupportedError, match="ceil_mode"):
        run("max_pool2d.default", MAPS, [2, 2], [], [0, 0], [1, 1], True)


def test_other_values_than_modules_are_refused():
    with pytest.raises(ValueError, match=r"module: received 3, must be a torch\.nn\.Module"):
        from_torch(3, (6,), 3)
