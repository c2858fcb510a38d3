"""Fed-GraB, CLIMB, FedDisco and BalanceFL: against their transcriptions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from parts import float64, hand
from parts.test_masked_distillation import received, softmax

from fedjax_bal.parts import DiscrepancyWeights, DualWeights, GradientBalancer, Logits, Loss, parts_with
from fedjax_bal.recipes import (
    balanced_softmax,
    balancefl,
    climb,
    combine,
    equal_weights,
    feddisco,
    fedgrab,
    fednova,
    fedvls,
    iwds,
    scaffold,
)
from fedjax_bal.types import Aggregate, Cohort, ServerContext, Variables

pytestmark = pytest.mark.usefixtures("double")


LOGITS = hand.draw(hand.ROWS, hand.CLASSES)


# Fed-GraB.


class Incremental:
    """Controllers in the incremental form of the authors' code, with positive and negative gradients apart."""

    def __init__(self, gains):
        self.gains, self.up, self.down = gains, np.zeros(hand.CLASSES), np.zeros(hand.CLASSES)
        self.errors, self.output = [np.zeros(hand.CLASSES)] * 3, np.zeros(hand.CLASSES)

    def weights(self, labels):
        """Of each row and class."""
        curve = lambda u: (10 / 9) / (1 / 9 + np.exp(-0.5 * u))
        return np.array(
            [[curve(u if c == label else -u) for c, u in enumerate(self.output)] for label in labels]
        ).reshape(len(labels), hand.CLASSES)

    def gradients(self, logits, labels):
        """Of the mean loss with respect to logits, with weights; the controllers see them."""
        own = np.eye(hand.CLASSES)[labels]
        found = self.weights(labels) * (1 / (1 + np.exp(-logits)) - own) / len(labels)
        self.up += (np.abs(found) * own).sum(0)
        self.down += (np.abs(found) * (1 - own)).sum(0)
        self.errors = [self.down - self.up, *self.errors[:2]]
        now, last, before = self.errors
        p, i, d = self.gains
        self.output = self.output + p * (now - last) + i * now + d * (now - 2 * last + before)
        return found


def test_controllers_equal_their_transcription():
    gains = (3.0, 0.4, 0.7)
    part, wanted = GradientBalancer(*gains), Incremental(gains)
    rest = part.init_memory(Variables({"head": {"kernel": jnp.zeros((3, hand.CLASSES))}}, {}))
    ctx = hand.context(memory={part.slot: rest})
    carry = part.init_steps(ctx)
    for step in range(4):
        logits = hand.draw(hand.ROWS, hand.CLASSES, seed=step)
        within = ctx._replace(steps_state={part.slot: carry})

        def transcription(logits):
            terms = np.log1p(np.exp(logits)) - np.eye(hand.CLASSES)[hand.LABELS] * logits
            return (wanted.weights(hand.LABELS) * terms).sum()

        losses = lambda z, within=within: part.losses(z, jnp.array(hand.LABELS), within)
        hand.check(losses, transcription, logits)
        carry = part.next_steps(carry, hand.outputs(logits), hand.batch(), within)
        wanted.gradients(logits[hand.REAL], hand.LABELS[hand.REAL])
        np.testing.assert_allclose(carry.output, wanted.output, rtol=1e-10)
    assert np.ptp(wanted.output) > 1


def with_head():
    """The toy network with its second layer called the classifier."""
    plain = toys.network()
    below = lambda v: v._replace(params={"w1": v.params["w1"], "w2": v.params["head"]["kernel"]})

    def init(key):
        params = plain.init(key).params
        return Variables({"w1": params["w1"], "head": {"kernel": params["w2"]}}, {})

    apply = lambda v, images, **settings: (plain.apply(below(v), images, **settings)[0], v)
    return plain._replace(init=init, apply=apply, head=lambda p, features: features @ p["head"]["kernel"])


@pytest.mark.slow
def test_fedgrab_equals_its_transcription():
    gains, options, data = (10.0, 0.01, 0.1), float64.OPTIONS, toys.federation()
    sim = float64.simulation(fedgrab(*gains), model=with_head())
    begun = float64.initial(sim)
    weights, own, again = {"w1": begun["w1"], "w2": begun["head"]["kernel"]}, {}, 0
    flat = data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        changes, rate = {}, options.rate * options.decay**number
        for client in cohort:
            again += client in own
            w, balancer = dict(weights), own.setdefault(client, Incremental(gains))
            for rows in reference.draws(data, float64.SEED, number, client, options):
                features, logits = reference.forward(w, flat[rows])
                slopes = balancer.gradients(logits, data.labels[rows])
                first = flat[rows].T @ ((slopes @ w["w2"].T) * (1 - features**2))
                w = {"w1": w["w1"] - rate * first, "w2": w["w2"] - rate * features.T @ slopes}
            changes[client] = float64.difference(w, weights)
        weights = float64.plus(weights, float64.mean(float64.by_size(cohort), changes))
    assert again
    found = float64.run(sim).variables.params
    float64.assert_equal({"w1": found["w1"], "w2": found["head"]["kernel"]}, weights)


def test_other_logits_than_those_that_controllers_watch_are_refused():
    with pytest.raises(ValueError, match="fedgrab: received PriorCalibration, which changes the logits"):
        float64.simulation(combine(fedgrab(), balanced_softmax()), model=with_head())


# CLIMB.


def server(**given):
    """A server's context."""
    return ServerContext(**(dict.fromkeys(ServerContext._fields) | given))


def cohort_of(clients, steps, sizes):
    """A cohort of chains."""
    given = {"clients": jnp.array(clients), "local_steps": jnp.array(steps), "sizes": jnp.array(sizes, float)}
    return Cohort(**(dict.fromkeys(Cohort._fields) | given))


def test_weights_of_chains_are_made_of_their_clients_variables():
    state = jnp.array([0.0, 4.0, 1.0, 3.0])  # the mean is 2
    cohort = cohort_of([[1, 2], [3, 4], [0, 4], [2, 1]], [[3, 3], [5, 0], [1, 0], [0, 0]], [12, 7, 5, 0])
    found = DualWeights().weigh(cohort.sizes, cohort, server(state=state))
    np.testing.assert_allclose(found, [1 + 2.5 - 2, 1 + 3 - 2, 0, 0])


def test_variables_move_every_few_rounds_and_for_those_that_deliver():
    part, state = DualWeights(2.0, 0.1, 3), jnp.array([99.9, 0.0, 0.5, 0.01])
    losses = jnp.array([[2.0], [jnp.nan], [3.0], [1.0], [6.0]])
    cohort = cohort_of([[2], [1], [3], [4], [0]], [[1]] * 5, [1] * 5)
    losses = losses.at[3].set(jnp.nan)  # an empty place
    mean = (2 + 3 + 6) / 3
    moved = {0: min(99.9 + 2 * (6 - mean - 0.1) / 4, 100), 1: 0.0, 2: max(0.5 + 2 * (2 - mean - 0.1) / 4, 0), 3: 0.0}
    aggregate = Aggregate(None, {}, None, cohort, losses)
    for number in range(6):
        seen = server(round=jnp.array(number), state=state, aggregate=aggregate, cohort=cohort)
        wanted = [moved[c] for c in range(4)] if number % 3 == 2 else state
        np.testing.assert_allclose(part.update(None, seen), wanted, rtol=1e-12)


def test_other_weights_are_refused():
    with pytest.raises(ValueError, match="climb: received ControlVariates, which weighs clients, too"):
        float64.simulation(combine(climb(), scaffold()))


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


# BalanceFL.


def test_the_loss_of_balancefl_equals_its_transcription():
    own, absent, counts, teacher = [0, 3], [1, 2], [9, 0, 0, 4], received(hand.batch().images)
    labels = np.where(np.isin(hand.LABELS, own), hand.LABELS, 3)
    batch = hand.batch()._replace(labels=jnp.array(labels))
    ctx = hand.context(start=hand.variables(5), class_counts=jnp.array(counts))
    parts = balancefl(0.7, 2.5, 0.03).parts

    def transcription(logits):
        total = 0.0
        for row in np.flatnonzero(hand.REAL):
            p, q = softmax(teacher[row][absent] / 2.5), softmax(logits[row][absent] / 2.5)
            present = softmax(logits[row][own])
            classified = -np.log(present[own.index(labels[row])])
            distilled = -(p * np.log(q)).sum() + (p * np.log(p)).sum()  # the latter is a constant
            total += (classified + 0.7 * distilled) / hand.REAL.sum() + 0.03 * (present * np.log(present)).sum()
        return total

    def loss(logits):
        calibrated = logits
        for part in parts_with(parts, Logits):
            calibrated = part.logits(calibrated, batch, ctx)
        losses = -jax.nn.log_softmax(calibrated)[jnp.arange(hand.ROWS), labels]
        added = sum(part.loss(hand.outputs(logits), batch, None, ctx) for part in parts_with(parts, Loss))
        return jnp.where(hand.REAL, losses, 0.0).sum() / hand.REAL.sum() + added

    hand.check(loss, transcription, LOGITS, 1e-9)


@pytest.mark.parametrize("counts", [[3, 3, 1, 2], [0, 0, 0, 0], [5, 0, 0, 0]], ids=["all classes", "no row", "one"])
def test_entropy_stays_finite(counts):
    ctx, part = hand.context(class_counts=jnp.array(counts)), balancefl().parts[-1]
    loss = lambda z: part.loss(hand.outputs(z), hand.batch(), None, ctx)
    value, gradient = hand.value_and_gradient(loss, LOGITS)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_balancefl_draws_classes_alike():
    recipe = balancefl()
    weights = np.asarray(recipe.parts[0].log_weights(jnp.array([9, 2, 1, 4]), hand.context()))
    np.testing.assert_allclose(weights - weights[2], -np.log([9, 2, 1, 4]), rtol=1e-6)
    assert recipe.drawing == "replacement"


# FedDisco.


def test_weights_by_discrepancy_equal_their_transcription():
    counts = np.array([[10, 10, 10, 10], [60, 0, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0]], float)  # the last didn't deliver
    sizes = counts.sum(1)
    shares = sizes / sizes.sum()
    distances = np.array([sum(p * np.log(4 * p) for p in row / max(row.sum(), 1) if p > 0) for row in counts])
    wanted = np.maximum(shares - 0.5 * distances / distances.sum() + 0.1, 0) * (sizes > 0)
    assert 0 < wanted[2] < shares[2] + 0.1

    def weigh(a, b, rows=counts, weights=sizes):
        cohort = Cohort(**(dict.fromkeys(Cohort._fields) | {"class_counts": jnp.asarray(rows)}))
        return np.asarray(DiscrepancyWeights(a, b).weigh(jnp.asarray(weights), cohort, None))

    np.testing.assert_allclose(weigh(0.5, 0.1), wanted, rtol=1e-12)
    np.testing.assert_allclose(weigh(0.5, 0.1, weights=shares), wanted, rtol=1e-12)
    np.testing.assert_allclose(weigh(0.0, 0.0), shares, rtol=1e-12)
    np.testing.assert_allclose(weigh(900.0, 0.0), [shares[0], 0, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(weigh(900.0, 0.0, counts[[2, 1, 2, 3]]), shares, rtol=1e-12)  # no client would count


def test_what_acts_twice_is_refused():
    with pytest.raises(ValueError, match="balancefl and iwds both bring DecayedResampling"):
        combine(balancefl(), iwds())
    with pytest.raises(ValueError, match="fedvls both bring PriorCalibration"):
        combine(balancefl(), fedvls())
    with pytest.raises(ValueError, match="climb: received DiscrepancyWeights, which weighs clients, too"):
        float64.simulation(combine(climb(), feddisco()))
    with pytest.raises(ValueError, match="equal_weights: received ControlVariates, whose updates weigh the same"):
        float64.simulation(combine(scaffold(), equal_weights()))


@pytest.mark.parametrize("pair", [(fednova, feddisco), (feddisco, scaffold), (feddisco, equal_weights)])
def test_discrepancies_are_added_to_shares_of_samples(pair):
    with pytest.raises(ValueError, match=r"feddisco: received \w+ in the wrong place: name scaffold or"):
        float64.simulation(combine(*(recipe() for recipe in pair)))
