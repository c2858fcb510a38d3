"""Programs are compiled once for all that differ in numbers alone, and ahead of time by a thread."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import chex
import jax
import pytest
import quick
import toys

from fedjax_bal import recipes
from fedjax_bal.engine.host import build_simulation, executable
from fedjax_bal.engine.host.stack import Member, StackedRuns, program_of
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation


def simulation(rate=0.1, recipe=None, batch_size=4, precision="float32"):
    local = LocalTraining(batch_size=batch_size, optimizer=optimizer("sgd", rate))
    return build_simulation(
        recipe or recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), rounds=2, local=local,
        participation=Participation(clients_per_round=4),
        execution=Execution(strategy="map", devices=1, precision=precision),
    )  # fmt: skip


def end(sim):
    """The state after the last round."""
    return jax.device_get(sim.advance(0, sim.init(0)).snapshot.state)


@pytest.fixture
def compiled(monkeypatch):
    """The names of the threads that compile something."""
    names, compile_for_backend = [], executable.compile_for_backend

    def counted(lowered):
        names.append(threading.current_thread().name)
        return compile_for_backend(lowered)

    monkeypatch.setattr(executable, "compile_for_backend", counted)
    monkeypatch.setattr(executable, "_PROGRAMS", executable.WeakValueDictionary())
    return names


@pytest.mark.slow
def test_methods_that_differ_in_numbers_alone_share_a_program(compiled):
    sims = [simulation(rate, recipes.fedprox(mu=mu)) for rate, mu in ((0.1, 0.5), (0.2, 0.5), (0.1, 2.0))]
    ends = [end(sim) for sim in sims]
    assert len(compiled) == 1
    assert all(toys.largest_difference(ends[0], other) > 1e-4 for other in ends[1:])
    executable._PROGRAMS.clear()
    again = simulation(0.1, recipes.fedprox(mu=2.0))
    chex.assert_trees_all_equal(end(again), ends[2])
    assert len(compiled) == 2
    for other in (simulation(0.1, recipes.fedavg()), simulation(0.1, recipes.fedprox(mu=2.0), batch_size=3)):
        other.compile()
    assert len(compiled) == 4


@pytest.mark.slow
def test_batches_of_a_sweep_with_as_many_runs_share_a_program(compiled):
    stacks = []
    for seeds in ((0, 1), (2, 3), (4, 5, 6)):
        members = [Member(simulation(0.1 * (1 + seed)), seed) for seed in seeds]
        stacks.append(StackedRuns(members, [member.simulation.init(member.seed) for member in members]))
        stacks[-1].compile()
    assert len(compiled) == 2


@pytest.mark.slow
def test_a_program_is_freed_with_the_last_simulation_that_has_it(compiled):
    sim = simulation()
    sim.compile()
    assert len(executable._PROGRAMS) == 1
    del sim
    gc.collect()
    assert len(executable._PROGRAMS) == 0


def test_whoever_asks_for_a_program_that_a_thread_compiles_waits_for_it(monkeypatch, compiled):
    counted, begun, goes_on = executable.compile_for_backend, threading.Event(), threading.Event()

    def slow(lowered):
        begun.set()
        assert goes_on.wait(300)
        return counted(lowered)

    monkeypatch.setattr(executable, "compile_for_backend", slow)
    sims = [simulation(), simulation(0.2)]
    with ThreadPoolExecutor(2, "compilation") as threads:
        ahead = threads.submit(program_of, sims[:1])
        assert begun.wait(300)
        later = threads.submit(sims[1].compile)
        goes_on.set()
        assert later.result() > 0 and ahead.result() is sims[1]._compiled
    assert len(compiled) == 1


def test_a_program_that_could_not_be_compiled_ahead_is_compiled_when_it_is_needed(monkeypatch, compiled):
    counted, sim = executable.compile_for_backend, simulation()
    monkeypatch.setattr(executable, "compile_for_backend", lambda lowered: (_ for _ in ()).throw(ValueError("no")))
    for ask in (lambda: program_of([sim]), sim.compile):
        with pytest.raises(ValueError, match="no"):
            ask()
    monkeypatch.setattr(executable, "compile_for_backend", counted)
    assert sim.compile() > 0 and len(compiled) == 1


@pytest.mark.slow
def test_a_stack_asks_for_the_program_that_was_compiled_without_its_states(compiled):
    sims = [simulation(0.1), simulation(0.2)]
    ahead = program_of(sims)
    members = [Member(sim, seed) for seed, sim in enumerate(sims)]
    stack = StackedRuns(members, [member.simulation.init(member.seed) for member in members])
    stack.compile()
    assert stack._compiled is ahead and len(compiled) == 1


@pytest.mark.parametrize(
    "precision, jax_name", quick.only([("float32", "HIGHEST,"), ("tensorfloat32", "HIGH,")], ("float32", "HIGHEST,"))
)
def test_all_products_have_the_runs_precision_also_in_evaluation(precision, jax_name):
    sim = simulation(precision=precision)
    text = sim.lower(sim.setting).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line or "convolution(" in line]
    assert len(products) > 3
    assert all(jax_name in line for line in products)
