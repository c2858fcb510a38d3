"""FedACG: against its transcription."""

from functools import partial

import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import network
from methods.steps import descend, moved

from fedjax_bal.recipes import combine, creff, fedacg, fedavg_ft, fedbabu, fednh, rucr

TUNED = partial(fedbabu, fine_tune_epochs=1)

pytestmark = pytest.mark.usefixtures("double")


def simulation(recipe):
    spare = np.setdiff1d(np.arange(len(toys.federation().labels)), toys.federation().rows)
    federation = toys.federation()._replace(auxiliary={"balanced": spare})
    return float64.simulation(recipe, model=network(), federation=federation)


@pytest.mark.slow
def test_fedacg_equals_its_transcription():
    sim = float64.simulation(fedacg(0.7, 0.3))
    weights = float64.initial(sim)
    momentum = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, cohort in float64.cohorts(sim):
        ahead = moved(weights, 0.7, momentum)
        pull = lambda g, w, ahead=ahead: moved(g(w), 0.3, float64.difference(w, ahead))
        mean = float64.mean(float64.by_size(cohort), {c: descend(ahead, c, number, pull)[0] for c in cohort})
        momentum = {k: 0.7 * momentum[k] + mean[k] for k in mean}
        weights = moved(ahead, 1.0, mean)
    state = float64.run(sim)
    float64.assert_equal(state.server["BeforeLookahead"], weights)  # what is evaluated
    float64.assert_equal(state.variables.params, moved(weights, 0.7, momentum))  # what is sent


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (creff, fedacg, "fedacg: received FeatureMatching before it, .*: name fedacg first"),
        (rucr, fedacg, "fedacg: received UnifiedPrototypes before it"),
        (TUNED, fedacg, "fedacg: received ShownHead before it"),
        (TUNED, creff, "creff: received ShownHead before it"),
        (creff, rucr, "rucr: received FeatureMatching before it"),
        (fedavg_ft, fedacg, "fedacg: received RefinedHead"),
        (fedacg, fednh, "fedacg: received PrototypeClassifier"),
    ],
)
def test_models_for_evaluation_that_would_be_replaced_are_refused(before, after, message):
    with pytest.raises(ValueError, match=message):
        simulation(combine(before(), after()))


@pytest.mark.parametrize("after", [creff, rucr, TUNED])
def test_a_classifier_for_evaluation_may_follow(after):
    simulation(combine(fedacg(), after()))
