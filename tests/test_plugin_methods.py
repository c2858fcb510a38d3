"""The methods of the example plug-in against transcriptions of their papers in NumPy."""

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flat import check_recipe
from parts import float64
from parts.test_heads import network
from parts.test_personal import federation
from reference import draws, softmax

from fedjax_bal import models
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.personal import PERSONAL
from fedjax_bal.plugins import load_plugins
from fedjax_bal.recipes import RECIPES, balanced_softmax, combine, fedavg
from fedjax_bal.types import Batch, Outputs, Variables

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES
SEVEN = {
    "fedntd": {},
    "focal": {},
    "feddisco": {},
    "fedrod": {},
    "creff": {"per_class": 3, "match_steps": 2, "epochs": 2, "batch_size": 4},
    "ccvr": {"per_class": 5, "batch_size": 4},
    "fedsam": {},
}


@pytest.fixture(autouse=True)
def own():
    """Loads the methods, and finds the modules behind them."""
    load_plugins([str(Path(__file__).parent / "plugins" / "methods")])
    with jax.enable_x64(True):
        yield lambda name: sys.modules[f"fedjax_bal_plugin_methods.{name}"]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def one_hot(labels):
    return np.eye(C)[labels]


def flat_images():
    return toys.federation().images.reshape(len(toys.federation().images), -1).astype(float)


def as_numpy(tree):
    return jax.tree.map(np.asarray, jax.device_get(tree))


def numpy_retrained(head, features, weights, key, epochs, size, rate):
    """SGD on the classifier; only the order is the library's."""
    kernel, bias = head["kernel"].copy(), head["bias"].copy()
    rows, labels = features.reshape(-1, features.shape[-1]), np.repeat(np.arange(len(features)), features.shape[1])
    for epoch in range(epochs):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), len(rows)))
        for places in np.split(order, range(size, len(order), size)):
            own, share = rows[places], weights[labels[places]]
            error = share[:, None] * (softmax(own @ kernel + bias) - one_hot(labels[places])) / share.sum()
            kernel, bias = kernel - rate * own.T @ error, bias - rate * error.sum(0)
    return {"kernel": kernel, "bias": bias}


def test_focal_loss(own, rng):
    logits, labels = rng.normal(size=(9, C)), rng.integers(0, C, 9)
    chosen = softmax(logits)[np.arange(9), labels]
    for gamma in (0.0, 0.5, 2.0):
        found = own("focal").FocalLoss(gamma).losses(jnp.asarray(logits), jnp.asarray(labels), None)
        assert np.allclose(found, -((1 - chosen) ** gamma) * np.log(chosen))
    sure = lambda logits: own("focal").FocalLoss(0.5).losses(logits, jnp.zeros(1, int), None).sum()
    assert np.isfinite(jax.grad(sure)(jnp.array([[800.0, 0, 0, 0]]))).all()


def test_not_true_distillation(own, rng):
    student, teacher, labels = rng.normal(size=(7, C)), rng.normal(size=(7, C)), rng.integers(0, C, 7)
    wanted = []
    for z, g, y in zip(student, teacher, labels, strict=True):
        q, q_g = (softmax(np.delete(x, y)[None] / 1.5)[0] for x in (z, g))
        wanted.append((q_g * np.log(q_g / q)).sum())
    assert np.allclose(own("fedntd").not_true_divergence(student, teacher, labels, 1.5), wanted)
    model = SimpleNamespace(apply=lambda variables, images, train: (Outputs(jnp.asarray(teacher), None), variables))
    batch = Batch(None, jnp.asarray(labels), None, jnp.arange(7) < 5)
    ctx = SimpleNamespace(model=model, start=None)
    found = own("fedntd").NotTrueDistillation(0.3, 1.5).loss(Outputs(jnp.asarray(student), None), batch, None, ctx)
    assert found == pytest.approx(0.3 * np.mean(wanted[:5]))


def test_weights_by_discrepancy(own):
    counts = np.array([[10, 10, 10, 10], [60, 0, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0]], float)  # the last didn't deliver
    sizes = counts.sum(1)
    shares = sizes / sizes.sum()
    kl = np.array([sum(p * np.log(4 * p) for p in row / max(row.sum(), 1) if p > 0) for row in counts])
    wanted = np.maximum(shares - 0.5 * kl / kl.sum() + 0.1, 0) * (sizes > 0)
    assert 0 < wanted[2] < shares[2] + 0.1
    cohort = lambda rows: SimpleNamespace(class_counts=jnp.asarray(rows))
    weigh = lambda a, b, rows=counts: own("feddisco").DiscrepancyWeights(a, b).weigh(sizes, cohort(rows), None)
    assert np.allclose(weigh(0.5, 0.1), wanted)
    assert np.allclose(weigh(0.0, 0.0), shares)
    assert np.allclose(weigh(900.0, 0.0), [shares[0], 0, 0, 0])
    skewed = counts[[2, 1, 2, 3]]
    assert np.allclose(weigh(900.0, 0.0, skewed), shares)  # no client would count


def test_sharpness_aware_gradients_are_taken_at_a_distance(own, rng):
    params, grads = ({"a": rng.normal(size=(3, 2)), "b": rng.normal(size=2)} for _ in range(2))
    norm = np.sqrt(sum((leaf**2).sum() for leaf in grads.values()))
    found = own("fedsam").SharpnessAware(0.3).shift(params, grads, None)
    assert all(np.allclose(found[name], params[name] + 0.3 * grads[name] / norm) for name in params)
    still = own("fedsam").SharpnessAware(0.3).shift(params, jax.tree.map(np.zeros_like, params), None)
    assert toys.largest_difference(still, params) == 0


def test_retraining_is_sgd_on_the_classifier(own, rng):
    features, weights, key = rng.normal(size=(C, 5, F)), np.array([1.0, 0, 2, 1]), jax.random.key(3)
    params = as_numpy(network().init(jax.random.key(0)).params)
    options = {"epochs": 2, "batch_size": 6, "learning_rate": 0.3}
    found = own("heads").retrained(network(), params, jnp.asarray(features), jnp.asarray(weights), key, **options)
    wanted = numpy_retrained(params["head"], features, weights, key, 2, 6, 0.3)
    assert all(np.allclose(found[name], wanted[name], atol=1e-12) for name in wanted)


def test_class_gaussians_are_those_of_all_clients_together(own, rng):
    clients = [(rng.normal(size=(n, F)) + 1, rng.integers(0, C - 1, n)) for n in (9, 14, 30)]
    real = np.ones(14) > 0
    ccvr = own("ccvr")
    parts = [ccvr.class_moments(x, y, np.ones(len(y)) > 0, C) for x, y in clients]
    means, covariances = ccvr.class_gaussians(jax.tree.map(lambda *leaves: sum(leaves), *parts))
    for c in range(C - 1):
        own_rows = [x[y == c] for x, y in clients]
        n, mu = [len(x) for x in own_rows], [x.mean(0) for x in own_rows]
        total = sum(n)
        mean = sum(a * b for a, b in zip(n, mu, strict=True)) / total  # eq. 3
        within = sum((a - 1) / (total - 1) * np.cov(x.T) for a, x in zip(n, own_rows, strict=True) if a > 1)
        between = sum(a / (total - 1) * np.outer(b, b) for a, b in zip(n, mu, strict=True))
        assert np.allclose(means[c], mean)
        assert np.allclose(covariances[c], within + between - total / (total - 1) * np.outer(mean, mean))  # eq. 4
    assert not means[C - 1].any() and not covariances[C - 1].any()
    half = ccvr.class_moments(*clients[1], real & (np.arange(14) < 6), C)
    assert np.allclose(half.products, ccvr.class_moments(*(x[:6] for x in clients[1]), real[:6], C).products)


def test_virtual_features_follow_their_gaussians(own, rng):
    roots, means = rng.normal(size=(C, F, 3)), rng.normal(size=(C, F))  # of rank 3
    covariances = roots @ roots.transpose(0, 2, 1)
    drawn = np.asarray(own("ccvr").draw_gaussians(jax.random.key(0), means, covariances, 20_000))
    for c in range(C):
        assert np.allclose(drawn[c].mean(0), means[c], atol=0.1)
        assert np.allclose(np.cov(drawn[c].T), covariances[c], atol=0.05 * np.abs(covariances[c]).max())


def class_gradient(features, head, c):
    """Mean gradient of the classifier over rows of one class."""
    error = (softmax(features @ head["kernel"] + head["bias"]) - one_hot(np.full(len(features), c))) / len(features)
    return {"kernel": features.T @ error, "bias": error.sum(0)}


def numpy_distance(found, wanted):
    cos = lambda a, b: (a @ b) / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-6)
    rows = sum(1 - cos(a, b) for a, b in zip(found["kernel"].T, wanted["kernel"].T, strict=True))
    return rows + 1 - cos(found["bias"], wanted["bias"])


def numpy_matched(features, head, wanted, steps, rate):
    """Gradient descent on the distances, with gradients by central differences."""
    features = features.copy()
    for _ in range(steps):
        slopes = np.zeros_like(features)
        for place in np.ndindex(*features.shape):
            c, values = place[0], []
            if c not in wanted:
                continue
            for shift in (1e-5, -1e-5):
                moved = features[c].copy()
                moved[place[1:]] += shift
                values.append(numpy_distance(class_gradient(moved, head, c), wanted[c]))
            slopes[place] = (values[0] - values[1]) / 2e-5
        features -= rate * slopes
    return features


@pytest.mark.slow
def test_features_are_matched_by_their_gradients(own, rng):
    creff, params = own("creff"), as_numpy(network().init(jax.random.key(0)).params)
    features, labels = rng.normal(size=(20, F)), rng.integers(0, C - 1, 20)
    real = np.arange(20) < 17
    found = creff.class_gradients(network(), params, features, labels, real, C)
    counts = np.bincount(labels[real], minlength=C)
    wanted = {c: class_gradient(features[real & (labels == c)], params["head"], c) for c in range(C - 1)}
    for c in wanted:
        assert all(np.allclose(found[name][c] / counts[c], wanted[c][name]) for name in ("kernel", "bias"))
    assert not found["kernel"][C - 1].any()
    pair = jax.tree.map(jnp.asarray, (wanted[0], wanted[1]))
    assert creff.gradient_distance(*pair) == pytest.approx(numpy_distance(wanted[0], wanted[1]))

    begin = rng.normal(size=(C, 3, F))
    real_gradients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *wanted.values(), wanted[0])
    got = creff.matched_features(network(), params, jnp.asarray(begin), real_gradients, np.arange(C) < C - 1, 2, 0.1)
    assert np.allclose(got, numpy_matched(begin, params["head"], wanted, 2, 0.1), atol=1e-8)
    assert np.array_equal(got[C - 1], begin[C - 1])


@pytest.mark.slow
def test_a_round_of_creff(own):
    recipe = RECIPES["creff"](per_class=3, match_steps=2, epochs=2, batch_size=5, learning_rate=0.3)
    sim = float64.simulation(recipe, model=network(), rounds=1, rounds_per_dispatch=1)
    start, state, data = as_numpy(sim.init(SEED).state), float64.run(sim), toys.federation()
    other = as_numpy(sim.init(SEED + 1).state).server["FeatureMatching"].features
    ((_, cohort),) = float64.cohorts(sim)
    body, head = start.variables.params["body"], start.variables.params["head"]
    gradients = {}
    for client in cohort:
        rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
        features = np.tanh(flat_images()[rows] @ body)
        for c in np.unique(data.labels[rows]):
            gradients.setdefault(c, []).append(class_gradient(features[data.labels[rows] == c], head, c))
    wanted = {c: {k: np.mean([g[k] for g in all_], 0) for k in all_[0]} for c, all_ in gradients.items()}
    before, after = start.server["FeatureMatching"], state.server["FeatureMatching"]
    features = numpy_matched(before.features, head, wanted, 2, 0.1)
    assert np.allclose(after.features, features, atol=1e-7) and not np.allclose(before.features, other)

    key = purpose_key(jax.random.fold_in(jax.random.key(SEED), 0), "update/FeatureMatching")
    begin, order = jax.random.split(key)
    fresh = as_numpy(network().init(begin).params["head"])
    retrained = numpy_retrained(fresh, features, np.ones(C), order, 2, 5, 0.3)
    assert all(np.allclose(after.head[k], retrained[k], atol=1e-6) for k in retrained)
    plain = float64.run(float64.simulation(fedavg(), model=network(), rounds=1, rounds_per_dispatch=1))
    assert toys.largest_difference(plain.variables, state.variables) < 1e-12


@pytest.mark.slow
def test_a_closing_round_of_ccvr(own):
    options = {"per_class": 6, "epochs": 3, "batch_size": 7, "learning_rate": 0.4}
    sim = float64.simulation(RECIPES["ccvr"](**options), model=network(), rounds=1, rounds_per_dispatch=1)
    done = sim.advance(SEED, sim.init(SEED))
    params, data = as_numpy(done.snapshot.state.variables.params), toys.federation()
    features = np.tanh(flat_images() @ params["body"])
    labels, rows = data.labels[data.rows], features[data.rows]
    means = np.stack([rows[labels == c].mean(0) for c in range(C)])
    covariances = np.stack([np.cov(rows[labels == c].T) for c in range(C)])
    draw, order = jax.random.split(
        purpose_key(jax.random.fold_in(jax.random.key(SEED), 0), "close/VirtualRepresentations")
    )
    drawn = np.asarray(own("ccvr").draw_gaussians(draw, means, covariances, 6))
    head = numpy_retrained(params["head"], drawn, np.ones(C), order, 3, 7, 0.4)
    confusion = lambda head: np.bincount(
        data.labels * C + (features @ head["kernel"] + head["bias"]).argmax(1), minlength=C * C
    ).reshape(C, C)
    assert done.confusion.tolist() == confusion(head).tolist() != confusion(params["head"]).tolist()


@pytest.mark.slow
def test_fedrod_trains_a_balanced_model_and_heads_of_the_clients_own(own):
    sim = float64.simulation(RECIPES["fedrod"](), model=network(), federation=federation())
    snapshot, records = sim.init(SEED), []
    while snapshot.round < sim.rounds:
        done = sim.advance(SEED, snapshot)
        snapshot, records = done.snapshot, records + done.records
    model = {"body": as_numpy(sim.init(SEED).state.variables.params["body"])}
    model |= as_numpy(sim.init(SEED).state.variables.params["head"])
    heads = {c: {"kernel": np.zeros((F, C)), "bias": np.zeros(C)} for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        trained = {c: fedrod_visit(model, heads[c], c, number) for c in cohort}
        heads |= {c: head for c, (_, head) in trained.items()}
        model = float64.mean(float64.by_size(cohort), {c: shared for c, (shared, _) in trained.items()})
    state = as_numpy(snapshot.state)
    float64.assert_equal({"body": state.variables.params["body"], **state.variables.params["head"]}, model)
    for name in ("kernel", "bias"):
        kept = state.memory[PERSONAL][f".params['own_head']['{name}']"]
        float64.assert_equal({name: kept}, {name: np.stack([heads[c][name] for c in range(float64.N)])})
        assert not state.variables.params["own_head"][name].any()

    rows, offsets = federation().tests
    accuracies = []
    for client, (first, last) in enumerate(list(pairwise(offsets))[:-1]):
        features = np.tanh(flat_images()[rows[first:last]] @ model["body"])
        logits = features @ (model["kernel"] + heads[client]["kernel"]) + model["bias"] + heads[client]["bias"]
        accuracies.append((logits.argmax(1) == federation().labels[rows[first:last]]).mean())
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))


def fedrod_visit(model, head, client, number):
    """One local training: the shared model and the client's own head after it."""
    data, model, head = toys.federation(), dict(model), dict(head)
    counts, rate = data.class_counts[client], float64.OPTIONS.rate * float64.OPTIONS.decay**number
    with np.errstate(divide="ignore"):
        prior = np.log(counts / counts.sum())
    for rows in draws(data, SEED, number, client, float64.OPTIONS, float64.LENGTH):
        images, wanted = flat_images()[rows], one_hot(data.labels[rows])
        features = np.tanh(images @ model["body"])
        logits = features @ model["kernel"] + model["bias"]
        personal = (softmax(logits + features @ head["kernel"] + head["bias"]) - wanted) / len(rows)
        error = (softmax(logits + prior) - wanted) / len(rows)
        into = (error @ model["kernel"].T) * (1 - features**2)
        head = {
            "kernel": head["kernel"] - rate * features.T @ personal,
            "bias": head["bias"] - rate * personal.sum(0),
        }
        model = {
            "body": model["body"] - rate * images.T @ into,
            "kernel": model["kernel"] - rate * features.T @ error,
            "bias": model["bias"] - rate * error.sum(0),
        }
    return model, head


def test_models_without_a_fitting_classifier_are_refused(own):
    squared = network()._replace(name="squared", head=lambda params, features: features @ params["head"]["kernel"] ** 2)
    with pytest.raises(ValueError, match="fedrod: received the model squared, whose classifier isn't linear"):
        RECIPES["fedrod"]().parts[1].bind(squared)
    for name in ("fedrod", "creff", "ccvr"):
        with pytest.raises(ValueError, match="received parameters .*, must have the classifier's under 'head'"):
            float64.simulation(RECIPES[name]())


def test_fedrod_is_balanced_softmax_with_a_part_of_its_own(own):
    assert RECIPES["fedrod"]().parts[:1] == balanced_softmax().parts
    model = models.build("mlp", 3, (4, 4, 1))
    part = RECIPES["fedrod"]().parts[1]
    assert part.bind(model) is part.bind(model)
    variables = part.bind(model).init(jax.random.key(0))
    assert toys.largest_difference(model.init(jax.random.key(0)).params, shared(variables).params) == 0


def shared(variables):
    return Variables({k: v for k, v in variables.params.items() if k != "own_head"}, variables.stats)


def test_all_seven_can_be_combined(own):
    together = combine(*(RECIPES[name](**SEVEN[name]) for name in SEVEN))
    assert together.name == "+".join(SEVEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVEN)
def test_the_seven_conform(name):
    with jax.enable_x64(False):
        assert check_recipe(RECIPES[name](**SEVEN[name])).failed == ()
