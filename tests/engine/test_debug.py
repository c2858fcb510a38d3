"""Runs that aren't compiled: the same results, and errors that name the line, the client, the step and the batch."""

import inspect
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import FORMULA, SUM

from fedjax_bal import recipes
from fedjax_bal.engine.host import simulate
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import Deliver, Gradient, Loss, Refine, Server, Steps, part
from fedjax_bal.recipes import Recipe, combine


def run(recipe, strategy="debug", **changes):
    execution = Execution(strategy=strategy, devices=1, broken_clients="exclude" if changes else "raise")
    return simulate(
        recipe, toys.network(), toys.federation(), toys.test_set(), rounds=2, seed=0,
        local=LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1)),
        participation=Participation(**changes or {"clients_per_round": 3}), execution=execution,
    )  # fmt: skip


@pytest.mark.slow
def test_without_compiling_the_results_are_the_same():
    broken = recipes.faults("not_a_number", clients=[4, 6], rounds=[2])
    recipe = recipes.combine(recipes.scaffold(), broken)
    chains = toys.chosen([[4, 6], [3, 0]])
    got, want = (run(recipe, strategy, selector=chains) for strategy in ("debug", "map"))
    for a, b in zip(jax.tree.leaves(got[0]), jax.tree.leaves(want[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=SUM, atol=FORMULA)
    for mine, theirs in zip(got.history, want.history, strict=True):
        assert mine.pop("broken_clients") == theirs.pop("broken_clients")
        np.testing.assert_allclose(jax.tree.leaves(mine), jax.tree.leaves(theirs), rtol=SUM)


@part
class Fails(Loss):
    def loss(self, outputs, batch, params, ctx):
        raise KeyError("no such prototype")


@part
class MakesNan(Loss, Steps):
    """Takes the logarithm of a negative number in the second batch of client 2; other clients' nan comes to nothing."""

    def init_steps(self, ctx):
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry, outputs, batch, ctx):
        return carry + 1

    def loss(self, outputs, batch, params, ctx):
        here = ctx.client == 2
        ignored = jnp.where(here, 0.0, jnp.log(jnp.where(here, 1.0, -1.0)))
        second = here & (ctx.steps_state[self.slot] == 1)
        return jnp.nan_to_num(ignored) + jnp.log(jnp.where(second, -1.0, 1.0))


@part
class Transposes(Gradient):
    def gradient(self, grads, params, ctx):
        return jax.tree.map(jnp.transpose, grads)


@part
class DeliversNan(Deliver):
    def deliver(self, outcome):
        return jax.tree.map(lambda leaf: jnp.sqrt(-1.0 - leaf**2), outcome.end)


@part
class RefinesToNan(Refine):
    def refine(self, key, variables, server):
        return jax.tree.map(lambda leaf: jnp.log(-1.0 - leaf**2), variables)


@part
class FailsOnServer(Server):
    def init_server(self, server):
        return {}

    def broadcast(self, key, server):
        raise ValueError("nothing to send")

    def update(self, key, server):
        return {}


def line_of(method, text):
    lines, first = inspect.getsourcelines(method)
    return first + next(place for place, line in enumerate(lines) if text in line)


CASES = {
    "an exception": (
        Fails(), KeyError, Fails.loss, "raise KeyError",
        ["on the batch of rows [", "in local step 1 of 2", "by client 4, of 12 rows", "in round 1"],
    ),
    "a nan in the second batch": (
        MakesNan(), FloatingPointError, MakesNan.loss, "return",
        ["on the batch of rows [97 14 31", "in local step 2 of 2", "by client 2, of 16 rows", "in round 2"],
    ),
    "a nan that is delivered": (
        DeliversNan(), FloatingPointError, DeliversNan.deliver, "jnp.sqrt", ["by client 4, of 12 rows", "in round 1"],
    ),
    "a nan on the server": (RefinesToNan(), FloatingPointError, RefinesToNan.refine, "jnp.log", ["in round 1"]),
    "an exception on the server": (FailsOnServer(), ValueError, FailsOnServer.broadcast, "raise", []),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_error_in_a_part_shows_its_line_its_client_and_its_batch(name):
    part_, kind, method, text, notes = CASES[name]
    with pytest.raises(kind) as caught:
        run(combine(recipes.fedavg(), Recipe("mine", (part_,))))
    lines = [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
    assert lines[-1] == line_of(method, text)
    for note in notes:
        assert any(own.startswith(note) for own in caught.value.__notes__), caught.value.__notes__


@pytest.mark.slow
def test_a_wrong_shape_shows_the_part_that_returned_it():
    with pytest.raises(TypeError, match="incompatible shapes") as caught:
        run(combine(recipes.fedavg(), Recipe("mine", (Transposes(),))))
    place = f"{__file__}:{inspect.getsourcelines(Transposes.gradient)[1]}"
    assert f"Transposes.gradient ({place}) -> {{'w1': ShapedArray(float32[6,5])" in caught.value.__notes__[-1]
    assert "by client 4, of 12 rows" in caught.value.__notes__
