"""Mediators through the engine: what they come to at both ends, and what they cost."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.float64 import OPTIONS, SEED, N, assert_equal, train

from fedjax_bal.balance import augmentation_counts
from fedjax_bal.data import augment
from fedjax_bal.metrics.traffic import RoundCounts, Traffic, count_round
from fedjax_bal.options import Evaluation, Participation
from fedjax_bal.recipes import astraea, combine, fedavg, fednova, scaffold
from fedjax_bal.selection import Choice, always, make_plan, mediators

RANGES = {"shift": 0.1, "rotate": 15.0, "shear": 0.2, "zoom": 0.2}


def mediated(size, passes=1):
    return Choice("mediated", (("passes", passes), ("size", size)))


@pytest.mark.slow
def test_mediators_of_one_are_fedavg_to_the_bit():
    both = (replace(float64.CLIENTS, selector=selector) for selector in (None, mediated(1)))
    plain, chains = (float64.simulation(fedavg(), participation=clients) for clients in both)
    states = [jax.tree.leaves(float64.run(sim)) for sim in (plain, chains)]
    for ours, theirs in zip(*states, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert astraea(alpha=None, size=1, mediator_epochs=1).selector is None


@pytest.mark.slow
def test_one_mediator_of_all_clients_is_sequential_training():
    with jax.enable_x64(True):
        recipe, rounds = astraea(alpha=None, size=N, mediator_epochs=2), 2
        sim = float64.simulation(recipe, participation=Participation(clients_per_round=N), rounds=rounds)
        weights = float64.initial(sim)
        (order,) = mediators(toys.federation().class_counts, N)
        for number in range(rounds):
            for turn in range(2):
                for client in order:
                    batches = list(reference.draws(toys.federation(), SEED, number, client, OPTIONS, turn))
                    weights = train(weights, client, number, batches=batches)[0]
        assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.slow
def test_a_carried_optimizer_goes_on_from_client_to_client():
    momentum = replace(OPTIONS, momentum=0.8)
    with jax.enable_x64(True):
        recipe = astraea(alpha=None, size=3, mediator_epochs=2, optimizer_state="carried")
        clients = replace(float64.CLIENTS, clients_per_round=3, delivery=always())
        sim = float64.simulation(recipe, momentum, rounds=1, participation=clients)
        plan, _ = sim.plan(SEED, 0, ())
        weights, velocity = float64.initial(sim), None
        data = toys.federation()
        flat = data.images.reshape(len(data.images), -1).astype(float)
        for turn in range(2):
            for client in plan.clients[0]:
                for rows in reference.draws(data, SEED, 0, client, momentum, turn):
                    grad = float64.gradient(weights, flat[rows], data.labels[rows])
                    velocity = grad if velocity is None else {k: 0.8 * velocity[k] + grad[k] for k in grad}
                    weights = {k: weights[k] - OPTIONS.rate * velocity[k] for k in weights}
        assert_equal(float64.run(sim).variables.params, weights)


def test_a_short_last_mediator_is_allowed():
    sim = float64.simulation(astraea(alpha=None, size=4), participation=Participation(clients_per_round=N))
    plan, _ = sim.plan(0, 0, sim.selector.init(0, N))
    assert plan.clients.shape == (3, 4) and (plan.clients == N).sum() == 2
    with pytest.raises(ValueError, match="received 11, but there are only 10 clients"):
        float64.simulation(astraea(alpha=None), participation=Participation(clients_per_round=11))


MODEL = 4 * 68_873


@pytest.mark.parametrize(
    ("clients", "size", "passes", "exact", "bytes_"),
    [
        (10, 1, 1, False, 5_509_840),
        (10, 1, 1, True, 5_509_840),
        (50, 10, 1, False, 30_304_120),
        (50, 10, 2, False, 30_304_120),
        (50, 10, 2, True, 30_304_120 + 2 * 50 * MODEL),
        (10, 1, 2, False, 2 * (10 + 10) * MODEL),
        (10, 1, 2, True, 2 * (10 + 2 * 10) * MODEL),
    ],
)
def test_traffic_of_a_round_is_the_printed_formula(clients, size, passes, exact, bytes_):
    selector = mediated(size, passes).build(clients, many())
    plan = make_plan(selector.select((), 0, 0, np.ones(60, bool))[0], np.ones(60, bool))
    counts = count_round(RoundCounts(), plan, 60, passes, Traffic(down=MODEL, up=MODEL), exact)
    assert counts.bytes_up == counts.bytes_down == bytes_ // 2


@pytest.mark.slow
def test_fedavg_has_no_mediators_and_the_engine_counts_as_it_is_told():
    clients = Participation(clients_per_round=4)
    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(toys.network().init(jax.random.key(0)).params))
    for recipe, traffic, models in (
        (fedavg(), "paper", 4),
        (astraea(alpha=None, size=2, mediator_epochs=3), "paper", 2 + 4),
        (astraea(alpha=None, size=2, mediator_epochs=3), "exact", 2 + 3 * 4),
    ):
        sim = float64.simulation(recipe, rounds=1, participation=clients, evaluation=Evaluation(traffic=traffic))
        advance = sim.advance(0, sim.init(0))
        (record,) = advance.records
        assert (record["bytes_up"], record["bytes_down"]) == (models * size, models * size)
        assert advance.client_updates == 4 * sim.setting.passes


def test_a_mediator_none_of_whose_clients_delivers_sends_nothing_back():
    arriving = np.isin(np.arange(6), [0, 2])
    plan = make_plan(np.array([[0, 1], [2, 3], [4, 5]]), arriving)
    counts = count_round(RoundCounts(), plan, 6, 1, Traffic(down=1, up=1))
    assert counts == RoundCounts(2, 4, 2 + 2, 6 + 3, 0)


def many():
    """Sixty clients of a class each."""
    classes = np.eye(toys.CLASSES, dtype=np.int32)[np.arange(60) % 4]
    return toys.federation()._replace(offsets=np.arange(61, dtype=np.int32), class_counts=classes)


@pytest.mark.slow
def test_mediators_group_and_weigh_by_what_clients_hold_with_their_copies():
    pairs = {"rounds": 2, "participation": replace(float64.CLIENTS, selector=mediated(2))}
    copies = {"size": 2, "mediator_epochs": 1, "alpha": 1.0, "seed": 3}
    ours = float64.simulation(astraea(**copies), rounds=2)
    wanted = augmentation_counts(toys.federation().class_counts.sum(0), 1.0)
    grown = augment(toys.federation(), wanted, seed=3, **RANGES)
    theirs = float64.simulation(fedavg(), federation=grown, **pairs)
    assert grown.class_counts.sum() > toys.federation().class_counts.sum()
    before = float64.simulation(fedavg(), **pairs)
    plans = [sim.plan(SEED, 0, ())[0].clients.tolist() for sim in (ours, theirs, before)]
    assert plans[0] == plans[1] != plans[2]
    states = [jax.tree.leaves(float64.run(sim)) for sim in (ours, theirs)]
    for one, other in zip(*states, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_carried_momentum_is_refused_where_a_method_reckons_with_a_fresh_one():
    carried = astraea(alpha=None, size=2, optimizer_state="carried")
    for other, slot in ((fednova(), "NormalisedAveraging"), (scaffold(scaffold_momentum=True), "ControlVariates")):
        with pytest.raises(ValueError, match=f"received 'carried' and a local momentum together with {slot}"):
            float64.simulation(combine(other, carried), replace(OPTIONS, momentum=0.9))
        float64.simulation(combine(other, carried))


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("power_of_choice", "selector: received 'power_of_choice'"),
        (Choice("nope"), "selector: received 'nope'"),
        (Choice("power_of_choice"), "selector power_of_choice: lacks 'candidates'"),
        (Choice("by_size", (("weight", 1),)), "selector by_size: received 'weight'"),
    ],
)
def test_wrong_choices_are_named(selector, message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(fedavg(), participation=Participation(clients_per_round=6, selector=selector))


def test_a_mediator_has_no_more_places_than_clients():
    assert mediated(1000).build(4, many()).chain_length == 4
    once = Choice("mediated", (("resched", "once"), ("size", 1000)))
    assert once.build(4, many()).chain_length == 60
