"""The public battery: every recipe passes it, and parts that are broken in one way fail one check."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import table
from parts import faking

from fedjax_bal import LocalTraining, check_part, check_recipe, recipes, testing
from fedjax_bal.data.batches import join
from fedjax_bal.engine.device import local_training
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.optim.schedules import schedule
from fedjax_bal.parts import (
    Batches,
    Draw,
    Logits,
    Loss,
    Memory,
    Part,
    Proximal,
    Reduce,
    Report,
    Server,
    Weigh,
    part,
    static,
)
from fedjax_bal.recipes import RECIPES, Recipe
from fedjax_bal.selection import Selector, clustered, periodic, speed, uniform
from fedjax_bal.testing import ConformanceError, compilation, toy
from fedjax_bal.testing.variations import difference_of, possible
from fedjax_bal.testing.workbench import Bench

NAMES = (
    "fields", "round trip", "traced", "types", "one program", "representation", "finite", "repeatable", "cohort order",
    "padded rows", "undelivered", "seeds", "lanes", "longer rows", "devices", "all at once",
)  # fmt: skip

NO_PARTS = tuple(name for name in NAMES if name not in ("fields", "traced", "types", "representation"))
"""What there is to check of a recipe that has none."""


@part
class Rare(Draw):
    """Prefers rare classes, less so later."""

    power: float = 1.0

    def log_weights(self, class_counts, ctx):
        return -self.power * jnp.log(jnp.maximum(class_counts, 1.0)) / (1 + ctx.round)


def pairs_of_clients():
    """Three chains of two clients, gone through twice."""
    clients = np.array([[4, 7], [0, 2], [1, 5]], np.int32)
    select = lambda state, seed, round, available: (clients, state)
    return Selector(lambda seed, n: (), select, lambda state, plan, info: state, 3, 2, 2, False)


LOCAL, CLIENTS = toy.local_training(toy.network()), toy.participation(recipes.fedavg())
ELSEWHERE = {
    "fedadagrad", "fedavgm", "fedyogi", "balanced_softmax", "crop_flip", "faults", "fedlc", "iwds", "norm_clipping",
}  # fmt: skip
"""Three bring no part, only another optimizer than fedadam for the server; the others are among the combinations."""
ALONE = [name for name in RECIPES if name not in ELSEWHERE]
QUICK = ("local",)
"""One of each kind: the others, and those that are in a combination, run with --all."""


@pytest.mark.parametrize("name", quick.only(ALONE, *(name for name in QUICK if name in ALONE)))
def test_every_recipe_passes_every_check(name, monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe, options = table.small(name)
    report = check_recipe(recipe, **options)
    assert report.name == name
    assert report.passed == (NAMES if recipe.parts else NO_PARTS)


@pytest.mark.slow
def test_generators_of_their_own_come_to_the_same_however_clients_are_run(monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe = recipes.cbfl(generator="per_client", warm_up=2, labels="rarest", rarest=2, **table.SMALLEST)
    bench = Bench(recipe, **table.larger_images())
    assert difference_of(bench, *possible()) is None
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bench.base[0].state))


COMBINED = {
    "every role": (table.RECIPES["everything"], {}),
    "scaffold, rebafl, rare, clustered": (
        recipes.combine(recipes.scaffold(), recipes.rebafl(mu=0.5), Recipe("rare", (Rare(),))),
        {
            "participation": replace(CLIENTS, clients_per_round=None, availability=clustered(), selector=uniform(8)),
            "local": replace(LOCAL, drop_last=True, batch_size=2),
        },
    ),
    "fedprox, balanced softmax, norm clipping, chains, periodic, counted steps": (
        recipes.combine(recipes.fedprox(0.1), recipes.balanced_softmax(), recipes.norm_clipping(0.5, adaptive=True)),
        {
            "participation": replace(
                CLIENTS,
                clients_per_round=None,
                selector=pairs_of_clients(),
                availability=periodic(0.7, 2),
                speed=speed.uniform(3.0, 9.0, deadline=1.0),
            ),
            "local": replace(LOCAL, steps=3),
        },
    ),
    "fednova, balanced softmax, iwds, clustered": (
        recipes.combine(recipes.fednova(), recipes.balanced_softmax(), recipes.iwds()),
        {
            "participation": replace(CLIENTS, availability=clustered()),
            "local": replace(LOCAL, optimizer=optimizer("sgd", 0.1, momentum=0.5)),
        },
    ),
    "feddyn, fedlc, iwds, stale updates": (
        recipes.combine(
            recipes.feddyn(), recipes.fedlc(), recipes.iwds(schedule="fixed"), recipes.faults("stale", [2, 4])
        ),
        {"local": replace(LOCAL, epochs=2)},
    ),
    "fedprox, crop and flip, adam on both sides, a deadline": (
        recipes.combine(recipes.fedprox(0.1), recipes.crop_flip()),
        {
            "local": replace(
                LOCAL,
                optimizer=optimizer("adam", 0.01, step_schedule=schedule("exponential", factor=0.7), clip_norm=1.0),
                steps=4,
            ),
            "server_optimizer": optimizer("adam", 0.01, eps=1e-2, clip_value=0.1),
            "participation": replace(CLIENTS, speed=speed.uniform(2.0, 9.0, deadline=1.0)),
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(COMBINED, "feddyn, fedlc, iwds, stale updates"))
def test_combinations_pass_every_check(name):
    recipe, options = COMBINED[name]
    report = check_recipe(recipe, **options)
    assert report.skipped == (("padded rows",) if options.get("local", LOCAL).drop_last else ()), str(report)


@part
class Dice(Loss):
    """Draws with NumPy, by the round."""

    def loss(self, outputs, batch, params, ctx):
        return float(np.random.default_rng(int(ctx.round)).random()) * outputs.features.sum()


@part
class Impatient(Logits):
    """Looks at the round in Python."""

    def logits(self, logits, batch, ctx):
        return logits * 2 if ctx.round > 1 else logits


@part
class Undeclared(Logits):
    """Decides by a field that is not static."""

    on: bool = True

    def logits(self, logits, batch, ctx):
        return 2 * logits if self.on else logits


@part
class Counting(Loss):
    """Returns an integer."""

    def loss(self, outputs, batch, params, ctx):
        return batch.real.sum()


@part
class Double(Logits):
    """Asks for 64 bits."""

    def logits(self, logits, batch, ctx):
        return logits.astype(jnp.float64)


@part
class Rowwise(Loss):
    """Returns a loss for each row."""

    def loss(self, outputs, batch, params, ctx):
        return (outputs.features**2).mean(-1)


@part
class Careless(Batches):
    """Adds rows without saying that they are extra."""

    def batch(self, key, batch, ctx):
        return join(batch, batch.images, batch.labels)._replace(extra=None)


@part
class Forgetful(Memory):
    """Remembers something of another shape than at first."""

    def init_memory(self, variables):
        return jnp.zeros(2)

    def remember(self, memory, outcome):
        return outcome.ctx.class_counts.astype(float)


@part
class Yes(Report):
    """Reports a truth value, which does not add up."""

    def report(self, outcome):
        return outcome.steps > 0


@part
class Centred(Logits):
    """Takes the mean over all rows of a batch, real or not."""

    def logits(self, logits, batch, ctx):
        return logits - logits.mean(0)


@part
class Leaky(Loss):
    """Ignores which rows are real."""

    weight: float = 0.1

    def loss(self, outputs, batch, params, ctx):
        return self.weight * (outputs.features**2).mean()


@part
class Table(Logits):
    """Keeps data in a field."""

    offsets: np.ndarray = None  # type: ignore[assignment]

    def logits(self, logits, batch, ctx):
        return logits + self.offsets


@part
class Listed(Logits):
    """Keeps a list in a static field."""

    offsets: list = static(None)

    def logits(self, logits, batch, ctx):
        return logits


class Undecorated(Logits):
    """Is no dataclass."""

    def __init__(self):
        pass

    def logits(self, logits, batch, ctx):
        return logits


@jax.tree_util.register_pytree_node_class
class Lossy(Logits):
    """Loses its number when it is taken apart."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return type(other) is Lossy and other.factor == self.factor

    def __hash__(self):
        return hash(self.factor)

    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        return cls(0.0)

    def logits(self, logits, batch, ctx):
        return logits


@part
class Endless(Loss):
    """Has a loop that can't be differentiated."""

    def loss(self, outputs, batch, params, ctx):
        halve = lambda norm: norm / 2
        return jax.lax.while_loop(lambda norm: norm > 1, halve, (outputs.features**2).sum())


@part
class Terse(Logits):
    """Hides its field."""

    factor: float = 2.0

    def __repr__(self):
        return "Terse()"

    def logits(self, logits, batch, ctx):
        return self.factor * logits


@part
class Ranked(Weigh):
    """Weighs chains by where they stand."""

    def weigh(self, weights, cohort, server):
        return weights * (1 + jnp.arange(len(weights)))


@part
class Generous(Weigh):
    """Gives those a weight who deliver nothing."""

    def weigh(self, weights, cohort, server):
        return jnp.ones_like(weights)


@part
class PlainMean(Reduce):
    """Takes the mean over all places, empty or not."""

    def reduce(self, deltas, weights, server):
        return jax.tree.map(lambda leaf: leaf.mean(0), deltas)


@part
class Chancy(Loss):
    """Draws with NumPy."""

    def loss(self, outputs, batch, params, ctx):
        return np.random.default_rng().random() * ((outputs.features**2).mean(-1) * batch.real).sum()


@part
class Absent(Loss):
    """Takes the logarithm of absent classes."""

    def loss(self, outputs, batch, params, ctx):
        return 0.0 * jnp.log(ctx.class_counts.astype(float)).sum()


@part
class Exploding(Server):
    """Its state on the server grows beyond all numbers."""

    def init_server(self, server):
        return jnp.ones(())

    def broadcast(self, key, server):
        return server.state, server.state

    def update(self, key, server):
        return server.state * 1e30


@jax.custom_batching.custom_vmap
def alone(x):
    return x


@alone.def_vmap
def _(axis_size, in_batched, x):
    return x + 1.0, in_batched[0]


@part
class Crowded(Weigh, Logits):
    """Computes something else when it is stacked."""

    def weigh(self, weights, cohort, server):
        return weights

    def logits(self, logits, batch, ctx):
        return logits * alone(jax.lax.stop_gradient(ctx.size.astype(float)))


BROKEN = [
    (Table(np.zeros(3)), "fields", r"Table\.offsets: received an array of shape \(3,\), must be a number"),
    (Listed([1]), "fields", r"Listed\.offsets: received \[1\] of type list, must be hashable"),
    (Undecorated(), "fields", "put @part above it"),
    (Lossy(3.0), "round trip", "Lossy: received .* must be equal to it"),
    (Dice(), "traced", "received ConcretizationTypeError.* a key instead of a NumPy generator"),
    (Impatient(), "traced", "received TracerBoolConversionError.* use jnp.where or jax.lax.cond instead of if"),
    (Undeclared(), "traced", r"declare with static\(...\)"),
    (Counting(), "types", r"Counting\.loss: received int32\[\], must be float32\[\]: cast it with astype\(float\)"),
    (Double(), "types", "received a request for 64 bits"),
    (Rowwise(), "types", r"Rowwise\.loss: received float32\[4\], must be float32\[\]: reduce"),
    (Careless(), "types", r"Careless\.batch: received the structure"),
    (Forgetful(), "types", r"Forgetful\.remember: received float32\[3\], must be float32\[2\]"),
    (Yes(), "types", r"Yes\.report: received bool\[\], must be numbers"),
    (Endless(), "one program", "Received ValueError: Reverse-mode differentiation"),
    pytest.param(Terse(), "representation", r"must show factor=2\.0", marks=pytest.mark.slow),
    pytest.param(Absent(), "finite", "received a training loss of nan, must be finite", marks=pytest.mark.slow),
    pytest.param(Exploding(), "finite", r"received inf in the state\.server\['Exploding'\]", marks=pytest.mark.slow),
    pytest.param(Ranked(), "cohort order", "when the cohort is listed backwards", marks=pytest.mark.slow),
    pytest.param(Centred(), "padded rows", "mask with batch.real", marks=pytest.mark.slow),
    pytest.param(Leaky(), "padded rows", "when rows that are not real change", marks=pytest.mark.slow),
    pytest.param(Generous(), "undelivered", "when a round has more empty places", marks=pytest.mark.slow),
    pytest.param(PlainMean(), "undelivered", "leave out chains that don't deliver", marks=pytest.mark.slow),
]


def name_of(case):
    """The class of a broken part."""
    return type(getattr(case, "values", case)[0]).__name__


@pytest.mark.parametrize(("broken", "check", "message"), BROKEN, ids=map(name_of, BROKEN))
def test_a_broken_part_fails_one_check_which_says_what_to_do(broken: Part, check, message):
    with pytest.raises(ConformanceError, match=message) as caught:
        check_part(broken)
    assert caught.value.report.failed == (check,)
    assert [checked.name for checked in caught.value.report.checks] == list(NAMES)


@pytest.mark.slow
def test_a_part_that_is_another_one_when_stacked_fails_wherever_it_is_stacked():
    with pytest.raises(ConformanceError) as caught:
        check_part(Crowded())
    assert set(caught.value.report.failed) == {"seeds", "lanes"}, str(caught.value)


@pytest.mark.slow
def test_draws_that_depend_on_the_padding_are_found(monkeypatch):
    def permuted(key, size, length, longest=None):
        order = jax.random.permutation(key, length)
        return jnp.argsort(jnp.where(jnp.arange(length) < size, order, length), stable=True)

    monkeypatch.setattr(local_training, "shuffled", permuted)
    with pytest.raises(ConformanceError, match="when there is room for larger clients") as caught:
        check_part(Proximal(0.1))
    assert caught.value.report.failed == ("longer rows",)


@pytest.mark.slow
def test_the_engine_lets_nobody_remember_who_did_not_deliver():
    @part
    class Eager(Memory):
        """Counts visits, and would count the others' too."""

        def init_memory(self, variables):
            return jnp.zeros(())

        def remember(self, memory, outcome):
            return memory + 1

    assert check_part(Eager()).failed == ()


def test_later_checks_wait_for_earlier_ones():
    with pytest.raises(ConformanceError) as caught:
        check_part(Table(np.zeros(3)))
    report = caught.value.report
    assert report.skipped == NAMES[1:]
    assert "round trip: it needs fields to pass first" in str(report)


@pytest.mark.slow
def test_one_device_skips_the_check_that_needs_two(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    report = check_part(Proximal(0.1))
    assert report.skipped == ("devices",)
    assert "jax has one device" in str(report)


def test_what_a_part_draws_with_numpy_makes_another_program_each_time():
    assert compilation.repeatable(Bench(recipes.fedprox(0.1))) is None
    assert "received another program" in (compilation.repeatable(Bench(Recipe("chancy", (Chancy(),)))) or "")


def test_a_second_trace_is_counted():
    bench = Bench(recipes.fedavg())
    assert compilation.one_program(bench) is None
    bench.traces += 1
    assert "received 2 traces for 2 seeds" in compilation.one_program(bench)


@pytest.mark.slow
def test_a_part_may_need_another_one_beside_it():
    report = check_part(Rare(0.5), beside=recipes.scaffold())
    assert (report.name, report.failed) == ("Rare", ())


def test_a_wrong_option_or_setting_is_refused_as_everywhere():
    with pytest.raises(ValueError, match="scaffold: received the local optimizer 'adam'") as caught:
        testing.check_recipe(recipes.scaffold(), local=LocalTraining(optimizer=optimizer("adam", 0.1)))
    assert not isinstance(caught.value, ConformanceError)


def test_every_check_says_what_it_means_in_a_line():
    lines = [testing.battery.meaning(check) for stage in testing.battery.STAGES for check in stage]
    assert len(set(lines)) == len(NAMES)
    assert all(line.endswith(".") and len(line) < 120 for line in lines)


def test_the_toy_has_what_is_hard():
    federation = toy.federation()
    sizes = np.diff(federation.offsets)
    assert {0, 1} <= set(sizes) and (sizes % 4 > 0).any()
    present = (federation.class_counts > 0).sum(1)
    assert (present == 1).any() and (present > 1).any() and present.max() < federation.num_classes
