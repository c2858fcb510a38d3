"""CLIMB: against its transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.hand import softmax
from rounding import DOUBLE

from fedjax_bal.parts import DualWeights
from fedjax_bal.recipes import climb, combine, feddisco, scaffold
from fedjax_bal.types import Aggregate, Cohort, ServerContext

pytestmark = pytest.mark.usefixtures("double")


def server(**given):
    """A server's context."""
    return ServerContext(**(dict.fromkeys(ServerContext._fields) | given))


def cohort_of(clients, steps, sizes):
    """A cohort of chains."""
    given = {"clients": jnp.array(clients), "local_steps": jnp.array(steps), "sizes": jnp.array(sizes, float)}
    given["num_clients"] = jnp.array(4)
    return Cohort(**(dict.fromkeys(Cohort._fields) | given))


def test_weights_of_chains_are_made_of_their_clients_variables():
    state = jnp.array([0.0, 4.0, 1.0, 3.0])  # the mean is 2
    cohort = cohort_of([[1, 2], [3, 4], [0, 4], [2, 1]], [[3, 3], [5, 0], [1, 0], [0, 0]], [12, 7, 5, 0])
    found = jax.jit(lambda cohort, state: DualWeights().weigh(jnp.ones(4), cohort, server(state=state)))(cohort, state)
    np.testing.assert_allclose(found, [1 + 2.5 - 2, 1 + 3 - 2, 0, 0])


def test_variables_move_every_few_rounds_and_for_those_that_deliver():
    part, state = DualWeights(2.0, 0.1, 3), jnp.array([99.9, 0.0, 0.5, 0.01])
    losses = jnp.array([[2.0], [jnp.nan], [3.0], [1.0], [6.0]])
    cohort = cohort_of([[2], [1], [3], [4], [0]], [[1]] * 5, [1] * 5)
    losses = losses.at[3].set(jnp.nan)  # an empty place
    mean = (2 + 3 + 6) / 3
    moved = {0: min(99.9 + 2 * (6 - mean - 0.1) / 4, 100), 1: 0.0, 2: max(0.5 + 2 * (2 - mean - 0.1) / 4, 0), 3: 0.0}
    aggregate, update = Aggregate(None, {}, None, cohort, losses), jax.jit(lambda seen: part.update(None, seen))
    for number in range(6):
        seen = server(round=jnp.array(number), state=state, aggregate=aggregate, cohort=cohort)
        wanted = [moved[c] for c in range(4)] if number % 3 == 2 else state
        np.testing.assert_allclose(update(seen), wanted, rtol=DOUBLE)


@pytest.mark.parametrize(("other", "slot"), [(scaffold, "ControlVariates"), (feddisco, "DiscrepancyWeights")])
def test_other_weights_are_refused(other, slot):
    with pytest.raises(ValueError, match=f"climb: received {slot}, which weighs clients, too"):
        float64.simulation(combine(climb(), other()))


@pytest.mark.slow
def test_climb_equals_its_transcription():
    options, data, rate, tolerance = float64.OPTIONS, toys.federation(), 30.0, 0.05
    sim = float64.simulation(climb(rate, tolerance, 1))
    weights, dual = float64.initial(sim), np.zeros(float64.N)
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        shares = {c: max(1 + dual[c] - dual.mean(), 0) for c in cohort}
        total, losses, changes = sum(shares.values()), {}, {}
        for client in cohort:
            w, seen = dict(weights), []
            for rows in reference.draws(data, float64.SEED, number, client, options):
                logits, labels = reference.forward(w, flat[rows])[1], data.labels[rows]
                seen.append(np.mean([-np.log(softmax(z)[y]) for z, y in zip(logits, labels, strict=True)]))
                slopes = float64.gradient(w, flat[rows], labels)
                w = {k: w[k] - options.rate * options.decay**number * slopes[k] for k in w}
            changes[client], losses[client] = float64.difference(w, weights), np.mean(seen)
        weights = float64.plus(weights, float64.mean({c: s / total for c, s in shares.items()}, changes))
        for client in cohort:
            further = losses[client] - np.mean(list(losses.values())) - tolerance
            dual[client] = np.clip(dual[client] + rate * further / float64.N, 0, 100)
    assert dual.max() > 0.1
    state = float64.run(sim)
    np.testing.assert_allclose(state.server["DualWeights"], dual, rtol=1e-9)
    float64.assert_equal(state.variables.params, weights)
