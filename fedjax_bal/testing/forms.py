"""Checks on a part as a value, without running it: its fields, its structure, its text."""

import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_bal.parts import Part
from fedjax_bal.testing.coverage import needs, parts
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.validate import is_number


@needs(parts)
def fields(bench: Bench) -> str | None:
    """Fields are numbers or static and hashable; data belongs into the federation."""
    for part in bench.recipe.parts:
        wrong = _wrong_leaf(part) or _wrong_structure(part)
        if wrong:
            return wrong
    return None


def round_trip(bench: Bench) -> str | None:
    """Taken apart and put together again, it is equal to what it was."""
    for thing in (*bench.recipe.parts, bench.recipe):
        leaves, structure = jax.tree.flatten(thing)
        again = jax.tree.unflatten(structure, leaves)
        if jax.tree.structure(again) != structure or type(again) is not type(thing) or again != thing:
            return (
                f"{type(thing).__name__}: received {again!r} from the leaves and structure of {thing!r}, must be equal "
                "to it: declare it with @part, and keep all that it knows in fields that compare by value"
            )
    return None


@needs(parts)
def representation(bench: Bench) -> str | None:
    """`repr` shows the name and every field."""
    for part in bench.recipe.parts:
        text = repr(part)
        shown = [f"{field.name}={getattr(part, field.name)!r}" for field in _fields_of(part)]
        missing = [one for one in shown if one not in text]
        if type(part).__name__ not in text or missing:
            lacking = ", ".join(missing) or type(part).__name__
            return f"{part.slot}: received the repr {text}, must show {lacking}: leave it to the dataclass"
    return None


def _wrong_leaf(part: Part) -> str | None:
    leaves = jax.tree.leaves(part)
    if leaves and leaves[0] is part:
        return f"{part.slot}: received a class that JAX doesn't know, must be a part: put @part above it"
    for path, leaf in jax.tree_util.tree_leaves_with_path(part):
        if not is_number(leaf) and not isinstance(leaf, bool):
            return (
                f"{part.slot}{jax.tree_util.keystr(path)}: received {_kind(leaf)}, must be a number: declare what "
                "decides on shapes or on what is computed with static(...); data belongs into the federation, what a "
                "client or the server keeps into Memory or Server"
            )
    return None


def _wrong_structure(part: Part) -> str | None:
    fixed = [field.name for field in _fields_of(part) if field.metadata.get("static")]
    for name in fixed:
        value = getattr(part, name)
        if not _has_hash(value):
            return (
                f"{part.slot}.{name}: received {_kind(value)}, must be hashable, as numbers, names and tuples of them "
                "are: a static field is part of the program, not data"
            )
    return None


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # a tuple that holds a list
        return False
    return True


def _fields_of(part: Part) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()


def _kind(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray | jax.Array):
        return f"an array of shape {leaf.shape}"
    return f"{leaf!r} of type {type(leaf).__name__}"
