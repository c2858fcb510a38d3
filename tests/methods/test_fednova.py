"""FedNova: against its transcription, what it amounts to, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import toys
from methods import float64
from rounding import DOUBLE

from fedjax_bal.methods import fednova as MODULE
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.parts import NormalisedAveraging, Weigh, part
from fedjax_bal.recipes import Recipe, combine, fedavg, fednova, fedprox, median, scaffold
from fedjax_bal.types import Cohort, Outputs, Variables

MOMENTUM = dataclasses.replace(float64.OPTIONS, momentum=0.9, weight_decay=0.01)


pytestmark = pytest.mark.usefixtures("double")


@part
class Double(Weigh):
    """Doubles the weight of chains with more than ten samples."""

    def weigh(self, weights, cohort, server):
        return weights * (1 + (cohort.sizes > 10))


def reach(steps, rho, shrink):
    """The authors' counters, step by step."""
    counter = total = 0.0
    for _ in range(steps):
        if rho != 0:
            counter = counter * rho + 1
            total += counter
        if shrink != 0:
            total = total * (1 - shrink) + 1
        if rho == 0 and shrink == 0:
            total += 1
    return total


def transcription(weights, chains_by_round, options, mu=0.0, server_momentum=0.0, favour=lambda n: 1):
    """Algorithm 1 with the authors' tau_eff; a chain is a tuple of clients."""
    buffer = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, chains in chains_by_round:
        shrink = options.rate * options.decay**number * mu
        directions, a, tau = {}, {}, {}
        for chain in chains:
            trained, a[chain], tau[chain] = weights, 0.0, 0
            for client in chain:
                anchor = trained
                pull = lambda grad, y, anchor=anchor: {k: grad[k] + mu * (y[k] - anchor[k]) for k in grad}
                trained, steps = float64.train(anchor, client, number, options, change=pull)
                a[chain] += reach(steps, options.momentum, shrink)
                tau[chain] += steps
            directions[chain] = {k: (weights[k] - trained[k]) / a[chain] for k in weights}
        sizes = {chain: sum(toys.SIZES[c] for c in chain) for chain in chains}
        sizes = {chain: n * favour(n) for chain, n in sizes.items()}
        p = {chain: n / sum(sizes.values()) for chain, n in sizes.items()}
        effective = sum(p[chain] * (tau if mu else a)[chain] for chain in chains)
        step = float64.mean(p, directions)
        buffer = {k: server_momentum * buffer[k] + effective * step[k] for k in buffer}
        weights = {k: weights[k] - buffer[k] for k in weights}
    return weights


CASES = {
    "plain": (fednova(), float64.OPTIONS, {}),
    "all at once": (fednova(0.5, 0.3), MOMENTUM, {"mu": 0.5, "server_momentum": 0.3}),
    "other weights": (
        combine(fednova(), Recipe("double", (Double(),))),
        MOMENTUM,
        {"favour": lambda n: 2 if n > 10 else 1},
    ),
}


@pytest.mark.parametrize("name", quick.only(CASES, "all at once"))
def test_fednova_equals_its_transcription(name):
    recipe, options, knobs = CASES[name]
    sim = float64.simulation(recipe, options)
    lone = [(number, [(c,) for c in cohort]) for number, cohort in float64.cohorts(sim)]
    steps = [{-(-toys.SIZES[c] // 8) for (c,) in chains} for _, chains in lone]
    assert all(len(different) > 1 for different in steps)
    want = transcription(float64.initial(sim), lone, options, **knobs)
    float64.assert_equal(float64.run(sim).variables.params, want)


@pytest.mark.slow
def test_along_a_chain_every_visit_begins_without_momentum():
    chains = [(4, 7), (1, 2), (9, 0)]
    always = {"participation": Participation(selector=toys.chosen(chains))}
    sim = float64.simulation(fednova(mu=0.5), MOMENTUM, **always)
    rounds = [(number, chains) for number in range(float64.ROUNDS)]
    want = transcription(float64.initial(sim), rounds, MOMENTUM, mu=0.5)
    float64.assert_equal(float64.run(sim).variables.params, want)


@pytest.mark.slow
def test_equal_steps_are_fedavg():
    one_batch = dataclasses.replace(MOMENTUM, batch_size=20)
    ends = [float64.run(float64.simulation(recipe, one_batch)).variables.params for recipe in (fednova(), fedavg())]
    float64.assert_equal(*ends, 1e-12)


ACCUMULATED = jax.jit(MODULE.accumulated_steps)


@pytest.mark.parametrize(
    ("rho", "shrink"), [(0.0, 0.0), (0.5, 0.0), (0.99, 0.0), (0.0, 0.02), (0.0, 1.5), (0.9, 2**-10), (0.3, 1.0)]
)
def test_reach_is_the_authors_recurrence(rho, shrink):
    steps = np.array([[0, 1, 2, 3], [7, 64, 1000, 4095]])
    want = np.vectorize(reach)(steps, rho, shrink)
    np.testing.assert_allclose(ACCUMULATED(steps, rho, shrink), want, rtol=1e-10)
    with jax.enable_x64(False):
        short = ACCUMULATED(steps, rho, shrink)
    assert short.dtype == np.float32
    np.testing.assert_allclose(short, want, rtol=2e-6)


def cohort(local_steps, passes=1, momentum=0.9, sizes=(30.0, 10.0)):
    local_steps = jnp.array(local_steps)
    steps = passes * local_steps.sum(1)
    return Cohort(
        jnp.array(sizes), jnp.ones((len(sizes), 2)), steps, local_steps, passes, jnp.array(0.1), momentum,
        steps > 0, 10, jnp.array(100.0),
    )  # fmt: skip


def test_every_pass_counts_and_a_chain_without_steps_does_not():
    weigh = jax.jit(lambda weights, cohort: NormalisedAveraging().weigh(weights, cohort, None))
    weights = weigh(np.array([30.0, 10.0]), cohort([[1, 2], [3, 0]], passes=2))
    np.testing.assert_allclose(weights, [30 / 7.8, 10 / 11.22], rtol=DOUBLE)
    weights = weigh(np.array([30.0, 10.0]), cohort([[0, 0], [3, 0]]))
    np.testing.assert_allclose(weights, [0, 10 / 5.61], rtol=DOUBLE)


@pytest.mark.slow
def test_batch_statistics_are_averaged_as_in_fedavg():
    plain = toys.network()

    def apply(variables, images, *, train, key=None, real=None) -> tuple[Outputs, Variables]:
        outputs, _ = plain.apply(variables, images, train=train)
        return outputs, variables._replace(stats={"mean": 0.5 * variables.stats["mean"] + images.sum()})

    init = lambda key: plain.init(key)._replace(stats={"mean": jnp.zeros(())})
    network = plain._replace(init=init, apply=apply)
    options = {"model": network, "rounds": 1}
    nova, average = (float64.run(float64.simulation(r, MOMENTUM, **options)).variables for r in (fednova(), fedavg()))
    float64.assert_equal(nova.stats, average.stats, 1e-12)
    assert toys.largest_difference(nova.params, average.params) > 1e-3


REFUSED = {
    "adam": (fednova(), optimizer("adam", 0.1), "fednova: received the local optimizer 'adam'"),
    "nesterov": (fednova(), optimizer("sgd", 0.1, momentum=0.5, nesterov=True), "fednova: received nesterov momentum"),
    "fedprox": (combine(fednova(), fedprox(0.1)), optimizer("sgd", 0.1), "give fednova mu=0.1"),
    "lost mu": (
        Recipe("mine", (NormalisedAveraging(0.1),)),
        optimizer("sgd", 0.1),
        "in addition to its own mu=0.1",
    ),
    "median": (combine(fednova(), median()), optimizer("sgd", 0.1), "received Median"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_could_not_normalise_is_refused(name):
    recipe, local, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        float64.simulation(recipe, local=LocalTraining(optimizer=local))


def test_it_goes_with_control_variates():
    float64.simulation(combine(fednova(), scaffold()))
