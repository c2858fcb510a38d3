"""Runs that are trained together come to what each comes to alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import toys
from methods import faking
from table import RECIPES

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.device.evaluation import chunked
from fedjax_bal.engine.host import build
from fedjax_bal.engine.host.stack import Member, Stack, stacking_key
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli, power_of_choice
from fedjax_bal.selection.speed import lognormal

ROUNDS = 3
TEST = chunked(*toys.test_set())


LOCAL = LocalTraining(epochs=2, batch_size=4)
CLIENTS = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
EXECUTION = Execution(strategy="map", devices=1, rounds_per_dispatch=2)


def simulation(rate=0.1, recipe=None, federation=None, local=LOCAL, **changes):
    options = {"rounds": ROUNDS, "participation": CLIENTS, "execution": EXECUTION} | changes
    options["local"] = replace(local, optimizer=optimizer("sgd", rate))
    return build(recipe or recipes.fedavg(), toys.network(), federation or toys.federation(), TEST, **options)


def together(members):
    """The last states of runs that are trained together, and the records of each."""
    stack = Stack(members, [member.simulation.init(member.seed) for member in members])
    records = [[] for _ in members]
    while stack.round < ROUNDS:
        for own, advance in zip(records, stack.advance(), strict=True):
            own += advance.records if advance else []
    return [jax.device_get(stack.snapshot(place)) for place in range(len(members))], records, stack


def alone(member):
    snapshot, records = member.simulation.init(member.seed), []
    while snapshot.round < ROUNDS:
        advance = member.simulation.advance(member.seed, snapshot)
        snapshot, records = advance.snapshot, records + advance.records
    return jax.device_get(snapshot), records


def assert_alike(members, tolerance):
    ends, records, _ = together(members)
    for member, end, own in zip(members, ends, records, strict=True):
        wanted, theirs = alone(member)
        assert toys.largest_difference(end.state, wanted.state) <= tolerance
        assert end.round == wanted.round == ROUNDS
        assert [record["test_accuracy"] for record in own] == [record["test_accuracy"] for record in theirs]
        assert [record["bytes_up"] for record in own] == [record["bytes_up"] for record in theirs]
        losses = [[record["train_loss"] or 0.0 for record in kept] for kept in (own, theirs)]  # none if none arrived
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert [record.get("client_accuracies") for record in own] == [r.get("client_accuracies") for r in theirs]


@pytest.mark.slow
def test_seeds_and_rates_one_client_after_another():
    sims = [
        simulation(rate, RECIPES["everything"], evaluation=Evaluation(update_diversity=True)) for rate in (0.1, 0.05)
    ]
    assert stacking_key(sims[0]) == stacking_key(sims[1])
    assert_alike([Member(sims[0], 0), Member(sims[1], 0), Member(sims[1], 3)], 1e-6)


@pytest.mark.slow
def test_several_clients_of_several_runs_at_a_time_on_two_devices():
    sims = [
        simulation(rate, RECIPES["trimmed_mean"], execution=replace(EXECUTION, strategy="vmap", devices=2))
        for rate in (0.1, 0.05)
    ]
    assert_alike([Member(sims[0], 0), Member(sims[1], 1)], 1e-6)


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
    assert_alike([Member(sims[0], 0), Member(sims[1], 0)], 1e-6)


@pytest.mark.slow
def test_each_run_has_a_selector_of_its_own():
    sims = [
        simulation(
            rate,
            participation=replace(CLIENTS, clients_per_round=None, selector=power_of_choice(3, 6, sizes=toys.SIZES)),
            execution=replace(EXECUTION, rounds_per_dispatch=1),
        )
        for rate in (0.5, 0.01)
    ]
    members = [Member(sim, 0) for sim in sims]
    assert_alike(members, 1e-6)


@pytest.mark.slow
def test_a_run_that_diverges_harms_no_other():
    sims = [
        simulation(rate, evaluation=Evaluation(every=1), execution=replace(EXECUTION, rounds_per_dispatch=1))
        for rate in (0.1, 3e38)
    ]
    ends, records, stack = together([Member(sim, 0) for sim in sims])
    wanted, theirs = alone(Member(sims[0], 0))
    assert toys.largest_difference(ends[0].state, wanted.state) == 0.0
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
    assert stacking_key(simulation(participation=replace(CLIENTS, availability=bernoulli(0.1)))) == stacking_key(
        simulation()
    )
    deadlines = [lognormal(10, 1, deadline=deadline) for deadline in (None, 2.0, 3.0)]
    unlimited, two, three = (
        stacking_key(simulation(participation=replace(CLIENTS, speed=speed))) for speed in deadlines
    )
    assert unlimited != two == three
    assert stacking_key(simulation(evaluation=Evaluation(every=2))) != stacking_key(simulation())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(recipes.RECIPES) - {"astraea"}))  # which makes images of its own each time
def test_equal_runs_of_every_recipe_are_the_same_kind(name):
    federation, test = faking.federation(), chunked(*faking.test_set())
    network = (
        faking.network()
        if name == "cbfl"
        else models.build("tiny_bn" if name == "fedbn" else "mlp", federation.num_classes, faking.SHAPE)
    )
    options = {"cbfl": {"warm_up": 1}, "fedlf": {"warm_up": 0}, "fedrela": {"start": 1}}.get(name, {})
    one, other = (
        build(
            recipes.RECIPES[name](**options),
            network,
            federation,
            test,
            rounds=2,
            execution=Execution(precision="bfloat16"),
        )
        for _ in range(2)
    )
    assert stacking_key(one) == stacking_key(other)


def test_runs_whose_memory_is_gathered_on_the_host_are_refused():
    sim = simulation(recipe=recipes.scaffold(), execution=replace(EXECUTION, client_memory="disk"))
    with pytest.raises(ValueError, match="memory is kept on disk, must be on device for runs that train"):
        Stack([Member(sim, 0), Member(sim, 1)], [])
