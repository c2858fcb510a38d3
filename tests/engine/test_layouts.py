"""However clients are laid out on the machine, the results are the same."""

import dataclasses
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
import toys
from rounding import FORMULA, STEPS, SUM
from table import RECIPES
from table import finish as run_through

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.device.layout import Layout
from fedjax_bal.engine.host import build_simulation, executable, memory
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli

ROUNDS = 3
LAYOUTS = {
    "map on two": Execution(strategy="map", devices=2),
    "three lanes": Execution(strategy="vmap", devices=1, chunk=3),
    "two lanes on two": Execution(strategy="vmap", devices=2, chunk=2),
}
ONE, LANES = Execution(strategy="map", devices=1), Execution(strategy="vmap", devices=1)
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=optimizer("sgd", 0.1))
CLIENTS = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
REPORTED = Evaluation(update_diversity=True, local_test_images=5)


def simulation(name="fedavg", execution=Execution(), local=LOCAL, participation=CLIENTS):
    return build_simulation(
        RECIPES[name], toys.network(), toys.federation(), toys.test_set(), rounds=ROUNDS, local=local,
        participation=participation, evaluation=REPORTED, execution=execution,
    )  # fmt: skip


def finish(sim):
    state, records = run_through(sim)
    return jax.device_get(state), records


def assert_alike(got, wanted):
    assert toys.largest_difference(got[0], wanted[0]) < 2e-6
    for one, other in zip(got[1], wanted[1], strict=True):
        assert one["update_diversity"] == pytest.approx(other["update_diversity"], rel=STEPS)
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=SUM)
        assert one["test_accuracy"] == other["test_accuracy"]
        assert one["local_test_accuracy"] == pytest.approx(other["local_test_accuracy"])


@pytest.mark.slow
def test_lanes_and_devices_change_nothing():
    alone, wide = (simulation("everything", how) for how in (ONE, LAYOUTS["two lanes on two"]))
    assert_alike(finish(wide), finish(alone))


@pytest.mark.slow
def test_more_dispatches_of_fewer_rounds_change_nothing():
    few, many = (finish(simulation("scaffold", replace(ONE, rounds_per_dispatch=rounds))) for rounds in (2, ROUNDS))
    assert_alike(few, many)


@pytest.mark.slow
def test_buckets_of_chains_change_nothing():
    pairs = toys.chosen([[4, 7], [0, 2], [1, 9], [5, 8], [6, 10]], passes=2)  # of unequal clients, one place empty
    clients = replace(CLIENTS, clients_per_round=None, selector=pairs)
    alone, wide = (simulation("scaffold", how, participation=clients) for how in (ONE, LAYOUTS["two lanes on two"]))
    assert wide.setting.layout == Layout("vmap", 2, 2, lanes=False)
    assert_alike(finish(wide), finish(alone))


EVEN = replace(LOCAL, epochs=None, steps=3)


@pytest.mark.slow
def test_clients_that_end_together_change_nothing():
    """Some don't deliver: they train for nothing."""
    alone, wide = (simulation("scaffold", how, local=EVEN) for how in (ONE, LAYOUTS["two lanes on two"]))
    assert wide.setting.layout.even
    assert not wide.setting.layout.lanes
    assert_alike(finish(wide), finish(alone))


@pytest.mark.slow
def test_chains_that_end_together_pass_on_momentum_of_those_that_deliver():
    pairs = toys.chosen([[4, 7], [0, 2], [1, 9], [5, 8], [6, 10]], passes=2)
    clients = replace(CLIENTS, clients_per_round=None, selector=pairs)
    local = replace(EVEN, optimizer=optimizer("sgd", 0.1, momentum=0.9))
    alone, wide = (
        build_simulation(
            replace(recipes.fedavg(), carried=True), toys.network(), toys.federation(), toys.test_set(), rounds=ROUNDS,
            local=local, participation=clients, evaluation=REPORTED, execution=how,
        )
        for how in (ONE, LANES)
    )  # fmt: skip
    assert wide.setting.layout == Layout("vmap", 1, 5, even=True)
    assert_alike(finish(wide), finish(alone))


@pytest.mark.slow
def test_what_two_devices_saved_goes_on_with_one():
    halves = [simulation("scaffold", Execution(strategy="map", devices=d, rounds_per_dispatch=1)) for d in (2, 1)]
    first = halves[0].advance(0, halves[0].init(0)).snapshot
    saved = first._replace(state=jax.device_get(first.state))
    ends = []
    for sim in halves:
        snapshot = jax.tree.map(np.copy, saved)
        snapshot = snapshot._replace(round=1)
        while snapshot.round < ROUNDS:
            snapshot = sim.advance(0, snapshot).snapshot
        ends.append(jax.device_get(snapshot.state))
    assert toys.largest_difference(*ends) < FORMULA
    snapshot = first
    while snapshot.round < ROUNDS:
        snapshot = halves[0].advance(0, snapshot).snapshot
    chex.assert_trees_all_equal(jax.device_get(snapshot.state), ends[0])


@pytest.mark.slow
def test_client_memory_elsewhere_equals_that_on_the_devices(tmp_path):
    places = ("device", "host", "disk")
    sims = [simulation("scaffold", Execution(rounds_per_dispatch=2, client_memory=place)) for place in places]
    sims[2].scratch = tmp_path
    (device, records), *others = map(finish, sims)
    kept = [sim.init(0).state.memory["ControlVariates"]["w1"] for sim in sims]
    assert [type(leaf) for leaf in kept[1:]] == [np.ndarray, np.memmap]
    for state, own in others:
        chex.assert_trees_all_equal(device, state)
        assert own == records
    read = sims[2].init(0)
    saved = read._replace(state=read.state._replace(memory=memory.rows_to_save(read.state.memory, read.asked)))
    after = sims[2].advance(0, sims[2].restore(saved)).snapshot
    assert all(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(after.state.memory))


@pytest.mark.slow
def test_steps_are_counted_exactly():
    sim = simulation(execution=replace(LAYOUTS["three lanes"], rounds_per_dispatch=1))
    snapshot = sim.init(0)
    advance = sim.advance(0, snapshot)
    plan, _ = sim.plan(0, 0, ())
    steps = 2 * -(-np.array(toys.SIZES)[plan.clients[plan.delivered]] // 4)
    assert advance.work.useful == steps.sum()
    assert advance.work.computed % 3 == 0
    assert steps.sum() <= advance.work.computed <= steps.sum() + 2 * steps.max()
    alone = simulation(execution=replace(LAYOUTS["map on two"], rounds_per_dispatch=1))
    assert alone.advance(0, alone.init(0)).work == (steps.sum(), steps.sum())


def test_fewer_clients_at_a_time_where_more_do_not_fit(monkeypatch):
    sim, widths = simulation(execution=LANES), []
    sim.setting = dataclasses.replace(sim.setting, layout=Layout("vmap", 1, 5, lanes=True))
    monkeypatch.setattr(executable, "compile_dispatch", lambda setting, *_: widths.append(setting.layout.width))
    monkeypatch.setattr(executable, "program_bytes", lambda compiled: 100 // len(widths))
    monkeypatch.setattr(executable, "free_bytes", lambda layout: 60)
    sim.compile()
    assert widths == [5, 2]  # 5 * 60 / 100, less a tenth
    assert sim.setting.layout.width == 2


@pytest.mark.parametrize(("chunk", "remedy"), [(1, "use a smaller batch"), (2, "set execution.chunk below 2")])
def test_a_program_that_can_not_fit_is_refused_with_the_figures(monkeypatch, chunk, remedy):
    monkeypatch.setattr(executable, "compile_dispatch", lambda *_: None)
    monkeypatch.setattr(executable, "program_bytes", lambda compiled: 7 * 10**9)
    monkeypatch.setattr(executable, "free_bytes", lambda layout: 10**9)
    sim = simulation(execution=replace(LANES, chunk=chunk))
    with pytest.raises(ValueError, match=rf"needs 7.0 GB .* 1.0 GB are free: {remedy}"):
        sim.compile()


def test_client_memory_goes_to_the_host_where_devices_are_too_small(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda layout: 1000)
    assert simulation("scaffold", execution=Execution(client_memory="auto")).keeps_memory_on_host
    with pytest.raises(ValueError, match=r"for 10 clients .* on each device .*set execution.client_memory to host"):
        simulation("scaffold", execution=Execution(client_memory="device"))
    monkeypatch.setattr(memory, "host_bytes", lambda: 2000)
    with pytest.raises(ValueError, match=r"needs .* GB for 10 clients .*set execution.client_memory to disk, use"):
        simulation("scaffold", execution=Execution(client_memory="auto"))
    assert simulation("scaffold", execution=Execution(client_memory="disk")).memory_place == "disk"


BAD = [
    ({"execution": Execution(devices=99)}, "execution.devices: received 99"),
    ({"local": replace(LOCAL, epochs=2**30)}, r"training: [\d,]+ local steps .*at most 2,147,483,647"),
    ({"local": LocalTraining(steps=2**29)}, "training: 3,221,225,472 local steps in a round"),  # of 6 clients
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_what_the_machine_does_not_have_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        simulation(**changes)


@pytest.mark.slow
def test_two_devices_give_the_same_bits_at_every_call():
    # Sizes at which XLA's library, left to itself, splits sums among the threads that happen to be free.
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (1800, 28, 28, 1), np.uint8), rng.integers(0, 10, 1800)
    federation = data.federate(images, labels, np.array_split(np.arange(1800), 9), num_classes=10)
    model = models.build("rebafl_fmnist", 10, (28, 28, 1))
    sim = build_simulation(
        recipes.fedavg(), model, federation, (images[:10], labels[:10]), rounds=1, execution=Execution(devices=2)
    )
    first, *others = [jax.device_get(sim.advance(0, sim.init(0)).snapshot.state.variables.params) for _ in range(8)]
    assert all(toys.largest_difference(first, other) == 0 for other in others)
