"""The program of a dispatch, compiled for the devices or uncompiled for debugging, and its initial state.

From the device's function to a program that runs: `lower_dispatch` traces `dispatch` or `dispatch_stacked` for given
shapes, `Program.compile` compiles the trace once, `compile_dispatch` finds the program of an equal setting, and
`compile_to_fit` repeats this with fewer clients at a time until the program fits into memory.
"""

import collections
import copy
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding

from fedjax_bal.engine.device import (
    DispatchPlan,
    Info,
    Layout,
    Setting,
    State,
    TestSet,
    dispatch,
    dispatch_stacked,
    init_state,
    initial_variables,
    is_uncompiled,
    state_of,
)
from fedjax_bal.engine.host.memory import divides, fit_to_memory, free_bytes, program_bytes, repeat_for_clients
from fedjax_bal.engine.host.placement import put
from fedjax_bal.parts import Loss, Part
from fedjax_bal.target import target_platform
from fedjax_bal.types import EvaluationResult, Federation, Key, PyTree, Variables
from fedjax_bal.xla_flags import LIBRARY_OPERATIONS

GRAPHS = {
    "xla_gpu_enable_command_buffer": ",".join(
        ("FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION", "CONDITIONAL", "WHILE")
    )
}
"""Operations that XLA:GPU records in CUDA graphs: its defaults, and loops.

The lengths of a dispatch's loops are known only on the device; outside of graphs, each turn waits for the host.
"""

_CALLS_SHOWN = 3


def compile_for_backend(lowered: Any) -> Any:
    """Compiles a lowered program for the target; on CPUs so that it gives the same bits at every call."""
    # See jax issues 39741 (sums that differ between calls) and 39257 (sums that crash).
    options = {"cpu": LIBRARY_OPERATIONS, "gpu": GRAPHS}.get(target_platform(), {})
    try:
        return lowered.compile(compiler_options=options)
    except (JaxRuntimeError, ValueError) as error:
        if not any(name in str(error) for name in options):
            raise
        # This version of XLA doesn't know the options.
        return lowered.compile()


class Program:
    """A program that several simulations may share, compiled for the first of them that needs it."""

    def __init__(self) -> None:
        self._compiled: Any = None
        self._compiling = threading.Lock()

    def compile(self, lower: Callable[[], Any]) -> "Program":
        """Compiles the result of `lower`, once; other threads wait meanwhile."""
        with self._compiling:
            if self._compiled is None:
                self._compiled = compile_for_backend(lower())
        return self

    def __call__(self, *args: Any) -> Any:
        """Runs it."""
        return self._compiled(*args)

    def memory_analysis(self) -> Any:
        """Returns XLA's analysis of the memory that it needs."""
        return self._compiled.memory_analysis()


# The programs that simulations use. A program depends only on its key, so that compared methods and batches of a sweep
# share it if they differ only in numbers. References are weak: a program is freed with its last simulation.
_PROGRAMS: WeakValueDictionary[Hashable, Program] = WeakValueDictionary()
_LOOKING_UP = threading.Lock()  # keys are hashed in Python, so two threads could miss each other's entries


def compile_to_fit(setting: Setting, build: Callable[[Setting], Any], *, fixed: bool) -> tuple[Setting, Any]:
    """Compiles a program, with fewer and fewer clients at a time until it fits into memory.

    `build` compiles it for a setting; `fixed` forbids another number of clients at a time. Returns the setting that
    fits, and the program; raises ValueError if not even a single client at a time fits.
    """
    # XLA reports the memory that a program needs only after compiling it. Not ideal: each attempt compiles in full.
    while True:
        layout = setting.layout
        compiled = build(setting)
        width = fit_to_memory(layout, program_bytes(compiled), free_bytes(layout), fixed=fixed)
        if width is None:
            return setting, compiled
        setting = dataclasses.replace(setting, layout=dataclasses.replace(layout, width=width))


def compile_dispatch(setting: Setting, state: State, rounds: DispatchPlan, data: PyTree, keys: Key) -> Program:
    """Compiles the program that `lower_dispatch` lowers, unless another simulation or thread has it."""
    leaves, structure = jax.tree.flatten((setting, state, rounds, data, keys))
    key = structure, tuple(map(_kind, leaves))
    with _LOOKING_UP:
        program = _PROGRAMS.setdefault(key, Program())
    # Outside of the lock, so that threads can compile different programs at the same time.
    return program.compile(lambda: lower_dispatch(setting, state, rounds, data, keys))


def _kind(leaf: Any) -> Hashable:
    """Returns the shape, type and sharding of an argument, on which a program depends, without its value."""
    kind = getattr(leaf, "dtype", type(leaf))
    return np.shape(leaf), kind, getattr(leaf, "weak_type", None), getattr(leaf, "sharding", None)


def lower_dispatch(setting: Setting, state: State, rounds: DispatchPlan, data: PyTree, keys: Key) -> Any:
    """Lowers the program of a dispatch for these shapes of state and data: of one run, or of several, with its key."""
    if is_uncompiled():
        raise ValueError(
            "jax_disable_jit (JAX_DISABLE_JIT): received True, must be False, as a run's rounds are one compiled "
            "program: unset it; execution.strategy: debug runs them without compiling"
        )
    whole = setting.layout.replicated
    if not keys.ndim:
        function = dispatch
        places = shardings(state, data[0].num_clients, setting.layout)
    else:
        function = dispatch_stacked
        places = jax.tree.map(lambda leaf: whole, state)
    shapes = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), state, places)
    # The data may be on other devices than those that the program is compiled for.
    target = lambda leaf: NamedSharding(setting.layout.mesh, leaf.sharding.spec)
    data = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=target(leaf)), data)
    # Only the state is donated: it is as large as the model, or N times as large with a memory for each client, and the
    # program writes the new state into the same buffers. Federation and test set are used in every dispatch, so they
    # are never donated.
    jitted = jax.jit(setting.traced(function), donate_argnames="state", out_shardings=(places, whole, whole))
    return jitted.lower(setting, keys, shapes, rounds, *data)


def shardings(state: State, num_clients: int, layout: Layout) -> State:
    """Shards a state's leaves: the clients' memory is divided among the devices if possible, all else replicated."""
    # Rows that were gathered for a dispatch are replicated instead, as any device may train any of its clients.
    of_all = layout.divided if divides(num_clients, layout) else layout.replicated
    at = lambda leaf: of_all if leaf.shape[0] == num_clients else layout.replicated
    rest = jax.tree.map(lambda leaf: layout.replicated, state._replace(memory={}))
    return rest._replace(memory=jax.tree.map(at, state.memory))


def initial_state(
    setting: Setting,
    seed: int,
    federation: Federation,
    *,
    zeros: Callable[..., np.ndarray] | None = None,
    variables: Variables | None = None,
) -> State:
    """Makes and places the state before the first round; `zeros` makes arrays for the memory, None for the devices.

    `variables`, NumPy arrays that nothing else refers to, replace the drawn model.
    """
    key = jax.random.key(seed)
    seats = None if zeros is None else 1  # a new client's memory is the same for all clients
    shapes = jax.eval_shape(lambda key, federation: init_state(setting, key, federation, seats), key, federation)
    places = shardings(shapes, federation.num_clients, setting.layout)
    if variables is None:
        # A separate program draws the initial model, so that all methods with this model share it.
        variables = jax.jit(initial_variables, static_argnums=0, out_shardings=places.variables)(setting.model, key)
    begin = jax.jit(setting.traced(state_of), static_argnames="seats", out_shardings=places)
    state = begin(setting, key, variables, federation, seats)
    if zeros is None:
        return state
    return state._replace(memory=repeat_for_clients(state.memory, federation.num_clients, zeros))


def place_state(state: State, num_clients: int, layout: Layout) -> State:
    """Moves the leaves of a state that are on the host to the devices, with the program's sharding."""
    move = lambda leaf, at: put(leaf, at) if isinstance(leaf, np.ndarray) else leaf
    return jax.tree.map(move, state, shardings(state, num_clients, layout))


def debug_dispatch(
    setting: Setting, key: Key, state: State, rounds: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """Runs `dispatch` one operation at a time; an exception's notes name round, client, local step and batch.

    They also show the last results of parts, because a wrong shape raises only later, where the engine uses it.
    """
    calls = collections.deque(maxlen=_CALLS_SHOWN)

    def call(method: Any, name: str, *args: Any) -> Any:
        result = method(*args)
        code = method.__code__
        shapes = jax.tree.map(jax.typeof, result)
        calls.append(f"  {name} ({code.co_filename}:{code.co_firstlineno}) -> {shapes}")
        return result

    def recorded(part: Part) -> Part:
        # A copy whose role methods record each call: where the method is defined, and what it returned.
        twin = copy.copy(part)
        bases = [base for base in type(part).__mro__ if base.__module__ == Loss.__module__]
        for name in {name for base in bases for name, member in vars(base).items() if inspect.isfunction(member)}:
            # Past the part's own `__setattr__`, which refuses: parts are frozen.
            object.__setattr__(twin, name, functools.partial(call, getattr(part, name), f"{part.slot}.{name}"))
        return twin

    uncompiled = dataclasses.replace(setting, parts=tuple(map(recorded, setting.parts)))
    rounds = jax.tree.map(jnp.asarray, rounds)
    try:
        with jax.disable_jit():
            return setting.traced(dispatch)(uncompiled, key, state, rounds, federation, test)
    except Exception as error:
        error.add_note("\n".join(["the last calls of parts that returned:", *calls]))
        raise
