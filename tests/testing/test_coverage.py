"""The battery skips what it could not see, and what it is given by default leaves nothing unseen."""

import re
from functools import partial

import every_recipe
import flat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts import faking

from fedjax_bal import recipes
from fedjax_bal.data import federate
from fedjax_bal.data.batches import over_rows
from fedjax_bal.parts import Batches, Logits, Loss, Memory, Prepare, Refine, Report, Start, part, static
from fedjax_bal.recipes import RECIPES, Recipe
from fedjax_bal.selection import Selector, always, bernoulli, uniform
from fedjax_bal.testing import battery, compilation, coverage, padding, toy
from fedjax_bal.testing.coverage import missing, needs
from fedjax_bal.testing.messages import place
from fedjax_bal.testing.uncompiled import uncompiled
from fedjax_bal.testing.variations import varied
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.types import Variables

CHECKS = {check.__name__: check for stage in battery.STAGES for check in stage}


def bench(*parts, **options):
    return flat.bench(Recipe("mine", parts), **options)


def checked(name, workbench):
    return battery._run_check(CHECKS[name], workbench)


def choosing(*cohorts):
    """In each round one of these, by turns; without chance."""
    select = lambda state, seed, round, available: (np.array(cohorts[round % len(cohorts)])[:, None], state)
    return Selector(lambda seed, n: (), select, lambda state, plan, info: state, len(cohorts[0]), 1, 1, False)


def federation(*sizes):
    """Clients of these sizes, all of whom have all classes if they have as many rows."""
    labels = np.concatenate([np.arange(size) % toy.CLASSES for size in sizes])
    images = np.random.default_rng(0).normal(size=(len(labels), 1, toy.WIDTH, 1)).astype(np.float32)
    spans = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    return federate(images, labels, spans, toy.CLASSES)


def without_statistics():
    model = toy.network()
    init = lambda key: Variables(model.init(key).params, {})

    def apply(variables, images, **options):
        outputs, _ = model.apply(model.init(jax.random.key(0))._replace(params=variables.params), images, **options)
        return outputs, variables

    return model._replace(init=init, apply=apply)


def ignoring_real():
    """The toy network, which takes batch statistics of whatever stands in a batch."""
    model = toy.network()
    return model._replace(apply=lambda *inputs, real=None, **options: model.apply(*inputs, **options))


@part
class Late(Loss):
    """Begins in the battery's last round."""

    @property
    def first_round(self):
        return 3

    def loss(self, outputs, batch, params, ctx):
        return 0.0 * outputs.logits.sum()


@part
class Visits(Memory, Loss):
    """Counts a client's visits, and is another one when it is compiled from the second one on."""

    twofaced: bool = static(False)

    def init_memory(self, variables):
        return jnp.zeros(())

    def remember(self, memory, outcome):
        return memory + 1

    def loss(self, outputs, batch, params, ctx):
        compiled = self.twofaced and isinstance(ctx.round, jax.core.Tracer)
        again = (ctx.memory[self.slot] > 0) * (1.0 if compiled else 0.5)
        return again * ((outputs.features**2).mean(-1) * batch.real).sum()


@part
class Reset(Start):
    """Begins with no statistics."""

    def start(self, variables, ctx):
        return variables._replace(stats=jax.tree.map(jnp.zeros_like, variables.stats))


@part
class Halved(Start):
    """Begins with half of every parameter."""

    def start(self, variables, ctx):
        return variables._replace(params=jax.tree.map(lambda leaf: leaf / 2, variables.params))


@part
class Silent(Prepare):
    """Prepares something, which may be anything."""

    def prepare(self, key, variables, ctx):
        return ()


NOBODY_AWAY = {"availability": always(), "delivery": always()}
UNSEEN = [
    ("fields", bench(), {}, "has no parts"),
    ("types", bench(Silent()), {}, "may return anything"),
    ("jit", bench(), {"delivery": bernoulli(0.001)}, "clients train in 0 of 4 rounds, at least 2 are needed"),
    ("seeds", bench(), {"selector": choosing([0], [3], [3], [3])}, "clients train in 1 of 4 rounds"),
    ("longer_rows", bench(Late()), {"selector": choosing([0], [0], [2], [3]), **NOBODY_AWAY},
     r"Late begins in round 3 .* until round 1 only: let it begin earlier"),
    ("lanes", bench(Reset()), {"model": without_statistics()}, "which Reset changes: pass a model with batch norm"),
    ("lanes", bench(Halved()), {"model": without_statistics()}, None),
    ("all_at_once", bench(Visits()), {"selector": choosing([0], [2], [4], [5]), **NOBODY_AWAY}, "a second time"),
    ("cohort_order", bench(), {"selector": uniform(1)}, r"no two clients .* pass a selector that chooses more"),
    ("devices", bench(), {"selector": uniform(1)}, r"two devices never .* pass a selector that chooses more"),
    ("lanes", bench(), {"federation": federation(*[7] * 8)}, "no two clients .* of different length"),
    ("undelivered", bench(), {"delivery": always()}, r"all chosen clients deliver.* pass delivery=bernoulli\(0.7\)"),
    ("finite", bench(), {"federation": federation(5, 9, 5, 9, 5, 13, 5, 9)}, "all who train have all classes"),
    ("finite", bench(), {"batch_size": 8}, None),
    ("finite", bench(), {"federation": federation(2, 6, 7, 10, 6, 3, 2, 7)}, "single row: .* in place of 4"),
    ("padded_rows", bench(), {"drop_last": True}, "pass drop_last=False"),
    ("padded_rows", bench(), {"federation": federation(4, 8, 4, 8, 12, 4, 8, 4)}, "pass another batch_size"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plain", "options", "reason"), UNSEEN, ids=[f"{n}-{r}" for n, _, _, r in UNSEEN])
def test_what_did_not_come_up_is_told_with_what_to_pass(name, plain, options, reason):
    workbench = flat.bench(plain.recipe, **options)
    told = checked(name, workbench).message if name == "types" else missing(CHECKS[name], workbench)
    assert told is None if reason is None else re.search(reason, told), told


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_by_default_everything_comes_up_for_every_recipe(name, monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe, options = every_recipe.small(name)
    workbench = flat.bench(recipe, **options)
    lacking = {check: missing(CHECKS[check], workbench) for check in CHECKS}
    needs_parts = {"fields", "traced", "types", "representation"} if not recipe.parts else set()
    assert {check for check, reason in lacking.items() if reason} == needs_parts, lacking
    *_, last = compilation.uncompiled_case(workbench)
    assert (workbench.steps(last).sum(1) > 0).sum() == 2


def test_by_default_a_client_of_a_single_row_is_kept():
    assert np.diff(bench().simulation.federation.offsets).tolist() == list(toy.SIZES)


def test_a_check_that_lacks_something_is_skipped_unless_it_fails():
    lacking = needs(lambda bench: "nobody came", coverage.training)
    passing, failing = lacking(lambda bench: None), lacking(lambda bench: "this is wrong")
    assert battery._run_check(passing, bench())[1:] == ("skipped", "nobody came")
    assert battery._run_check(failing, bench())[1:] == ("failed", "this is wrong")


@pytest.mark.slow
def test_padded_rows_are_looked_for_wherever_the_federation_has_any():
    full = federation(8, 4, 8, 12, 4, 8, 4, 8)
    assert checked("padded_rows", bench(model=ignoring_real(), federation=full)).outcome == "skipped"
    # Clients whose batches are full are the only ones that are chosen; others are not.
    mixed = {"federation": federation(8, 8, 7, 9, 6), "selector": choosing([0, 1])}
    found = checked("padded_rows", bench(model=ignoring_real(), **mixed))
    assert found.outcome == "failed" and "mask with batch.real" in found.message


@part
class Leaky(Loss):
    """Ignores which rows are real."""

    def loss(self, outputs, batch, params, ctx):
        return 0.1 * (outputs.features**2).mean()


@part
class Brightness(Report):
    """Reports what nobody uses, of rows behind the client's own too."""

    def report(self, outcome):
        return over_rows(lambda total, batch: total + batch.images.sum(), jnp.zeros(()), outcome.ctx)


@part
class Central(Refine):
    """Has the server look into the clients' rows."""

    evaluation_only = True

    def refine(self, key, variables, server):
        mean = server.federation.images[server.federation.rows].mean()
        return jax.tree.map(lambda leaf: leaf * (1 + mean), variables)


LEAKS = [
    (recipes.combine(recipes.iwds(), Recipe("leaky", (Leaky(),))), "rows that are not real change.*mask with batch"),
    (Recipe("brightness", (Brightness(),)), r"\['ReportTotals'\]\['Brightness'\] when rows behind .* in over_rows"),
    (Recipe("central", (Central(),)), "rows of clients that take no part change.*use what these report"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "message"), LEAKS, ids=["drawn with replacement", "reported only", "on the server"])
def test_a_leak_is_told_by_where_it_comes_from(recipe, message):
    assert re.search(message, padding.padded_rows(Bench(recipe)))


@pytest.mark.slow
def test_a_client_that_comes_again_is_run_without_compilation_too():
    assert "between compiled and uncompiled" in compilation.jit(bench(Visits(True)))


@pytest.mark.slow
def test_each_workbench_traces_its_own_programs():
    traces = []

    @part
    class Noted(Loss):
        """Notes when it is traced."""

        def loss(self, outputs, batch, params, ctx):
            traces.append(1)
            return 0.0 * outputs.logits.sum()

    sizes = []
    for workbench in (bench(Noted()), bench(Noted())):
        varied(workbench, ["places"])
        sizes.append(len(traces))
    assert 0 < sizes[0] < sizes[1]


class Palette:
    """Compares by identity."""


@part
class Painted(Logits):
    """Keeps in a static field what is another one when it is made again."""

    palette: Palette = static(Palette())

    def logits(self, logits, batch, ctx):
        return logits


def test_a_static_field_that_compares_by_identity_needs_another_program():
    assert "received 2 traces" in compilation.one_program(bench(Painted()))


@part
class Mistaken(Batches):
    """Looks for what isn't there."""

    def batch(self, key, batch, ctx):
        return batch._replace(images=ctx.start.params["body"]["weights"])


def test_an_exception_is_told_with_its_place_in_the_part():
    found = checked("types", bench(Mistaken()))
    line = Mistaken.batch.__code__.co_firstlineno + 1
    assert found.outcome == "failed"
    assert f"Received KeyError (in Mistaken.batch, {__file__}:{line}): 'weights'" in found.message


@part
class Hasty(Logits):
    """Looks at the round in Python."""

    def logits(self, logits, batch, ctx):
        return logits * 2 if ctx.round > 1 else logits


def test_what_looks_at_values_is_told_with_its_place_too():
    line = Hasty.logits.__code__.co_firstlineno + 1
    assert f"(in Hasty.logits, {__file__}:{line}): Attempted" in checked("traced", bench(Hasty())).message


def test_of_installed_code_the_parts_frame_is_told():
    source = (
        "class Installed(Base):\n    def fail(self):\n        return helper({})\ndef helper(x):\n    return x['a']\n"
    )
    scope = {"Base": Late}
    exec(compile(source, "/opt/site-packages/installed.py", "exec"), scope)
    with pytest.raises(KeyError) as caught:
        jax.tree_util.Partial(scope["Installed"]().fail)()
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this test's own frame
    assert place(caught.value) == " (in Installed.fail, /opt/site-packages/installed.py:3)"
    assert place(ValueError("never raised")) == ""


def many_operations(x, key):
    whole = (10 * x).astype(int)
    words = jax.random.bits(key, (3,)) >> 3
    return [
        jnp.einsum("bij,bjk->bik", x, x.swapaxes(1, 2)),
        jnp.tensordot(x, x, ((2,), (2,))),
        jax.lax.dynamic_slice(x, (1, 9, 0), (1, 2, 2)),
        jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.exp(x) ** 3),
        jax.nn.log_softmax(x, -1),
        jnp.concatenate([x[::2, 1:], -x[1:, :-1]], 0).sum((0, 2)),
        whole // 3,
        (words % 7).astype(float),
        jnp.argsort(x, 1).astype(bool),
        jax.grad(lambda x: jnp.tanh(x).max(-1).mean())(x),
    ]


def test_uncompiled_operations_are_jaxs():
    x, key = jnp.linspace(-2, 3, 24).reshape(2, 3, 4), jax.random.key(0)
    compiled = jax.jit(many_operations)(x, key)
    before = jax.lax.add_p.impl
    with uncompiled():
        assert jax.lax.add_p.impl is not before
        plain = many_operations(x, key)
    assert jax.lax.add_p.impl is before
    same = partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-6)
    for one, other in zip(plain, compiled, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        same(np.asarray(one), np.asarray(other))
