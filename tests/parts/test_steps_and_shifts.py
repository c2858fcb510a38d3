"""FedExP, FedACG, FedCM and the methods that take gradients elsewhere: against their transcriptions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from parts import float64, hand

from fedjax_bal.methods.fedlesam import LastReceived
from fedjax_bal.optim import optimizer
from fedjax_bal.options import LocalTraining
from fedjax_bal.parts import Ascent, DynamicRegularisation, GlobalAscent
from fedjax_bal.recipes import combine, fedacg, fedcm, fedexp, fedlesam, fedsam, fedspeed, local, mofedsam
from fedjax_bal.types import Aggregate, ServerContext

pytestmark = pytest.mark.usefixtures("double")


def norm(tree):
    """Over all parameters."""
    return np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))


def moved(weights, scale, direction):
    """Weights plus a multiple of a direction."""
    return {k: weights[k] + scale * direction[k] for k in weights}


def gradients(weights, client, number, options):
    """For each local step, the gradient of the mean cross-entropy as a function of the weights."""
    data = toys.federation()
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for rows in reference.draws(data, float64.SEED, number, client, options):
        yield lambda at, rows=rows: float64.gradient(at, flat[rows], data.labels[rows])


def descend(received, client, number, direction, options=float64.OPTIONS):
    """Local training along `direction(gradient function, weights)`: the change, and the number of steps."""
    weights, rate, steps = dict(received), options.rate * options.decay**number, 0
    for gradient in gradients(received, client, number, options):
        weights = moved(weights, -rate, direction(gradient, weights))
        steps += 1
    return float64.difference(weights, received), steps


@pytest.mark.parametrize("scale", [1.0, 0.01], ids=["further", "as far"])
@pytest.mark.parametrize(("options", "epsilon"), [({}, 0.1), ({"per_client": True, "decay": 0.5}, 3 * 0.1 * 0.5**2)])
def test_the_step_of_fedexp_equals_its_transcription(scale, options, epsilon):
    shares = np.array([0.5, 0.3, 0.0, 0.2])
    updates = [{"a": scale * hand.draw(3, seed=s), "b": scale * hand.draw(2, 2, seed=s + 9)} for s in range(4)]
    mean = {k: sum(p * u[k] for p, u in zip(shares, updates, strict=True)) for k in "ab"}
    spread = sum(p * norm(u) ** 2 for p, u in zip(shares, updates, strict=True))
    factor = max(1.0, spread / (2 * (norm(mean) ** 2 + epsilon)))
    assert (factor > 1) == (scale == 1)
    updates[2]["a"][:] = np.nan  # it doesn't count
    deltas = {k: jnp.stack([jnp.asarray(u[k]) for u in updates]) for k in "ab"}
    aggregate = Aggregate(mean, {}, jnp.array(shares), None, deltas=deltas)
    server = ServerContext(**(dict.fromkeys(ServerContext._fields) | {"aggregate": aggregate, "round": 2}))
    (part,) = fedexp(0.1, **options).parts
    for name, leaf in part.step(mean, server)[0].items():
        np.testing.assert_allclose(leaf, factor * mean[name], rtol=1e-12)


def ascent(rho):
    """The gradient at w + rho g / |g|."""
    return lambda gradient, w: gradient(moved(w, rho / (norm(gradient(w)) + 1e-7), gradient(w)))


def test_shifts_equal_their_transcriptions():
    params, grads, start, last = (hand.weights(seed) for seed in range(4))
    ctx = hand.context(start=hand.variables(2), memory={"GlobalAscent": LastReceived(last, jnp.array(True))})
    back = float64.difference(last, start)
    found = [Ascent(0.3).shift(params, grads, ctx), GlobalAscent(0.3).shift(params, None, ctx)]
    wanted = [moved(params, 0.3 / norm(grads), grads), moved(params, 0.3 / norm(back), back)]
    for own, other in zip(found, wanted, strict=True):
        float64.assert_equal(jax.tree.map(np.asarray, own), other, 1e-6)
    new = hand.context(start=hand.variables(2), memory={"GlobalAscent": GlobalAscent().init_memory(hand.variables(0))})
    for name, leaf in GlobalAscent(0.3).shift(params, None, new).items():
        np.testing.assert_array_equal(leaf, params[name])


def test_the_penalty_of_fedspeed_is_added_where_the_client_is():
    params, grads, start, own = (hand.weights(seed) for seed in range(4))
    part = fedspeed(weight=0.2, clip=None).parts[1]
    ctx = hand.context(start=hand.variables(2), memory={part.slot: own})
    found = part.gradient(grads, params, ctx)
    wanted = {k: grads[k] + 0.2 * (params[k] - start[k] + own[k]) for k in grads}
    float64.assert_equal(jax.tree.map(np.asarray, found), wanted, 1e-12)
    assert part.loss(None, None, params, ctx) == 0
    inside = DynamicRegularisation(0.2, False, None)
    slope = jax.grad(lambda y: inside.loss(None, None, y, ctx))(params)
    for k in grads:
        np.testing.assert_allclose(slope[k], wanted[k] - grads[k], rtol=1e-9)


# Whole runs.


def assert_run(recipe, weights, sim=None):
    float64.assert_equal(float64.run(sim or float64.simulation(recipe)).variables.params, weights)


@pytest.mark.slow
def test_fedexp_equals_its_transcription():
    recipe = fedexp(1e-3)
    sim = float64.simulation(recipe)
    weights, factors = float64.initial(sim), []
    for number, cohort in float64.cohorts(sim):
        changes = {c: descend(weights, c, number, lambda g, w: g(w))[0] for c in cohort}
        shares = float64.by_size(cohort)
        mean = float64.mean(shares, changes)
        spread = sum(shares[c] * norm(changes[c]) ** 2 for c in cohort)
        factors.append(max(1.0, spread / (2 * (norm(mean) ** 2 + 1e-3))))
        weights = moved(weights, factors[-1], mean)
    assert max(factors) > 1
    assert_run(recipe, weights, sim)


@pytest.mark.slow
def test_fedacg_equals_its_transcription():
    recipe = fedacg(0.7, 0.3)
    sim = float64.simulation(recipe)
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


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_fedcm_and_mofedsam_equal_their_transcription(rho):
    recipe = mofedsam(rho, 0.4) if rho else fedcm(0.4)
    sim = float64.simulation(recipe)
    weights = float64.initial(sim)
    momentum = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, cohort in float64.cohorts(sim):
        own = ascent(rho) if rho else lambda g, w: g(w)

        def mixed(g, w, m=momentum, own=own):
            return {k: 0.4 * own(g, w)[k] + 0.6 * m[k] for k in w}

        trained, shares = {c: descend(weights, c, number, mixed) for c in cohort}, float64.by_size(cohort)
        mean = float64.mean(shares, {c: change for c, (change, _) in trained.items()})
        steps = sum(shares[c] * count for c, (_, count) in trained.items())
        rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
        momentum = {k: -mean[k] / (steps * rate) for k in mean}
        weights = moved(weights, 1.0, mean)
    assert_run(recipe, weights, sim)


@pytest.mark.slow
def test_fedsam_equals_its_transcription():
    recipe = fedsam(0.3)
    sim = float64.simulation(recipe)
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        changes = {c: descend(weights, c, number, ascent(0.3))[0] for c in cohort}
        weights = moved(weights, 1.0, float64.mean(float64.by_size(cohort), changes))
    assert_run(recipe, weights, sim)


@pytest.mark.slow
def test_fedlesam_equals_its_transcription():
    recipe = fedlesam(0.3)
    sim = float64.simulation(recipe)
    weights, last, again = float64.initial(sim), {}, 0
    for number, cohort in float64.cohorts(sim):
        changes = {}
        for c in cohort:
            back = float64.difference(last[c], weights) if c in last else None
            again += c in last

            def direction(g, w, back=back):
                return g(w) if back is None else g(moved(w, 0.3 / (norm(back) + 1e-7), back))

            changes[c] = descend(weights, c, number, direction)[0]
            last[c] = weights
        weights = moved(weights, 1.0, float64.mean(float64.by_size(cohort), changes))
    assert again
    assert_run(recipe, weights, sim)


@pytest.mark.slow
def test_fedspeed_equals_its_transcription():
    recipe = fedspeed(0.3, 0.2, None)
    sim = float64.simulation(recipe)
    weights = float64.initial(sim)
    drift = {c: {k: np.zeros_like(v) for k, v in weights.items()} for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        changes = {}
        for c in cohort:

            def direction(g, w, own=drift[c], start=weights):
                uphill = ascent(0.3)(g, w)
                return {k: uphill[k] + 0.2 * (w[k] - start[k] + own[k]) for k in w}

            changes[c] = descend(weights, c, number, direction)[0]
        for c in cohort:
            drift[c] = moved(drift[c], 1.0, changes[c])
        mean = {k: np.mean([changes[c][k] for c in cohort], axis=0) for k in weights}
        weights = {k: weights[k] + mean[k] + np.mean([drift[c][k] for c in drift], axis=0) for k in weights}
    assert_run(recipe, weights, sim)


def test_what_means_nothing_together_is_refused():
    with pytest.raises(ValueError, match="Ascent and GlobalAscent both choose where a gradient is taken"):
        combine(fedspeed(), fedlesam())
    with pytest.raises(ValueError, match="fedsam and mofedsam both bring Ascent"):
        combine(fedsam(), mofedsam())
    with pytest.raises(ValueError, match="mofedsam and fedcm both bring ClientMomentum"):
        combine(mofedsam(), fedcm())
    with pytest.raises(ValueError, match="fedcm: received the local optimizer 'adam'"):
        float64.simulation(fedcm(), local=LocalTraining(optimizer=optimizer("adam", 0.01)))
    with pytest.raises(ValueError, match="fedcm: received OwnModel, whose leaves stay with the clients"):
        float64.simulation(combine(fedcm(), local()), local=LocalTraining(optimizer=optimizer("sgd", 0.01)))


def test_fedlesam_neither_moves_nor_counts_what_is_not_trained():
    start, last = hand.weights(2), hand.weights(3)
    memory = {"GlobalAscent": LastReceived(last, jnp.array(True))}
    ctx = hand.context(start=hand.variables(2), memory=memory, trained={"w1": jnp.array(True), "w2": False})
    found, back = GlobalAscent(0.3).shift(start, None, ctx), last["w1"] - start["w1"]
    np.testing.assert_allclose(found["w1"], start["w1"] + 0.3 * back / np.linalg.norm(back), rtol=1e-6)
    assert (found["w2"] == start["w2"]).all()
