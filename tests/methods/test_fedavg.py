"""The first recipes against their NumPy transcription in float64, over rounds with dropout and ragged clients."""

import dataclasses

import jax
import numpy as np
import pytest
import quick
import reference
import toys
from methods import float64

from fedjax_bal import recipes
from fedjax_bal.options import Participation
from fedjax_bal.selection import bernoulli

ROUNDS = 4


pytestmark = pytest.mark.usefixtures("double")


TRANSFER = {"mu": 0.7, "epsilon": 0.05, "scale": 0.8}
MOMENTUM = {"momentum": 0.5, "weight_decay": 0.01, "decay": 0.9}

CASES = {
    "fedavg, momentum, weight decay, decaying rate": (recipes.fedavg(), MOMENTUM),
    "fedprox": (recipes.fedprox(0.3), {"prox": 0.3, **MOMENTUM}),
    "scaffold, momentum": (
        recipes.scaffold(scaffold_momentum=True),
        {"scaffold": True, "scaffold_momentum": True, "momentum": 0.5},
    ),
    "balanced_softmax": (recipes.balanced_softmax(), {"prior_epsilon": 0.0}),
    "rebafl": (
        recipes.rebafl(epsilon=0.05, mu=0.7, scale=0.8),
        {"prior_epsilon": 0.05, "transfer": TRANSFER, **MOMENTUM},
    ),
    "scaffold+rebafl+fedprox": (
        recipes.combine(recipes.scaffold(), recipes.rebafl(0.05, 0.7, 0.8), recipes.fedprox(0.3)),
        {"scaffold": True, "prior_epsilon": 0.05, "transfer": TRANSFER, "prox": 0.3},
    ),
}


CLIENTS = Participation(clients_per_round=5, availability=bernoulli(0.7), delivery=bernoulli(0.8))


@pytest.mark.parametrize("name", quick.only(CASES, "scaffold+rebafl+fedprox"))
def test_recipe_equals_transcription(name):
    recipe, changes = CASES[name]
    options = reference.Options(**changes)
    execution = dataclasses.replace(float64.EXECUTION, rounds_per_dispatch=2)
    sim = float64.simulation(recipe, options, rounds=ROUNDS, participation=CLIENTS, execution=execution)
    weights = float64.initial(sim)
    zeros = {k: np.zeros_like(v) for k, v in weights.items()}
    server = reference.Server(weights, zeros, dict.fromkeys(range(float64.N), zeros))
    for number, cohort in float64.cohorts(sim):
        server = reference.run_round(toys.federation(), float64.SEED, number, cohort, server, options)
    state = float64.run(sim)
    for k, expected in server.weights.items():
        np.testing.assert_allclose(state.variables.params[k], expected, rtol=1e-8, atol=1e-10)
    for slot, control in state.server.items():
        if slot == "ControlVariates":
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9), control, server.control)
        if slot == "FeatureTransfer":
            present = [c in server.prototypes for c in range(toys.CLASSES)]
            assert control.present.tolist() == present
            for c, mean in server.prototypes.items():
                np.testing.assert_allclose(control.means[c], mean, rtol=1e-8, atol=1e-10)
