"""Local Muon and FedMuon: against transcriptions that take polynomials of singular values."""

import jax
import numpy as np
import pytest
import toys
from methods import float64, hand, heads

from fedjax_bal.methods.fedmuon import orthogonalised
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import LocalTraining
from fedjax_bal.recipes import fedavg, fedmuon, local_muon

pytestmark = pytest.mark.usefixtures("double")


def direction(matrix, iterations):
    """Newton-Schulz's polynomial of the singular values, scaled by the sides; a column is an output."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(iterations):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return np.sqrt(max(1.0, matrix.shape[1] / matrix.shape[0])) * (u * s) @ v


class Client:
    """Muon of one local training, for the network of `heads`; `momenta` are of its matrices."""

    def __init__(self, momenta, beta, scale, nesterov, blend=lambda name, own: own):
        self.momenta, self.beta, self.scale, self.nesterov, self.blend = dict(momenta), beta, scale, nesterov, blend
        self.first, self.second, self.count = 0.0, 0.0, 0

    def __call__(self, grads, weights):
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * grads["bias"]
        self.second = 0.95 * self.second + 0.05 * grads["bias"] ** 2
        corrected = self.first / (1 - 0.9**self.count), self.second / (1 - 0.95**self.count)
        found = {"bias": corrected[0] / (np.sqrt(corrected[1]) + 1e-10)}
        for name in ("body", "kernel"):
            self.momenta[name] = self.beta * self.momenta[name] + (1 - self.beta) * grads[name]
            ahead = self.beta * self.momenta[name] + (1 - self.beta) * grads[name]
            found[name] = self.scale * direction(ahead if self.nesterov else self.momenta[name], 5)
        return {name: self.blend(name, own) for name, own in found.items()}


def zeros(weights):
    return {name: np.zeros_like(leaf) for name, leaf in weights.items()}


def train(weights, client, number, muon):
    """A local training: the change, and how many steps it took."""
    after, steps = float64.train(weights, client, number, change=muon, gradient=heads.gradient)
    return float64.difference(after, weights), steps


@pytest.mark.slow
def test_local_muon_equals_its_transcription():
    sim = float64.simulation(local_muon(0.8, 0.3), model=heads.network())
    weights = heads.flat(float64.initial(sim))
    for number, cohort in float64.cohorts(sim):
        deltas = {c: train(weights, c, number, Client(zeros(weights), 0.8, 0.3, True))[0] for c in cohort}
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), deltas))
    float64.assert_equal(heads.flat(float64.run(sim).variables.params), weights)


@pytest.mark.parametrize("nesterov", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_fedmuon_equals_its_transcription(nesterov):
    alignment, beta = 0.4, 0.7
    sim = float64.simulation(fedmuon(alignment, beta, 0.5, nesterov), model=heads.network())
    weights = heads.flat(float64.initial(sim))
    momenta, last = zeros(weights), zeros(weights)
    for number, cohort in float64.cohorts(sim):
        rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
        blend = lambda name, own, last=last: (1 - alignment) * own + alignment * last[name]
        clients = {c: Client(momenta, beta, 0.5, nesterov, blend) for c in cohort}
        results = {c: train(weights, c, number, clients[c]) for c in cohort}
        shares = float64.by_size(cohort)
        delta = float64.mean(shares, {c: change for c, (change, _) in results.items()})
        steps = sum(shares[c] * results[c][1] for c in cohort)
        last = {name: -leaf / (rate * steps) for name, leaf in delta.items()}
        momenta = {name: np.mean([clients[c].momenta[name] for c in cohort], axis=0) for name in weights}
        weights = float64.plus(weights, delta)
    state = float64.run(sim)
    float64.assert_equal(heads.flat(state.variables.params), weights)
    found = heads.as_numpy(state.server["LocalMuon"])
    float64.assert_equal({"body": found["body"], "kernel": found["head"]["kernel"]}, {
        name: momenta[name] for name in ("body", "kernel")
    })  # fmt: skip
    assert found["head"]["bias"] is None  # Adam's moments stay with the client


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (2, 3, 4, 5), (1, 4)])
def test_a_convolution_is_a_matrix_with_a_column_for_each_output(shape):
    array = hand.draw(*shape)
    found = jax.jit(orthogonalised, static_argnums=1)(array, 4).reshape(-1, shape[-1])
    np.testing.assert_allclose(found, direction(np.asarray(array, float).reshape(-1, shape[-1]), 4), rtol=1e-9)
    assert not np.any(orthogonalised(np.zeros(shape), 4))


@pytest.mark.slow
def test_without_nesterov_s_form_local_muon_is_optax_s_on_matrices():
    muon = optimizer("muon", 0.1, decay=0.9, beta=0.8, nesterov=False)
    local = LocalTraining(epochs=2, batch_size=8, optimizer=muon)
    optax_s = float64.run(float64.simulation(fedavg(), local=local)).variables.params
    ours = float64.run(float64.simulation(local_muon(0.8, nesterov=False))).variables.params
    assert toys.largest_difference(optax_s, ours) < 1e-5  # 1e-8 and 1e-7 are added to norms


def test_a_momentum_of_the_local_optimizer_is_refused():
    heavy = LocalTraining(optimizer=optimizer("sgd", 0.1, momentum=0.9))
    with pytest.raises(ValueError, match="muon: received a local momentum of 0.9"):
        float64.simulation(local_muon(), local=heavy)
