"""FedExP: against its transcription."""

import pytest
from methods import float64
from methods.steps import descend, moved, norm

from fedjax_bal.recipes import fedexp

pytestmark = pytest.mark.usefixtures("double")


CASES = {
    "further": (fedexp(1e-3), lambda clients, number: 1e-3),
    "as far": (fedexp(10.0), lambda clients, number: 10.0),
    "by client": (fedexp(1e-3, per_client=True, decay=0.5), lambda clients, number: 1e-3 * clients * 0.5**number),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fedexp_equals_its_transcription(name):
    recipe, epsilon = CASES[name]
    sim = float64.simulation(recipe)
    weights, factors = float64.initial(sim), []
    for number, cohort in float64.cohorts(sim):
        changes = {c: descend(weights, c, number, lambda g, w: g(w))[0] for c in cohort}
        shares = float64.by_size(cohort)
        mean = float64.mean(shares, changes)
        spread = sum(shares[c] * norm(changes[c]) ** 2 for c in cohort)
        factors.append(max(1.0, spread / (2 * (norm(mean) ** 2 + epsilon(len(cohort), number)))))
        weights = moved(weights, factors[-1], mean)
    assert (max(factors) > 1) == (name != "as far")
    float64.assert_equal(float64.run(sim).variables.params, weights)
