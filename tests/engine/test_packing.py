"""Packing: nothing lost, nothing twice, and the counts of steps exact."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal import data, models, recipes
from fedjax_bal.engine.device.layout import Layout
from fedjax_bal.engine.host import build_simulation, strategy
from fedjax_bal.engine.host.assignment import assign, in_lanes
from fedjax_bal.engine.host.strategy import TOLERATED_WASTE, choose_width, lanes_computed, lay_out
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation

SGD = optimizer("sgd", 0.1)
STEPS = st.lists(st.integers(0, 60), min_size=1, max_size=40)
LAYOUTS = [
    Layout("map", 1), Layout("map", 3), Layout("vmap", 1, 4, lanes=True), Layout("vmap", 3, 2, lanes=True),
    Layout("vmap", 1, 4), Layout("vmap", 3, 2),
]  # fmt: skip


@given(STEPS, st.integers(1, 12))
@settings(max_examples=60)
def test_lanes_hold_every_item_once_and_are_nearly_as_short_as_can_be(steps, lanes):
    packed = in_lanes(steps, lanes)
    assert len(packed) == lanes
    assert sorted(np.concatenate(packed)) == list(range(len(steps)))
    loads = [sum(steps[i] for i in own) for own in packed]
    # the last lane to end was the least loaded one when it got its last item
    assert max(loads) <= sum(steps) / lanes + max(steps) * (1 - 1 / lanes) + 1e-9
    for own in packed:
        assert [steps[i] for i in own] == sorted((steps[i] for i in own), reverse=True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_deal_covers_the_delivered_chains_and_counts_what_is_computed(layout, seed):
    rng = np.random.default_rng(seed)
    groups, links = 11, 1 if layout.lanes else 2
    steps = rng.integers(0, 9, (groups, links))
    delivered = rng.random(groups) < 0.8
    steps[~delivered] = 0
    dealt, work = assign(layout, steps, delivered)
    own = [chains[:count] for chains, count in zip(dealt.chains, dealt.count, strict=True)]
    assert sorted(np.concatenate(own)) == np.flatnonzero(delivered).tolist()
    assert all((chains[count:] == groups).all() for chains, count in zip(dealt.chains, dealt.count, strict=True))
    assert dealt.chains.shape[1] % layout.width == 0
    assert work.useful == steps.sum()
    assert work.computed == computed_by_hand(layout, dealt, steps)
    if layout.width == 1:
        assert work.computed == work.useful


def computed_by_hand(layout, dealt, steps):
    """Counts steps by going through the turns."""
    total = 0
    for device in range(layout.devices):
        chains = dealt.chains[device][: dealt.count[device]]
        if layout.width == 1:
            total += int(steps[chains].sum())
        elif layout.lanes:
            starts = dealt.starts[device]
            loads = [int(steps[dealt.queues[device][a:b]].sum()) for a, b in pairwise(starts)]
            assert dealt.turns[device] == max(loads)
            total += layout.width * max(loads)
        else:
            for start in range(0, len(chains), layout.width):
                bucket = steps[chains[start : start + layout.width]]
                total += layout.width * sum(int(bucket[:, link].max()) for link in range(steps.shape[1]))
    return total


def test_devices_get_about_the_same_work():
    steps = np.random.default_rng(0).integers(5, 20, (100, 1))
    dealt, _ = assign(Layout("map", 4), steps, np.ones(100, bool))
    loads = [steps[chains[:count]].sum() for chains, count in zip(dealt.chains, dealt.count, strict=True)]
    assert max(loads) - min(loads) <= steps.max()


def test_the_chosen_width_wastes_less_than_a_tenth():
    rng = np.random.default_rng(0)
    uniform = -(-rng.integers(131, 337, 500) // 20)
    tailed = -(-np.maximum(10, rng.lognormal(np.log(235) - 0.72, 1.2, 5000)).astype(int) // 20)
    for sizes, cohort in ((uniform, 25), (tailed, 250)):
        for buckets in (False, True):
            width = choose_width([rng.choice(sizes, cohort) for _ in range(64)], cohort, buckets=buckets)
            fresh = [rng.choice(sizes, cohort) for _ in range(100)]
            computed = sum(lanes_computed(steps, width, 1, buckets=buckets) for steps in fresh)
            assert 1 - sum(steps.sum() for steps in fresh) / computed < TOLERATED_WASTE + 0.02
            assert width > (4 if buckets else 9) or (buckets and width > 1)


def test_equal_clients_all_train_at_once_without_lanes():
    equal, once = np.full(50, 6), {"chains": 20, "chain_length": 1, "passes": 1}
    assert lay_out("vmap", 2, equal, **once) == Layout("vmap", 2, 10, even=True)
    assert lay_out("vmap", 1, equal, **once | {"chain_length": 2}) == Layout("vmap", 1, 20, even=True)
    assert lay_out("vmap", 1, equal, **once, chunk=7) == Layout("vmap", 1, 7, even=True)
    assert lay_out("vmap", 2, equal, **once, limited=True) == Layout("vmap", 2, 10, lanes=True)
    assert lay_out("vmap", 1, np.append(equal, 5), **once) == Layout("vmap", 1, 20, lanes=True)
    assert lay_out("map", 2, equal, **once, chunk=7) == Layout("map", 2)


def test_the_width_that_fits_a_cache_comes_in_equal_turns():
    width = lambda most: lay_out("vmap", 1, np.full(50, 6), chains=100, chain_length=1, passes=1, most=most).width
    assert [width(most) for most in (7, 54, 99, 200)] == [7, 50, 50, 100]


NETWORKS = {
    "a small dense network": (models.build("mlp", 10, (8, 8, 1), hidden=(8,)), 10, "vmap", "vmap"),
    "with a large batch": (models.build("mlp", 10, (8, 8, 1), hidden=(8,)), 200, "map", "vmap"),
    "a dense network": (models.build("mlp", 10, (28, 28, 1), hidden=(16,)), 10, "map", "vmap"),
    "a large dense network": (models.build("mlp", 10, (28, 28, 1), hidden=(64,)), 10, "map", "map"),
    "small convolutions": (models.build("tiny_bn", 10, (8, 8, 1)), 10, "map", "map"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_auto_trains_several_clients_of_a_small_dense_network_at_a_time(name, monkeypatch):
    model, rows, on_a_core, on_several = NETWORKS[name]
    for platform, cores, chosen in (("cpu", 1, on_a_core), ("cpu", 2, on_several), ("gpu", 1, "vmap")):
        monkeypatch.setattr(strategy, "target_platform", lambda platform=platform: platform)
        monkeypatch.setattr(strategy, "cores", lambda cores=cores: cores)
        assert simulation(model, rows).setting.layout.strategy == chosen


def test_auto_counts_the_optimizers_state_and_the_cohort(monkeypatch):
    monkeypatch.setattr(strategy, "cores", lambda: 1)
    small, *_ = NETWORKS["a small dense network"]
    most = lambda **changes: strategy.most_at_a_time(simulation(small, 10, **changes).setting)
    of_one = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    images = 4 * 10 * 64
    assert most() == strategy.TOGETHER // (of_one + images)
    counts = 4  # Adam counts its steps
    assert most(optimizer=optimizer("adam", 0.1)) == strategy.TOGETHER // (3 * of_one + counts + images)
    width = lambda clients: simulation(small, 10, clients=clients).setting.layout.width
    assert (width(strategy.FEWEST), width(strategy.FEWEST - 1)) == (strategy.FEWEST, 1)


def simulation(model, rows, clients=40, optimizer=SGD):
    """A federation of clients with one batch each, all of which train in every round."""
    images = np.zeros((clients * rows, *model.input_shape), np.uint8)
    owned = np.arange(len(images)).reshape(clients, rows)
    federation = data.federate(images, np.zeros(len(images), np.int32), owned, 10)
    return build_simulation(
        recipes.fedavg(), model, federation, (images[:1], np.zeros(1, np.int32)), rounds=1,
        local=LocalTraining(batch_size=rows, optimizer=optimizer),
        participation=Participation(clients_per_round=clients), execution=Execution(devices=1),
    )  # fmt: skip
