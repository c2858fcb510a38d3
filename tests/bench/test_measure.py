"""A measurement's figures belong together."""

import mmap
import re
from pathlib import Path

import pytest
import toys

from fedjax_bal import models, recipes
from fedjax_bal.bench import measure
from fedjax_bal.bench.flops import model_flops
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.options import Execution, LocalTraining, Participation


@pytest.fixture(scope="module")
def record():
    """The toy federation, all clients in every round, in dispatches of several rounds."""
    simulation = build_simulation(
        recipes.fedavg(), net(), toys.federation(), toys.test_set(), rounds=2,
        participation=Participation(clients_per_round=10), local=LocalTraining(batch_size=4),
        execution=Execution(strategy="map"),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_DISPATCH_S", 0.02)
        return measure.measure(measure.Case("toy", lambda: simulation), lambda precision: 1e9, 0.0)


def net():
    return models.build("mlp", toys.CLASSES, (1, toys.WIDTH, 1))


@pytest.mark.slow
def test_rates_hang_together(record):
    everybody = sum(toys.SIZES)
    assert record["clients_per_round"] == len(toys.SIZES)
    assert record["samples_per_s"] / record["client_updates_per_s"] == pytest.approx(everybody / len(toys.SIZES))
    assert record["flops_per_s"] == pytest.approx(record["samples_per_s"] * model_flops(net()).training)
    assert record["matmul_peak_share"] == pytest.approx(record["flops_per_s"] / 1e9)
    lowest, highest = record["spread"]
    assert lowest <= record["client_updates_per_s"] <= highest
    assert (record["dispatches"], record["rounds"]) == (3, 3 * record["rounds_per_dispatch"])
    assert record["compile_s"] > 0
    assert (record["strategy"], record["padding_waste"]) == ("map", 0)
    assert record["params"] == models.num_params(net())


@pytest.mark.slow
def test_training_goes_on_through_all_dispatches(record):
    rounds, losses = zip(*record["train_loss"], strict=True)
    assert list(rounds) == sorted(set(rounds))
    assert losses[-1] < losses[0]


def test_the_matmul_peak_is_plausible(monkeypatch):
    monkeypatch.setattr(measure, "_SIDE", {"cpu": 64})
    assert 1e6 < measure.matmul_peak(repeats=1) < 1e18


def test_the_peak_of_memory_is_kept_until_it_is_forgotten():
    size = 64_000_000
    with mmap.mmap(-1, size) as held:
        held[::4096] = bytes(len(range(0, size, 4096)))
        status = Path("/proc/self/status").read_text()
    resident = 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))
    # True even if other memory is freed meanwhile.
    assert measure.resident_peak() > resident - size / 2
    measure.forget_peak()
    assert measure.resident_peak() < resident - size / 2
