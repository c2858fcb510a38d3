"""Median, trimmed mean, Krum and norm clipping: against their transcriptions."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from methods import float64, hand
from methods.steps import norm
from rounding import DOUBLE

from fedjax_bal.parts import Krum, Median, NormClipping, TrimmedMean
from fedjax_bal.recipes import climb, combine, dp, feddisco, krum, median, multi_krum, norm_clipping, trimmed_mean

pytestmark = pytest.mark.usefixtures("double")


def trimmed(stack, share):
    """The mean without the floor(share * count) smallest and largest of each coordinate."""
    cut = int(share * len(stack))
    return np.sort(stack, axis=0)[cut : len(stack) - cut].mean(0)


def best(vectors, clients, faulty):
    """Places of the vectors by Krum's score, the lowest first; of equal ones that of the smallest number."""
    scores = []
    for i, vector in enumerate(vectors):
        squares = sorted(((vector - other) ** 2).sum() for j, other in enumerate(vectors) if j != i)
        scores.append(sum(squares[: max(len(vectors) - faulty - 2, 1)]))
    return sorted(range(len(vectors)), key=lambda i: (scores[i], clients[i]))


KRUM = {  # they differ in numbers only and share a program
    "krum": (krum(1), 1, lambda n: 1),
    "krum without faults": (krum(0), 0, lambda n: 1),
    "two kept": (multi_krum(2, 2), 2, lambda n: 2),
}


@pytest.mark.parametrize("name", KRUM)
def test_krum_equals_its_transcription(name):
    recipe, faulty, kept = KRUM[name]
    sim = float64.simulation(recipe)
    weights, left_out = float64.initial(sim), 0
    for number, cohort in float64.cohorts(sim):
        deltas = [float64.difference(float64.train(weights, c, number)[0], weights) for c in cohort]
        places = best([np.concatenate([leaf.ravel() for leaf in d.values()]) for d in deltas], cohort, faulty)
        places = places[: kept(len(cohort))]
        left_out += len(cohort) - len(places)
        weights = {k: weights[k] + np.mean([deltas[i][k] for i in places], axis=0) for k in weights}
    assert left_out > 0
    float64.assert_equal(float64.run(sim).variables.params, weights)


def among(clients):
    """What Krum asks of the server."""
    return SimpleNamespace(cohort=SimpleNamespace(clients=clients[:, None]))


REDUCE = jax.jit(lambda part, deltas, weights, clients: part.reduce(deltas, weights, among(clients)))


def reduced(part, stack, weights, clients=None):
    """What a part makes of the updates of some clients."""
    clients = np.arange(len(stack)) if clients is None else clients
    return np.asarray(REDUCE(part, np.asarray(stack, float), np.asarray(weights, float), np.asarray(clients)))


def test_krum_sees_nothing_of_those_that_do_not_count_and_survives_the_huge():
    deltas = [[1e200, 0.0], [np.nan, 1.0], [1.0, 1.0], [1.5, 1.0], [3.0, 1.0], [0.0, 1.0]]
    weights = [0.5, 0.0, 0.1, 0.2, 0.1, 0.1]
    # Of five, each has two neighbours: the scores are inf, 1.25, 2.5, 6.25 and 3.25.
    for kept, mean in ((1, 1.0), (2, 1.25), (3, 2.5 / 3), (4, 5.5 / 4), (None, 5.5 / 4)):
        np.testing.assert_allclose(reduced(Krum(1, kept), deltas, weights), [mean, 1.0], rtol=DOUBLE)
    assert reduced(Krum(1, None), deltas, [0, 0, 0, 0, 1, 0]).tolist() == [3.0, 1.0]


def test_krum_with_all_kept_is_the_unweighted_mean_and_with_one_the_first_of_two():
    stack = hand.draw(6, 2)
    np.testing.assert_allclose(reduced(Krum(2, 6), stack, range(1, 7)), stack.mean(0), rtol=DOUBLE)
    for clients in ([5, 3, 0, 1, 2, 4], [3, 5, 0, 1, 2, 4]):
        found = reduced(Krum(0, 1), stack, [1, 1, 0, 0, 0, 0], clients)
        np.testing.assert_array_equal(found, stack[clients.index(3)])


@pytest.mark.slow
def test_rounds_of_norm_clipping_equal_their_transcription():
    sim = float64.simulation(norm_clipping(0.9, adaptive=True))
    weights, cut = float64.initial(sim), []
    for number, cohort in float64.cohorts(sim):
        deltas = {c: float64.difference(float64.train(weights, c, number)[0], weights) for c in cohort}
        norms = {c: norm(delta) for c, delta in deltas.items()}
        most = 0.9 * np.median(list(norms.values()))
        shares = {c: share * min(1.0, most / norms[c]) for c, share in float64.by_size(cohort).items()}
        weights = float64.plus(weights, float64.mean(shares, deltas))
        cut += [norm > most for norm in norms.values()]
    assert any(cut) and not all(cut)
    float64.assert_equal(float64.run(sim).variables.params, weights)


def test_norm_clipping_sees_nothing_of_those_that_do_not_count():
    deltas, weights = [[3.0, 4.0], [np.nan, 1.0], [0.0, 0.0], [0.6, 0.8]], [0.5, 0.0, 0.25, 0.25]
    # The median of the norms 5, 0 and 1 is 1.
    for part in (NormClipping(2.0), NormClipping(2.0, True)):
        np.testing.assert_allclose(reduced(part, deltas, weights), [0.75, 1.0], rtol=DOUBLE)
    assert reduced(NormClipping(1.0, True), deltas, np.zeros(4)).tolist() == [0.0, 0.0]


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.49]))
def test_robust_means_look_at_those_that_count(seed, counted, share):
    rng = np.random.default_rng(seed)
    stack = rng.normal(size=(9, 3))
    there = rng.permutation(9) < counted
    weights = np.where(there, rng.random(9) + 0.01, 0.0)
    np.testing.assert_allclose(reduced(Median(), stack, weights), np.median(stack[there], axis=0), rtol=DOUBLE)
    found = reduced(TrimmedMean(share), stack, weights)
    np.testing.assert_allclose(found, trimmed(stack[there], share), rtol=1e-10, atol=1e-13)


def test_shares_are_taken_as_they_are_written_and_leave_somebody():
    stack = np.arange(100.0)[:, None] ** 2
    for share, cut in ((0.29, 29), (0.07, 7), (0.5, 49)):
        want = stack[cut : 100 - cut].mean(0)
        np.testing.assert_allclose(reduced(TrimmedMean(share), stack, np.ones(100)), want, rtol=DOUBLE)
    assert reduced(TrimmedMean(0.499999), stack, np.arange(100) < 2).tolist() == [0.5]


@pytest.mark.parametrize("weights", [climb, feddisco])
@pytest.mark.parametrize("mean", [median, trimmed_mean, krum, multi_krum, dp])
def test_weights_that_would_not_count_are_refused(weights, mean):
    with pytest.raises(ValueError, match=f"{weights.__name__}: received {mean().parts[0].slot}, which ignores how"):
        float64.simulation(combine(weights(), mean()))
    float64.simulation(combine(weights(), norm_clipping()))


@pytest.mark.parametrize("part", [Median(), TrimmedMean(0.2), Krum(2, 3)], ids=["median", "trimmed", "krum"])
def test_identical_updates_are_kept_and_none_are_zeros(part):
    stack = np.broadcast_to(hand.draw(2), (6, 2))
    np.testing.assert_allclose(reduced(part, stack, np.ones(6)), stack[0], rtol=1e-15)
    assert not reduced(part, stack, np.zeros(6)).any()
