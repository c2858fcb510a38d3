"""FedAU and the two weightings that it replaces: against the loop of Algorithm 1, and what they refuse."""

import numpy as np
import pytest
import quick
import toys
from methods import float64
from rounding import DOUBLE

from fedjax_bal.options import Participation
from fedjax_bal.recipes import (
    combine,
    equal_weights,
    fedau,
    fedbuff,
    fednova,
    median,
    scaffold,
)
from fedjax_bal.selection import bernoulli

pytestmark = pytest.mark.usefixtures("double")

N = float64.N
ABSENT = Participation(clients_per_round=4, availability=bernoulli(0.3), delivery=bernoulli(0.5))
"""Of ten clients about one delivers: some rounds have none, and some clients wait for long."""
ROUNDS = 12
GIVEN = {"rounds": ROUNDS, "participation": ABSENT}
simulation = lambda recipe, **changes: float64.simulation(recipe, **GIVEN | changes)


def weights_of_intervals(history, cutoff):
    """Algorithm 2 for one client: the weights with which it would take part in each round, given whether it did."""
    weights, intervals, length = [], [], 0
    for takes_part in history:
        weights.append(np.mean(intervals) if intervals else 1.0)
        length += 1
        if takes_part or length == cutoff:
            intervals.append(length)
            length = 0
    return weights


def transcription(start, cohorts, factor, by_size=False):
    """The server adds the scaled changes of those who take part, divided by the number of all clients."""
    weights, sizes = start, np.array(toys.SIZES) / sum(toys.SIZES) if by_size else np.full(N, 1 / N)
    for number, cohort in cohorts:
        received = weights
        for client in cohort:
            change = float64.difference(float64.train(received, client, number)[0], received)
            weights = {k: weights[k] + sizes[client] * factor(client, number) * change[k] for k in weights}
    return weights


def adaptive(cohorts, cutoff):
    """The factors of Algorithm 2."""
    table = [weights_of_intervals([c in cohort for _, cohort in cohorts], cutoff) for c in range(N)]
    return lambda client, number: table[client][number]


CASES = {
    "cutoff": (fedau(cutoff=3), lambda cohorts: adaptive(cohorts, 3), False),
    "no cutoff, by size": (fedau(cutoff=None, by_size=True), lambda cohorts: adaptive(cohorts, None), True),
    "known": (fedau("known_prob", probabilities=[0.5, 0.1, 1.0]), lambda _: lambda c, _: [2, 10, 1][c % 3], False),
    "all": (fedau("average_all"), lambda _: lambda *_: 1.0, False),
}


@pytest.mark.parametrize("name", quick.only(CASES, "cutoff"))
def test_fedau_equals_its_transcription(name):
    recipe, factor, by_size = CASES[name]
    sim = simulation(recipe)
    cohorts = float64.cohorts(sim)
    assert any(not cohort for _, cohort in cohorts[:-1]) and any(len(cohort) > 1 for _, cohort in cohorts)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, transcription(float64.initial(sim), cohorts, factor(cohorts), by_size))
    if name == "cutoff":
        unlimited = transcription(float64.initial(sim), cohorts, adaptive(cohorts, None))
        assert np.abs(state.variables.params["w1"] - unlimited["w1"]).max() > 1e-4  # somebody was away for so long
        kept = state.server["AbsenceWeights"]
        # The intervals of a client and its wait until now add up to all rounds.
        np.testing.assert_array_equal(kept.total + kept.waited, np.full(N, float(ROUNDS)))


@pytest.mark.slow
def test_weights_that_ignore_sizes_combine_in_any_order():
    all_three = [scaffold(), fedau(cutoff=3), equal_weights()]
    orders = (all_three, all_three[::-1], all_three[:2])  # scaffold gives all updates the same weight itself
    first, *others = (float64.run(simulation(combine(*order))).variables.params for order in orders)
    for other in others:
        float64.assert_equal(other, first, DOUBLE)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (fednova(), "fedau: received NormalisedAveraging, which also weights updates and changes their mean"),
        (fedbuff(), "received (AbsenceWeights|StalenessWeights), which also weights updates"),
        (median(), "fedau: received Median, which ignores how much updates weigh"),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_other_means_are_refused(other, message):
    with pytest.raises(ValueError, match=message):
        simulation(combine(fedau(), other))


def test_what_contradicts_itself_is_refused():
    for given in ({"weighting": "known_prob"}, {"probabilities": [0.5]}):
        with pytest.raises(ValueError, match="fedau: probabilities: received .* with weighting='"):
            fedau(**given)
    with pytest.raises(ValueError, match="fedau: received by_size with EqualWeights, which gives all updates"):
        simulation(combine(fedau(by_size=True), equal_weights()))
