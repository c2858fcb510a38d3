"""FedAWE: against Algorithm 1 with a model for every client, and what it refuses."""

import numpy as np
import pytest
import quick
import toys
from methods import float64

from fedjax_bal.options import Participation
from fedjax_bal.recipes import combine, equal_weights, fedau, fedawe, fedbuff, fedper, median, scaffold
from fedjax_bal.selection import bernoulli

pytestmark = pytest.mark.usefixtures("double")

N = float64.N
ABSENT = Participation(clients_per_round=6, availability=bernoulli(0.3), delivery=bernoulli(0.6))
simulation = lambda recipe, **changes: float64.simulation(recipe, **{"rounds": 8, "participation": ABSENT} | changes)


def clipped(move, bound):
    """Scaled down to a norm of at most `bound`."""
    norm = np.sqrt(sum((leaf**2).sum() for leaf in move.values()))
    return {k: leaf * min(1, bound / norm) for k, leaf in move.items()}


def transcription(start, cohorts, rate=1.0, bound=np.inf, by_size=False):
    """Algorithm 1, and the clipping of the authors' code."""
    models, last, server, clipping = dict.fromkeys(range(N), start), dict.fromkeys(range(N), -1), start, 0
    for number, cohort in cohorts:
        if not cohort:
            continue
        shares = float64.by_size(cohort) if by_size else dict.fromkeys(cohort, 1 / len(cohort))
        innovations = {}
        for c in cohort:
            change = float64.difference(float64.train(models[c], c, number)[0], models[c])
            innovations[c] = {k: (number - last[c]) * change[k] for k in change}
        whole = float64.mean(shares, innovations)
        move = clipped(whole, bound)
        clipping += not np.allclose(move["w1"], whole["w1"])
        base = float64.mean(shares, {c: models[c] for c in cohort})
        server = {k: base[k] + rate * move[k] for k in base}
        models |= dict.fromkeys(cohort, server)
        last |= dict.fromkeys(cohort, number)
    return server, models, last, clipping


CASES = {
    "paper": (fedawe(), {}),
    "code": (fedawe(0.8, clip=0.5), {"rate": 0.8, "bound": 0.5}),
    "by size": (fedawe(by_size=True), {"by_size": True}),
}


@pytest.mark.parametrize("name", quick.only(CASES, "code"))
def test_fedawe_equals_its_transcription(name):
    recipe, knobs = CASES[name]
    sim = simulation(recipe)
    cohorts = float64.cohorts(sim)
    server, models, last, clipping = transcription(float64.initial(sim), cohorts, **knobs)
    assert -1 in last.values() and len(set(last.values())) > 3
    assert 0 < clipping < len(cohorts) or name != "code"
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, server)
    kept = state.memory["EchoedInnovation"]
    assert kept.round.tolist() == [last[c] for c in range(N)]
    for leaf, own in kept.variables.params.items():
        want = np.stack([models[c][leaf] for c in range(N)])
        np.testing.assert_allclose(own, want, rtol=0, atol=1e-9 * np.abs(want).max())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([fedawe(), scaffold()], "fedawe: received ControlVariates, whose control variates take"),
        ([fedawe(), fedau()], "received AbsenceWeights, which"),
        ([fedawe(), fedper()], "fedawe: received OwnHead, whose leaves stay with the clients"),
        ([fedawe(clip=0.5), median()], "fedawe: received Median, which makes one update of all"),
        ([fedawe(clip=0.5), equal_weights()], "fedawe: received clip with EqualWeights"),
        ([fedawe(clip=0.5, by_size=True)], "fedawe: received clip with by_size"),
        ([fedawe(), fedbuff()], "fedawe: received StalenessWeights, which scales"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        simulation(combine(*given))


@pytest.mark.parametrize(("size", "passes"), [(2, 1), (1, 2)])
def test_chains_are_refused(size, passes):
    chains = Participation(selector=toys.chosen([[0, 4][:size]], passes=passes))
    with pytest.raises(ValueError, match=f"fedawe: received chains of {size} clients that train {passes} time"):
        simulation(fedawe(), participation=chains)
