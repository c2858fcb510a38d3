"""Programs that a thread compiles ahead of the batches that need them."""

import gc
import threading
from types import SimpleNamespace

import pytest
import toys

from fedjax_bal import recipes
from fedjax_bal.engine.host import build_simulation, executable
from fedjax_bal.lab import loop
from fedjax_bal.lab.loop import RunBatch
from fedjax_bal.options import Execution, LocalTraining, Participation


@pytest.mark.slow
def test_a_program_is_kept_until_it_is_asked_for(monkeypatch):
    done, compile_for_backend = threading.Semaphore(0), executable.compile_for_backend

    def counted(lowered):
        done.release()
        return compile_for_backend(lowered)

    monkeypatch.setattr(executable, "compile_for_backend", counted)
    monkeypatch.setattr(executable, "_PROGRAMS", executable.WeakValueDictionary())
    common = {
        "rounds": 2,
        "local": LocalTraining(batch_size=4, epochs=1),
        "participation": Participation(clients_per_round=4),
        "execution": Execution(devices=1),
    }
    sims = [
        build_simulation(recipe, toys.network(), toys.federation(), toys.test_set(), **common)
        for recipe in (recipes.fedavg(), recipes.fedprox(mu=0.1))
    ]
    asked, program_of = threading.Semaphore(0), loop.program_of
    monkeypatch.setattr(loop, "program_of", lambda own: [program_of(own), asked.release()][0])
    with loop.compiled_ahead([RunBatch((SimpleNamespace(simulation=sim),)) for sim in sims]):
        assert all(asked.acquire(timeout=300) for _ in sims)
        gc.collect()
        assert all(sim.compile() > 0 for sim in sims)
        assert all(done.acquire(timeout=0) for _ in sims) and not done.acquire(timeout=0)
