"""FedGen: the generator's training and the clients' loss against their transcriptions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand, heads

from fedjax_bal.methods.fedgen import GeneratorState, SentGenerator
from fedjax_bal.parts import FeatureGenerator
from fedjax_bal.recipes import combine, fedavg, fedgen, fedper
from fedjax_bal.types import Aggregate, Cohort, ServerContext, Variables

WIDTH, LATENT, STEPS, SIZE, RATE, DECAY, MADE = 3, 2, 4, 8, 0.05, 0.1, 5
COUNTS = np.array([[3.0, 0, 1, 0], [50, 50, 50, 50], [2, 0, 0, 0], [0, 0, 6, 0]])  # of four clients
COUNTED = np.array([True, False, True, True])
WEIGHTS = np.array([0.5, 0.0, 0.2, 0.3])

pytestmark = pytest.mark.usefixtures("double")


def part(**changes):
    """A small generator."""
    sizes = {"steps": STEPS, "batch_size": SIZE, "learning_rate": RATE, "weight_decay": DECAY, "features": MADE}
    return fedgen(**{"width": WIDTH, "latent": LATENT, "diversity": 0.7, **sizes, **changes}).parts[0]


def flat(variables):
    """The generator's parameters and running statistics in one dict of arrays each."""
    params, stats = variables.params, variables.stats["norm"]
    first, second = (params[name]["dense"] for name in ("dense_0", "dense_1"))
    found = {"w0": first["kernel"], "b0": first["bias"], "w1": second["kernel"], "b1": second["bias"]}
    norm = {"scale": params["norm"]["scale"], "shift": params["norm"]["bias"]}
    return heads.as_numpy(found | norm), heads.as_numpy({"mean": stats["mean"], "var": stats["var"]})


def generate(p, latents, labels, stats=None):
    """Features, and the statistics of the batch; derivatives go through complex parameters."""
    hidden = np.concatenate([latents, np.eye(toys.CLASSES)[labels]], 1) @ p["w0"] + p["b0"]
    mean = hidden.mean(0)
    batch = {"mean": mean, "var": ((hidden - mean) ** 2).mean(0)}
    used = batch if stats is None else stats
    hidden = p["scale"] * (hidden - used["mean"]) / np.sqrt(used["var"] + 1e-5) + p["shift"]
    return (hidden * (hidden.real > 0)) @ p["w1"] + p["b1"], batch


def cross_entropies(logits, labels):
    """Of each row."""
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]


def generator_loss(p, latents, labels, classifiers, teacher):
    """What the server minimises."""
    made, _ = generate(p, latents, labels)
    logits = {k: made @ kernel + bias for k, (kernel, bias) in classifiers.items()}
    if teacher == "logits":
        wrong = cross_entropies(sum(logits.values()) / len(logits), labels).mean()
    else:
        shares = COUNTS / np.maximum(COUNTS[COUNTED].sum(0), 1)
        wrong = sum((shares[k, labels] * cross_entropies(own, labels)).mean() for k, own in logits.items())
    alike = 0.0
    for i in range(SIZE):
        for j in range(SIZE):
            apart = made[i] - made[j]
            alike += ((latents[i] - latents[j]) ** 2).mean() * (apart * np.sign(apart.real)).mean() / SIZE**2
    return wrong + 0.7 * np.exp(-alike)


def gradient(p, *given):
    """By complex steps, whose derivatives are exact."""
    slopes = {k: np.zeros_like(leaf) for k, leaf in p.items()}
    for name, leaf in p.items():
        for place in np.ndindex(leaf.shape):
            ahead = leaf.astype(complex)
            ahead[place] += 1e-30j
            slopes[name][place] = generator_loss(p | {name: ahead}, *given).imag / 1e-30
    return slopes


def trained(p, stats, adam, key, trainings, classifiers, teacher):
    """The generator after a round's steps."""
    for index in range(STEPS):
        noise, label = jax.random.split(jax.random.fold_in(key, index))
        latents = np.asarray(jax.random.uniform(noise, (SIZE, LATENT)))
        there = jnp.log(jnp.array(COUNTS[COUNTED].sum(0) > 0, float))
        labels = np.asarray(jax.random.categorical(label, there, shape=(SIZE,)))
        assert set(labels) <= {0, 2}
        slopes = gradient(p, latents, labels, classifiers, teacher)
        _, batch = generate(p, latents, labels)
        stats = {
            "mean": 0.9 * stats["mean"] + 0.1 * batch["mean"],
            "var": 0.9 * stats["var"] + 0.1 * batch["var"] * SIZE / (SIZE - 1),
        }
        adam["count"] += 1
        for k in p:
            g = slopes[k] + DECAY * p[k]
            adam["first"][k] = 0.9 * adam["first"][k] + 0.1 * g
            adam["second"][k] = 0.999 * adam["second"][k] + 0.001 * g**2
            first = adam["first"][k] / (1 - 0.9 ** adam["count"])
            second = adam["second"][k] / (1 - 0.999 ** adam["count"])
            p = p | {k: p[k] - RATE * 0.98**trainings * first / (np.sqrt(second) + 1e-8)}
    return p, stats


def server(state, received, deltas, key):
    """The server at the end of a round."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *deltas)
    cohort = Cohort(**dict.fromkeys(Cohort._fields) | {"class_counts": jnp.array(COUNTS)})
    filled = dict.fromkeys(ServerContext._fields) | {
        "variables": received, "model": heads.network(), "state": state, "key": key, "cohort": cohort,
        "aggregate": Aggregate({}, {}, jnp.array(WEIGHTS), cohort, deltas=stacked),
    }  # fmt: skip
    return ServerContext(**filled)


@pytest.mark.parametrize("teacher", ["losses", pytest.param("logits", marks=pytest.mark.slow)])
def test_the_generator_equals_its_transcription_over_two_rounds(teacher):
    own, received = part(teacher=teacher), heads.network().init(jax.random.key(1))
    draws = [jax.tree.map(lambda leaf, seed=seed: 0.5 * hand.draw(*leaf.shape, seed=seed), received.params)
             for seed in range(4)]  # fmt: skip
    classifiers = {
        k: (received.params["head"]["kernel"] + draws[k]["head"]["kernel"],
            received.params["head"]["bias"] + draws[k]["head"]["bias"]) for k in (0, 2, 3)
    }  # fmt: skip
    classifiers = jax.tree.map(np.asarray, classifiers)
    draws[1] = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), draws[1])  # it doesn't count
    state = jax.jit(lambda key: own.init_server(server(None, received, draws, key)))(jax.random.key(2))
    p, stats = flat(state.sent.variables)
    zeros = {k: np.zeros_like(leaf) for k, leaf in p.items()}
    adam = {"count": 0, "first": dict(zeros), "second": dict(zeros)}
    step = jax.jit(lambda state, key: own.step((), server(state, received, draws, key))[1])
    for number in range(2):
        key = jax.random.key(number + 7)
        p, stats = trained(p, stats, adam, key, number, classifiers, teacher)
        state: GeneratorState = step(state, key)
        found = flat(state.sent.variables)
        float64.assert_equal(found[0], p)
        float64.assert_equal(found[1], stats)
    assert state.sent.trainings == 2


def test_the_loss_of_clients_equals_its_transcription():
    own, net = part(weight=2.0, alignment=3.0), heads.network()
    variables = own.network(net, net.init(jax.random.key(0))).init(jax.random.key(3))
    variables = jax.tree.map(lambda leaf: leaf.astype(float), variables)
    body = net.init(jax.random.key(4)).params
    bias, at = np.asarray(body["head"]["bias"], float), np.asarray(body["head"]["kernel"], float)
    p, stats = flat(variables)
    logits = hand.draw(hand.ROWS, hand.CLASSES, seed=5)
    batch = hand.batch()
    sent = SentGenerator(variables, jnp.array(6))
    states = {"prepared": {own.slot: jnp.uint32(11)}, "steps_state": {own.slot: jnp.array(2)}}
    ctx = hand.context(model=net, start=Variables(body, {}), broadcast={own.slot: sent}, batch_size=8, **states)

    label, noise, other = jax.random.split(jax.random.fold_in(jax.random.key(np.uint32(11)), 2), 3)
    there = jnp.log((jnp.asarray(toys.federation().class_counts).sum(0) > 0).astype(float))
    labels = np.asarray(jax.random.categorical(label, there, shape=(MADE,)))
    made, _ = generate(p, np.asarray(jax.random.uniform(noise, (MADE, LATENT))), labels, stats)
    alike, _ = generate(p, np.asarray(jax.random.uniform(other, (hand.ROWS, LATENT))), hand.LABELS, stats)

    def transcription(kernel, logits=logits):
        target = reference.softmax(alike @ at + bias)  # no gradient
        log_p = np.log(reference.softmax(logits))
        divergences = (target * (np.log(target) - log_p)).sum(1)[hand.REAL]
        wrong = cross_entropies(made @ kernel + bias, labels).mean()
        return 0.98**6 * (2.0 * MADE / 8 * wrong + 3.0 * divergences.mean())

    def loss(kernel, logits=logits, ctx=ctx):
        head = {"kernel": kernel, "bias": jnp.asarray(bias)}
        return own.loss(hand.outputs(logits), batch, {"body": body["body"], "head": head}, ctx)

    hand.check(loss, transcription, at)
    hand.check(lambda logits: loss(at, logits), lambda logits: transcription(at, logits), logits)
    untrained = ctx._replace(broadcast={own.slot: sent._replace(trainings=jnp.array(0))})
    assert loss(at, ctx=untrained) == 0


def test_the_clients_of_the_first_round_are_those_of_fedavg():
    recipe = fedgen(steps=2, batch_size=4, features=3, width=2, latent=2)
    first = {"model": heads.network(), "rounds": 1}
    got, want = (float64.run(float64.simulation(own, **first)) for own in (recipe, fedavg()))
    assert toys.largest_difference(got.variables.params, want.variables.params) < 1e-12
    assert got.server["FeatureGenerator"].sent.trainings == 1


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{"weight": 0.0, "alignment": 0.0, "steps": 2}, {"steps": 0}])
def test_without_weights_or_a_trained_generator_it_is_fedavg(knobs):
    recipe = fedgen(**knobs, batch_size=4, features=3, width=2, latent=2)
    got, want = (float64.run(float64.simulation(own, model=heads.network())) for own in (recipe, fedavg()))
    assert toys.largest_difference(got.variables.params, want.variables.params) < 1e-12


def test_classifiers_that_stay_with_clients_are_refused():
    assert isinstance(part(), FeatureGenerator)
    with pytest.raises(ValueError, match="fedgen: received OwnHead, whose leaves stay with the clients"):
        float64.simulation(combine(fedgen(), fedper()), model=heads.network())
