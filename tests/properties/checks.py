"""What must hold of every run; each check returns the largest difference that it saw, or None if it doesn't apply."""

import dataclasses
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import toys
from properties.draws import Draw, records, run

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.lab import checkpoint
from fedjax_bal.types import PyTree

COUNTS = ("round", "clients", "dropped", "bytes_up", "bytes_down")

CHAOS = 0.01
"""Where rounding leads farther than this, as with Adam on gradients of nearly nothing, only counts are compared."""


class BrokenError(AssertionError):
    """Something doesn't hold."""


def stack(draw: Draw) -> float | None:
    """Two runs in one program come to what each comes to alone."""
    if draw.simulation.keeps_memory_on_host:
        return None  # such runs are never stacked
    simulations = [draw.simulation, draw.other]
    if stacking_key(draw.simulation) != stacking_key(draw.other):
        simulations[1] = draw.simulation  # a method may have made images of its own, of which there is one set only
    members = [Member(own, draw.seed + place) for place, own in enumerate(simulations)]
    together = StackedRuns(members, [member.simulation.init(member.seed) for member in members])
    results: list[list[Any]] = [[], []]
    while together.round < draw.simulation.rounds:
        for own, result in zip(results, together.advance(), strict=True):
            own.append(result)
    if any(together.failures):
        raise BrokenError(f"fails in a stack: {together.failures}")
    alone = [(draw.snapshots, draw.results), run(*members[1])]
    found = [
        _difference(draw, together.snapshot(place).state, snapshots[-1].state, results[place], own)
        for place, (snapshots, own) in enumerate(alone)
    ]
    return None if None in found else max(found)


def lanes(draw: Draw) -> float | None:
    """Several clients at a time come to what one after another does."""
    chunk, devices = draw.rng.choice(((2, 1), (3, 1), (2, 2)))
    return _varied(draw, draw.build(layout={"strategy": "vmap", "chunk": chunk, "devices": devices}))


def devices(draw: Draw) -> float | None:
    """Two devices come to what one does."""
    return _varied(draw, draw.build(layout={"devices": 2}))


def padding(draw: Draw) -> float | None:
    """Room for a larger client changes nothing."""
    wide = draw.build()
    wide.setting = dataclasses.replace(wide.setting, max_size=draw.rng.choice((2, 9)) * wide.setting.max_size)
    return _varied(draw, wide)


def resumed(draw: Draw) -> float:
    """A run that goes on from a checkpoint after any dispatch comes to the same bits."""
    place = draw.rng.randrange(1, len(draw.snapshots))
    return _continued(draw, draw.snapshots[place], draw.results[place:])


def longer(draw: Draw) -> float | None:
    """A run that ended after fewer rounds, and is made longer, comes to the same bits."""
    try:
        short = draw.build(rounds=draw.rng.randrange(1, draw.simulation.rounds))
    except ValueError:
        return None  # a part begins later
    if short.setting != draw.simulation.setting or short.rounds_per_dispatch != draw.simulation.rounds_per_dispatch:
        return None
    snapshots, _ = run(draw.twin(short), draw.seed)
    return _continued(draw, snapshots[-1], None)


def cohort_order(draw: Draw) -> float:
    """The order in which a round's clients are listed changes no bit."""
    first, shuffle = draw.simulation.selector, random.Random(draw.seed)

    def select(*arguments: Any) -> Any:
        clients, state = first.select(*arguments)
        return clients[shuffle.sample(range(len(clients)), len(clients))], state

    snapshots, results = run(draw.twin(selector=first._replace(select=select)), draw.seed)
    return _same_bits(snapshots[-1].state, draw.state) + _same_counts(results, draw.results)


def sums(draw: Draw) -> float | None:
    """Clients, samples and bytes add up to what the plans say, counted batch by batch."""
    simulation = draw.simulation
    if simulation.selector.closed_loop or any(result.faults for result in draw.results):
        return None  # who is chosen, or delivers, isn't known before
    asked = arrived = samples = down = up = 0
    passes, state = simulation.setting.passes, simulation.selector.init(draw.seed, simulation.federation.num_clients)
    sizes = np.diff(simulation.federation.offsets)
    for number in range(simulation.rounds):
        plan, state = simulation.plan(draw.seed, number, state)
        times = passes if draw.options["evaluation"].traffic == "exact" else 1
        for chain, (clients, delivered) in enumerate(zip(plan.clients, plan.delivered, strict=True)):
            real = [place for place, client in enumerate(clients) if client < len(sizes)]
            there = [place for place in real if delivered[place]]
            asked, arrived = asked + len(real), arrived + len(there)
            mediator = len(clients) * passes > 1
            down += len(real) * times + (mediator and bool(real))
            up += len(there) * times + (mediator and bool(there))
            for place in there:
                limit = None if plan.limits is None else plan.limits[chain, place]
                samples += passes * _samples(draw, int(sizes[clients[place]]), limit)
    found = records(draw.results)
    total = {name: sum(record[name] for record in _last_of_each_count(draw, found)) for name in COUNTS}
    wanted = {"clients": arrived, "dropped": asked - arrived}
    wanted |= {"client_updates": arrived * passes, "samples": samples}
    told = {
        name: sum(getattr(result, name) for result in draw.results) for name in ("client_updates", "samples")
    } | total
    for name, value in wanted.items():
        if told[name] != value:
            raise BrokenError(f"{name}: received {told[name]}, must be {value}")
    parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(draw.state.variables)) * 4
    for name, exchanges in (("bytes_up", up), ("bytes_down", down)):  # leaves that clients keep don't travel
        each, rest = divmod(told[name], max(exchanges, 1))
        if rest or (exchanges and PERSONAL not in draw.state.memory and each < parameters):
            raise BrokenError(f"{name}: received {told[name]} in {exchanges} exchanges of at least {parameters}")
    return 0.0


def _samples(draw: Draw, size: int, limit: int | None) -> int:
    """Rows that a client of this size trains on, batch by batch."""
    batch, local = draw.simulation.setting.batch_size, draw.options["local"]
    epoch = [min(batch, size - first) for first in range(0, size, batch)]
    if local.drop_last:
        epoch = [rows for rows in epoch if rows == batch]
    steps = local.steps or local.epochs * len(epoch)
    steps = steps if limit is None else min(steps, int(limit))
    return sum(epoch[step % len(epoch)] for step in range(steps)) if epoch else 0


def _last_of_each_count(draw: Draw, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records, without any that counts what the next one counts again."""
    every, rounds = draw.options["evaluation"].every, draw.simulation.rounds
    return [record for record in found if record["round"] % every == 0 or record["round"] == rounds]


def _varied(draw: Draw, simulation: Simulation) -> float | None:
    snapshots, results = run(simulation, draw.seed)
    return _difference(draw, snapshots[-1].state, draw.state, results, draw.results)


def _difference(draw: Draw, state: PyTree, wanted: PyTree, results: list[Any], others: list[Any]) -> float | None:
    _same_counts(results, others)
    if draw.tolerance > CHAOS:
        return None
    found = toys.largest_difference(state, wanted)
    if not found <= draw.tolerance:
        raise BrokenError(f"states differ by {found:.2g}, at most {draw.tolerance:.2g} is rounding")
    return found


def _continued(draw: Draw, snapshot: Any, others: list[Any] | None) -> float:
    """Saves a snapshot, loads it into a new simulation, and lets that go on."""
    simulation = draw.twin()
    with tempfile.TemporaryDirectory() as folder:
        saved = snapshot._replace(round=np.int64(snapshot.round))
        loaded = checkpoint.load(checkpoint.save(Path(folder), 1, saved), simulation.state_shapes())
    snapshots, results = run(simulation, draw.seed, loaded._replace(round=int(loaded.round)))
    if others is not None:
        _same_counts(results, others)
    return _same_bits(snapshots[-1].state, draw.state)


def _same_bits(state: PyTree, wanted: PyTree) -> float:
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True)
    if not all(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True) for one, other in pairs):
        raise BrokenError(f"states differ by {toys.largest_difference(state, wanted):.2g}, must be the same bits")
    return 0.0


def _same_counts(results: list[Any], others: list[Any]) -> float:
    one, other = ([[record[name] for name in COUNTS] for record in records(own)] for own in (results, others))
    if one != other:
        raise BrokenError(f"{COUNTS}: received {one}, must be {other}")
    return 0.0


CHECKS: dict[str, Callable[[Draw], float | None]] = {
    "stack = alone": stack,
    "lanes = map": lanes,
    "two devices = one": devices,
    "padding": padding,
    "cohort order": cohort_order,
    "resumed": resumed,
    "made longer": longer,
    "sums": sums,
}
"""Name -> check."""
