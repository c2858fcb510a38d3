"""Leaves that stay with the clients, and methods made of them, against transcriptions in NumPy."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import reference
import toys
from methods import faking, float64
from methods.heads import federation, flat_images
from methods.heads import network as headed

from fedjax_bal import models, recipes
from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.fine_tuning import FineTuner
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import Personal, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Model, Outputs, Variables

N = float64.N
HEAD, BODY = ".params['head']", ".params['body']"


pytestmark = pytest.mark.usefixtures("double")


@cache
def network():
    """The toys' network with a body and a head."""
    plain = toys.network()

    def init(key):
        params = plain.init(key).params
        return Variables({"body": params["w1"], "head": params["w2"]}, {})

    def apply(variables, images, *, train, key=None, real=None):
        features = jnp.tanh(images.reshape(len(images), -1) @ variables.params["body"])
        return Outputs(features @ variables.params["head"], features), variables

    return Model(init, apply, lambda params, features: features @ params["head"], "two", toys.CLASSES, (1, 5, 1))


def simulation(recipe, **changes):
    return float64.simulation(recipe, model=network(), federation=federation(), **changes)


def gradient(weights, images, labels):
    """Of the mean cross-entropy."""
    grad = float64.gradient({"w1": weights["body"], "w2": weights["head"]}, images, labels)
    return {"body": grad["w1"], "head": grad["w2"]}


def train(start, client, number, rate_of=lambda step, steps: {"body": 1.0, "head": 1.0}, pull=None):
    """One local training; `rate_of` scales the step of each leaf, `pull` is added to the gradient."""
    batches = list(reference.draws(toys.federation(), float64.SEED, number, client, float64.OPTIONS))
    scales = iter([rate_of(step, len(batches)) for step in range(len(batches))])

    def change(grad, weights):
        scale = next(scales)
        return {k: scale[k] * (grad[k] + (pull(k, weights) if pull else 0.0)) for k in grad}

    return float64.train(start, client, number, batches=batches, change=change, gradient=gradient)[0]


def transcribed(sim, shared, **how):
    """The global model, and each client's, if only the leaves in `shared` are averaged."""
    model = {k: np.asarray(v) for k, v in float64.initial(sim).items()}
    own = {c: dict(model) for c in range(N)}
    for number, cohort in float64.cohorts(sim):
        received = {c: {k: model[k] if k in shared else own[c][k] for k in model} for c in cohort}
        trained = {c: train(received[c], c, number, **how) for c in cohort}
        own |= trained
        mean = float64.mean(float64.by_size(cohort), trained)
        model = {k: mean[k] if k in shared else model[k] for k in model}
    return model, own


def head_first(step, steps):
    head = step < steps // 2
    return {"body": float(not head), "head": float(head)}


CASES = {
    "fedper": (recipes.fedper(), ("body",), {}),
    "fedrep": (recipes.fedrep(0.5), ("body",), {"rate_of": head_first}),
    "lg_fedavg": (recipes.lg_fedavg(), ("head",), {}),
    "local": (recipes.local(), (), {}),
}


@pytest.mark.parametrize("name", quick.only(CASES, "fedrep"))
def test_recipe_equals_its_transcription(name):
    recipe, shared, how = CASES[name]
    sim = simulation(recipe)
    state, (model, own) = float64.run(sim), transcribed(sim, shared, **how)
    float64.assert_equal(state.variables.params, model)
    for leaf, kept in state.memory[PERSONAL].items():
        float64.assert_equal({leaf: kept}, {leaf: np.stack([own[c][leaf[9:-2]] for c in range(N)])})
    assert set(state.memory[PERSONAL]) == {HEAD, BODY} - {f".params['{name}']" for name in shared}


@pytest.mark.slow
def test_the_clients_own_models_are_tested_on_their_own_rows():
    sim = simulation(recipes.fedper())
    model, own = transcribed(sim, ("body",))
    _, records, _ = float64.finished(sim)
    rows, offsets = federation().tests
    accuracies = []
    for client in range(N - 1):
        mine = rows[offsets[client] : offsets[client + 1]]
        logits = np.tanh(flat_images()[mine] @ model["body"]) @ own[client]["head"]
        accuracies.append((logits.argmax(1) == federation().labels[mine]).mean())
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))
    other = float64.run(simulation(recipes.fedavg())).variables.params  # so that the comparison can tell them apart
    hits = [
        (np.tanh(flat_images()[rows[a:b]] @ other["body"]) @ other["head"]).argmax(1) == federation().labels[rows[a:b]]
        for a, b in pairwise(offsets[:-1])
    ]
    assert records[-1]["client_accuracy"] != pytest.approx(np.mean([hit.mean() for hit in hits]))


@pytest.mark.slow
def test_ditto_trains_a_model_near_the_received_one_beside_fedavg():
    sim = simulation(recipes.ditto(0.7))
    state = float64.run(sim)
    shared = lambda params: {k: np.asarray(v) for k, v in params.items() if k != "own_model"}
    model = shared(float64.initial(sim))
    own = {c: dict(model) for c in range(N)}
    for number, cohort in float64.cohorts(sim):
        pull = lambda k, weights, w=model: 0.7 * (weights[k] - w[k])
        own |= {c: train(own[c], c, number, pull=pull) for c in cohort}
        trained = {c: train(model, c, number) for c in cohort}
        model = float64.mean(float64.by_size(cohort), trained)
    float64.assert_equal(shared(state.variables.params), model)
    kept = {k: state.memory[PERSONAL][f".params['own_model']['{k}']"] for k in model}
    float64.assert_equal(kept, {k: np.stack([own[c][k] for c in range(N)]) for k in model})
    float64.assert_equal(dict(state.variables.params["own_model"]), shared(float64.initial(sim)), 1e-12)


@pytest.mark.slow
def test_fedbn_keeps_normalisation_layers_and_their_statistics(make_bn):
    sim = make_bn(recipes.fedbn())
    start, state = jax.device_get(sim.init(0).state), float64.run(sim)
    kept = {leaf for leaf in state.memory[PERSONAL] if "norm" in leaf}
    assert kept == set(state.memory[PERSONAL]) and any("stats" in leaf for leaf in kept)
    norm = lambda variables: (variables.params["body"]["norm"], variables.stats)
    assert toys.largest_difference(norm(start.variables), norm(state.variables)) == 0
    assert toys.largest_difference(start.variables.params["head"], state.variables.params["head"]) > 0
    assert all((state.memory[PERSONAL][leaf] != start.memory[PERSONAL][leaf]).any() for leaf in kept)


@pytest.fixture
def make_bn():
    model = models.build("tiny_bn", toys.CLASSES, faking.SHAPE)
    with jax.enable_x64(False):
        data, local = (faking.federation(), faking.test_set()), LocalTraining(batch_size=4)
        yield lambda recipe: build_simulation(recipe, model, *data, rounds=2, local=local)


@pytest.mark.slow
def test_clients_of_a_chain_hand_on_only_what_they_share():
    chained, alone = (
        float64.run(simulation(recipes.local(), participation=Participation(selector=selector), rounds=2))
        for selector in (toys.chosen([[0, 4], [2, 7]]), toys.chosen([[0], [2], [4], [7]]))
    )
    for leaf, kept in alone.memory[PERSONAL].items():
        float64.assert_equal({leaf: chained.memory[PERSONAL][leaf]}, {leaf: kept}, 1e-12)


def test_what_stays_is_no_traffic():
    size = {k: v.size * v.dtype.itemsize for k, v in float64.initial(simulation(recipes.fedavg())).items()}
    traffic = {name: simulation(recipe)._traffic for name, (recipe, *_) in CASES.items()}
    assert traffic["fedper"] == traffic["fedrep"] == (size["body"], size["body"])
    assert traffic["lg_fedavg"] == (size["head"], size["head"])
    assert traffic["local"] == (0, 0)


@part
class Vague(Personal):
    """Decides by values."""

    def personal(self, params):
        return jax.tree.map(lambda leaf: leaf.sum() > 0, params)


REFUSED = [
    (Recipe("vague", (Vague(),)), {}, "Vague.personal: received"),
    (recipes.combine(recipes.scaffold(), recipes.fedper()), {}, "scaffold: received OwnHead, whose leaves stay"),
    (
        recipes.fedper(),
        {"execution": Execution(client_memory="host")},
        "client_memory: received host, .*set it to device",
    ),
    (
        recipes.combine(recipes.lg_fedavg(), recipes.fedloge(steps=1)),
        {},
        "lg_fedavg: received RealignedHeads",
    ),
    (recipes.fedbn(), {}, "fedbn: received the model two, none of whose layers has 'norm' in its name"),
]


ON_THE_SERVER = {
    "fedavg_ft": recipes.fedavg_ft(),
    "fedbabu": recipes.fedbabu(fine_tune_epochs=1),
    "fedic": recipes.fedic(),
    "cbfl": recipes.cbfl(warm_up=0, gamma=0.0),
}


@pytest.mark.parametrize("name", ON_THE_SERVER)
def test_what_the_server_makes_of_a_model_that_no_client_uses_is_refused(name):
    for personal, slot in ((recipes.fedper(), "OwnHead"), (recipes.lg_fedavg(), "OwnBody")):
        with pytest.raises(ValueError, match=f"{name}: received {slot}, whose leaves stay with the clients, so "):
            simulation(recipes.combine(personal, ON_THE_SERVER[name]))


@pytest.mark.parametrize("name", ["fedncm", "ccvr", "creff", "rucr"])
def test_classifiers_of_features_that_no_client_uses_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: received OwnBody, whose layers stay with the clients, so "):
        float64.simulation(recipes.combine(recipes.lg_fedavg(), recipes.RECIPES[name]()), model=headed())
    float64.simulation(recipes.combine(recipes.fedper(), recipes.RECIPES[name]()), model=headed())  # shared features


def test_prototypes_that_would_reach_no_client_are_refused():
    for pair in (recipes.fednh(), recipes.fedper()), (recipes.fedrep(), recipes.fednh()):
        with pytest.raises(ValueError, match="fednh: received OwnHead, by which the classifier stays"):
            float64.simulation(recipes.combine(*pair), model=headed())
    float64.simulation(recipes.combine(recipes.fednh(), recipes.lg_fedavg()), model=headed())


@pytest.mark.parametrize(("recipe", "changes", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_cannot_be_is_refused(recipe, changes, message):
    with pytest.raises(ValueError, match=message):
        simulation(recipe, **changes)


def test_models_of_the_clients_own_are_not_fine_tuned():
    with pytest.raises(ValueError, match="personalised: received together with OwnHead, .*leave personalised out"):
        FineTuner(simulation(recipes.fedper()), 1)


def test_ditto_refuses_batch_statistics(make_bn):
    with pytest.raises(ValueError, match="ditto: received the model tiny_bn, whose batch statistics"):
        make_bn(recipes.ditto())
