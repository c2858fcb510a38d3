"""Variations of a run that must not change its result."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import Layout, Setting, State
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.messages import difference, place
from fedjax_bal.testing.workbench import (
    SEEDS,
    Bench,
    Observed,
    ObservedRound,
    ScheduledRound,
    compile_quickly,
    first_state,
    one_round,
    stack,
)
from fedjax_bal.types import Plan, PyTree

VARIATIONS = ("seeds", "lanes", "length", "places", "devices")
"""Two seeds in one `vmap`; several clients at a time; room for far larger clients; two more places in a round, which
stay empty; two devices."""


def possible() -> tuple[str, ...]:
    """The variations that this machine can make."""
    return VARIATIONS if jax.device_count() > 1 else VARIATIONS[:-1]


def difference_of(bench: Bench, *variations: str) -> str | None:
    """The effect of some variations at once, in words; None without any."""
    if variations not in bench.differences:
        bench.differences[variations] = _difference(bench, variations)
    return bench.differences[variations]


def varied(bench: Bench, variations: Iterable[str]) -> dict[int, Observed]:
    """Runs the same rounds with some `VARIATIONS`; results by seed, of the first one only unless seeds vary."""
    asked = set(variations)
    setting, rows = varied_rows(bench, asked)
    if "seeds" in asked:
        return _vary_seeds(bench, setting, rows)
    seed, program, shown = SEEDS[0], compile_quickly(one_round), []
    state = bench.start(seed)
    for row in rows[seed]:
        state, seen = jax.device_get(program(setting, key_of(seed), state, row, *bench.data))
        shown.append(bench.by_client(seen, row.plan))
    return {seed: Observed(state, *stack(shown))}


def _vary_seeds(bench: Bench, setting: Setting, rows: dict[int, list[ScheduledRound]]) -> dict[int, Observed]:
    """Runs all seeds in one `vmap`."""
    keys = jnp.stack([key_of(seed) for seed in SEEDS])
    states = jax.device_get(compile_quickly(jax.vmap(first_state, (None, 0, None)))(setting, keys, bench.data[0]))
    program, shown = compile_quickly(_all_seeds), []
    for of_round in zip(*(rows[seed] for seed in SEEDS), strict=True):
        states, seen = jax.device_get(program(setting, keys, states, _stack_rows(of_round), *bench.data))
        shown.append([bench.by_client(_take(seen, at), row.plan) for at, row in enumerate(of_round)])
    runs = enumerate(zip(SEEDS, zip(*shown, strict=True), strict=True))
    return {seed: Observed(_take(states, at), *stack(own)) for at, (seed, own) in runs}


def varied_rows(bench: Bench, variations: Iterable[str]) -> tuple[Setting, dict[int, list[ScheduledRound]]]:
    """The setting and, by seed, the rounds that `varied` runs."""
    asked = set(variations)
    extra = 2 if "places" in asked else 0
    plans = {seed: [_add_empty_places(bench, plan, extra) for plan in bench.plans(seed)] for seed in SEEDS}
    setting = _vary_layout(bench, asked, len(plans[SEEDS[0]][0].clients))
    rows = {seed: [bench.row(setting, plan, at) for at, plan in enumerate(own)] for seed, own in plans.items()}
    return setting, rows


def _difference(bench: Bench, variations: Iterable[str]) -> str | None:
    try:
        results = varied(bench, variations)
    except Exception as error:
        return f"{type(error).__name__} ({error}){place(error)}"
    return difference(results, {seed: bench.base[seed] for seed in results}, bench.tolerance)


def _vary_layout(bench: Bench, asked: set[str], chains: int) -> Setting:
    selector = bench.simulation.selector
    devices = 2 if "devices" in asked else 1
    layout = Layout("map", devices)
    if "lanes" in asked:
        width = min(3, -(-chains // devices))
        layout = Layout("vmap", devices, width, lanes=selector.chain_length == 1 and selector.passes == 1)
    longer = 3 if "length" in asked else 1
    return dataclasses.replace(bench.setting, layout=layout, max_size=longer * bench.setting.max_size)


def _add_empty_places(bench: Bench, plan: Plan, extra: int) -> Plan:
    width: Any = ((0, extra), (0, 0))
    empty = bench.simulation.federation.num_clients
    limits = None if plan.limits is None else np.pad(plan.limits, width)
    return Plan(np.pad(plan.clients, width, constant_values=empty), np.pad(plan.delivered, width), limits)


def _stack_rows(rows: Sequence[ScheduledRound]) -> ScheduledRound:
    """Stacks rounds of several runs; their number is the same and stays unstacked."""
    return ScheduledRound(rows[0].number, *stack([(row.plan, row.assignment) for row in rows]))


def _all_seeds(
    setting: Setting, keys: Any, states: State, rows: ScheduledRound, *data: Any
) -> tuple[State, ObservedRound]:
    """A round of several runs by one `vmap`."""
    axes = ScheduledRound(None, 0, 0)  # pyright: ignore[reportArgumentType]
    one = lambda key, state, row: one_round(setting, key, state, row, *data)
    return jax.vmap(one, (0, 0, axes))(keys, states, rows)


def _take(tree: PyTree, place: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[place], tree)
