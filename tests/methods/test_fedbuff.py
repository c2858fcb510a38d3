"""FedBuff: against Algorithm 1 in NumPy, what it amounts to without stale updates, and how its runs are carried on."""

import dataclasses

import jax
import numpy as np
import pytest
import quick
import reference
import table
import toys
from arrivals import events
from methods import float64
from rounding import DOUBLE, FORMULA, SUM

from fedjax_bal.engine.device.evaluation import in_batches
from fedjax_bal.engine.host import build_simulation, make_round
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.lab.checkpoint import load, save
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import BALANCED, StalenessWeights
from fedjax_bal.recipes import combine, equal_weights, fedavg, fedbuff, feddyn, fedic, fednova, median, scaffold
from fedjax_bal.selection import Choice, speed
from fedjax_bal.types import Cohort

ROUNDS, PLACES, LIMIT = 9, 3, 8
SPEED = speed.lognormal(10, 1.0)
CLIENTS = Participation(clients_per_round=PLACES, speed=SPEED)
TEST = in_batches(*toys.test_set())


# Against Algorithm 1.


def arrivals(options, seed=float64.SEED, **given):
    """The clients and the staleness of each round, from what a client's local training takes."""
    steps = options.epochs * -(-np.array(toys.SIZES) // options.batch_size)
    seconds = [steps / SPEED.drawn(seed, number, float64.N) for number in range(ROUNDS)]
    return events(PLACES, LIMIT, seconds, [np.ones(float64.N, bool)] * ROUNDS, **{"seed": seed} | given)


def transcription(weights, options, exponent=0.5, most=20, equal=False):
    """Algorithm 1: each client moves the model that it received; the server adds the scaled moves to its newest."""
    models = [weights]
    for number, (clients, staleness, _) in enumerate(arrivals(options)):
        stale = {c: s for c, s in zip(clients, staleness, strict=True) if s <= most}
        shares = dict.fromkeys(stale, 1 / len(stale)) if equal else float64.by_size(stale)
        moves = {}
        for client, age in stale.items():
            received = models[number - age]
            moves[client] = float64.difference(float64.train(received, client, number, options)[0], received)
        scaled = {client: shares[client] / (1 + age) ** exponent for client, age in stale.items()}
        # If all updates of a round are too stale, the model stays.
        models.append(float64.plus(models[-1], float64.mean(scaled, moves)) if stale else models[-1])
    return models[-1]


CASES = {
    "by size": (fedbuff(LIMIT), {}),
    "as in the paper": (combine(fedbuff(LIMIT), equal_weights()), {"equal": True}),
    "the stalest are left out": (fedbuff(LIMIT, max_staleness=2, exponent=1.0), {"exponent": 1.0, "most": 2}),
    "without scaling": (combine(fedavg(), dataclasses.replace(fedbuff(LIMIT), parts=())), {"exponent": 0.0}),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", quick.only(CASES, "as in the paper"))
def test_fedbuff_equals_algorithm_1(name):
    recipe, knobs = CASES[name]
    sim = float64.simulation(recipe, rounds=ROUNDS, participation=CLIENTS)
    ages = [s for _, staleness, _ in arrivals(float64.OPTIONS) for s in staleness]
    assert {0, 1, 2} < set(ages)
    want = transcription(float64.initial(sim), float64.OPTIONS, **knobs)
    state, records, _ = float64.finished(sim)
    float64.assert_equal(state.variables.params, want)
    clock = arrivals(float64.OPTIONS)[-1][2]
    np.testing.assert_allclose(sum(record["simulated_s"] for record in records), clock, rtol=DOUBLE)
    lost = sum(s > knobs.get("most", 20) for s in ages)
    assert (lost > 0) == (name == "the stalest are left out")
    size = 4 * sum(np.size(leaf) for leaf in want.values())
    assert sum(record["dropped"] for record in records) == lost
    assert sum(record["clients"] for record in records) == PLACES * ROUNDS - lost
    # In this test, numbers take twice the bytes.
    assert sum(record["bytes_down"] for record in records) == 2 * size * PLACES * ROUNDS
    assert sum(record["bytes_up"] for record in records) == 2 * size * (PLACES * ROUNDS - lost)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_clients_of_scaffold_use_the_control_variate_that_they_received():
    options = float64.OPTIONS
    sim = float64.simulation(combine(scaffold(), fedbuff(LIMIT)), rounds=ROUNDS, participation=CLIENTS)
    weights = float64.initial(sim)
    zeros = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
    models, controls, owns = [weights], [zeros], dict.fromkeys(range(float64.N), zeros)
    for number, (clients, staleness, _) in enumerate(arrivals(options)):
        moves, changes = {}, {}
        for client, age in zip(clients, staleness, strict=True):
            received, control, own = models[number - age], controls[number - age], owns[client]
            correct = lambda grad, _, own=own, control=control: {k: grad[k] - own[k] + control[k] for k in grad}
            trained, _ = float64.train(received, client, number, options, change=correct)
            server = reference.Server(received, control, owns)
            steps, rate = 2 * -(-toys.SIZES[client] // 8), options.rate * options.decay**number
            new = reference.new_control(server, client, received, trained, steps, rate, options)
            moves[client], changes[client] = float64.difference(trained, received), float64.difference(new, own)
            owns[client] = new
        scales = {c: (1 + age) ** -0.5 / len(clients) for c, age in zip(clients, staleness, strict=True)}
        models.append(float64.plus(models[-1], float64.mean(scales, moves)))
        controls.append(float64.plus(controls[-1], float64.mean(dict.fromkeys(changes, 1 / float64.N), changes)))
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, models[-1])
    (control,) = state.server.values()
    float64.assert_equal(control, controls[-1])


def test_the_step_is_as_long_as_the_scales_say():
    part, staleness = StalenessWeights(0.5), np.array([0, 3, 8])
    cohort = Cohort(**dict.fromkeys(Cohort._fields) | {"staleness": staleness})
    scaled = np.asarray(part.weigh(np.array([30.0, 10.0, 20.0]), cohort, None))
    np.testing.assert_allclose(scaled, [30, 10 / 2, 20 / 3], rtol=FORMULA)


# Without stale updates.


def end(recipe, participation, seed=0, **changes):
    """The last state and all records of a run in float32."""
    options = {"rounds": 4, "local": LocalTraining(steps=3, batch_size=4), "execution": float64.EXECUTION} | changes
    return table.finish(float64.simulation(recipe, test=TEST, participation=participation, **options), seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"clients_per_round": 4, "speed": speed.constant(2.0)}, id="equally fast clients"),
        pytest.param({"clients_per_round": len(toys.SIZES), "speed": SPEED}, id="rounds of all clients"),
    ],
)
def test_without_stale_updates_fedbuff_is_fedavg_to_the_bit(given):
    clients = Participation(**given)
    state, records = end(fedbuff(concurrency=clients.clients_per_round), clients)
    wanted, theirs = end(fedavg(), clients)
    assert toys.largest_difference(state.variables, wanted.variables) == 0.0
    times = [[record.pop("simulated_s") for record in own] for own in (records, theirs)]
    np.testing.assert_allclose(*times, rtol=DOUBLE)
    assert records == theirs


@pytest.mark.slow
def test_in_synchronous_rounds_its_part_does_nothing():
    clients = Participation(clients_per_round=4)
    parts = dataclasses.replace(fedbuff(), selector=None)
    states = [end(recipe, clients)[0] for recipe in (parts, fedavg())]
    assert toys.largest_difference(*states) == 0.0
    assert states[0].downloads == ()


# How runs are laid out and carried on.


def simulation(**changes):
    options = {"rounds": ROUNDS, "participation": CLIENTS, "local": LocalTraining(epochs=2, batch_size=4)} | changes
    options = {"execution": dataclasses.replace(float64.EXECUTION, rounds_per_dispatch=2)} | options
    return float64.simulation(combine(scaffold(), fedbuff(LIMIT, 4)), test=TEST, **options)


@pytest.mark.slow
def test_a_run_goes_on_after_a_checkpoint_with_the_same_bits(tmp_path):
    sim = simulation()
    whole, records = table.finish(sim)
    snapshot, begun = sim.init(0), []
    while snapshot.round < 4:
        done = sim.advance(0, snapshot)
        snapshot, begun = done.snapshot, begun + done.records
    file = save(tmp_path, 4, jax.device_get(snapshot))
    assert np.isfinite(snapshot.selector.arrival).any()
    other = simulation()
    snapshot = load(file, other.state_shapes())
    while snapshot.round < ROUNDS:
        done = other.advance(0, snapshot)
        snapshot, begun = done.snapshot, begun + done.records
    assert toys.largest_difference(snapshot.state, whole) == 0.0
    assert begun == records


@pytest.mark.slow
def test_layouts_agree():
    wanted, _ = table.finish(simulation())
    lanes = Execution(strategy="vmap", devices=2, chunk=2, client_memory="host")
    state, _ = table.finish(simulation(execution=lanes))
    for own, theirs in ((state.variables, wanted.variables), (state.server, wanted.server)):
        assert toys.largest_difference(own, theirs) < SUM


@pytest.mark.slow
def test_runs_that_train_together_come_to_what_each_comes_to_alone():
    sims = [simulation(local=LocalTraining(epochs=2, batch_size=4, optimizer=optimizer("sgd", r))) for r in (0.1, 0.05)]
    assert stacking_key(sims[0]) == stacking_key(sims[1])
    assert stacking_key(sims[0]) != stacking_key(build_synchronous())
    members = [Member(sims[0], 0), Member(sims[1], 7)]
    stack = StackedRuns(members, [sim.init(seed) for sim, seed in members])
    while stack.round < ROUNDS:
        stack.advance()
    for place, (sim, seed) in enumerate(members):
        wanted, _ = table.finish(sim, seed)
        assert toys.largest_difference(stack.snapshot(place).state, wanted) < SUM


def build_synchronous():
    given = {"local": LocalTraining(epochs=2, batch_size=4), "execution": simulation().execution}
    return float64.simulation(scaffold(), test=TEST, rounds=ROUNDS, participation=CLIENTS, **given)


@pytest.mark.slow
def test_a_round_function_takes_plans_with_and_without_staleness():
    options = {"participation": CLIENTS, "local": LocalTraining(epochs=2, batch_size=4)}
    recipe = fedbuff(LIMIT)
    round_fn = make_round(recipe, toys.network(), toys.federation(), execution=Execution(strategy="map"), **options)
    key, plans = jax.random.key(0), round_fn.plans(0, 5)
    assert np.max(plans.staleness) > 0
    step, state = jax.jit(round_fn.step), round_fn.init(key)
    for number in range(5):
        plan = jax.tree.map(lambda leaf, number=number: leaf[number], plans)
        state, _ = step(round_fn.hyperparameters, key, state, plan)
    wanted, _ = end(recipe, CLIENTS, rounds=5, local=options["local"])
    assert toys.largest_difference(state.variables, wanted.variables) < FORMULA
    fresh, _ = step(round_fn.hyperparameters, key, round_fn.init(key), (plan.clients, plan.delivered))
    assert int(fresh.round) == 1


# What it refuses.


@pytest.mark.parametrize(
    ("recipe", "clients", "message"),
    [
        (fedbuff(), dataclasses.replace(CLIENTS, speed=speed.constant(1.0, 3.0)), "deadline: received 3 together with"),
        (
            fedbuff(),
            dataclasses.replace(CLIENTS, speed=speed.latency(on_time=0.8)),
            "on_time: received 0.8 together with",
        ),
        (combine(fedbuff(), median()), CLIENTS, "fedbuff: received Median"),
        (combine(fedbuff(), fednova()), CLIENTS, "fedbuff: received NormalisedAveraging"),
        (combine(fedbuff(), feddyn()), CLIENTS, "fedbuff: received DynamicRegularisation"),
        (fedbuff(), dataclasses.replace(CLIENTS, selector=Choice("round_robin")), "together with the recipe fedbuff"),
        (combine(fedbuff(), fedic()), CLIENTS, r"fedbuff\+fedic: received asynchronous rounds"),
    ],
)
def test_what_does_not_fit_stale_updates_is_refused(recipe, clients, message):
    rows = toys.federation()
    rows = rows._replace(auxiliary={**rows.auxiliary, BALANCED: np.arange(3)})
    with pytest.raises(ValueError, match=message):
        build_simulation(recipe, toys.network(), rows, TEST, rounds=2, participation=clients)
