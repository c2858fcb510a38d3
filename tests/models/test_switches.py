"""Training switches: each name is set, and a layer that training would leave in evaluation is refused by name."""

import enum

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx
from rounding import FORMULA, SUM

from fedjax_bal import check_model
from fedjax_bal.models import from_linen, from_nnx
from fedjax_bal.models.switches import IN_TRAINING
from fedjax_bal.testing import ConformanceError
from fedjax_bal.types import Model, Outputs, Variables

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)


class Stage(enum.Enum):
    """What a user's own switch may choose from."""

    TRAINING = 1
    EVALUATION = 2


def dense(layers, call="images", **fields):
    """A network of flax.linen whose call has these arguments; `layers(module, features, *arguments)` is within."""
    space = {"layers": layers, "nn": nn, "Stage": Stage}
    names = ", ".join(name.partition("=")[0].partition(":")[0] for name in call.split(", ")[1:] if name not in "*/")
    exec(
        f"def __call__(self, {call}):\n"
        f"    hidden = nn.Dense(32, name='body')(images)\n"
        f"    return nn.Dense(3, name='head')(layers(self, hidden, {names}))",
        space,
    )
    space["__call__"].__module__ = __name__
    annotations = {name: type(value) for name, value in fields.items()}
    return type(
        "Net", (nn.Module,), {"__annotations__": annotations, **fields, "__call__": nn.compact(space["__call__"])}
    )()


def dropping(switch):
    """Dropout that is off where `switch(argument)` says so."""
    return lambda self, hidden, *given: nn.Dropout(0.5, deterministic=switch(*given))(hidden)


def draws(model):
    """Whether the model's program draws random numbers in training; in evaluation none may."""
    variables = jax.eval_shape(model.init, jax.random.key(0))
    run = lambda variables, **how: model.apply(variables, ROWS, **how)[0].logits
    programs = [
        str(jax.make_jaxpr(lambda variables, how=how: run(variables, **how))(variables))
        for how in ({"train": True, "key": jax.random.key(1)}, {"train": False})
    ]
    assert "random_bits" not in programs[1]
    return "random_bits" in programs[0]


@pytest.mark.parametrize("name", IN_TRAINING)
def test_each_known_name_is_set(name):
    in_training = IN_TRAINING[name]
    net = dense(dropping(lambda given: given != in_training), f"images, {name}={not in_training}")
    model = from_linen(net, (6,), 3)
    assert draws(model)


@pytest.mark.parametrize(
    "call", ["images, train", "images, *, train=False", "images, train=None", "images, train: bool"]
)
def test_a_switch_is_set_however_it_is_declared(call):
    assert draws(from_linen(dense(dropping(lambda train: not train), call), (6,), 3))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("images, drop=False", "drop=False"),
        ("images, *, quiet=True", "quiet=True"),
        ("images, learning: bool | None = None", "learning=None"),
        ("images, phase='eval'", "phase='eval'"),
        ("images, mode: \"Literal['eval'] | None\" = None", "mode=None"),
        ("images, when=Stage.EVALUATION", "when=<Stage.EVALUATION: 2>"),
    ],
)
def test_another_argument_that_could_be_a_switch_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=f"Net: received the argument {named} of __call__.* a field of the module"):
        from_linen(dense(lambda self, hidden, *given: hidden, call), (6,), 3)


def test_dropout_of_a_users_own_draws_where_it_asks_for_a_stream():
    def layers(self, hidden):
        return hidden + jax.random.normal(self.make_rng("dropout"), hidden.shape) if self.has_rng("dropout") else hidden

    assert draws(from_linen(dense(layers), (6,), 3))


def test_arguments_that_are_no_switches_keep_their_defaults():
    net = dense(lambda self, hidden, mask, scale: hidden * scale, "images, mask=None, scale=2.0")
    assert not draws(from_linen(net, (6,), 3))


class Block(nn.Module):
    """A layer whose own switch a network may forget to set."""

    @nn.compact
    def __call__(self, hidden, train: bool = False):
        return nn.BatchNorm(use_running_average=not train, name="norm")(hidden)


def mix(**switch):
    return nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, name="mix", **switch)


def noisy(self, hidden, *given):
    """Noise of a user's own, which a field switches on."""
    return hidden + jax.random.normal(self.make_rng("noise"), hidden.shape) if self.train else hidden


REFUSED = {
    "a fixed field": (
        dense(lambda self, hidden: nn.Dropout(0.5, deterministic=self.deterministic)(hidden), deterministic=True),
        "deterministic=True of the network itself in training, must be False",
    ),
    "a field that a layer of the user's reads": (
        dense(noisy, train=False),
        "train=False of the network itself in train",
    ),
    "statistics that never move": (
        dense(lambda self, hidden: nn.BatchNorm(use_running_average=True, name="norm")(hidden)),
        r"use_running_average=True of norm \(BatchNorm\) in training",
    ),
    "a switch that isn't passed on": (
        dense(lambda self, hidden, train: Block(name="block")(hidden), "images, train=False"),
        r"train=False of block \(Block\) in training, must be True",
    ),
    "an argument without a Boolean default": (
        dense(dropping(lambda mode: mode != 1), "images, mode=None"),
        r"deterministic=True of Dropout_0 \(Dropout\) in training",
    ),
    "a field of another meaning": (
        dense(dropping(lambda train: not train), "images, train", test=False),
        "test=False of the network itself in evaluation.*rename test if it means something else",
    ),
    "arguments by name": (
        dense(lambda self, hidden: nn.Dropout(0.5)(hidden, deterministic=True)),
        r"deterministic=True of Dropout_0 \(Dropout\) in training",
    ),
    "attention without its dropout": (
        dense(lambda self, hidden: mix(deterministic=True)(hidden[:, None])[:, 0]),
        r"deterministic=True of mix \(MultiHeadDotProductAttention\) in training",
    ),
    "dropout in evaluation": (
        dense(lambda self, hidden: nn.Dropout(0.5, deterministic=False)(hidden)),
        r"deterministic=False of Dropout_0 \(Dropout\) in evaluation, must be True",
    ),
    "statistics of the batch in evaluation": (
        dense(lambda self, hidden, train: Block()(hidden, True), "images, train=False"),
        r"train=True of Block_0 \(Block\) in evaluation",
    ),
    "noise in evaluation": (
        dense(lambda self, hidden: hidden + jax.random.normal(self.make_rng("noise"), hidden.shape)),
        "Net: draws random numbers in evaluation",
    ),
    "a sequence, which can't pass a switch on": (
        nn.Sequential([nn.Dense(4), nn.Dropout(0.5, deterministic=True), nn.Dense(3)]),
        r"Sequential: received deterministic=True of layers_1 \(Dropout\) in training",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_layer_with_the_wrong_switch_is_refused_by_name(case):
    net, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        from_linen(net, (6,), 3)


@pytest.mark.slow
def test_dropout_that_drops_nothing_and_a_part_with_weights_of_its_own_may_stay_in_evaluation():
    assert not draws(from_linen(dense(lambda self, hidden: nn.Dropout(0.0, deterministic=True)(hidden)), (6,), 3))
    weights = Block().init(jax.random.key(0), jnp.zeros((1, 32)))
    frozen = dense(lambda self, hidden: Block().apply(weights, hidden))
    model = from_linen(frozen, (6,), 3)
    assert model.init(jax.random.key(0)).stats == {}
    assert check_model(model).failed == ()


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.body, self.head = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def between(self, hidden):
        return self.dropout(self.norm(hidden))

    def __call__(self, images):
        return self.head(self.between(self.body(images)))


class NnxSwitched(Nnx):
    def __call__(self, images, is_train=False):
        return self.head(self.dropout(self.norm(self.body(images)), deterministic=not is_train))


class NnxUnknown(Nnx):
    def __call__(self, images, drop=False):
        return self.head(self.dropout(self.body(images), deterministic=not drop))


class NnxFixed(Nnx):
    def between(self, hidden):
        return self.dropout(hidden, deterministic=True)


class NnxStill(Nnx):
    def between(self, hidden):
        return self.norm(hidden, use_running_average=True)


class NnxField(Nnx):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.training = False


class NnxView(Nnx):
    def between(self, hidden):
        return nnx.view(self.dropout, deterministic=True)(hidden)


class NnxStreams(Nnx):
    """Streams come with the call, as in Flax's introduction."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.dropout = nnx.Dropout(0.5)

    def __call__(self, images, rngs: nnx.Rngs | None = None):
        return self.head(self.dropout(self.norm(self.body(images)), rngs=rngs))


class NnxArrays(Nnx):
    """An array of the network's own, and layers whose values are computed again in the backward pass."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.shift = nnx.Param(jnp.ones(8))

    def __call__(self, images):
        between = lambda norm, dropout, hidden: dropout(norm(hidden))
        return self.head(nnx.remat(between)(self.norm, self.dropout, self.body(images)) + self.shift[...])


class NnxBlocks(Nnx):
    """Blocks in a scan, whose keys are one array."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.blocks = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.Dropout(0.5, rngs=rngs)))(rngs)

    def between(self, hidden):
        return nnx.scan(lambda block, hidden: block(hidden), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(
            self.blocks, self.norm(hidden)
        )


class NnxCompiled(Nnx):
    @nnx.jit
    def __call__(self, images):
        return self.head(self.body(images))


class NnxNoisy(Nnx):
    def between(self, hidden):
        return self.dropout(hidden, deterministic=False)


@pytest.mark.parametrize("net", quick.only([Nnx, NnxSwitched, NnxStreams, NnxArrays, NnxBlocks], Nnx))
def test_modules_of_nnx_train_and_evaluate(net):
    model = from_nnx(net, (6,), 3)
    assert draws(model)

    @jax.jit
    def run():
        variables = model.init(jax.random.key(0))
        real = jnp.arange(4) < 3
        keys = jax.random.key(0), jax.random.key(1)
        return variables, *(model.apply(variables, ROWS, train=True, key=key, real=real) for key in keys)

    variables, (outputs, after), (others, _) = run()
    hidden = np.asarray(ROWS)[:3] @ variables.params["body"]["kernel"]
    np.testing.assert_allclose(after.stats["norm"]["mean"], 0.01 * hidden.mean(0), atol=FORMULA)
    np.testing.assert_allclose(outputs.norm_inputs[0][0], hidden.mean(0), atol=SUM)
    assert (outputs.logits != others.logits).any()
    with pytest.raises(ValueError, match="give apply a key"):
        jax.eval_shape(lambda variables: model.apply(variables, ROWS, train=True), variables)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (NnxUnknown, "NnxUnknown: received the argument drop=False of __call__"),
        (NnxFixed, r"deterministic=True of dropout \(Dropout\) in training"),
        (NnxStill, r"use_running_average=True of norm \(BatchNorm\) in training"),
        (NnxField, "training=False of the network itself in training"),
        (NnxCompiled, "NnxCompiled: received a __call__ that is compiled by itself.*leave nnx.jit out"),
        (NnxView, r"deterministic=True of dropout \(Dropout\) in training"),
        (NnxNoisy, r"deterministic=False of dropout \(Dropout\) in evaluation"),
    ],
)
def test_modules_of_nnx_with_the_wrong_switch_are_refused(net, message):
    with pytest.raises(ValueError, match=message):
        from_nnx(net, (6,), 3)


@pytest.mark.slow
def test_check_model_refuses_functions_whose_layers_have_the_wrong_switch():
    net = dense(dropping(lambda train: not train), "images, train=False")
    head = nn.Dense(3)

    def init(key):
        return Variables(net.init(key, ROWS)["params"], {})

    def by(passed):
        def apply(variables, images, *, train, key=None, real=None):
            given = {"train": train} if passed else {}
            logits = net.apply({"params": variables.params}, images, **given, rngs=key)
            return Outputs(logits, images), variables

        return Model(init, apply, lambda params, rows: head.apply({"params": params["head"]}, rows), "mine", 3, (6,))

    for passed in (True, False):
        with pytest.raises(ConformanceError) as error:  # its features aren't the classifier's input
            check_model(by(passed))
        assert ("train=False of the network itself in training" in str(error.value)) != passed
        assert ("switches" in error.value.report.failed) != passed
