"""The public battery: every recipe passes it, broken parts fail a check, and what nothing has exercised is skipped."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import table
import toys
from methods import faking

from fedjax_bal import LocalTraining, check_part, check_recipe, recipes
from fedjax_bal.data import federate, over_rows
from fedjax_bal.data.batches import append_rows
from fedjax_bal.engine.device import local_training
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.optim.schedules import schedule
from fedjax_bal.parts import (
    Batches,
    Deliver,
    Draw,
    Logits,
    Loss,
    Memory,
    Part,
    Prepare,
    Proximal,
    Reduce,
    Refine,
    Report,
    Server,
    Weigh,
    part,
    static,
)
from fedjax_bal.recipes import RECIPES, Recipe
from fedjax_bal.selection import always, bernoulli, clustered, periodic, speed, uniform
from fedjax_bal.testing import ConformanceError, battery, report, toy
from fedjax_bal.testing.workbench import VARIATIONS, Bench

CHECKS = {check.__name__.replace("_", " "): check for stage in battery.STAGES for check in stage}
OF_PARTS = {"fields", "traced", "types"}
"""Checks that are skipped for a recipe without parts."""


@part
class Rare(Draw):
    """Prefers rare classes, less so later."""

    power: float = 1.0

    def log_weights(self, class_counts, ctx):
        return -self.power * jnp.log(jnp.maximum(class_counts, 1.0)) / (1 + ctx.round)


LOCAL, CLIENTS = toy.local_training(toy.network()), toy.participation(recipes.fedavg())
ELSEWHERE = {
    "fedadagrad", "fedavgm", "fedyogi", "balanced_softmax", "crop_flip", "faults", "fedlc", "iwds", "norm_clipping",
    "fedcm", "feddecorr", "fedlesam", "fedper", "fedprox", "fedsam",
}  # fmt: skip
"""Three bring no part, only another optimizer than fedadam for the server; the next six are among the combinations, and
the parts of the last six belong to larger recipes, too: mofedsam, fedlf, fedlesam_d, fedrep, fedacg and fedgamma."""
ALONE = [name for name in RECIPES if name not in ELSEWHERE]
QUICK = ("local",)
"""One of each kind: the others, and those that are in a combination, run with --all."""


@pytest.mark.parametrize("name", quick.only(ALONE, *(name for name in QUICK if name in ALONE)))
def test_every_recipe_passes_every_check(name, monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe, options = table.small(name)
    passed = check_recipe(recipe, **options)
    assert passed.name == name
    assert set(passed.skipped) == (set() if recipe.parts else OF_PARTS)


@pytest.mark.slow
def test_generators_of_their_own_come_to_the_same_however_clients_are_run(monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe = recipes.cbfl(generator="per_client", warm_up=2, labels="rarest", rarest=2, **table.SMALLEST)
    bench = Bench(recipe, **table.larger_images())
    assert bench.effect(*VARIATIONS) is None
    assert report.run_check(CHECKS["finite"], bench)[0] == "passed"


def clients(**changes):
    """Other clients a round, or others that deliver."""
    number = {"clients_per_round": None} if "selector" in changes else {}
    return {"participation": replace(CLIENTS, **number, **changes)}


def local(**changes):
    """Another local training."""
    return {"local": replace(LOCAL, **changes)}


IN_TIME = speed.uniform(3.0, 9.0, deadline=1.0)
FALLING = optimizer("adam", 0.01, step_schedule=schedule("exponential", factor=0.7), clip_norm=1.0)
COMBINED = {
    "every role": (table.RECIPES["everything"], {}),
    "scaffold, rebafl, rare, clustered": (
        recipes.combine(recipes.scaffold(), recipes.rebafl(mu=0.5), Recipe("rare", (Rare(),))),
        clients(availability=clustered(), selector=uniform(8)) | local(drop_last=True, batch_size=2),
    ),
    "fedprox, balanced softmax, norm clipping, chains, periodic, counted steps": (
        recipes.combine(recipes.fedprox(0.1), recipes.balanced_softmax(), recipes.norm_clipping(0.5, adaptive=True)),
        clients(selector=toys.chosen([[4, 7], [0, 2], [1, 5]], passes=2), availability=periodic(0.7, 2), speed=IN_TIME)
        | local(steps=3),
    ),
    "fednova, balanced softmax, iwds, clustered": (
        recipes.combine(recipes.fednova(), recipes.balanced_softmax(), recipes.iwds()),
        clients(availability=clustered()) | local(optimizer=optimizer("sgd", 0.1, momentum=0.5)),
    ),
    "feddyn, fedlc, iwds, stale updates": (
        recipes.combine(
            recipes.feddyn(),
            recipes.fedlc(),
            recipes.iwds(schedule="fixed"),
            recipes.faults("stale", [2, 4], tagged=False),
        ),
        local(epochs=2),
    ),
    "fedprox, crop and flip, adam on both sides, a deadline": (
        recipes.combine(recipes.fedprox(0.1), recipes.crop_flip()),
        local(optimizer=FALLING, steps=4)
        | clients(speed=speed.uniform(2.0, 9.0, deadline=1.0))
        | {"server_optimizer": optimizer("adam", 0.01, eps=1e-2, clip_value=0.1)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(COMBINED, "feddyn, fedlc, iwds, stale updates"))
def test_combinations_pass_every_check(name):
    recipe, options = COMBINED[name]
    passed = check_recipe(recipe, **options)
    assert passed.skipped == (("padded rows",) if options.get("local", LOCAL).drop_last else ()), str(passed)


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
        return append_rows(batch, batch.images, batch.labels)._replace(extra=None)


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
class Fading(Report, Server):
    """Says that it only adds reports, and forgets a part of the sum."""

    adds_reports = True

    def report(self, outcome):
        return jnp.ones(())

    def init_server(self, server):
        return jnp.zeros(())

    def broadcast(self, key, server):
        return server.state, ()

    def update(self, key, server):
        return 0.5 * server.state + server.aggregate.reports[self.slot]


@part
class Hiding(Deliver):
    """Delivers zeros in place of what isn't finite."""

    def deliver(self, outcome):
        return jax.tree.map(jnp.nan_to_num, outcome.end)


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
class Rooted(Loss):
    """Takes a root, which has no gradient at 0, where the features of a single row are."""

    def loss(self, outputs, batch, params, ctx):
        return ((outputs.features**2).sum(-1) ** 0.5 * batch.real).sum()


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


@part
class Mistaken(Batches):
    """Looks for a parameter that doesn't exist."""

    def batch(self, key, batch, ctx):
        return batch._replace(images=ctx.start.params["body"]["weights"])


class Palette:
    """Compares by identity."""


@part
class Painted(Logits):
    """Keeps in a static field what is another one when it is made again."""

    palette: Palette = static(Palette())

    def logits(self, logits, batch, ctx):
        return logits


@part
class Brightness(Report):
    """Reports rows behind the client's, too, to nobody."""

    def report(self, outcome):
        return over_rows(lambda total, batch: total + batch.images.sum(), jnp.zeros(()), outcome.ctx)


@part
class Central(Refine):
    """Has the server look into the clients' rows."""

    evaluation_only = True

    def refine(self, key, variables, server):
        mean = server.federation.images[server.federation.rows].mean()
        return jax.tree.map(lambda leaf: leaf * (1 + mean), variables)


@part
class Late(Loss):
    """Begins in the battery's last round."""

    @property
    def first_round(self):
        return 3

    def loss(self, outputs, batch, params, ctx):
        return 0.0 * outputs.logits.sum()


@part
class Silent(Prepare):
    """Prepares something, which may be anything."""

    def prepare(self, key, variables, ctx):
        return ()


BROKEN = [
    (Table(np.zeros(3)), "fields", r"Table\.offsets: received an array of shape \(3,\), must be a number"),
    (Listed([1]), "fields", r"Listed\.offsets: received \[1\] of type list, must be hashable"),
    (Undecorated(), "fields", "put @part above it"),
    (Lossy(3.0), "round trip", "Lossy: received .* must be equal to it"),
    (Dice(), "traced", "received ConcretizationTypeError.* a key instead of a NumPy generator"),
    (Impatient(), "traced", rf"TracerBoolConversionError \(in Impatient.logits, {__file__}:\d+\).* use jnp.where or"),
    (Undeclared(), "traced", r"declare with static\(...\)"),
    (Counting(), "types", r"Counting\.loss: received int32\[\], must be float32\[\]: cast it with astype\(float\)"),
    (Double(), "types", "received a request for 64 bits"),
    (Rowwise(), "types", r"Rowwise\.loss: received float32\[4\], must be float32\[\]: reduce"),
    (Careless(), "types", r"Careless\.batch: received the structure"),
    (Forgetful(), "types", r"Forgetful\.remember: received float32\[3\], must be float32\[2\]"),
    (Yes(), "types", r"Yes\.report: received bool\[\], must be numbers"),
    (Mistaken(), "types", rf"Received KeyError \(in Mistaken.batch, {__file__}:\d+\): 'weights'"),
    (Endless(), "types", "Received ValueError: Reverse-mode differentiation"),
    pytest.param(Painted(), "one program", "received 2 traces", marks=pytest.mark.slow),  # the only one that compiles
]
BROKEN_IN_RUNS = [
    (Absent(), "finite", "received nan in the training loss, must be finite"),
    (Rooted(), "finite", r"received nan or inf from client \d in round \d, must be finite"),
    (Exploding(), "finite", r"received inf in the state\.server\['Exploding'\]"),
    (Ranked(), "cohort order", "when the cohort is listed backwards"),
    (Centred(), "padded rows", "mask with batch.real"),
    (Leaky(), "padded rows", "when rows that are not real change"),
    (Brightness(), "padded rows", r"\['ReportTotals'\]\['Brightness'\], .* when rows of clients .* in over_rows"),
    (Central(), "padded rows", "rows of clients that take no part change.*read auxiliary sets only"),
    (Generous(), "undelivered, broken client", "when a round has more empty places"),
    (PlainMean(), "undelivered", "leave out chains that don't deliver"),
    (Fading(), "nothing arrives", r"\['Fading'\], .* after a round without updates: with adds_reports"),
    (Hiding(), "broken client", "returns nan: let nan and inf pass through `deliver`"),
]


def name_of(case):
    """The class of a broken part."""
    return type(case).__name__ if isinstance(case, Part) else ""


@pytest.mark.parametrize(("broken", "check", "message"), BROKEN, ids=name_of)
def test_a_broken_part_fails_one_check_which_says_what_to_do(broken: Part, check, message):
    with pytest.raises(ConformanceError, match=message) as caught:
        check_part(broken)
    found = caught.value.report
    assert ", ".join(found.failed) == check
    assert [result.name for result in found.checks] == list(CHECKS)
    # Later stages wait for earlier ones.
    assert set(found.skipped) == set(CHECKS) - set(found.passed) - {check}
    assert f"it needs {check} to pass first" in str(found)


OTHER_PROGRAMS = {"undelivered", "seeds", "lanes", "longer rows", "devices", "all at once"}
"""Checks that compile another program than that of the base runs."""


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "check", "message"), BROKEN_IN_RUNS, ids=name_of)
def test_a_part_that_breaks_in_runs_fails_one_check_which_says_what_to_do(broken: Part, check, message):
    bench, wanted = Bench(Recipe("broken", (broken,))), check.split(", ")
    checks = [name for name in CHECKS if name in wanted or name not in OTHER_PROGRAMS]
    found = {name: report.run_check(CHECKS[name], bench) for name in checks}
    assert [name for name in checks if found[name][0] == report.FAILED] == wanted
    assert re.search(message, found[wanted[0]][1])


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


@pytest.mark.slow
def test_one_device_skips_the_check_that_needs_two(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    found = check_part(Proximal(0.1))
    assert found.skipped == ("devices",)
    assert "jax has one device" in str(found)


@pytest.mark.slow
def test_a_part_may_need_another_one_beside_it():
    found = check_part(Rare(0.5), beside=recipes.scaffold())
    assert (found.name, found.failed) == ("Rare", ())


def test_a_wrong_option_or_setting_is_refused_as_everywhere():
    with pytest.raises(ValueError, match="scaffold: received the local optimizer 'adam'") as caught:
        check_recipe(recipes.scaffold(), local=LocalTraining(optimizer=optimizer("adam", 0.1)))
    assert not isinstance(caught.value, ConformanceError)


def test_the_toy_has_what_is_hard_and_keeps_it():
    data = Bench(recipes.fedavg()).simulation.federation
    sizes, present = np.diff(data.offsets), (data.class_counts > 0).sum(1)
    assert tuple(sizes) == toy.SIZES and {0, 1} <= set(sizes) and (sizes % 4 > 0).any()
    assert (present == 1).any() and (present > 1).any() and present.max() < data.num_classes


def federation(*sizes):
    """Clients of these sizes, all of whom have all classes if they have as many rows."""
    labels = np.concatenate([np.arange(size) % toy.CLASSES for size in sizes])
    images = np.random.default_rng(0).normal(size=(len(labels), 1, toy.WIDTH, 1)).astype(np.float32)
    return federate(images, labels, np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1]), toy.CLASSES)


FULL = federation(4, 8, 4, 8, 12, 4, 8, 4)
UNSEEN = [
    ("fields", (), {}, "has no parts"),
    ("types", (Silent(),), {}, "may return anything"),
    ("seeds", (), clients(delivery=bernoulli(0.001)), "train in fewer than two rounds"),
    ("seeds", (), clients(selector=toys.chosen([[0]], [[3]], [[3]], [[3]])), "train in fewer than two rounds"),
    ("longer rows", (Late(),), clients(
        availability=always(), delivery=always(), selector=toys.chosen([[0]], [[0]], [[2]], [[3]])
     ), "in no round in which all parts are active"),
    ("cohort order", (), clients(selector=uniform(1)), "at most one client or chain"),
    ("undelivered", (), clients(delivery=always()), "All selected clients deliver"),
    ("finite", (), {"federation": federation(5, 9, 5, 9, 5, 13, 5, 9)}, "have all classes"),
    ("padded rows", (), local(drop_last=True), "the last one of an epoch is dropped"),
    ("padded rows", (), {"federation": FULL}, "Every batch is full"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parts", "options", "reason"), UNSEEN, ids=[f"{n}-{r}" for n, _, _, r in UNSEEN])
def test_what_no_run_has_exercised_is_skipped(name, parts, options, reason):
    bench = Bench(Recipe("mine", parts), **options)
    if name == "types":
        assert report.run_check(CHECKS[name], bench)[0] == "skipped"
    else:
        assert any(reason in unseen.__doc__ for unseen in CHECKS[name].conditions if unseen(bench))


@pytest.mark.parametrize(("fault", "outcome"), [(None, "skipped"), ("this is wrong", "failed")])
def test_a_check_that_saw_too_little_is_skipped_unless_it_fails(fault, outcome):
    def saw_nothing(bench):
        """No client came."""
        return True

    @report.skipped_if(saw_nothing)
    def check(bench):
        """Something holds."""
        if fault:
            raise report.FaultError(fault)

    assert report.run_check(check, None) == (outcome, fault or "No client came.")


@pytest.mark.slow
def test_padded_rows_are_looked_for_wherever_the_federation_has_any():
    plain = toy.network()
    leaking = plain._replace(apply=lambda *inputs, real=None, **options: plain.apply(*inputs, **options))
    check = lambda **options: report.run_check(CHECKS["padded rows"], Bench(recipes.fedavg(), model=leaking, **options))
    assert check(federation=FULL)[0] == "skipped"
    # Clients whose batches are full are the only ones that are chosen; others are not.
    outcome, message = check(federation=federation(8, 8, 7, 9, 6), **clients(selector=toys.chosen([[0], [1]])))
    assert outcome == "failed" and "mask with batch.real" in message


def test_draws_of_numpy_make_another_program_each_time():
    outcome, message = report.run_check(CHECKS["repeatable"], Bench(Recipe("chancy", (Chancy(),))))
    assert outcome == "failed" and "received another program" in message


@pytest.mark.slow
def test_a_leak_is_found_where_rows_are_drawn_with_replacement():
    leaking = recipes.combine(recipes.iwds(), Recipe("leaky", (Leaky(),)))
    outcome, message = report.run_check(CHECKS["padded rows"], Bench(leaking))
    assert outcome == "failed" and re.search("rows that are not real change.*mask with batch", message)


@pytest.mark.slow
def test_each_workbench_traces_its_own_programs():
    traces, sizes = [], []

    @part
    class Noted(Loss):
        """Notes when it is traced."""

        def loss(self, outputs, batch, params, ctx):
            traces.append(1)
            return 0.0 * outputs.logits.sum()

    for _ in range(2):
        Bench(Recipe("mine", (Noted(),))).varied("places")
        sizes.append(len(traces))
    assert 0 < sizes[0] < sizes[1]


def test_of_installed_code_the_parts_frame_is_shown():
    source = (
        "class Installed(Base):\n    def fail(self):\n        return helper({})\ndef helper(x):\n    return x['a']\n"
    )
    scope = {"Base": Late}
    exec(compile(source, "/opt/site-packages/installed.py", "exec"), scope)
    with pytest.raises(KeyError) as caught:
        jax.tree_util.Partial(scope["Installed"]().fail)()
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this test's own frame
    assert report.place(caught.value) == " (in Installed.fail, /opt/site-packages/installed.py:3)"
    assert report.place(ValueError("never raised")) == ""
