"""Clients that break: named, left out as if they had not delivered, or cut."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounding import FORMULA, SUM

from fedjax_bal import recipes
from fedjax_bal.engine import host
from fedjax_bal.engine.device.accumulator import Accumulator
from fedjax_bal.engine.device.chain import ClientRecord
from fedjax_bal.engine.device.client_axis import CohortResult
from fedjax_bal.engine.device.evaluation import in_batches
from fedjax_bal.engine.device.round import _clipped
from fedjax_bal.engine.host import build_simulation, simulate
from fedjax_bal.engine.host.faults import describe_faults, fault_message
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.errors import DivergenceError
from fedjax_bal.metrics.traffic import HUGE, LONG, MOST_NAMED, NOT_FINITE, OUTDATED, Fault, FaultCounts
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.selection import always, power_of_choice
from fedjax_bal.selection.trace import Trace
from fedjax_bal.types import Plan

ROUNDS, CLIENTS = 4, len(toys.SIZES)
STRUCK = {"clients": [3, 7], "rounds": [2, 3]}
TEST = in_batches(*toys.test_set())


LOCAL = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1))
MOMENTUM = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1, momentum=0.9))
ALWAYS, EXECUTION = always(), {"strategy": "map", "devices": 1, "rounds_per_dispatch": 2}


def simulation(
    recipe,
    policy,
    kind="not_a_number",
    faulty=STRUCK,
    rounds=ROUNDS,
    selector=None,
    delivery=ALWAYS,
    local=LOCAL,
    model=None,
    **execution,
):
    recipe = recipes.combine(recipe, recipes.faults(kind, **faulty)) if faulty else recipe
    return build_simulation(
        recipe, model or toys.network(), toys.federation(), TEST, rounds=rounds, local=local,
        participation=Participation(selector=selector, delivery=delivery),
        execution=Execution(**EXECUTION | {"broken_clients": policy} | execution),
    )  # fmt: skip


def without(absent=STRUCK):
    """A delivery in which the clients that break don't come back."""
    there = np.ones((ROUNDS, CLIENTS), bool)
    there[np.ix_([number - 1 for number in absent["rounds"]], absent["clients"])] = False
    return Trace(there, "hold")


def finish(sim, seed=0):
    snapshot, records, faults = sim.init(seed), [], []
    while snapshot.round < sim.rounds:
        advance = sim.advance(seed, snapshot)
        snapshot, records, faults = advance.snapshot, records + advance.records, [*faults, *advance.faults]
    return jax.device_get(snapshot), records, faults


def assert_close(got, want):
    for a, b in zip(
        jax.tree.leaves((got.state, got.selector)), jax.tree.leaves((want.state, want.selector)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=SUM, atol=FORMULA)


def with_statistics():
    """The toy network with a batch statistic that depends on the client's images."""
    plain = toys.network()

    def apply(variables, images, *, train, key=None, real=None):
        outputs, _ = plain.apply(variables, images, train=train)
        return outputs, variables._replace(stats={"mean": 0.5 * variables.stats["mean"] + images.mean()})

    return plain._replace(init=lambda key: plain.init(key)._replace(stats={"mean": jnp.zeros(())}), apply=apply)


CARRIED = dataclasses.replace(recipes.fedavg(), carried=True)
PAIRS = toys.chosen([[3, 0], [4, 7], [2, 5]], passes=2)
"""Client 3 leads one of the chains, client 7 is second in another."""
CASES = {
    "memory and reports": (recipes.scaffold(), "not_a_number", {}),
    "chains": (recipes.median(), "not_a_number", {"selector": PAIRS}),
    "momentum carried along a chain": (CARRIED, "not_a_number", {"selector": PAIRS, "local": MOMENTUM}),
    "a selector that looks": (
        recipes.fedavg(), "infinite", {"selector": power_of_choice(6, 9, sizes=toys.SIZES), "rounds_per_dispatch": 1},
    ),
    "huge, in lanes on two devices": (recipes.fedavg(), "huge", {"strategy": "vmap", "devices": 2}),
    "stale, memory on the host": (recipes.fedavg(), "stale", {"client_memory": "host", "rounds_per_dispatch": 3}),
    "equal weights of chains": (recipes.equal_weights(), "infinite", {"selector": PAIRS, "model": with_statistics()}),
    "chains drawn by size": (recipes.fedavg(), "not_a_number", {"selector": PAIRS._replace(drawn_by_size=True)}),
    "scaffold, in chains": (recipes.scaffold(), "not_a_number", {"selector": PAIRS}),
    "fednova, in chains": (recipes.fednova(), "not_a_number", {"selector": PAIRS, "local": MOMENTUM}),
    "weights that depend on the cohort, in lanes": (recipes.feddisco(), "infinite", {"strategy": "vmap"}),
    "weights that depend on the cohort, in chains": (recipes.feddisco(), "huge", {"selector": PAIRS}),
}  # fmt: skip


def excluded(name, delivery=ALWAYS, policy="exclude"):
    recipe, kind, changes = CASES[name]
    return finish(simulation(recipe, policy, kind, **changes, delivery=delivery))


def assert_same_records(got, want):
    for record, wanted in zip(got, want, strict=True):
        one, other = ({k: v for k, v in own.items() if k not in EXTRA} for own in (record, wanted))
        assert jax.tree.structure(one) == jax.tree.structure(other)
        np.testing.assert_allclose(jax.tree.leaves(one), jax.tree.leaves(other), rtol=SUM)


EXTRA = ("excluded", "clipped", "broken_clients")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_broken_client_is_as_one_that_does_not_deliver(name):
    (got, records, faults), (want, theirs, none) = excluded(name), excluded(name, without())
    assert_close(got, want)
    assert_same_records(records, theirs)
    why = {"stale": OUTDATED, "huge": HUGE}.get(CASES[name][1], NOT_FINITE)
    assert none == [] and {fault.why for fault in faults} == {why}
    assert {(fault.round, fault.client) for fault in faults} <= {(2, 3), (2, 7), (3, 3), (3, 7)}
    assert sum(record["excluded"] for record in records) == len(faults)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got.state))


@pytest.mark.slow
def test_where_nothing_breaks_a_policy_changes_nothing():
    ends = [
        excluded("weights that depend on the cohort, in lanes", without(), policy)
        for policy in ("raise", "exclude", "clip")
    ]
    for end, records, _ in ends[1:]:
        assert_close(end, ends[0][0])
        assert_same_records(records, ends[0][1])
        assert [(record["excluded"], record["clipped"]) for record in records] == [(0, 0)] * ROUNDS
    assert "excluded" not in ends[0][1][0]


@pytest.mark.slow
def test_of_a_stack_only_the_run_that_breaks_is_done_without():
    breaks = {"clients": STRUCK["clients"], "rounds": [2, 9]}
    made = lambda delivery, policy="exclude": simulation(recipes.feddisco(), policy, faulty=breaks, delivery=delivery)
    first, second = made(ALWAYS), made(Trace(np.ones((1, CLIENTS), bool)))
    assert stacking_key(first) != stacking_key(made(ALWAYS, "raise"))
    members = [Member(first, 0), Member(second, 3)]
    plain = [made(without(breaks | {"rounds": [2]}))] * 2
    ends = []
    for own in (members, [Member(sim, member.seed) for sim, member in zip(plain, members, strict=True)]):
        stack = StackedRuns(own, [member.simulation.init(member.seed) for member in own])
        faults = [fault for _ in range(2) for advance in stack.advance() for fault in advance.faults]
        ends.append(([jax.device_get(stack.snapshot(place)) for place in range(2)], faults))
    for got, want in zip(ends[0][0], ends[1][0], strict=True):
        assert_close(got, want)
    assert ends[0][1] == [Fault(2, client, NOT_FINITE) for client in (3, 7)] * 2
    assert ends[1][1] == []


def alone(kind_="huge", faulty=None):
    """The start of a round, and the parameters that each client hands back: the model of a round with nobody else."""
    options = {"kind": kind_, "faulty": faulty, "rounds": 1, "rounds_per_dispatch": 1, "huge_factor": None}
    plain, ends = simulation(recipes.fedavg(), "raise", **options), []
    plain.compile()
    for client in range(CLIENTS):
        sim = simulation(recipes.fedavg(), "raise", **options, delivery=Trace(np.arange(CLIENTS)[None] == client))
        sim._compiled = plain._compiled
        ends.append(jax.device_get(sim.advance(0, sim.init(0)).snapshot.state.variables.params))
    return jax.device_get(plain.init(0).state.variables.params), ends


def norm(params):
    return np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in params.values()))


@pytest.mark.slow
def test_parameters_are_huge_in_units_of_the_global_model_and_only_above_the_factor_itself():
    faulty = {"clients": [3], "factor": 1e5}
    start, ends = alone("huge", faulty)
    ratio = norm(ends[3]) / norm(start)
    assert norm(start) > 1 and ratio > 1000
    for factor, faults in ((1.01 * ratio, []), (0.99 * ratio, [Fault(1, 3, HUGE)])):
        sim = simulation(recipes.fedavg(), "exclude", "huge", faulty, rounds=1, huge_factor=factor)
        assert finish(sim)[2] == faults
    small = jax.tree.map(lambda leaf: leaf * 1e-3, sim.init(0).state.variables)
    sim.compile()
    assert sim.advance(0, sim.init(0, small)).faults == ()  # 10,000 times as long as the global model, and below 1000


@pytest.mark.slow
def test_long_updates_are_scaled_down_to_so_many_medians():
    start, ends = alone()
    deltas = [{name: (end[name] - start[name]).astype(np.float64) for name in start} for end in ends]
    for client in (3, 7):
        deltas[client] = {name: 1e6 * leaf for name, leaf in deltas[client].items()}
    norms = np.array(list(map(norm, deltas)))
    bound = 5 * np.sort(norms)[(CLIENTS - 1) // 2]
    shares = np.array(toys.SIZES) / sum(toys.SIZES) * np.minimum(1, bound / norms)
    assert (norms > bound).nonzero()[0].tolist() == [3, 7]
    huge = simulation(recipes.fedavg(), "clip", "huge", {"clients": [3, 7]}, rounds=1, clip_factor=5)
    end, records, faults = finish(huge)
    for name, leaf in start.items():
        want = leaf + sum(share * delta[name] for share, delta in zip(shares, deltas, strict=True))
        np.testing.assert_allclose(end.state.variables.params[name], want, rtol=2e-5, atol=FORMULA)
    assert faults == [Fault(1, 3, LONG), Fault(1, 7, LONG)]
    assert (records[0]["clipped"], records[0]["excluded"], records[0]["clients"]) == (2, 0, CLIENTS)
    assert records[0]["broken_clients"] == [[1, 3, "too long"], [1, 7, "too long"]]


WORDS = {
    "not_a_number": ("not finite", "learning rate that is too high (here 0.1)"),
    "stale": ("of an earlier round",),
    "huge": ("huge", "learning rate that is too high (here 0.1)", "raise execution.huge_factor (here 100"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind_", WORDS)
def test_unless_asked_a_broken_client_ends_the_run_by_name(kind_):
    recipe = recipes.combine(recipes.fedavg(), recipes.faults(kind_, **STRUCK))
    with pytest.raises(DivergenceError, match="round 2: .* clients 3, 7 .*2 of 10 .*broken_clients: exclude") as caught:
        simulate(
            recipe, toys.network(), toys.federation(), toys.test_set(), rounds=ROUNDS, seed=0, local=LOCAL,
            execution=Execution(**EXECUTION),
        )  # fmt: skip
    assert all(word in str(caught.value) for word in WORDS[kind_])


@pytest.mark.slow
def test_huge_updates_are_welcome_where_they_have_no_bound():
    sim = simulation(recipes.fedavg(), "exclude", "huge", huge_factor=None, rounds=2)
    end, _, faults = finish(sim)
    assert faults == [] and np.isfinite(np.concatenate([*map(np.ravel, jax.tree.leaves(end.state))])).all()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipes.scaffold(), recipes.fedavgm()], ids=lambda own: own.name)
def test_a_round_of_which_no_client_is_left_changes_nothing(recipe):
    faulty = {"clients": range(CLIENTS), "rounds": [2]}
    sim = simulation(recipe, "exclude", faulty=faulty, rounds=2, rounds_per_dispatch=1)
    first = sim.advance(0, sim.init(0))
    before = jax.device_get(first.snapshot.state)  # the state itself is given away
    second = sim.advance(0, first.snapshot)
    assert toys.largest_difference(second.snapshot.state, before) == 0.0
    assert second.faults == tuple(Fault(2, client, NOT_FINITE) for client in range(CLIENTS))
    assert (second.records[0]["clients"], second.records[0]["excluded"]) == (0, CLIENTS)


@pytest.mark.slow
def test_a_round_function_leaves_broken_clients_out_by_itself():
    recipe = recipes.combine(recipes.scaffold(), recipes.faults("not_a_number", clients=[3]))
    execution = Execution(strategy="map", broken_clients="exclude")
    round_fn = host.make_round(recipe, toys.network(), toys.federation(), execution=execution)
    key, empty = jax.random.key(0), CLIENTS
    begin, step = round_fn.init(key), jax.jit(round_fn.step)
    ends = []
    for clients in ([3, 4, 7], [empty, 4, 7]):
        plan = np.array(clients)[:, None], np.ones((3, 1), bool)
        state, info = step(round_fn.hyperparameters, key, begin, plan)
        ends.append(state)
        assert info.broken.tolist() == [[NOT_FINITE if client == 3 else 0] for client in clients]
    assert toys.largest_difference(*ends) < FORMULA


@pytest.mark.slow
def test_stale_updates_that_do_not_say_so_are_the_last_ones_again():
    faulty = {"clients": [4], "rounds": [2], "tagged": False}
    only = Trace(np.arange(CLIENTS)[None] == 4)
    sim = simulation(recipes.fedavg(), "exclude", "stale", faulty, delivery=only, rounds=2, rounds_per_dispatch=1)
    points, snapshot = [], sim.init(0)
    for _ in range(3):
        points.append(jax.device_get(snapshot.state.variables.params))
        if snapshot.round < 2:
            snapshot = sim.advance(0, snapshot).snapshot
    for name in points[0]:
        first, second = points[1][name] - points[0][name], points[2][name] - points[1][name]
        np.testing.assert_allclose(second, first, atol=FORMULA)
        assert np.abs(first).max() > 1e-3


def test_of_two_updates_the_longer_one_does_not_set_the_bound():
    cohort = SimpleNamespace(delivered=jnp.array([True, True, False, True]))
    begun = SimpleNamespace(
        cohort=cohort,
        plan=SimpleNamespace(delivered=cohort.delivered[:, None]),
        chain_weights=SimpleNamespace(delta=jnp.array([0.5, 0.25, 0.0, 0.25])),
    )
    deltas = {"w": jnp.array([[3.0], [1e6], [7.0], [0.0]])}  # the third doesn't deliver, the last one doesn't move
    sums = Accumulator({"w": (begun.chain_weights.delta[:, None] * deltas["w"]).sum(0)}, {}, {})
    records = ClientRecord({}, None, None, jnp.zeros((4, 1), int), {}, {}, {})
    result = _clipped(10.0, begun, CohortResult(sums, records, deltas))
    assert result.records.broken.tolist() == [[0], [LONG], [0], [0]]
    assert result.sums.delta["w"].tolist() == [0.5 * 3 + 0.25 * 30]
    far = _clipped(1e6, begun, CohortResult(sums, records, deltas))
    assert far.sums.delta["w"].tolist() == sums.delta["w"].tolist()


def test_what_is_told_and_recorded_is_bounded():
    faults = [Fault(1, client, NOT_FINITE) for client in range(100)]
    assert describe_faults(faults).endswith("client 4 in round 1 (not finite), and 95 more")
    assert describe_faults(faults[:5]).endswith("client 4 in round 1 (not finite)")
    counts = FaultCounts().plus(faults[:10]).plus([Fault(2, 1, LONG)]).plus(faults)
    assert counts.named.shape == (MOST_NAMED, 3)
    record = counts.record()
    assert (record["excluded"], record["clipped"], len(record["broken_clients"])) == (110, 1, MOST_NAMED)
    assert record["broken_clients"][10:12] == [[2, 1, "too long"], [1, 0, "not finite"]]


def test_clients_with_names_are_called_by_them():
    names = ("Trier", "Ulm")
    assert (
        describe_faults([Fault(3, 1, NOT_FINITE)], names.__getitem__) == "left out: client Ulm in round 3 (not finite)"
    )
    assert FaultCounts().plus([Fault(3, 1, LONG)]).record(names)["broken_clients"] == [[3, "Ulm", "too long"]]
    plan = Plan(np.array([[1, 0]]), np.array([[True, True]]))
    codes = np.array([[NOT_FINITE, 0]])
    assert fault_message(Execution(), plan, codes, "", names.__getitem__).startswith("the update of client Ulm is not")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"broken_clients": "drop"}, "broken_clients: received 'drop'.*raise.*exclude.*clip"),
        ({"clip_factor": 0.5}, "clip_factor: received 0.5.*1"),
        ({"huge_factor": float("inf")}, "huge_factor: received inf.*1"),
        ({"faulty": {"clients": [12]}}, "faults: clients: received 12, but there are 10 clients, numbered from 0"),
        ({"faulty": {"clients": []}}, r"faults: clients: received \[\]"),
        ({"faulty": {"rounds": [0]}}, "faults: rounds: received 0"),
        ({"faulty": {"clients": [3], "rounds": [5, 6]}}, "faults: rounds: received 5, 6, .* ends after round 4"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        simulation(recipes.fedavg(), "clip", **changes)
