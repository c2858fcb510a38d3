"""How long and how far clients train: steps in place of epochs, schedules, clipping, and what fits a deadline."""

import zlib
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest
import reference
import toys
from methods import float64
from rounding import FORMULA

from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.optim.schedules import schedule
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import fedavg, fednova, scaffold
from fedjax_bal.selection import speed, trace
from fedjax_bal.selection.speed import Speed

SEED, N, BATCH = float64.SEED, float64.N, float64.OPTIONS.batch_size
SIZES = np.array(toys.SIZES)
LOW, HIGH, DEADLINE = 2.0, 12.0, 0.5  # 1 to 6 steps fit
SGD = {"learning_rate": 0.2, "weight_decay": 0.01, "clip_norm": 0.2, "clip_value": 0.08}
SCHEDULES = {"schedule": schedule("step", every=1, factor=0.5), "step_schedule": schedule("exponential", factor=0.8)}


def factor(step):
    return 0.8**step


def clipped(grad):
    grad = {k: np.clip(g, -SGD["clip_value"], SGD["clip_value"]) for k, g in grad.items()}
    norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
    return {k: g * min(1.0, SGD["clip_norm"] / norm) for k, g in grad.items()}


def fitting(epochs=None, steps=None):
    """The steps of each client that fit before the deadline."""
    wanted = epochs * -(-SIZES // BATCH) if steps is None else np.full(N, steps)
    pace = np.random.default_rng([SEED, zlib.crc32(b"speed"), 0]).uniform(LOW, HIGH, N)
    return np.minimum(wanted, np.floor(DEADLINE * pace).astype(int)), wanted / pace


def train(received, client, number, steps, correction):
    """One local training; the epochs that the library draws go on for as many steps as are asked for."""
    data, rate = toys.federation(), SGD["learning_rate"] * 0.5**number
    flat = data.images.reshape(len(data.images), -1).astype(float)
    many = replace(float64.OPTIONS, epochs=steps)
    weights = dict(received)
    batches = list(islice(reference.draws(data, SEED, number, client, many), steps))
    for step, rows in enumerate(batches):
        grad = clipped(float64.gradient(weights, flat[rows], data.labels[rows]))
        grad = {k: grad[k] + correction[k] + SGD["weight_decay"] * weights[k] for k in grad}
        weights = {k: weights[k] - rate * factor(step) * grad[k] for k in weights}
    return weights, rate * sum(map(factor, range(len(batches))))


def simulation(recipe, **changes):
    local = replace(float64.LOCAL, optimizer=optimizer("sgd", **SGD, **SCHEDULES), **changes)
    clients = replace(float64.CLIENTS, speed=speed.uniform(LOW, HIGH, DEADLINE))
    return float64.simulation(recipe, local=local, participation=clients)


@pytest.mark.slow
def test_scaffold_with_counted_steps_schedules_clipping_and_a_deadline(double):
    sim = simulation(scaffold(), epochs=None, steps=5)
    steps, _ = fitting(steps=5)
    zeros = {k: np.zeros_like(v) for k, v in float64.initial(sim).items()}
    weights, control, controls = float64.initial(sim), zeros, dict.fromkeys(range(N), zeros)
    for number, cohort in float64.cohorts(sim):
        assert len({steps[c] for c in cohort}) > 1
        changes, news = {}, {}
        for c in cohort:
            correction = {k: control[k] - controls[c][k] for k in control}
            trained, reach = train(weights, c, number, steps[c], correction)
            changes[c] = float64.difference(trained, weights)
            news[c] = {k: controls[c][k] - control[k] - changes[c][k] / reach for k in control}
        weights = float64.plus(weights, float64.mean(dict.fromkeys(cohort, 1 / len(cohort)), changes))
        moved = [float64.difference(news[c], controls[c]) for c in cohort]
        control = {k: control[k] + sum(move[k] for move in moved) / N for k in control}
        controls |= news
    got = float64.run(sim)
    float64.assert_equal(got.variables.params, weights)
    float64.assert_equal(got.server["ControlVariates"], control)
    last = cohort[-1]
    float64.assert_equal({k: v[last] for k, v in got.memory["ControlVariates"].items()}, controls[last])


@pytest.mark.slow
def test_fednova_divides_by_the_steps_that_were_taken_at_their_rates(double):
    sim = simulation(fednova())
    steps, seconds = fitting(epochs=2)
    weights, times = float64.initial(sim), []
    zeros = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, cohort in float64.cohorts(sim):
        reach = {c: sum(map(factor, range(steps[c]))) for c in cohort}
        trained = {c: train(weights, c, number, steps[c], zeros)[0] for c in cohort}
        directions = {c: {k: (trained[c][k] - weights[k]) / reach[c] for k in weights} for c in cohort}
        shares = float64.by_size(cohort)  # by rows, whoever was late
        effective = sum(shares[c] * reach[c] for c in cohort)
        step = float64.mean(shares, directions)
        weights = {k: weights[k] + effective * step[k] for k in weights}
        plan, _ = sim.plan(SEED, number, ())
        lost = (plan.clients < N).sum() > len(cohort)
        times.append(DEADLINE if lost else min(DEADLINE, max(seconds[c] for c in cohort)))
    advance = sim.advance(SEED, sim.init(SEED))
    float64.assert_equal(jax.device_get(advance.snapshot.state.variables.params), weights)
    assert [record["simulated_s"] for record in advance.records] == pytest.approx(times)
    assert advance.work.useful == sum(steps[c] for _, cohort in float64.cohorts(sim) for c in cohort)
    rows = {c: sum(_rows_of(c, steps[c])) for c in range(N)}
    assert advance.samples == sum(rows[c] for _, cohort in float64.cohorts(sim) for c in cohort)


def _rows_of(client, steps):
    """Rows in each of so many batches, epoch after epoch."""
    epoch = [min(BATCH, SIZES[client] - start) for start in range(0, SIZES[client], BATCH)]
    return (epoch * steps)[:steps]


def state(sim):
    return jax.device_get(sim.advance(SEED, sim.init(SEED)).snapshot.state)


@pytest.mark.slow
def test_steps_are_epochs_where_they_coincide_and_limits_that_limit_nothing_change_nothing():
    # Of all clients 5, 6, 8 and 3 have one batch of 8, so that two epochs are two steps.
    chosen = Participation(selector=toys.chosen([(5,), (6,), (8,), (3,)]))
    by_epochs = replace(float64.LOCAL, optimizer=optimizer("sgd", 0.1, momentum=0.5))
    level = schedule("polynomial_schedule", end_value=1.0, power=1.0, transition_steps=3)
    far = optimizer("sgd", 0.1, momentum=0.5, clip_norm=1e9, clip_value=1e9, step_schedule=level)
    by_steps = replace(float64.LOCAL, epochs=None, steps=2, optimizer=far)
    late = replace(chosen, speed=speed.constant(1.0, deadline=1e9))
    epochs = float64.simulation(fedavg(), local=by_epochs, participation=chosen)
    steps = float64.simulation(fedavg(), local=by_steps, participation=late)
    assert toys.largest_difference(state(epochs), state(steps)) < FORMULA


@pytest.mark.parametrize("size", [1, 8, 9, 20])
def test_local_steps_are_counted_exactly(size):
    sim = float64.simulation(fedavg(), local=replace(float64.LOCAL, epochs=None, steps=7))
    limited = float64.simulation(fedavg(), local=replace(float64.LOCAL, batches_per_epoch=2))
    assert sim.setting.local_steps(size) == 7
    assert sim.setting.local_steps(size, 3) == 3
    assert limited.setting.local_steps(size) == 2 * min(2, -(-size // 8))
    for steps in range(1, 8):
        epoch = [min(8, size - start) for start in range(0, size, 8)]
        assert sim.setting.samples(size, steps) == sum((epoch * 7)[:steps])
        assert limited.setting.samples(size, steps) == sum((epoch[:2] * 7)[:steps])


def test_who_can_not_do_a_step_does_not_deliver(tmp_path):
    slow = np.where(np.arange(N) % 2, 10.0, 1.0)
    file = tmp_path / "speeds.npz"
    np.savez(file, slow)
    each, slow = toys.chosen([(c,) for c in range(N)]), speed.table(file, deadline=0.5)
    sim = float64.simulation(fedavg(), participation=Participation(selector=each, speed=slow))
    plan, _ = sim.plan(SEED, 0, ())
    assert plan.clients[plan.delivered].tolist() == [1, 3, 5, 7, 9]
    assert plan.limits[plan.delivered].tolist() == [5] * 5


def test_a_trace_says_who_is_asked_and_who_delivers(tmp_path):
    there, back = tmp_path / "there.csv", tmp_path / "back.csv"
    there.write_text("round,client\n0,1\n0,4\n0,7\n1,2\n")
    back.write_text("round,client,available\n0,1,1\n0,7,1\n0,4,0\n1,0,1\n")
    clients = replace(float64.CLIENTS, availability=trace(there), delivery=trace(back))
    sim = float64.simulation(fedavg(), participation=clients)
    plans = [sim.plan(SEED, number, ())[0] for number in range(3)]
    assert [plan.clients[plan.clients < N].tolist() for plan in plans] == [[1, 4, 7], [2], [1, 4, 7]]
    assert [plan.clients[plan.delivered].tolist() for plan in plans] == [[1, 7], [], [1, 7]]


SHORT = Speed("file", table=np.ones(3), source="a.csv")
REFUSED = {
    "server": ({"server_optimizer": optimizer("sgd", 1.0, step_schedule=SCHEDULES["step_schedule"])}, "server_opt.*st"),
    "speeds": ({"participation": Participation(speed=SHORT)}, "speed: a.csv: has 3 speeds, but .* 10 cl"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        float64.simulation(fedavg(), **changes)


@pytest.mark.parametrize("recipe", [fednova(), fednova(mu=0.1), scaffold(scaffold_momentum=True)])
def test_step_schedules_are_refused_where_their_reach_is_not_known(recipe):
    momentum = 0.0 if recipe.parts[0].slot == "Proximal" or len(recipe.parts) > 1 else 0.5
    local = optimizer("sgd", 0.1, momentum=momentum, **SCHEDULES)
    with pytest.raises(ValueError, match="received a .*step_schedule"):
        float64.simulation(recipe, local=LocalTraining(optimizer=local))
