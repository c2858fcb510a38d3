"""Runs a dispatch without compiling it, so that an error in a part shows where it happened."""

import collections
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_bal.engine.device import DispatchPlan, Info, Setting, State, TestSet, dispatch
from fedjax_bal.parts import Loss, Part
from fedjax_bal.types import EvaluationResult, Federation, Key

_CALLS_SHOWN = 3


def debug_dispatch(
    setting: Setting, key: Key, state: State, schedule: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """As `dispatch`, one operation at a time; an exception's notes name round, client, local step and batch.

    They also show what parts returned last, as a wrong shape shows only where the engine uses it.
    """
    calls = collections.deque(maxlen=_CALLS_SHOWN)
    parts = tuple(_recorded(part, calls.append) for part in setting.parts)
    uncompiled = dataclasses.replace(setting, parts=parts)
    schedule = jax.tree.map(jnp.asarray, schedule)
    try:
        with jax.disable_jit():
            return setting.traced(dispatch)(uncompiled, key, state, schedule, federation, test)
    except Exception as error:
        error.add_note("\n".join(["the last calls of parts that returned:", *calls]))
        raise


def _recorded(part: Part, record: Callable[[str], None]) -> Part:
    """A copy of a part that records each call of its roles' methods: where it is defined, and what it returned."""
    twin = copy.copy(part)
    bases = [base for base in type(part).__mro__ if base.__module__ == Loss.__module__]
    for name in {name for base in bases for name, own in vars(base).items() if inspect.isfunction(own)}:
        object.__setattr__(twin, name, functools.partial(_call, getattr(part, name), f"{part.slot}.{name}", record))
    return twin


def _call(method: Any, name: str, record: Callable[[str], None], *args: Any) -> Any:
    result = method(*args)
    code = method.__code__
    shapes = jax.tree.map(jax.typeof, result)
    record(f"  {name} ({code.co_filename}:{code.co_firstlineno}) -> {shapes}")
    return result
