"""MOON against a transcription in NumPy that differentiates by hand, and its projection."""

import dataclasses
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import reference
import toys
from methods import float64
from methods.heads import network
from rounding import DOUBLE, FORMULA, SUM

from fedjax_bal import models
from fedjax_bal.models.heads import with_projection
from fedjax_bal.options import Participation
from fedjax_bal.parts import ModelContrast
from fedjax_bal.recipes import combine, feature_normalisation, fedavg, fedetf, fednh, ldam, moon
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Batch, Outputs, Variables

SEED, WIDTH = float64.SEED, 3
MU, TEMPERATURE = 0.7, 0.4
OPTIONS = reference.Options(rate=0.2, decay=0.9, momentum=0.5, weight_decay=0.01)
FORMS = ("head", "side", "none")


pytestmark = pytest.mark.usefixtures("double")


def simulation(recipe, model=None):
    clients = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
    return float64.simulation(recipe, OPTIONS, model=model or network(), participation=clients)


@cache
def compiled(form):
    """A form's program, shared by all tests."""
    sim = simulation(moon(MU, TEMPERATURE, form, WIDTH))
    sim.compile()
    return sim


@cache
def finished(form, mu=MU):
    sim = compiled(form)
    setting = dataclasses.replace(sim.setting, parts=moon(mu, TEMPERATURE, form, WIDTH).parts)
    return float64.run(float64.like(sim, setting=setting))


@cache
def averaged(form):
    """The variables of FedAvg on the network, which has the projection for "head" only."""
    sim = simulation(fedavg(), with_projection(network(), "head", WIDTH) if form == "head" else network())
    return float64.run(sim).variables


def flat(params):
    """Parameters by path, in float64."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(str(step.key) for step in path): np.asarray(leaf, np.float64) for path, leaf in leaves}


# The transcription: forward and backward pass of the three forms, by hand.


def forward(w, images, form):
    """Features, hidden layer, projection and logits."""
    h = np.tanh(images @ w["body"])
    if form == "none":
        return h, None, h, h @ w["head/kernel"] + w["head/bias"]
    a = np.maximum(h @ w["projection/hidden/kernel"] + w["projection/hidden/bias"], 0)
    z = a @ w["projection/output/kernel"] + w["projection/output/bias"]
    return h, a, z, (z if form == "head" else h) @ w["head/kernel"] + w["head/bias"]


def cosine_and_slope(z, other):
    """The cosine of each row, and its derivative by z."""
    n, m = np.linalg.norm(z, axis=1, keepdims=True), np.linalg.norm(other, axis=1, keepdims=True)
    cosine = (z * other).sum(1, keepdims=True) / (n * m)
    return cosine, other / (n * m) - cosine * z / n**2


def contrast_slope(z, received, last, images, form):
    """Derivative by z of mu times the mean contrastive loss."""
    to_global, slope_global = cosine_and_slope(z, forward(received, images, form)[2])
    to_last, slope_last = cosine_and_slope(z, forward(last, images, form)[2])
    e_global, e_last = np.exp(to_global / TEMPERATURE), np.exp(to_last / TEMPERATURE)
    share = e_last / (e_global + e_last)
    return MU * share * (slope_last - slope_global) / TEMPERATURE / len(z)


def gradient(w, images, labels, anchor, last, form):
    h, a, z, logits = forward(w, images, form)
    error = (reference.softmax(logits) - np.eye(toys.CLASSES)[labels]) / len(labels)
    base = z if form == "head" else h
    grad = {"head/kernel": base.T @ error, "head/bias": error.sum(0)}
    to_base = error @ w["head/kernel"].T
    to_z = contrast_slope(z, anchor, last, images, form) if last is not None else np.zeros_like(z)
    if form == "none":
        to_h = to_base + to_z
    else:
        to_z = to_z + (to_base if form == "head" else 0)
        to_a = to_z @ w["projection/output/kernel"].T * (a > 0)
        grad |= {"projection/output/kernel": a.T @ to_z, "projection/output/bias": to_z.sum(0)}
        grad |= {"projection/hidden/kernel": h.T @ to_a, "projection/hidden/bias": to_a.sum(0)}
        to_h = to_a @ w["projection/hidden/kernel"].T + (to_base if form == "side" else 0)
    return grad | {"body": images.T @ (to_h * (1 - h**2))}


@cache
def transcription(form):
    """The final model, every client's last one, and how often a client had one."""
    sim = compiled(form)
    w, last, returns = flat(sim.init(SEED).state.variables.params), {}, 0
    for number, cohort in float64.cohorts(sim):
        returns += sum(client in last for client in cohort)
        given = {"gradient": gradient, "anchor": w, "form": form}
        results = {c: float64.train(w, c, number, OPTIONS, last=last.get(c), **given)[0] for c in cohort}
        w = float64.mean(float64.by_size(cohort), results)
        last |= results
    return w, last, returns


@pytest.mark.parametrize("form", quick.only(FORMS))
def test_moon_equals_its_transcription(form):
    w, last, returns = transcription(form)
    assert returns > 2
    state = finished(form)
    float64.assert_equal(flat(state.variables.params), w)
    memory = state.memory["ModelContrast"]
    assert np.flatnonzero(memory.there).tolist() == sorted(last)
    for client, expected in last.items():
        own = jax.tree.map(lambda leaf, client=client: leaf[client], memory.variables.params)
        float64.assert_equal(flat(own), expected, 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_weight_of_zero_is_fedavg_beside_the_classifier_even_without_the_projection(form):
    want, got = averaged("head" if form == "head" else "none").params, finished(form, 0.0).variables.params
    assert toys.largest_difference({name: got[name] for name in want}, want) < 1e-14
    assert toys.largest_difference(got, finished(form).variables.params) > 1e-3


# The loss on its own.


def context(last, there, start, model):
    memory = {"ModelContrast": ModelContrast().init_memory(last)._replace(variables=last, there=jnp.array(there))}
    return SimpleNamespace(memory=memory, start=start, model=model)


def projecting(scale=1.0):
    """A model whose representation is the image times its only parameter."""

    def apply(variables, images, *, train, key=None, real=None):
        assert not train
        return Outputs(images, images, projection=images * variables.params["scale"]), variables

    return SimpleNamespace(apply=apply)


@pytest.mark.slow
def test_representations_of_zeros_have_a_finite_loss_and_gradient():
    images = jnp.array([[0.0, 0.0], [1.0, 2.0]])
    batch = Batch(images, jnp.zeros(2, int), jnp.zeros(2, int), jnp.array([True, True]))
    one, zero = (Variables({"scale": jnp.array(scale)}, {}) for scale in (1.0, 0.0))

    def loss(representation, last):
        outputs = Outputs(images, images, projection=representation)
        return ModelContrast().loss(outputs, batch, {}, context(last, True, one, projecting()))

    for representation, last in ((images, zero), (jnp.zeros((2, 2)), one), (jnp.zeros((2, 2)), zero)):
        value, slope = jax.jit(jax.value_and_grad(loss))(representation, last)
        assert np.isfinite(slope).all()
        expected = np.log(2) if not representation.any() else (np.log(2) + np.log1p(np.exp(-2))) / 2
        assert float(value) == pytest.approx(expected, rel=DOUBLE)


@pytest.mark.slow
def test_batch_statistics_are_remembered_and_used():
    with jax.enable_x64(False):
        model = with_projection(models.build("tiny_bn", 3, (4, 4, 1)), "side", 5)
        start = model.init(jax.random.key(0))
        images = jax.random.normal(jax.random.key(1), (6, 4, 4, 1))
        outputs, after = model.apply(start, images, train=True)
        assert toys.largest_difference(after.stats, start.stats) > 0
        assert toys.largest_difference(after.params, start.params) == 0
        part = ModelContrast(projection="side", width=5)
        memory = part.remember(part.init_memory(start), SimpleNamespace(end=after))
        batch = Batch(images, jnp.zeros(6, int), jnp.zeros(6, int), jnp.ones(6, bool))
        got = part.loss(outputs, batch, {}, context(memory.variables, memory.there, start, model))
        z, s, p = (
            np.asarray(x, np.float64)
            for x in (outputs.projection, *(model.apply(v, images, train=False)[0].projection for v in (start, after)))
        )
        difference = (cosine_and_slope(z, p)[0] - cosine_and_slope(z, s)[0]) / 0.5
        assert float(got) == pytest.approx(np.log1p(np.exp(difference)).mean(), rel=SUM)
        assert abs(difference).max() > 1e-4


# The projection.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", quick.only(["mlp", "tiny_bn"], "mlp"))
def test_a_projected_network_shares_its_start_and_classifies_its_features(name, form):
    with jax.enable_x64(False):
        shape = (16, 16, 1)
        plain = models.build(name, 4, shape)
        model = with_projection(plain, form, 7)
        before, variables = (jax.jit(m.init)(jax.random.key(5)) for m in (plain, model))
        shared = [key for key in before.params if form != "head" or key != "head"]
        for key in shared:
            assert toys.largest_difference(variables.params[key], before.params[key]) == 0
        images = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
        (usual, _), (outputs, after) = (
            jax.jit(lambda own, m=m: m.apply(own, images, train=False))(own)
            for m, own in ((plain, before), (model, variables))
        )
        np.testing.assert_allclose(
            model.head(variables.params, outputs.features), outputs.logits, rtol=FORMULA, atol=FORMULA
        )
        assert toys.largest_difference(after, variables) == 0
        if form == "head":
            assert outputs.features.shape == (3, 7)
            assert (outputs.features == outputs.projection).all()
            bound = np.sqrt(1 / 7)
            assert all(0 < np.abs(leaf).max() <= bound for leaf in jax.tree.leaves(variables.params["head"]))
        else:
            assert (outputs.logits == usual.logits).all()
            assert outputs.projection.shape == ((3, 7) if form == "side" else usual.features.shape)


def test_a_projection_has_the_parameters_of_two_dense_layers():
    plain, width, features = models.build("mlp", 10, (4, 4, 1)), 9, 64
    dense = features * (features + 1) + (features + 1) * width
    assert models.num_params(with_projection(plain, "none", width)) == models.num_params(plain)
    assert models.num_params(with_projection(plain, "side", width)) == models.num_params(plain) + dense
    on_top = models.num_params(with_projection(plain, "head", width))
    assert on_top == models.num_params(plain) + dense + (width - features) * 10


REFUSED = {
    r"received 'head' for the model toy with parameters \['w1', 'w2'\]": (moon(), toys.network()),
    "must be a dict without 'projection'": (
        moon(projection="side"),
        with_projection(models.build("mlp", 10, (4, 4, 1)), "side", 8),
    ),
}


@pytest.mark.parametrize("other", [fednh, fedetf, ldam, feature_normalisation])
def test_the_projection_precedes_classifiers_that_it_would_replace(other):
    with pytest.raises(ValueError, match=r"'head' for the model headed, whose .* \(moon\) before the one"):
        simulation(combine(other(), moon(width=3)))
    simulation(combine(other(), moon(width=3, projection="side")))
    simulation(combine(moon(width=3), other()))


@pytest.mark.parametrize("message", REFUSED)
def test_a_model_that_does_not_fit_is_refused(message):
    recipe, model = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        simulation(recipe, model)
