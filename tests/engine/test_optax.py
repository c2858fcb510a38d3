"""Optax transformations as they are, on either side: the same runs as with the package's own, and clear refusals."""

import numpy as np
import optax
import pytest
import toys
from rounding import FORMULA
from table import finish

from fedjax_bal import recipes, testing
from fedjax_bal.engine.device.evaluation import in_batches
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.fine_tuning import FineTuner
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.errors import DivergenceError
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import ClientTests

TEST = in_batches(*toys.test_set())
SOME, ALL = bernoulli(0.8), bernoulli(1.0)
FALLING = optax.piecewise_constant_schedule(0.4, {1: 0.5, 2: 0.5})  # 0.4, 0.2, 0.1


def simulation(local, recipe=None, federation=None, server_optimizer=None, delivery=SOME, strategy="map"):
    return build_simulation(
        recipe or recipes.fedavg(), toys.network(), federation or toys.federation(), TEST, rounds=3,
        local=LocalTraining(epochs=2, batch_size=8, optimizer=local), server_optimizer=server_optimizer,
        participation=Participation(clients_per_round=4, delivery=delivery),
        execution=Execution(strategy=strategy, devices=1),
    )  # fmt: skip


def variables(local, server=None, **changes):
    return finish(simulation(local, server_optimizer=server, **changes))[0].variables


@pytest.mark.slow
def test_a_run_is_that_of_the_package_s_own_optimizers():
    own = optimizer("sgd", FALLING, momentum=0.5, clip_norm=0.5), optimizer("adam", 0.05, eps=1e-3)
    injected = optax.inject_hyperparams(optax.sgd)(FALLING, momentum=0.5)
    given = optax.chain(optax.clip_by_global_norm(0.5), injected), optax.adam(0.05, eps=1e-3)
    assert toys.largest_difference(variables(*given), variables(*own)) < FORMULA


@pytest.mark.slow
def test_schedules_of_clients_count_steps_and_those_of_the_server_rounds():
    own = optimizer("sgd", 1.0, step_schedule=FALLING), optimizer("sgd", 1.0, schedule=FALLING)
    wanted = variables(*own, delivery=ALL)
    given = optax.sgd(FALLING), optax.sgd(FALLING)
    assert toys.largest_difference(variables(*given, delivery=ALL), wanted) < FORMULA


@pytest.mark.slow
def test_the_state_of_any_transformation_is_carried():
    labels = {"w1": "adam", "w2": "none"}
    local = optax.partition({"adam": optax.adamw(FALLING), "none": optax.set_to_zero()}, labels)
    server = optax.apply_if_finite(optax.chain(optax.add_noise(0.1, 0.5, 0), optax.lion(0.01)), 3)
    by_map, by_vmap = (variables(local, server, strategy=strategy) for strategy in ("map", "vmap"))
    assert toys.largest_difference(by_map, by_vmap) < FORMULA


@pytest.mark.slow
def test_the_battery_passes():
    local = LocalTraining(batch_size=4, optimizer=optax.adamw(optax.cosine_decay_schedule(0.1, 5)), lone_rows="keep")
    server = optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.5, 4), momentum=0.9)
    assert testing.check_recipe(recipes.fedprox(0.1), local=local, server_optimizer=server).failed == ()


@pytest.mark.slow
def test_runs_of_one_transformation_are_trained_together_and_others_apart():
    server = optax.adam(0.1)
    sims = [simulation(local, server_optimizer=server) for local in (SGD, SGD, optax.sgd(0.1))]
    keys = [stacking_key(sim) for sim in sims]
    assert keys[0] == keys[1] != keys[2]
    members = [Member(sims[0], 0), Member(sims[1], 1)]
    stack = StackedRuns(members, [member.simulation.init(member.seed) for member in members])
    stack.advance()
    for place, member in enumerate(members):
        alone = member.simulation.advance(member.seed, member.simulation.init(member.seed)).snapshot
        assert toys.largest_difference(stack.snapshot(place).state, alone.state) < FORMULA


@pytest.mark.slow
def test_clients_are_fine_tuned_with_it():
    toy = toys.federation()
    tested = toy._replace(tests=ClientTests(toy.rows, toy.offsets))
    found = []
    for local in (optimizer("sgd", 0.5), optax.sgd(0.5)):
        sim = simulation(local, federation=tested)
        found.append(FineTuner(sim, 2).run(0, sim.init(0)).accuracies)
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_a_diverging_client_is_named_without_a_rate():
    sim = simulation(optax.sgd(1e30), recipes.fedprox(1.0))
    with pytest.raises(DivergenceError, match=r"round 1: the updates? of .* learning rate that is too high: lower it"):
        sim.advance(0, sim.init(0))


SGD = optax.sgd(0.1)
REFUSED = {
    "fednova": (recipes.fednova(), {"local": SGD}, r"^fednova: received an optax tr.*pass fedjax_bal.optimi"),
    "scaffold": (recipes.scaffold(), {"local": SGD}, r"^scaffold: received an optax tra.*pass fedjax_bal.op"),
    "extra arguments": (recipes.fedavg(), {"local": optax.lbfgs()}, r"^local.optimizer: .*'value', 'grad'"),
    "other parameters": (
        recipes.fedavg(), {"server_optimizer": optax.masked(SGD, {"w1": True})}, "^server_optimizer: .* that fails on",
    ),
    "a name": (recipes.fedavg(), {"local": "sgd"}, "^local.optimizer: received 'sgd', must be an optax.Grad"),
    "beside the recipe's": (recipes.fedadam(), {"server_optimizer": SGD}, "^server_optimizer: .* but the recipe sets"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_t_work_is_refused(name):
    recipe, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        simulation(**{"local": optimizer("sgd", 0.1)} | options, recipe=recipe)


def test_a_recipe_may_bring_one():
    server = optax.sgd(1.0, momentum=0.9)
    recipe = Recipe("mine", server_optimizer=server)
    same = simulation(SGD, recipe, server_optimizer=server).setting
    assert same.server == simulation(SGD, recipe).setting.server
