"""FedLoGe: against a transcription in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import float64, hand
from methods.heads import as_numpy, descended, federation, flat_images, head_gradient, network, own_accuracies
from reference import draws
from rounding import DOUBLE

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.methods import fedloge as MODULE
from fedjax_bal.recipes import combine, fedbabu, fedloge, fednh, fedper, fedrod

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES


pytestmark = pytest.mark.usefixtures("double")


def objective(vectors):
    """The squared differences of lengths from 0.1, minus the mean angle to the nearest other vector."""
    units = vectors / np.linalg.norm(vectors, axis=0)
    angles = [min(np.arccos(units[:, c] @ units[:, d]) for d in range(C) if d != c) for c in range(C)]
    return sum((np.linalg.norm(vectors, axis=0) - 0.1) ** 2) - np.mean(angles)


def test_class_vectors_are_driven_apart_as_in_the_transcription():
    start = np.where(hand.draw(F, C) > 0.3, 0.0, hand.draw(F, C, seed=1))
    vectors, m, v = start.copy(), np.zeros((F, C)), np.zeros((F, C))
    for step in range(1, 4):
        slopes = np.zeros((F, C))
        for place in zip(*np.nonzero(start), strict=True):
            moved = [vectors.copy(), vectors.copy()]
            moved[0][place] += 1e-6
            moved[1][place] -= 1e-6
            slopes[place] = (objective(moved[0]) - objective(moved[1])) / 2e-6
        m, v = 0.9 * m + 0.1 * slopes, 0.999 * v + 0.001 * slopes**2
        vectors = vectors - 1e-4 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(MODULE.driven_apart(jnp.asarray(start), 3), vectors, atol=1e-9)
    assert np.abs(vectors - start).max() > 1e-4


@pytest.mark.slow
def test_a_sparse_simplex_is_spread_and_sparse():
    dense = np.asarray(MODULE.sparse_simplex(jax.random.key(0), (12, 4), 0.0, 0))
    np.testing.assert_allclose(dense.T @ dense, np.where(np.eye(4), 1, -1 / 3), atol=DOUBLE)
    before, after = (np.asarray(MODULE.sparse_simplex(jax.random.key(0), (12, 4), 0.6, steps)) for steps in (0, 1000))
    assert ((before == 0).sum(0) == 7).all() and ((after == 0) == (before == 0)).all()
    assert objective(after) < objective(before)


def visit(model, own, client, number):
    """One local training: the shared model and the client's own classifier after it."""
    data, model, own = toys.federation(), dict(model), dict(own)
    rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
    for rows in draws(data, SEED, number, client, float64.OPTIONS):
        images, labels = flat_images()[rows], data.labels[rows]
        features = np.tanh(images @ model["body"])
        _, error = head_gradient(features, labels, {"kernel": model["simplex"], "bias": 0.0})
        shared, personal = (head_gradient(features, labels, head)[0] for head in (model, own))
        body = images.T @ ((error @ model["simplex"].T) * (1 - features**2))
        model, own = descended(model, shared | {"body": body}, rate), descended(own, personal, rate)
    return model, own


@pytest.mark.slow
def test_fedloge_equals_its_transcription():
    recipe = fedloge(sparsity=0.3, norm=1.3, steps=5)
    sim = float64.simulation(recipe, model=network(), federation=federation())
    start = as_numpy(sim.init(SEED).state.variables.params)
    assert (start["head"]["kernel"] == 0).sum() == int(0.3 * F) * C and not start["head"]["bias"].any()
    plain = as_numpy(network().init(jax.random.key(0)).params)
    assert start["global_head"].keys() == plain["head"].keys() and start["global_head"]["kernel"].any()
    state, records, confusion = as_numpy(float64.finished(sim))
    model = {"body": start["body"], "simplex": start["head"]["kernel"], **start["global_head"]}
    heads = {c: {"kernel": np.zeros((F, C)), "bias": np.zeros(C)} for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        trained = {c: visit(model, heads[c], c, number) for c in cohort}
        heads |= {c: head for c, (_, head) in trained.items()}
        model = float64.mean(float64.by_size(cohort), {c: shared for c, (shared, _) in trained.items()})
    params = state.variables.params
    found = {"body": params["body"], "simplex": params["head"]["kernel"], **params["global_head"]}
    float64.assert_equal(found, model)
    assert np.array_equal(params["head"]["kernel"], start["head"]["kernel"]) and not params["head"]["bias"].any()
    for name in ("kernel", "bias"):
        kept = state.memory[PERSONAL][f".params['own_head']['{name}']"]
        float64.assert_equal({name: kept}, {name: np.stack([heads[c][name] for c in range(float64.N)])})

    longer = lambda c: model["kernel"] * (1 + np.linalg.norm(heads[c]["kernel"], axis=0))
    own = {c: {"kernel": longer(c), "bias": model["bias"] + heads[c]["bias"]} for c in heads}
    assert records[-1]["client_accuracy"] == pytest.approx(own_accuracies(model["body"], own).mean())
    data = toys.federation()
    logits = np.tanh(flat_images() @ model["body"]) @ (1.3 * model["kernel"] / np.linalg.norm(model["kernel"], axis=0))
    seen = np.bincount(data.labels * C + (logits + model["bias"]).argmax(1), minlength=C * C).reshape(C, C)
    assert confusion.tolist() == seen.tolist()


def test_models_without_a_fitting_classifier_are_refused():
    narrow = network()._replace(name="narrow", init=lambda key: narrowed(network().init(key)))
    narrow = narrow._replace(apply=lambda v, x, **k: (hand.outputs(jnp.ones((1, C)), jnp.ones((1, 2))), v))
    with pytest.raises(ValueError, match="fedloge: received the model narrow"):
        fedloge().parts[1].bind(narrow)


def narrowed(variables):
    """With a classifier of two features."""
    head = {**variables.params["head"], "kernel": variables.params["head"]["kernel"][:2]}
    return variables._replace(params={**variables.params, "head": head})


def test_what_means_nothing_together_is_refused():
    with pytest.raises(ValueError, match="fedloge and fedbabu both bring FrozenHead"):
        combine(fedloge(), fedbabu())
    for other, slot in ((fedper(), "OwnHead"), (fedrod(), "ResidualHead")):
        with pytest.raises(ValueError, match=f"fedloge: received {slot}, by which each client has another"):
            float64.simulation(combine(fedloge(steps=1), other), model=network())
    with pytest.raises(ValueError, match="fedloge: received PrototypeClassifier, .* the simplex would not stay fixed"):
        float64.simulation(combine(fednh(), fedloge(steps=1)), model=network())
    with pytest.raises(ValueError, match="fedloge: sparsity: received 1"):
        fedloge(sparsity=1.0)
