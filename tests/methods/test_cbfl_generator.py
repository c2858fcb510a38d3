"""CBFL's generator: its loss and steps against NumPy, what it learns, and in which rounds it is trained at all."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import toys
from methods import faking, float64
from methods.faking import LATENT, SIZES, double, generated, slopes
from rounding import FORMULA

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.engine.host import executable, front_door, generated_images
from fedjax_bal.parts import LocalGenerator, SharedGenerator
from fedjax_bal.recipes import Recipe, cbfl
from fedjax_bal.testing.workbench import QUICKLY, ROUNDS, SEEDS, SILENT, Bench, key_of
from fedjax_bal.types import ServerContext, Variables

RATE, GAMMA, CLASSIFICATION, IMAGES = 0.02, 3.0, 0.6, 5


def teacher(seed=1):
    """Variables in which every number matters."""
    drawn = faking.network().init(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    stats = jax.tree.map(lambda leaf: leaf + rng.uniform(0.1, 0.6, leaf.shape), drawn.stats)
    return Variables(drawn.params, stats)


def loss(params, stats, latents, labels, judge, layers):
    """Cross-entropy plus gamma times the divergence of what the layers see from what they have stored."""
    images, after = generated(params, stats, latents, labels, train=True)
    logits, _, seen = faking.forward(judge.params, images, judge.stats)
    apart = []
    for name, kept in judge.stats.items():
        mean, var = seen[name]["mean"], seen[name]["var"]
        spread = 0.5 * np.log((kept["var"] + 1e-6) / (var + 1e-6))
        apart.append((spread + (var + (mean - kept["mean"]) ** 2) / (2 * kept["var"] + 1e-6) - 0.5).sum())
    total = np.mean(apart) if layers == "mean" else np.sum(apart)
    wrong = CLASSIFICATION * faking.cross_entropy(logits, labels)
    return wrong + GAMMA * total, after


def transcribed(key, judge, iterations, layers):
    """Algorithm 2 with Adam at betas 0.5 and 0.999."""
    params, stats = double(faking.generator().init(jax.random.fold_in(key, iterations)))
    first = second = jax.tree.map(np.zeros_like, params)
    for index in range(iterations):
        noise, classes = jax.random.split(jax.random.fold_in(key, index))
        latents = np.asarray(jax.random.normal(noise, (IMAGES, LATENT)))
        labels = np.asarray(jax.random.randint(classes, (IMAGES,), 0, toys.CLASSES))
        args = stats, latents, labels, judge, layers
        grads = slopes(lambda moved, args=args: loss(moved, *args)[0], params)
        first = jax.tree.map(lambda m, g: 0.5 * m + 0.5 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, grads)
        right = 1 - 0.5 ** (index + 1), 1 - 0.999 ** (index + 1)
        stats = loss(params, *args)[1]
        move = lambda p, m, v, right=right: p - RATE * (m / right[0]) / (np.sqrt(v / right[1]) + 1e-8)
        params = jax.tree.map(move, params, first, second)
    return params, stats


def _take_out_what_has_no_slope(variables):
    """Takes out biases that the next normalisation takes off again, and the running means that they move.

    Their slope is 0 but for rounding, of 1e-13 at most, and Adam divides it by its own size or by 1e-8: any move of
    less than 3e-7 in three steps is right.
    """
    for norm, layer in (("norm_0", "dense"), ("norm_1", "conv_0"), ("norm_2", "conv_1")):
        (inner,) = variables.params[layer].values()
        for values, key in ((inner, "bias"), (variables.stats[norm], "mean")):
            values.pop(key)


@pytest.mark.slow
@pytest.mark.parametrize("layers", quick.only(["mean", "sum"], "mean"))
def test_three_steps_of_adam_equal_the_transcription(layers, monkeypatch):
    faking.replace_generators(monkeypatch, lambda *sizes: faking.generator())
    with jax.enable_x64(True):
        key, judge = jax.random.key(4), teacher()
        given = {"rate": RATE, "gamma": GAMMA, "classification": CLASSIFICATION}
        part = SharedGenerator(iterations=3, batch_size=IMAGES, layers=layers, **given)
        got = jax.jit(lambda key, judge: part.fit(key, faking.network(), judge))(key, judge)
        want = transcribed(key, double(judge), 3, layers)
        start = faking.generator().init(jax.random.fold_in(key, 3)).params
        assert toys.largest_difference(got.params, start) > RATE
        got, want = double(got), Variables(*want)
        for variables in (got, want):
            _take_out_what_has_no_slope(variables)
        faking.assert_close(got, want, 1e-12)


CALLS = []


def noted(what, value):
    jax.debug.callback(lambda value: CALLS.append((what, tuple(np.asarray(value).tolist()))), value)


def taken():
    """What was noted since the last call: new generators by their keys, and numbers of steps and of batches shown."""
    jax.effects_barrier()
    calls = list(CALLS)
    CALLS.clear()
    number = lambda what: sum(name == what for name, _ in calls)
    return sorted(value for name, value in calls if name == "made"), number("trained"), number("shown")


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(executable, "LIBRARY_OPERATIONS", QUICKLY)
    faking.replace_generators(monkeypatch, lambda *sizes: faking.simplest(*sizes, noted))


@pytest.fixture
def simplified(monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)


def small(**options):
    """For any network: batch statistics don't count."""
    return cbfl(**({"warm_up": 1, "gamma": 0.0, "generator_batch": 4, "fakes": 2, **SIZES} | options))


def simulation(recipe, **changes):
    return float64.simulation(recipe, execution=replace(float64.EXECUTION, rounds_per_dispatch=1), **changes)


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def start_key(key, iterations):
    """What a training begins with."""
    return words(jax.random.fold_in(key, iterations))


def shared_key(seed, number, key=jax.random.key):
    return purpose_key(jax.random.fold_in(key(seed), number), "broadcast/generator")


def in_rounds(sim):
    """What was counted in each round."""
    snapshot, found = sim.init(float64.SEED), []
    taken()
    while snapshot.round < sim.rounds:
        snapshot = sim.advance(float64.SEED, snapshot).snapshot
        found.append(taken())
    return found


def local_steps(sim, number):
    """Of all that deliver in a round."""
    sizes = [toys.SIZES[client] for client in float64.cohorts(sim)[number][1]]
    return sum(float64.OPTIONS.epochs * -(-size // float64.OPTIONS.batch_size) for size in sizes)


@pytest.mark.slow
def test_a_shared_generator_is_trained_once_in_each_due_round_and_in_no_other(counted):
    sim = simulation(small(warm_up=2, interval=2, iterations=3), rounds=5)
    due = [1, 3]
    for number, (keys, steps, shown) in enumerate(in_rounds(sim)):
        assert keys == ([start_key(shared_key(float64.SEED, number), 3)] if number in due else [])
        assert steps == (3 if number in due else 0)
        assert shown == (local_steps(sim, number) if number >= 1 else 0)


def both_seeds(recipe):
    """What two seeds in one program call for."""
    bench = Bench(recipe, model=toys.network(), federation=toys.federation(), test=toys.test_set())
    bench.varied("seeds", "lanes")
    return taken()


@pytest.mark.slow
def test_two_seeds_in_one_program_train_two_generators_in_due_rounds_only(counted):
    taken()
    keys, steps, shown = both_seeds(small(warm_up=2, interval=2, iterations=5))
    due = range(1, ROUNDS, 2)
    untrained = [words(jax.random.key(0))]
    new = [start_key(shared_key(seed, number, key_of), 5) for seed in SEEDS for number in due]
    assert sorted(set(keys)) == sorted(untrained + new)
    assert [key for key in keys if [key] != untrained] == sorted(new)
    assert steps == 5 * len(SEEDS) * len(due)
    assert shown > 0 and SILENT not in due


@pytest.mark.slow
def test_two_seeds_in_one_program_train_none_and_make_no_fakes_before_the_first_round(counted, monkeypatch):
    monkeypatch.setattr(front_door, "check_needs", lambda context: None)  # a run that nobody is allowed
    taken()
    _, steps, shown = both_seeds(small(generator="per_client", warm_up=ROUNDS + 1, iterations=5))
    assert (steps, shown) == (0, 0)


@pytest.mark.slow
def test_clients_train_generators_of_their_own_after_warm_up_only(counted):
    sim = simulation(small(generator="per_client", warm_up=2, iterations=7), rounds=2)
    (_, *before), (keys, steps, shown) = in_rounds(sim)
    assert before == [0, 0]
    cohort = float64.cohorts(sim)[1][1]
    own = [training_key(jax.random.key(float64.SEED), 1, client, 0) for client in cohort]
    assert keys == sorted(start_key(purpose_key(key, "prepare/generator"), 7) for key in own) and len(keys) > 1
    assert (steps, shown) == (7 * len(keys), local_steps(sim, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["current", "snapshot"])
def test_who_teaches_between_trainings(kept, simplified):
    part = SharedGenerator(warm_up=1, interval=2, teacher=kept, iterations=1, batch_size=4, **SIZES)
    server = lambda *known: ServerContext(*known, None, None, faking.network(), faking.federation())
    broadcast = jax.jit(lambda key, *known: part.broadcast(key, server(*known)))
    state, generators, teachers = part.init_server(server(0, None, teacher(0))), [], []
    for number in range(5):
        state, sent = broadcast(jax.random.key(number), jnp.asarray(number), state, teacher(number))
        generators.append(sent.generator)
        teachers.append(sent.teacher)
    same = [toys.largest_difference(a, b) == 0 for a, b in zip(generators[1:], generators, strict=False)]
    assert same == [False, True, False, True]
    for number, judge in enumerate(teachers):
        of = number if kept == "current" else (0, 1, 1, 3, 3)[number]
        assert toys.largest_difference(judge, teacher(of)) < FORMULA


@pytest.mark.slow
def test_there_is_nothing_to_see_before_the_first_training(simplified):
    sim = simulation(small(warm_up=3, iterations=1), rounds=3)
    snapshot, seen = sim.init(0), []
    for _ in range(3):
        seen.append(generated_images(sim, snapshot) is None)
        snapshot = sim.advance(0, snapshot).snapshot
    assert seen == [True] * 3
    pixels = generated_images(sim, snapshot)
    assert pixels is not None and (pixels.dtype, len(pixels), pixels.ndim) == (np.uint8, toys.CLASSES, 5)


@pytest.mark.parametrize("kind", ["shared", "per_client"])
def test_a_network_without_batch_normalisation_is_refused_where_its_statistics_count(kind, simplified):
    with pytest.raises(ValueError, match=r"generator: received the model 'toy' .* gamma=10, .*tiny_bn.*set gamma to 0"):
        simulation(small(generator=kind, gamma=10.0))
    simulation(small(generator=kind))
    faking.simulation(small(generator=kind, gamma=10.0))


def test_noise_needs_no_batch_normalisation():
    simulation(small(generator="gaussian", gamma=10.0))


@pytest.mark.parametrize("kind", ["shared", "per_client", "gaussian"])
def test_a_run_without_a_round_after_warm_up_is_refused(kind):
    late = small(generator=kind, warm_up=7)
    with pytest.raises(ValueError, match="^warm_up: .* round 7, but rounds=6, .*lower warm_up .*set rounds to 7"):
        simulation(late, rounds=6)
    for need in [need for part in late.parts for need in part.needs[:1]]:
        need.check(SimpleNamespace(rounds=7))


@pytest.mark.slow
def test_a_network_without_batch_normalisation_is_taught_by_cross_entropy_alone(simplified):
    model = toys.network()
    part = lambda gamma: SharedGenerator(iterations=2, batch_size=4, rate=0.01, gamma=gamma, **SIZES)
    judge = model.init(jax.random.key(0))
    made = [part(gamma).fit(jax.random.key(1), model, judge) for gamma in (0.0, 10.0)]
    assert toys.largest_difference(*made) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(made))


def test_images_of_another_size_are_refused_when_the_simulation_is_built():
    for kind in ("shared", "per_client"):
        with pytest.raises(ValueError, match="image_shape: received .1, 5, 1.*multiples of 4"):
            float64.simulation(small(generator=kind))


def test_two_generators_are_refused():
    with pytest.raises(ValueError, match="both bring generator"):
        float64.simulation(Recipe("two", (SharedGenerator(), LocalGenerator())))
