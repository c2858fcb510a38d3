"""Networks of the user's own, in both forms of Flax: what the model makes of them."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rounding import FORMULA, STEPS, SUM

from fedjax_bal import LocalTraining, check_model, compare, data, optimizer, recipes, simulate
from fedjax_bal.errors import DivergenceError
from fedjax_bal.models import from_linen, from_nnx, num_params
from fedjax_bal.options import Execution
from fedjax_bal.types import Variables

SHAPE = (6, 6, 2)
IMAGES = jax.random.normal(jax.random.key(5), (5, *SHAPE))
REAL = jnp.array([True, True, True, False, False])


class Linen(nn.Module):
    """Two convolutions, two normalisations that momentum tells apart, dropout, a classifier without a name."""

    rate: float = 0.3

    @nn.compact
    def __call__(self, images, train: bool = False):
        maps = nn.Conv(3, (3, 3), strides=2)(images)
        maps = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.8)(maps))
        maps = nn.Conv(4, (3, 3), padding="VALID", kernel_dilation=1)(maps)
        features = nn.BatchNorm(use_running_average=not train)(maps.mean((1, 2)))
        return nn.Dense(3)(nn.Dropout(self.rate, deterministic=not train)(features))


class Nnx(nnx.Module):
    """The same."""

    def __init__(self, rngs, rate=0.3):
        self.first = nnx.Conv(2, 3, (3, 3), strides=2, rngs=rngs)
        self.layers = nnx.List(
            [nnx.BatchNorm(3, momentum=0.8, rngs=rngs), nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=rngs)]
        )
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.classifier = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, images):
        maps = self.layers[1](nnx.relu(self.layers[0](self.first(images))))
        return self.classifier(self.dropout(self.norm(maps.mean((1, 2)))))


def linen(rate=0.3, **settings):
    return from_linen(Linen(rate), SHAPE, 3, **settings)


def from_class(rate=0.3, **settings):
    return from_nnx(lambda rngs: Nnx(rngs, rate), SHAPE, 3, **settings)


KINDS = pytest.mark.parametrize("make", [linen, from_class], ids=["linen", "nnx"])


def trained(model, variables, images, real=None):
    run = jax.jit(lambda *given: model.apply(*given[:2], train=True, key=jax.random.key(1), real=given[2]))
    return run(variables, images, real)


def started(model, *inputs, **how):
    """A model's variables, and what `apply` returns for each of the inputs, in one program."""

    @jax.jit
    def run(*inputs):
        variables = model.init(jax.random.key(0))
        return variables, *(model.apply(variables, each, **how) for each in inputs)

    return run(*inputs)


@KINDS
@pytest.mark.slow
def test_a_network_of_ones_own_passes_the_battery(make):
    report = check_model(make())
    assert report.failed == () and report.skipped == ()
    assert num_params(make()) == 3 * 19 + 2 * 3 + 4 * 28 + 2 * 4 + 15


@pytest.mark.slow
@KINDS
def test_statistics_are_those_of_the_real_rows(make):
    model = make(rate=0.0)
    variables = jax.jit(model.init)(jax.random.key(0))
    padded, after = trained(model, variables, IMAGES, REAL)
    alone, wanted = trained(model, variables, IMAGES[:3])
    np.testing.assert_allclose(padded.logits[:3], alone.logits, rtol=STEPS, atol=SUM)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=1e-7), after.stats, wanted.stats)
    chex.assert_trees_all_close(padded.norm_inputs, alone.norm_inputs, rtol=SUM, atol=1e-7)
    moved = [float(abs(leaf).max()) for leaf in jax.tree.leaves(after.stats)[::2]]
    shares = [float(abs(mean).max()) for mean, _ in padded.norm_inputs]
    assert sorted(round(m / s, 3) for m, s in zip(moved, shares, strict=True)) == [0.01, 0.2]


@pytest.mark.slow
def test_linen_parameters_and_results_are_the_modules():
    module, model = Linen(), linen()
    made, variables = jax.jit(lambda key: (module.init(key, IMAGES), model.init(key)))(jax.random.key(3))
    own = {"Dense_0" if name == "head" else name: leaf for name, leaf in variables.params.items()}
    jax.tree.map(np.testing.assert_array_equal, own, made["params"])
    outputs, _ = jax.jit(functools.partial(model.apply, train=False))(variables, IMAGES)
    np.testing.assert_allclose(outputs.logits, jax.jit(module.apply)(made, IMAGES), rtol=SUM, atol=FORMULA)


@pytest.mark.slow
def test_nnx_results_are_the_modules_and_a_module_keeps_its_weights():
    module = Nnx(nnx.Rngs(7))
    model = from_nnx(module, SHAPE, 3)
    variables = model.init(jax.random.key(0))
    assert type(module.norm) is nnx.BatchNorm
    module.eval()
    outputs, _ = model.apply(variables, IMAGES, train=False)
    np.testing.assert_allclose(outputs.logits, module(IMAGES), rtol=SUM, atol=FORMULA)
    jax.tree.map(np.testing.assert_array_equal, variables, model.init(jax.random.key(1)))
    assert check_model(model).skipped == ("initialization",)


def test_a_layer_that_is_not_called_and_an_input_by_name():
    class Idle(nnx.Module):
        def __init__(self, rngs):
            self.a, self.idle = nnx.BatchNorm(2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
            self.out = nnx.Linear(2, 3, rngs=rngs)

        def __call__(self, images):
            return self.out(inputs=self.a(x=images).mean((1, 2)))

    variables, (outputs, after) = started(from_nnx(Idle, SHAPE, 3), IMAGES, train=True)
    np.testing.assert_allclose(outputs.norm_inputs[0][0], IMAGES.mean((0, 1, 2)), rtol=STEPS, atol=FORMULA)
    jax.tree.map(np.testing.assert_array_equal, outputs.norm_inputs[1], (np.zeros(2), np.ones(2)))
    jax.tree.map(np.testing.assert_array_equal, after.stats["idle"], variables.stats["idle"])
    assert outputs.features.shape == (len(IMAGES), 2)


@KINDS
@pytest.mark.parametrize(("convolution", "grouped"), [("fast", False), ("plain", True)])
def test_convolutions_of_many_clients_are_grouped_only_if_asked_for(make, convolution, grouped):
    model = make(convolution=convolution)
    clients = jax.eval_shape(jax.vmap(model.init), jax.random.split(jax.random.key(0), 2))
    run = jax.vmap(lambda variables, images: model.apply(variables, images, train=False)[0].logits)
    program = str(jax.make_jaxpr(run)(clients, jnp.stack([IMAGES, IMAGES])))
    assert ("feature_group_count=2" in program) == grouped


def test_what_the_convolution_does_not_know_is_left_to_jax():
    class Dilated(nn.Module):
        @nn.compact
        def __call__(self, images):
            maps = nn.Conv(2, (3, 3), kernel_dilation=2)(images)
            rows = nn.Conv(2, (3,))(maps.mean(1))
            return nn.Dense(3, name="head")(rows.mean(1))

    variables, (outputs, _) = started(from_linen(Dilated(), SHAPE, 3), IMAGES, train=False)
    wanted = jax.jit(Dilated().apply)({"params": variables.params}, IMAGES)
    np.testing.assert_array_equal(outputs.logits, wanted)


class InSetup(nn.Module):
    def setup(self):
        self.embed, self.hidden, self.out = nn.Embed(9, 4), nn.Dense(5), nn.Dense(3)

    def __call__(self, tokens, deterministic=True):
        del deterministic
        return self.out(nn.relu(self.hidden(self.embed(tokens).mean(1))))


def test_token_ids_and_a_classifier_that_is_named():
    model = from_linen(InSetup(), (7,), 3, "out", dtype=int)
    tokens = np.random.default_rng(0).integers(0, 9, (6, 7))
    variables, *found = started(model, tokens, tokens.astype(np.float32), train=False)
    assert set(variables.params) == {"embed", "hidden", "head"}
    embedded, hidden, head = (variables.params[name] for name in ("embed", "hidden", "head"))
    rows = np.asarray(embedded["embedding"])[tokens].mean(1)
    wanted = np.maximum(rows @ hidden["kernel"] + hidden["bias"], 0) @ head["kernel"] + head["bias"]
    for outputs, _ in found:
        np.testing.assert_allclose(outputs.logits, wanted, rtol=SUM, atol=FORMULA)


class TwoLayers(nn.Module):
    @nn.compact
    def __call__(self, features):
        return nn.Dense(3)(nn.relu(nn.Dense(4)(features)))


def test_layers_in_a_row_and_recorded_maps():
    class Recording(nn.Module):
        @nn.compact
        def __call__(self, images):
            maps = nn.relu(nn.Conv(2, (3, 3))(images))
            self.sow("taps", "maps", maps)
            return TwoLayers(name="head")(maps.mean((1, 2)))

    model = from_linen(Recording(), SHAPE, 3)
    variables, (outputs, _) = started(model, IMAGES, train=False)
    np.testing.assert_allclose(jax.jit(model.head)(variables.params, outputs.features), outputs.logits, rtol=FORMULA)
    assert [tap.shape for tap in outputs.taps] == [(5, 6, 6, 2)]
    assert outputs.features.shape == (5, 2)
    row = from_linen(nn.Sequential([lambda images: images.mean((1, 2)), nn.Dense(4), nn.relu, nn.Dense(3)]), SHAPE, 3)
    assert set(jax.eval_shape(row.init, jax.random.key(0)).params) == {"layers_1", "head"}


def test_a_single_layer_in_a_sequence_is_logistic_regression():
    model = from_linen(nn.Sequential([nn.Dense(3)]), (4,), 3)
    variables, (outputs, _) = started(model, jnp.ones((2, 4)), train=False)
    assert set(variables.params) == {"head"}
    np.testing.assert_array_equal(outputs.features, np.ones((2, 4)))


class Needy(nn.Module):
    @nn.compact
    def __call__(self, images, mask):
        return nn.Dense(3)(images.mean((1, 2)) * mask)


class Spatial(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(3, name="head")(images).mean((1, 2))


class Counting(nn.Module):
    @nn.compact
    def __call__(self, images):
        calls = self.variable("counts", "calls", lambda: 0)
        return nn.Dense(3)(images.mean((1, 2)) + calls.value)


class Probabilities(nn.Module):
    @nn.compact
    def __call__(self, rows):
        return nn.softmax(nn.Dense(3, name="last")(rows))


class WithFeatures(nn.Module):
    @nn.compact
    def __call__(self, rows):
        hidden = nn.Dense(4)(rows)
        return hidden, nn.Dense(3)(hidden)


class ByName(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(3)(inputs=images.mean((1, 2)))


class NormedHead(nn.Module):
    @nn.compact
    def __call__(self, images, train=False):
        return Linen(name="head")(images, train)


class NnxNormedHead(nnx.Module):
    def __init__(self, rngs):
        self.head = Nnx(rngs)

    def __call__(self, images):
        return self.head(images)


class Weighted(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.WeightNorm(nn.Dense(3))(nn.Dense(2)(images.mean((1, 2))))


class Inner(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(3)(images.mean((1, 2)))


class Outer(nn.Module):
    @nn.compact
    def __call__(self, images):
        return Inner()(images)


class Embedding(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(3)(nn.Embed(10, 4)(tokens).mean(1))


def test_test_rows_with_an_id_that_has_no_embedding_end_the_run_and_new_ones_are_refused():
    ids, labels = np.arange(40).reshape(8, 5) % 10, np.arange(8) % 3
    federation = data.federate(ids, labels, [np.arange(8)], 3)
    model = from_linen(Embedding(), (5,), 3, dtype=int)
    settings = {"rounds": 1, "seed": 0, "local": LocalTraining(batch_size=4)}
    unknown = ids + np.eye(5, dtype=int)[4]  # 10 in each second row
    with pytest.raises(DivergenceError, match="round 1: the global model is finite, but its loss on the test rows is"):
        simulate(recipes.fedavg(), model, federation, (unknown, labels), **settings)
    settings |= {"seeds": [settings.pop("seed")]}
    result = compare({"fedavg": recipes.fedavg()}, model, federation, (ids, labels), **settings)
    assert len(result.predict(unknown[::2])) == 4
    with pytest.raises(ValueError, match=r"inputs\[1\]: the model computes NaN"):
        result.predict(unknown)


class Half(nn.Module):
    @nn.compact
    def __call__(self, rows):
        return nn.Dense(3, param_dtype=jnp.bfloat16)(rows)


class NnxList(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 3, rngs=rngs)])

    def __call__(self, rows):
        return self.layers[0](rows)


class OverDevices(nn.Module):
    @nn.compact
    def __call__(self, rows, train=False):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train, axis_name="batch")(rows))


def test_a_layer_over_an_axis_of_devices_is_refused():
    with pytest.raises(ValueError, match=r"OverDevices: fails .* axis name: batch.* axis_name has to go without"):
        from_linen(OverDevices(), (4,), 3)


@pytest.mark.slow
def test_weights_of_a_module_are_taken_under_its_own_names():
    rows_of = np.random.default_rng(0).normal(size=(9, 6, 6, 2)).astype(np.float32)
    weights = Inner().init(jax.random.key(1), rows_of)
    model = from_linen(Inner(), SHAPE, 3)
    federation = data.federate(rows_of, np.arange(9) % 3, [np.arange(9)], 3)
    local = LocalTraining(batch_size=9, optimizer=optimizer("sgd", 0.0))
    end = simulate(
        recipes.fedavg(), model, federation, (rows_of, np.arange(9) % 3), rounds=1, seed=0, local=local,
        variables=weights,
    )  # fmt: skip
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(end.variables.params["head"][name], weights["params"]["Dense_0"][name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_linen(Weighted(), SHAPE, 3), "classifier 'WeightNorm_0' that needs more than its own parameters"),
        (lambda: from_linen(Outer(), SHAPE, 3), "must be called by the network itself"),
        (lambda: from_linen(Embedding(), (5,), 3), "Embedding: fails .* float32: .*integer.* token ids need dtype=int"),
        (lambda: from_linen(Half(), (4,), 3), "params.Dense_0.bias of type bfloat16"),
        (lambda: from_nnx(NnxList, (4,), 3), r"submodules: none with a name: .* \(not an item of a list\)"),
        (lambda: from_linen(Counting(), SHAPE, 3), 'Counting: .*"counts"'),
        (lambda: from_linen(NormedHead(), SHAPE, 3), "NormedHead: received a classifier 'head' with batch norm"),
        (lambda: from_nnx(NnxNormedHead, SHAPE, 3), "with batch norm|received features of shape"),
        (lambda: from_linen(Needy(), SHAPE, 3), "Needy: __call__ needs mask, must need the batch alone"),
        (lambda: from_linen(Linen(), SHAPE, 4), r"shape \(1, 3\) for one input, must return logits of shape \(1, 4\)"),
        (lambda: from_linen(InSetup(), (7,), 3, "uot", dtype=int), "head='uot', .* hidden, out"),
        (lambda: from_linen(nn.Dense(3), (4,), 3), r"submodules: none .* nn.Sequential\(\[layer\]\)"),
        (lambda: from_linen(Probabilities(), (4,), 3), r"changes them after its last layer \(by softmax .*: last"),
        (lambda: from_linen(WithFeatures(), (4,), 3), r"received a tuple for one input, must return logits of shape"),
        (lambda: from_linen(Spatial(), SHAPE, 3), r"features of shape \(1, 6, 6, 2\) for one input"),
        (lambda: from_linen(Linen, SHAPE, 3), r"must be a flax.linen module, for instance Net\(\)"),
        (lambda: from_linen(Linen(), (6, 0, 2), 3), "input_shape: received 0"),
        (lambda: from_nnx(Nnx, SHAPE, 3, "clasifier"), "did you mean 'classifier'"),
        (lambda: from_nnx(lambda rngs: 3, SHAPE, 3), "that makes a flax.nnx module"),
        (lambda: from_linen(ByName(), SHAPE, 3), "submodule Dense_0: received its input by name"),
    ],
)
def test_errors_say_what_is_missing(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@KINDS
def test_dropout_needs_a_key(make):
    model = make()
    with pytest.raises(ValueError, match="give apply a key"):
        jax.eval_shape(lambda key: model.apply(model.init(key), IMAGES, train=True), jax.random.key(0))


def federation():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.normal(size=(60, *SHAPE)).astype(np.float32) * 0.3 + labels[:, None, None, None]
    return data.federate(images, labels, data.partition.iid(rng, labels, 4), 3), (images, labels)


def run(model, recipe=None, rounds=3, **execution):
    clients, test = federation()
    local = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1))
    settings = Execution(**execution)
    return simulate(
        recipe or recipes.fedavg(), model, clients, test, rounds=rounds, seed=0, local=local, execution=settings
    )


@pytest.mark.slow
@KINDS
def test_a_federation_trains_a_network_of_ones_own(make):
    result = run(make(rate=0.0), rounds=12)
    assert result.history[-1]["test_accuracy"] > 0.6
    assert isinstance(result.variables, Variables) and "head" in result.variables.params


@pytest.mark.slow
@pytest.mark.parametrize(("make", "recipe"), [(linen, "fedbabu"), (from_class, "rebafl")], ids=["fedbabu", "rebafl"])
def test_methods_take_a_network_of_ones_own(make, recipe):
    result = run(make(), getattr(recipes, recipe)())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.variables))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Linen(), r"received Linen, a module of flax.linen, .* models.from_linen\(module, input_shape, num_classes\)"),
        (Nnx(nnx.Rngs(0)), "received Nnx, a module of flax.nnx, .* models.from_nnx"),
        (Nnx, "received Nnx, a module of flax.nnx"),
        ("mlp", "received 'mlp'"),
    ],
)
def test_a_bare_module_is_told_of_its_wrapper(module, message):
    with pytest.raises(ValueError, match=message):
        run(module)
    with pytest.raises(ValueError, match=message):
        check_model(module)
