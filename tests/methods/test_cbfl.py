"""CBFL's local training: against NumPy, the laws of what is drawn, its identities, and what it combines with."""

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import reference
import toys
from methods import faking, float64
from methods.faking import LATENT, SIZES, double, forward, generated
from methods.float64 import OPTIONS, SEED

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.methods.cbfl import draw_labels
from fedjax_bal.parts import Fakes, SharedGenerator
from fedjax_bal.recipes import Recipe, cbfl, combine, fedavg
from fedjax_bal.types import Batch, Variables

COUNT, WARM_UP, WEIGHT, ATTENTION, TEMPERATURE = 5, 1, 0.7, 30.0, 2.0
FIT = SharedGenerator(iterations=2, batch_size=4, rate=0.01, gamma=2.0, **SIZES)
BASE = {
    "warm_up": WARM_UP + 1,  # the recipe counts rounds from 1
    "fakes": COUNT, "weight": WEIGHT, "attention": ATTENTION, "temperature": TEMPERATURE, "gamma": FIT.gamma,
    "iterations": FIT.iterations, "generator_batch": FIT.batch_size, "generator_rate": FIT.rate, **SIZES,
}  # fmt: skip
KINDS = {
    "as in the paper": {},
    "with its generator": {},  # others are simpler
    "snapshot": {"teacher": "snapshot", "interval": 5, "distillation": 0.4},
    "noise, rarest, other direction": {
        "generator": "gaussian", "labels": "rarest", "rarest": 2, "direction": "student_teacher",
    },
    "per client, uniform, labels": {"generator": "per_client", "labels": "uniform", "learn": "cross_entropy"},
}  # fmt: skip


def law(counts, options):
    """Of the fakes' classes."""
    kind, classes = options.get("labels", "balanced"), len(counts)
    if kind == "uniform":
        return np.full(classes, 1 / classes)
    held = counts / counts.sum() if counts.sum() else np.full(classes, 1 / classes)
    weights = (1 - held) / (classes - 1)
    if kind == "rarest":
        # Equally rare classes in any order; each order gives another set of the rarest.
        orders = np.array(list(itertools.permutations(range(classes))))
        few = [order[np.argsort(counts[order], kind="stable")][: options["rarest"]] for order in orders]
        weights = weights * np.mean([np.isin(np.arange(classes), own) for own in few], 0)
    return weights / weights.sum()


def attention(maps):
    """Where a feature map is active, of length 1."""
    spread = (maps**2).sum(-1)
    return spread / (np.sqrt((spread**2).sum((1, 2), keepdims=True)) + 1e-6)


def added(logits, taps, labels, theirs, options):
    """What is learnt on fakes."""
    if options.get("learn") == "cross_entropy":
        return WEIGHT * faking.cross_entropy(logits, labels)
    student, judge = faking.log_softmax(logits / TEMPERATURE), faking.log_softmax(theirs[0] / TEMPERATURE)
    p, q = (student, judge) if options.get("direction") == "student_teacher" else (judge, student)
    apart = (np.exp(p) * (p - q)).sum(1).mean()
    pairs = zip(taps, theirs[1], strict=True)
    maps = sum(((attention(own) - attention(other)) ** 2).mean() for own, other in pairs)
    return WEIGHT * (options.get("distillation", 1) * TEMPERATURE**2 * apart + ATTENTION * maps)


def made(key, labels, net):
    """Fakes as the network sees them, in the type of the federation's images."""
    latents = np.asarray(jax.random.normal(key, (COUNT, LATENT)))
    if net is None:
        images = np.asarray(jax.random.normal(key, (COUNT, *faking.SHAPE)))
    elif "w" in net.params:
        images = faking.simply_generated(net, latents, labels)
    else:
        images = generated(*net, latents, labels)[0]
    return images.astype(np.float32).astype(float)


def fit(key, received):
    return double(jax.jit(lambda key, judge: FIT.fit(key, faking.network(), judge))(key, received))


def objective(weights, images, labels, learnt):
    """The loss of a local step: one pass over real images and fakes, told apart afterwards."""
    (logits, taps, _), real = forward(weights, images), len(labels)
    total = faking.cross_entropy(logits[:real], labels)
    return total if learnt is None else total + learnt(logits[real:], [tap[real:] for tap in taps])


def train(received, judge, net, number, client, options):
    """One visit to a client."""
    data, (params, stats) = faking.federation(), received
    key, rate = training_key(jax.random.key(SEED), number, client, 0), OPTIONS.rate * OPTIONS.decay**number
    counts, each = data.class_counts[client], -(-toys.SIZES[client] // OPTIONS.batch_size)
    for step, rows in enumerate(reference.draws(data, SEED, number, client, OPTIONS)):
        own = purpose_key(jax.random.fold_in(key, step // each), "batch/Fakes")
        to_label, to_make = jax.random.split(jax.random.fold_in(own, step % each))
        images, learnt = data.images[rows].astype(float), None
        if number >= WARM_UP:
            labels = np.asarray(draw_labels(to_label, jnp.asarray(law(counts, options)), COUNT))
            more = made(to_make, labels, net)
            images, theirs = np.concatenate([images, more]), forward(judge.params, more, judge.stats)
            learnt = partial(added, labels=labels, theirs=theirs, options=options)
        seen = forward(params, images)[2]
        grads = faking.slopes(partial(objective, images=images, labels=data.labels[rows], learnt=learnt), params)
        params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        keep = lambda old, new: faking.MOMENTUM * old + (1 - faking.MOMENTUM) * new
        stats = jax.tree.map(keep, stats, seen)
    return Variables(params, stats)


def transcribed(sim, options):
    """Algorithm 1 over the rounds of a simulation."""
    variables, kind, judge, net = double(sim.init(SEED).state.variables), options.get("generator", "shared"), None, None
    for number, cohort in float64.cohorts(sim):
        if number >= WARM_UP and (judge is None or "teacher" not in options):
            judge, key = variables, jax.random.fold_in(jax.random.key(SEED), number)
            net = fit(purpose_key(key, "broadcast/generator"), judge) if kind == "shared" else None
        after = {}
        for client in cohort:
            if kind == "per_client" and number >= WARM_UP:
                key = training_key(jax.random.key(SEED), number, client, 0)
                net = fit(purpose_key(key, "prepare/generator"), judge)
            after[client] = train(variables, judge, net, number, client, options)
        shares = float64.by_size(cohort)
        weighed = [jax.tree.map(partial(np.multiply, shares[client]), after[client]) for client in cohort]
        variables = jax.tree.map(lambda *leaves: sum(leaves), *weighed)
    return variables


THREE = replace(float64.CLIENTS, clients_per_round=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick.only(KINDS, *list(KINDS)[:1], *list(KINDS)[2:], others=pytest.mark.nightly))
def test_rounds_equal_the_transcription(kind, monkeypatch):
    with jax.enable_x64(True):
        real = kind == "with its generator"
        faking.replace_generators(monkeypatch, lambda *sizes: faking.generator() if real else faking.simplest(*sizes))
        few = {"participation": THREE, "rounds": 2 if real else 3}  # NumPy takes long to train a real generator
        sim = faking.simulation(cbfl(**(BASE | KINDS[kind])), **few)
        got = double(float64.run(sim).variables)
        faking.assert_close(got, transcribed(sim, KINDS[kind]), 1e-6)
        plain = float64.run(faking.simulation(fedavg(), **few)).variables
        assert toys.largest_difference(got, plain) > 1e-3


@pytest.mark.parametrize("kind", ["shared", "per_client", "gaussian"])
def test_warm_up_counts_rounds_from_one(kind):
    starts = lambda warm_up: {part.warm_up for part in cbfl(warm_up=warm_up, generator=kind).parts}
    assert [starts(warm_up) for warm_up in (0, 1, 2, 700)] == [{0}, {0}, {1}, {699}]


def batch_of(part, counts, model=None, seed=0):
    """A batch of two real images, and what a part puts behind them."""
    one = Batch(jnp.ones((2, *faking.SHAPE)), jnp.zeros(2, int), jnp.arange(2), jnp.array([True, False]))
    fill = lambda key, counts: part.batch(
        key, one, SimpleNamespace(class_counts=counts, model=model or faking.network())
    )
    return one, jax.jit(fill)(jax.random.key(seed), jnp.asarray(counts))


COUNTS = [(90, 10, 0, 0), (0, 0, 7, 0), (0, 0, 0, 0), (3, 1, 2, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("options", [{}, {"labels": "uniform"}, {"labels": "rarest", "rarest": 2}], ids=str)
def test_the_law_of_the_labels(counts, options):
    many = 20_000
    _, filled = batch_of(Fakes(count=many, images="gaussian", **options), counts)
    often = np.bincount(filled.labels[2:], minlength=len(counts))
    shares = law(np.array(counts), options)
    assert not often[shares == 0].any()
    wanted = many * shares[shares > 0]
    assert ((often[shares > 0] - wanted) ** 2 / wanted).sum() < 16.3  # chi-squared, 3 degrees: one in a thousand


def test_fakes_stand_behind_the_clients_own_rows_and_are_not_real():
    one, filled = batch_of(Fakes(count=3, images="gaussian"), COUNTS[0])
    for before, after in zip(one[:4], filled[:4], strict=True):
        np.testing.assert_array_equal(after[:2], before)
    assert filled.real.tolist() == [True, False, False, False, False]
    assert filled.extra.tolist() == [False, False, True, True, True]
    assert filled.seen.tolist() == [True, False, True, True, True]
    assert (filled.rows[2:] == jnp.iinfo(filled.rows.dtype).max).all()


def test_noise_is_standard_normal_and_new_in_each_step():
    part = Fakes(count=2000, images="gaussian")
    images = np.asarray(batch_of(part, COUNTS[0])[1].images[2:])
    assert images.shape == (2000, *faking.SHAPE)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert (images**power).mean() == pytest.approx(moment, abs=0.12)
    assert np.abs(images - np.asarray(batch_of(part, COUNTS[0], seed=1)[1].images[2:])).max() > 1


def test_settings_in_which_it_means_nothing_are_refused():
    with pytest.raises(ValueError, match="fakes: received a model of 1 class"):
        model = faking.network()._replace(num_classes=1)
        faking.simulation(Recipe("mine", (Fakes(images="gaussian", labels="uniform", warm_up=0),)), model=model)
    with pytest.raises(ValueError, match="rarest: received 5"):
        faking.simulation(cbfl(**(BASE | {"labels": "rarest", "rarest": 5})))
    with pytest.raises(ValueError, match="images='generator' without a generator"):
        faking.simulation(Recipe("alone", (Fakes(warm_up=0),)))
    with pytest.raises(ValueError, match="both bring Fakes"):
        combine(cbfl(generator="gaussian"), cbfl(generator="gaussian"))
