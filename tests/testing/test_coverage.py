"""The battery skips what it could not see, and what it is given by default leaves nothing unseen."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from parts import faking

from fedjax_bal import recipes
from fedjax_bal.data import federate
from fedjax_bal.data.batches import over_rows
from fedjax_bal.options import Participation
from fedjax_bal.parts import Batches, Logits, Loss, Prepare, Refine, Report, part, static
from fedjax_bal.recipes import RECIPES, Recipe
from fedjax_bal.selection import Selector, always, bernoulli, uniform
from fedjax_bal.testing import battery, compilation, coverage, padding, toy
from fedjax_bal.testing.coverage import Need, missing, needs
from fedjax_bal.testing.messages import place
from fedjax_bal.testing.variations import varied
from fedjax_bal.testing.workbench import Bench

CHECKS = {check.__name__: check for stage in battery.STAGES for check in stage}


def bench(*parts, **options):
    return Bench(Recipe("mine", parts), **options)


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
class Silent(Prepare):
    """Prepares something, which may be anything."""

    def prepare(self, key, variables, ctx):
        return ()


LOCAL, CLIENTS = toy.local_training(toy.network()), toy.participation(recipes.fedavg())


def among(**changes):
    """Other clients a round, or others that deliver."""
    return {
        "participation": replace(CLIENTS, **({"clients_per_round": None} if "selector" in changes else {}), **changes)
    }


ALL_DELIVER = Participation(selector=choosing([0], [0], [2], [3]))
UNSEEN = [
    ("fields", bench(), {}, "has no parts"),
    ("types", bench(Silent()), {}, "may return anything"),
    ("repeatable", bench(), among(delivery=bernoulli(0.001)), "train in fewer than two rounds.* pass an availability"),
    ("seeds", bench(), among(selector=choosing([0], [3], [3], [3])), "train in fewer than two rounds"),
    ("longer_rows", bench(Late()), {"participation": ALL_DELIVER}, "let the parts begin earlier"),
    ("cohort_order", bench(), among(selector=uniform(1)), "no two clients .* pass a selector that chooses more"),
    ("undelivered", bench(), among(delivery=always()), r"all chosen clients deliver.* pass delivery=bernoulli\(0.7\)"),
    ("finite", bench(), {"federation": federation(5, 9, 5, 9, 5, 13, 5, 9)}, "all who train have all classes"),
    ("padded_rows", bench(), {"local": replace(LOCAL, drop_last=True)}, "or drop_last=False"),
    ("padded_rows", bench(), {"federation": federation(4, 8, 4, 8, 12, 4, 8, 4)}, "pass another batch_size"),
]


@pytest.mark.parametrize(("name", "plain", "options", "reason"), UNSEEN, ids=[f"{n}-{r}" for n, _, _, r in UNSEEN])
def test_what_did_not_come_up_is_told_with_what_to_pass(name, plain, options, reason):
    workbench = Bench(plain.recipe, **options)
    told = checked(name, workbench).message if name == "types" else missing(CHECKS[name], workbench)
    assert told is None if reason is None else re.search(reason, told), told


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_by_default_everything_comes_up_for_every_recipe(name, monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe, options = table.small(name)
    workbench = Bench(recipe, **options)
    lacking = {check: missing(CHECKS[check], workbench) for check in CHECKS}
    needs_parts = {"fields", "traced", "types", "representation"} if not recipe.parts else set()
    assert {check for check, reason in lacking.items() if reason} == needs_parts, lacking


def test_by_default_a_client_of_a_single_row_is_kept():
    assert np.diff(bench().simulation.federation.offsets).tolist() == list(toy.SIZES)


def test_a_check_that_lacks_something_is_skipped_unless_it_fails():
    lacking = needs(Need(lambda bench: False, "nobody came"), coverage.training)
    passing, failing = lacking(lambda bench: None), lacking(lambda bench: "this is wrong")
    assert battery._run_check(passing, bench())[1:] == ("skipped", "nobody came")
    assert battery._run_check(failing, bench())[1:] == ("failed", "this is wrong")


@pytest.mark.slow
def test_padded_rows_are_looked_for_wherever_the_federation_has_any():
    full = federation(8, 4, 8, 12, 4, 8, 4, 8)
    assert checked("padded_rows", bench(model=ignoring_real(), federation=full)).outcome == "skipped"
    # Clients whose batches are full are the only ones that are chosen; others are not.
    mixed = {
        "federation": federation(8, 8, 7, 9, 6),
        "participation": replace(CLIENTS, clients_per_round=None, selector=choosing([0, 1])),
    }
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
