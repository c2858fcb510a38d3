"""Runs that are trained together come to what each comes to alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import table
import toys
from methods import faking
from rounding import FORMULA, SUM

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.device.evaluation import in_batches
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli
from fedjax_bal.selection.speed import lognormal

ROUNDS = 3
TEST = in_batches(*toys.test_set())


LOCAL = LocalTraining(epochs=2, batch_size=4)
CLIENTS = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
EXECUTION = Execution(strategy="map", devices=1, rounds_per_dispatch=2)


def simulation(rate=0.1, recipe=None, federation=None, local=LOCAL, **changes):
    options = {"rounds": ROUNDS, "participation": CLIENTS, "execution": EXECUTION} | changes
    options["local"] = replace(local, optimizer=optimizer("sgd", rate))
    return build_simulation(
        recipe or recipes.fedavg(), toys.network(), federation or toys.federation(), TEST, **options
    )


def together(members):
    """The last states of runs that are trained together, and the records of each."""
    stack = StackedRuns(members, [member.simulation.init(member.seed) for member in members])
    records = [[] for _ in members]
    while stack.round < ROUNDS:
        for own, advance in zip(records, stack.advance(), strict=True):
            own += advance.records if advance else []
    return [jax.device_get(stack.snapshot(place)) for place in range(len(members))], records, stack


@pytest.mark.slow
def test_partitions_differ_within_a_program():
    images, labels = toys.federation().images, toys.federation().labels
    rng = np.random.default_rng
    parts = [data.partition.dirichlet(rng(seed), labels, 8, alpha=1.0, min_size=3) for seed in (0, 1)]
    federations = [
        data.federate(
            images, labels, [own[2:] for own in rows], toys.CLASSES, tests=[own[: 1 + place % 2] for own in rows]
        )
        for place, rows in enumerate(parts)
    ]
    sims = [simulation(0.1, recipes.rebafl(mu=0.5), federation) for federation in federations]
    assert sims[0].setting.max_size != sims[1].setting.max_size
    assert stacking_key(sims[0]) == stacking_key(sims[1])
    ends, records, _ = together([Member(sim, 0) for sim in sims])
    for sim, end, own in zip(sims, ends, records, strict=True):
        state, theirs = table.finish(sim)
        assert toys.largest_difference(end.state, state) <= FORMULA
        for key in ("test_accuracy", "bytes_up", "client_accuracies"):
            assert [record[key] for record in own] == [record[key] for record in theirs]
        losses = [[record["train_loss"] or 0.0 for record in kept] for kept in (own, theirs)]  # none if none arrived
        assert losses[0] == pytest.approx(losses[1], rel=SUM)


@pytest.mark.slow
def test_a_run_that_diverges_harms_no_other():
    changes = {"evaluation": Evaluation(every=1), "execution": replace(EXECUTION, rounds_per_dispatch=1)}
    sims = [simulation(rate, **changes) for rate in (0.1, 3e38)]
    ends, records, stack = together([Member(sim, 0) for sim in sims])
    wanted, theirs = table.finish(sims[0])
    assert toys.largest_difference(ends[0].state, wanted) == 0.0
    assert records[0] == theirs
    assert stack.failures[0] is None
    assert "learning rate" in str(stack.failures[1])
    assert len(records[1]) < ROUNDS


@pytest.mark.parametrize(
    "change",
    [
        {"local": replace(LOCAL, batch_size=5)},
        {"rounds": 4},
        {"participation": replace(CLIENTS, clients_per_round=5)},
        {"local": replace(LOCAL, epochs=1)},
        {"recipe": recipes.fedprox(0.1)},
    ],
)
def test_what_changes_a_shape_or_the_work_is_another_kind(change):
    assert stacking_key(simulation()) != stacking_key(simulation(**change))


def test_numbers_are_the_same_kind():
    proximal = [simulation(0.1, recipes.fedprox(mu)) for mu in (0.1, 0.5)]
    assert stacking_key(proximal[0]) == stacking_key(proximal[1])
    key_of = lambda **changes: stacking_key(simulation(participation=replace(CLIENTS, **changes)))
    assert key_of(availability=bernoulli(0.1)) == key_of()
    unlimited, two, three = (key_of(speed=lognormal(10, 1, deadline=deadline)) for deadline in (None, 2.0, 3.0))
    assert unlimited != two == three
    assert stacking_key(simulation(evaluation=Evaluation(every=2))) != stacking_key(simulation())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(recipes.RECIPES) - {"astraea"}))  # which makes images of its own each time
def test_equal_runs_of_every_recipe_are_the_same_kind(name):
    federation, test = faking.federation(), in_batches(*faking.test_set())
    network = models.build("tiny_bn" if name in ("cbfl", "fedbn") else "mlp", federation.num_classes, faking.SHAPE)
    options = {
        "cbfl": {"warm_up": 1},
        "fedlf": {"warm_up": 0},
        "fedrela": {"start": 1},
        "fedwsq": {"everything": True},
    }.get(name, {})
    low = Execution(precision="bfloat16")
    recipe = recipes.RECIPES[name]
    one, other = (
        build_simulation(recipe(**options), network, federation, test, rounds=2, execution=low) for _ in range(2)
    )
    assert stacking_key(one) == stacking_key(other)


def test_runs_whose_memory_is_gathered_on_the_host_are_refused():
    sim = simulation(recipe=recipes.scaffold(), execution=replace(EXECUTION, client_memory="disk"))
    with pytest.raises(ValueError, match="memory is kept on disk, must be on device for runs that train"):
        StackedRuns([Member(sim, 0), Member(sim, 1)], [])
