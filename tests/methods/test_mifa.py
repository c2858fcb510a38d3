"""MIFA and FedVARP: against loops over a table of all clients' latest updates, and what they refuse."""

import dataclasses

import numpy as np
import optax
import pytest
import quick
import toys
from methods import float64
from rounding import DOUBLE

from fedjax_bal.data import federate
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import (
    climb,
    combine,
    equal_weights,
    fedau,
    feddisco,
    feddyn,
    fedper,
    fedvarp,
    median,
    mifa,
    scaffold,
)
from fedjax_bal.selection import bernoulli

pytestmark = pytest.mark.usefixtures("double")

N = float64.N
ABSENT = Participation(clients_per_round=6, availability=bernoulli(0.3), delivery=bernoulli(0.6))
OPTIONS = dataclasses.replace(float64.OPTIONS, decay=0.8)
simulation = lambda recipe, **changes: float64.simulation(
    recipe, OPTIONS, **{"rounds": 8, "participation": ABSENT} | changes
)


def transcription(weights, cohorts, method, by_rate, by_size):
    """The server keeps the latest update of every client in a table, zeros before the first."""
    zeros = {k: np.zeros_like(v) for k, v in weights.items()}
    table = dict.fromkeys(range(N), zeros)
    shares = np.array(toys.SIZES) / sum(toys.SIZES) if by_size else np.full(N, 1 / N)
    for number, cohort in cohorts:
        if not cohort:
            continue
        rate = OPTIONS.rate * OPTIONS.decay**number if by_rate else 1.0
        train = lambda client, w=weights, t=number: float64.train(w, client, t, OPTIONS)[0]
        updates = {c: {k: v / rate for k, v in float64.difference(train(c), weights).items()} for c in cohort}
        total = sum(shares[c] for c in cohort)
        if method == "mifa":
            table |= updates
            move = float64.mean(dict(enumerate(shares)), table)
        else:
            changes = {c: float64.difference(updates[c], table[c]) for c in cohort}
            corrected = float64.mean({c: shares[c] / total for c in cohort}, changes)
            move = float64.plus(float64.mean(dict(enumerate(shares)), table), corrected)
            table |= updates
        weights = {k: weights[k] + rate * move[k] for k in weights}
    return weights, table


CASES = {
    "mifa": (mifa, True, False),
    "mifa as it was, by size": (mifa, False, True),
    "fedvarp by size": (fedvarp, True, True),
    "fedvarp as it was": (fedvarp, False, False),
}


@pytest.mark.parametrize("name", quick.only(CASES, "mifa"))
def test_latest_updates_equal_their_transcription(name):
    recipe, by_rate, by_size = CASES[name]
    sim = simulation(recipe(by_rate, by_size))
    cohorts = float64.cohorts(sim)
    came = [c for _, cohort in cohorts for c in cohort]
    assert len(set(came)) < N and len(set(came)) < len(came)  # some never come, some more than once
    want, table = transcription(float64.initial(sim), cohorts, recipe.__name__, by_rate, by_size)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, want)
    shares = np.array(toys.SIZES) / sum(toys.SIZES) if by_size else np.full(N, 1 / N)
    for leaf, kept in state.memory["LatestUpdates"].items():
        np.testing.assert_allclose(kept, np.stack([table[c][leaf] for c in range(N)]), rtol=1e-8, atol=DOUBLE)
        np.testing.assert_allclose(
            state.server["LatestUpdates"][leaf], np.tensordot(shares, kept, 1), rtol=1e-9, atol=1e-14
        )


def test_a_server_that_keeps_updates_itself_receives_nothing_else():
    sent = [simulation(recipe)._traffic for recipe in (mifa(), fedvarp(), equal_weights())]
    assert sent[0] == sent[1] == sent[2]


@pytest.mark.parametrize("recipe", [mifa(), fedvarp()], ids=lambda recipe: recipe.name)
def test_other_means_and_models_in_part_with_clients_are_refused(recipe):
    for other, message in ((feddisco(), "DiscrepancyWeights, which changes how"), (median(), "Median, which changes")):
        with pytest.raises(ValueError, match=f"{recipe.name}: received {message}"):
            simulation(combine(recipe, other))
    with pytest.raises(ValueError, match=f"{recipe.name}: received OwnHead, whose leaves stay with the clients"):
        simulation(combine(recipe, fedper()))
    with pytest.raises(ValueError, match="mifa and fedvarp both bring LatestUpdates"):
        combine(mifa(), fedvarp())


@pytest.mark.parametrize("recipe", [mifa(), fedvarp()], ids=lambda recipe: recipe.name)
def test_clipped_updates_and_several_trainings_a_round_are_refused(recipe):
    with pytest.raises(ValueError, match=f"{recipe.name}: received execution.broken_clients: clip, .* which aren't"):
        simulation(recipe, execution=dataclasses.replace(float64.EXECUTION, broken_clients="clip"))
    chains = Participation(selector=toys.chosen([[0], [4]], passes=2))
    with pytest.raises(ValueError, match=f"{recipe.name}: received chains of 1 clients that train 2 time"):
        simulation(recipe, participation=chains)


COUNTING_ALL = {
    "mifa": mifa(),
    "mifa by size": mifa(by_size=True),
    "fedvarp": fedvarp(),
    "fedvarp by size": fedvarp(by_size=True),
    "fedau": fedau("average_all"),
    "fedau by size": fedau(by_size=True),
    "scaffold": scaffold(),
    "feddyn": feddyn(adaptive=False),
    "climb": climb(tolerance=0.0, interval=1),
}


@pytest.mark.parametrize("name", quick.only(COUNTING_ALL, "mifa by size", "scaffold"))
def test_means_over_all_clients_leave_out_those_that_cannot_train(name):
    """Three clients without rows are added, and three with less than a batch."""
    own = toys.federation()
    spans = np.split(own.rows, own.offsets[1:-1])
    more = federate(own.images, own.labels, [*spans, *[spans[0][:5], spans[0][:0]] * 3], own.num_classes)
    local = dataclasses.replace(float64.LOCAL, drop_last=True)
    clients = Participation(selector=toys.chosen([[0], [4]], [[7], [4]], [[2], [9]]))
    got, wanted = (
        float64.run(float64.simulation(COUNTING_ALL[name], federation=data, local=local, participation=clients))
        for data in (more._replace(mean=own.mean, std=own.std), own)
    )
    float64.assert_equal(got.variables.params, wanted.variables.params, 1e-12)


def test_a_rate_that_is_not_known_is_refused():
    unknown = LocalTraining(optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="mifa: received an optax transformation as local optimizer"):
        simulation(mifa(), local=unknown)
    simulation(mifa(by_rate=False), local=unknown)
