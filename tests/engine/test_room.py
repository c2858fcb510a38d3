"""The room that an accelerator has for clients, by programs that are compiled for it."""

from types import SimpleNamespace

import jax
import pytest
import toys
from flat import build

from fedjax_bal import recipes
from fedjax_bal.accelerators import TARGETS
from fedjax_bal.engine.host import Simulation, room, room_on

# Programs for another target are compiled without the caches, which later tests would miss.
pytestmark = pytest.mark.slow
MEGABYTE = 10**6
GPU = [SimpleNamespace(platform="cuda")]


def simulation(**options):
    common = {"rounds": 2, "batch_size": 4, "local_epochs": 1, "clients_per_round": 4, "devices": 1}
    return build(recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), **(common | options))


@pytest.fixture
def widths(monkeypatch):
    """Clients at a time of the programs that were compiled, each of which takes a megabyte for each."""
    tried = []

    def compile_for_backend(setting):
        tried.append(setting.layout.width)
        sizes = {"temp_size_in_bytes": setting.layout.width * MEGABYTE, "output_size_in_bytes": 7}
        return SimpleNamespace(memory_analysis=lambda: SimpleNamespace(**sizes, alias_size_in_bytes=7))

    monkeypatch.setattr(Simulation, "lower", lambda self, setting: setting)
    monkeypatch.setattr(room, "compile_for_backend", compile_for_backend)
    return tried


def test_a_roomy_device_takes_the_layout_that_suits_it(widths):
    sim = simulation()
    found = room_on(GPU, sim.device_bytes + 100 * MEGABYTE, sim)
    assert found.layout.strategy == "vmap" and found.layout.devices == 1 and widths == [found.layout.width]
    assert found.program == widths[0] * MEGABYTE and found.clients == 100
    assert sim.setting.layout.strategy == "map" and sim.compile_s == 0  # the simulation is left as it was
    assert room_on(GPU, 2 * sim.device_bytes + MEGABYTE, simulation(strategy="map")).layout.width == 1


def test_a_small_device_takes_fewer_clients_at_a_time_down_to_one(widths):
    sim = simulation()
    found = room_on(GPU, sim.device_bytes + int(1.2 * MEGABYTE), sim)
    assert widths[0] > widths[-1] == found.layout.width == found.clients == 1
    with pytest.raises(ValueError, match="training 1 client"):
        room_on(GPU, sim.device_bytes + 10, sim)


def test_a_number_that_is_asked_for_is_kept_or_refused(widths):
    sim = simulation(chunk=2, strategy="vmap")
    assert room_on(GPU, sim.device_bytes + 3 * MEGABYTE, sim).layout.width == 2
    with pytest.raises(ValueError, match="set execution.chunk below 2"):
        room_on(GPU, sim.device_bytes + MEGABYTE, sim)
    assert widths == [2, 2]


def test_programs_are_compiled_for_the_devices_that_are_given():
    sim = simulation(strategy="vmap", chunk=2)
    found = room_on(jax.devices()[:1], 2**30, sim)
    assert found.layout.width == 2 and 0 < found.program < found.free < 2**30


def test_jax_takes_three_quarters_of_a_gpu_and_all_of_a_tpu():
    assert {name: target.usable / target.memory for name, target in TARGETS.items()} == {
        "h200": 0.75,
        "v5e": 1,
        "v6e": 1,
    }
