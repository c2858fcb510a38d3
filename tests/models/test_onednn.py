"""oneDNN's convolutions and sums of normalisation against XLA's, in float64; messages about missing parts."""

import functools
import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import small_run
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from models import onednn
from rounding import FORMULA, SUM
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.lab import checkpoint
from fedjax_bal.models import build
from fedjax_bal.models import onednn as library
from fedjax_bal.models.convolution import of_name
from fedjax_bal.models.convolution.rules import REDUCTIONS
from fedjax_bal.models.derivatives import any_derivative
from fedjax_bal.models.normalization import XLA_REDUCTIONS, BatchNorm
from fedjax_bal.models.onednn import __main__ as command

pytestmark = pytest.mark.slow  # where oneDNN's headers are, its handler is compiled from C++

# batch, side, channels in and out, kernel, stride, padding
LAYERS = {
    "W1 first": (4, 12, 3, 32, 3, 1, 1),
    "W1 second": (4, 12, 32, 64, 3, 1, 0),
    "W2 first": (4, 14, 1, 16, 5, 1, 2),
    "W2 second": (4, 8, 16, 32, 5, 1, 2),
    "W5": (2, 8, 16, 16, 3, 1, 1),
    "W5 halving": (2, 8, 16, 32, 3, 2, 1),
    "W5 shortcut": (2, 8, 16, 32, 1, 2, 0),
    "large stem": (1, 33, 3, 64, 7, 2, 3),
    "odd": (3, 13, 5, 7, 4, 3, 2),
    "unused pixels": (2, 9, 6, 10, 3, 2, 0),
    "cropping": (2, 9, 5, 6, 3, 1, -1),
    "one of each": (1, 7, 1, 1, 3, 1, 1),
}
CLIENTS = 3


def operands(batch, side, inputs, outputs, size):
    rng = np.random.default_rng(0)
    shapes = (CLIENTS, batch, side, side, inputs), (CLIENTS, size, size, inputs, outputs)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def value_and_gradients(convolve, images, kernel):
    result, back = jax.vjp(convolve, images, kernel)
    return result, *back(jnp.cos(jnp.arange(result.size, dtype=result.dtype)).reshape(result.shape))


def in_float64(images, kernel, stride, pad):
    def plain(images, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(images, kernel, (stride,) * 2, ((pad, pad),) * 2, dimension_numbers=layout)

    with jax.enable_x64(True):
        exact = [value_and_gradients(plain, *map(jnp.float64, pair)) for pair in zip(images, kernel, strict=True)]
        return [np.stack(each) for each in zip(*exact, strict=True)]


def assert_close(actual, expected):
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", quick.only(LAYERS, "odd"))
def test_values_and_gradients_are_those_of_lax_one_by_one_and_stacked(name):
    onednn.needed()
    *sizes, stride, pad = LAYERS[name]
    images, kernel = operands(*sizes)
    convolve = lambda images, kernel: of_name("onednn")(images, kernel, (stride,) * 2, ((pad, pad),) * 2)
    each = lambda images, kernel: value_and_gradients(convolve, images, kernel)
    wanted = in_float64(images, kernel, stride, pad)
    assert_close(jax.jit(jax.vmap(each))(images, kernel), wanted)
    assert_close(jax.jit(each)(images[0], kernel[0]), [value[0] for value in wanted])
    assert_close(jax.jit(lambda *all_of: lax.map(lambda pair: each(*pair), all_of))(images, kernel), wanted)


def test_what_onednn_does_not_take_is_computed_in_other_forms():
    onednn.needed()
    images, kernel = operands(2, 6, 4, 4, 3)
    text = lambda *given, **options: str(jax.make_jaxpr(lambda *own: of_name("onednn")(*own, **options))(*given))
    assert "fedjax_bal_onednn_convolve" in text(images[0], kernel[0])
    assert "fedjax_bal_onednn_convolve" not in text(images[0].astype(jnp.bfloat16), kernel[0].astype(jnp.bfloat16))
    depthwise = {"feature_group_count": 4}
    assert "fedjax_bal_onednn_convolve" not in text(images[0], kernel[0][:, :, :1], **depthwise)
    in_groups = {"feature_group_count": 2}
    assert_close(
        [of_name("onednn")(images[0], kernel[0][:, :, :2], **in_groups)],
        [of_name("fast")(images[0], kernel[0][:, :, :2], **in_groups)],
    )
    with pytest.raises(ValueError, match=r'differentiated twice.*convolution="plain"'):
        jax.grad(lambda w: jax.grad(lambda w: (of_name("onednn")(images[0], w) ** 3).sum())(w).sum())(kernel[0])


@pytest.mark.parametrize("strategy", ["map", "vmap"])
def test_a_run_on_two_devices_gives_the_same_bits_twice_and_says_which_library(strategy, tmp_path, monkeypatch):
    onednn.needed()
    monkeypatch.chdir(tmp_path)
    network = "model: {name: tiny_bn, convolution: onednn}"
    (tmp_path / "small.yaml").write_text(small_run.TEXT.replace("model: {name: mlp}", network))
    ends = []
    for out in ("first", "second"):
        asked = ("run", "small.yaml", "seeds=[0]", f"execution.strategy={strategy}", "--devices", "2", "--plain")
        result = CliRunner().invoke(app, [*asked, "--out", out])
        assert result.exit_code == 0, result.output
        with np.load(checkpoint.generations(tmp_path / out / "checkpoints" / "fedavg-seed-0")[0]) as arrays:
            ends.append({name: arrays[name].tobytes() for name in arrays.files[1:]})
    assert ends[0] == ends[1]
    assert f'"oneDNN": "{library.load()}"' in (tmp_path / "first" / "summary.json").read_text()


def test_without_the_handler_a_model_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"isn't built.*\[onednn\].*python -m fedjax_bal\.models\.onednn"):
        build("tiny_bn", 3, (4, 4, 1), convolution="onednn")
    library._place().write_text("no library")
    with pytest.raises(ValueError, match=r"can't be loaded.*python -m fedjax_bal\.models\.onednn"):
        library.load.__wrapped__()


def test_a_run_without_the_handler_stops_with_that_message(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    result = CliRunner().invoke(app, ["run", "small.yaml", "model.convolution=onednn", "model.name=rebafl_fmnist"])
    assert result.exit_code == 2
    assert "model: convolution='onednn': its compiled part isn't built" in " ".join(result.output.split())


def prefix_with(folder, *files):
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def test_building_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"holds no libdnnl\.so\.3"):
        library.build(tmp_path)
    prefix_with(tmp_path, "lib/libdnnl.so.3")
    with pytest.raises(ValueError, match=r"dnnl\.hpp is missing.*--prefix"):
        library.build(tmp_path)
    prefix_with(tmp_path, "include/oneapi/dnnl/dnnl.hpp")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"no C\+\+ compiler \(no-such-compiler\).*g\+\+"):
        library.build(tmp_path)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ValueError, match="the compiler failed"):
        library.build(tmp_path)
    assert not list((tmp_path / "cache" / "fedjax_bal" / "onednn").iterdir())


def test_the_command_without_the_extra_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(sys, "argv", ["onednn"])
    with pytest.raises(SystemExit, match=r"fedjax-bal: oneDNN isn't installed: pip install 'fedjax_bal\[onednn\]'"):
        command.main()


STACKED, BATCH = 3, 4
# height, width, channels
IMAGES = {"W5": (32, 32, 16), "W5 last": (8, 8, 64), "odd": (5, 3, 7), "one pixel": (1, 1, 5), "one channel": (4, 6, 1)}
REAL = {"all": np.ones((STACKED, BATCH), bool), "some": np.array([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)}


@pytest.fixture
def handler():
    onednn.needed()


def normalised_operands(shape, offset=1.0):
    rng, channels = np.random.default_rng(0), shape[-1]
    draw = lambda *sizes: rng.normal(size=(STACKED, *sizes))
    params = {"scale": draw(channels), "bias": draw(channels)}
    stats = {"mean": draw(channels), "var": np.exp(draw(channels))}
    return jax.tree.map(np.float32, (offset + 2 * draw(BATCH, *shape), params, stats))


def step(reductions, images, params, stats, real):
    """What a step of training sees and gives, with gradients through the output and the moments."""

    def loss(images, params):
        layer, variables = BatchNorm(reductions=reductions), {"params": params, "stats": stats}
        output, changed = layer.apply(variables, images, real, train=True, mutable=["stats", "norm_inputs"])
        (mean, var), *_ = changed["norm_inputs"]["moments"]
        weights = jnp.cos(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape)
        return (output * weights).sum() + (2 * mean + 3 * var).sum(), (output, changed)

    return jax.grad(loss, (0, 1), has_aux=True)(images, params)


def step_in_float64(*normalised_operands):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else jnp.float64(leaf), normalised_operands)
        return jax.tree.map(np.asarray, jax.vmap(functools.partial(step, XLA_REDUCTIONS))(*wide))


def assert_trees_close(actual, expected, bound=1e-5):
    def close(got, wanted):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound * np.abs(wanted).max(initial=1e-3))

    jax.tree.map(close, actual, expected)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("rows", REAL)
@pytest.mark.parametrize("name", quick.only(IMAGES, "odd"))
def test_a_step_is_that_of_float64_one_by_one_and_stacked(name, rows):
    given = (*normalised_operands(IMAGES[name]), REAL[rows])
    own = functools.partial(step, REDUCTIONS["onednn"])
    wanted = step_in_float64(*given)
    assert_trees_close(jax.jit(jax.vmap(own))(*given), wanted)
    assert_trees_close(jax.jit(lambda *all_of: lax.map(lambda client: own(*client), all_of))(*given), wanted)
    if rows == "all":
        first = jax.tree.map(lambda leaf: leaf[0], (given[:3], wanted))
        assert_trees_close(jax.jit(own)(*first[0], None), first[1])


@pytest.mark.usefixtures("handler")
def test_padded_rows_don_t_count_and_no_client_sees_another_s():
    images = normalised_operands(IMAGES["odd"])[0]
    own = jax.jit(jax.vmap(REDUCTIONS["onednn"].moments))
    images[~REAL["some"]] = np.nan
    mean, var, count = own(images, REAL["some"])
    np.testing.assert_array_equal(count, [45, 15, 0])
    for client, real in enumerate(REAL["some"][:2]):
        np.testing.assert_allclose(mean[client], images[client, real].mean((0, 1, 2), np.float64), rtol=FORMULA)
        np.testing.assert_allclose(var[client], images[client, real].var((0, 1, 2), np.float64), rtol=FORMULA)
    np.testing.assert_array_equal((mean[2], var[2]), np.zeros((2, 7)))


@pytest.mark.usefixtures("handler")
def test_moments_of_far_away_values_keep_their_precision():
    images = normalised_operands(IMAGES["W5"], offset=1000.0)[0][0]
    mean, var, _ = REDUCTIONS["onednn"].moments(images, None)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2), np.float64), rtol=1e-7)
    np.testing.assert_allclose(var, images.var((0, 1, 2), np.float64), rtol=SUM)


@pytest.mark.usefixtures("handler")
def test_other_derivatives_are_those_of_xla_s_sums():
    images, params, stats = jax.tree.map(lambda leaf: leaf[0], normalised_operands(IMAGES["odd"]))

    def gradient(reductions, scale):
        return step(reductions, images, {**params, "scale": scale}, stats, REAL["some"][0])[0][0]

    own, plain = functools.partial(gradient, REDUCTIONS["onednn"]), functools.partial(gradient, XLA_REDUCTIONS)
    wanted = jax.jit(jax.jacrev(plain))(params["scale"])
    assert_trees_close(jax.jit(jax.jacrev(own))(params["scale"]), wanted)
    with any_derivative(True):
        assert_trees_close(jax.jit(jax.jacfwd(own))(params["scale"]), wanted)


@pytest.mark.usefixtures("handler")
def test_only_float32_is_the_handler_s():
    text = lambda images: str(jax.make_jaxpr(REDUCTIONS["onednn"].moments)(images, None))
    assert "fedjax_bal_onednn_moments" in text(jnp.ones((2, 3, 3, 1)))
    assert "fedjax_bal_onednn_moments" not in text(jnp.ones((2, 3, 3, 1), jnp.bfloat16))


def gradients(name, convolution, images, **options):
    """A function without arguments: the gradients of a network's loss, and what the network shows."""
    model = build(name, 3, images.shape[1:], convolution=convolution, **options)

    def loss(params, variables):
        real = jnp.arange(len(images)) > 0
        outputs, after = model.apply(variables._replace(params=params), images, train=True, real=real)
        return (outputs.logits**2).sum(), (outputs, after.stats)

    def run():
        variables = model.init(jax.random.key(0))
        return jax.grad(loss, has_aux=True)(variables.params, variables)

    return run


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize(("name", "norm"), [("tiny_bn", None), ("resnet8", "batch"), ("resnet8", "group")])
def test_batch_normalisation_of_networks_is_the_handler_s(name, norm):
    options = {"norm": norm} if norm else {}
    text = str(jax.make_jaxpr(gradients(name, "onednn", np.ones((2, 6, 6, 1), np.float32), **options))())
    assert all((f"fedjax_bal_onednn_{piece}" in text) == (norm != "group") for piece in ("moments", "slopes"))


@pytest.mark.usefixtures("handler")
def test_two_devices_at_once_give_the_same_bits_every_time():
    given = jax.tree.map(jnp.asarray, (*normalised_operands(IMAGES["W5"]), REAL["some"]))

    def device():
        results = lax.map(lambda _: jax.vmap(functools.partial(step, REDUCTIONS["onednn"]))(*given), jnp.arange(50))
        return jax.tree.map(lambda leaf: leaf[None], results)

    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    both = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=(), out_specs=PartitionSpec("devices"), check_vma=False))()
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0, 0], leaf.shape)), both)
