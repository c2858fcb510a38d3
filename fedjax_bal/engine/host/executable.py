"""Compiles the program of a dispatch, and places its state."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedjax_bal.engine.device import (
    DispatchPlan,
    Layout,
    Setting,
    dispatch,
    dispatch_together,
    init_state,
    purpose_key,
    state_of,
)
from fedjax_bal.engine.host.client_memory import divides, repeat_for_clients
from fedjax_bal.engine.host.compiler_options import compile_for_backend
from fedjax_bal.engine.host.memory import fit_to_memory, free_bytes, program_bytes
from fedjax_bal.engine.host.placement import put
from fedjax_bal.types import Federation, Key, PyTree, State


def compile_to_fit(
    setting: Setting,
    state: State,
    schedule: Callable[[Setting], DispatchPlan],
    data: PyTree,
    *,
    fixed: bool,
    keys: Key | None = None,
    keep: bool = False,
) -> tuple[Setting, Any]:
    """Compiles the program of a dispatch, with fewer clients at a time until it fits into memory.

    Args:
        setting: the setting, or those of several runs, leaves `[S]`.
        state: the state's shapes.
        schedule: makes any schedule for a setting.
        data: federation and test set, on the devices.
        fixed: whether the number of clients at a time is given, and may not be reduced.
        keys: the keys of several runs, `[S]`, for a program that does all of them; None for one run's.
        keep: whether the state before is kept rather than donated, which takes as much memory again.

    Returns:
        The setting with the layout that fits, and the compiled program.

    Raises:
        ValueError: even a single client at a time doesn't fit.
    """
    program = dispatch if keys is None else dispatch_together
    while True:
        whole = setting.layout.replicated
        places = shardings(state, data[0].num_clients, setting.layout) if keys is None else same_sharding(state, whole)
        shapes = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), state, places)
        # The state alone is donated: it is as large as the model, or N times as large with a memory per client, and the
        # program writes the new one into the same buffers. It is kept only if a fault may make the host repeat the
        # dispatch from it. Federation and test set serve every dispatch and are never donated.
        jitted = jax.jit(program, donate_argnames=() if keep else "state", out_shardings=(places, whole, whole))
        key = jax.random.key(0) if keys is None else keys
        compiled = compile_for_backend(jitted.lower(setting, key, shapes, schedule(setting), *data))
        width = fit_to_memory(setting.layout, program_bytes(compiled), free_bytes(setting.layout), fixed=fixed)
        if width is None:
            return setting, compiled
        setting = dataclasses.replace(setting, layout=dataclasses.replace(setting.layout, width=width))


def same_sharding(state: State, whole: NamedSharding) -> State:
    """The same sharding for each leaf of a state."""
    return jax.tree.map(lambda leaf: whole, state)


def shardings(state: State, num_clients: int, layout: Layout) -> State:
    """Sharding of a state's leaves: the clients' memory divided over the devices if possible, all else replicated."""
    of_all = layout.divided if divides(num_clients, layout) else layout.replicated
    at = lambda leaf: of_all if leaf.shape[0] == num_clients else layout.replicated
    rest = jax.tree.map(lambda leaf: layout.replicated, state._replace(memory={}))
    return rest._replace(memory=jax.tree.map(at, state.memory))


def initial_state(setting: Setting, seed: int, federation: Federation, *, on_host: bool) -> State:
    """The state before the first round, placed; `on_host` keeps the clients' memory on the host."""
    key, seats = jax.random.key(seed), 1 if on_host else None
    shapes = jax.eval_shape(lambda key, federation: init_state(setting, key, federation, seats), key, federation)
    places = shardings(shapes, federation.num_clients, setting.layout)
    # The initial model has a program of its own, which all methods on this model share.
    variables = jax.jit(setting.model.init, out_shardings=places.variables)(purpose_key(key, "init"))
    state = jax.jit(state_of, static_argnames="seats", out_shardings=places)(setting, variables, federation, seats)
    if not on_host:
        return state
    return state._replace(memory=repeat_for_clients(state.memory, federation.num_clients))


def place_state(state: State, num_clients: int, layout: Layout) -> State:
    """Puts the leaves of a state that are on the host on the devices, with the program's sharding."""
    own = lambda leaf, at: put(leaf, at) if isinstance(leaf, np.ndarray) else leaf
    return jax.tree.map(own, state, shardings(state, num_clients, layout))
