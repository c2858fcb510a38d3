"""Checks that a recipe is one program, which follows from its arguments."""

import copy
import dataclasses
from typing import Any

import jax

from fedjax_bal.engine.device import Setting
from fedjax_bal.testing.coverage import needs, training
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.workbench import SEEDS, Bench, one_round
from fedjax_bal.validate import is_number


def one_program(bench: Bench) -> str | None:
    """One trace serves all rounds, seeds and values of a part's numbers."""
    bench.base  # noqa: B018
    bench.run(bench.plans(SEEDS[0]), setting=jax.tree.map(_halve, _copy_parts(bench.setting)))
    if bench.traces == 1:
        return None
    return (
        f"received {bench.traces} traces for {len(SEEDS)} seeds and another value of each number, must be 1: static "
        "fields must compare and hash by value"
    )


@needs(training)
def repeatable(bench: Bench) -> str | None:
    """Traced twice, a round is the same program."""
    row = bench.row(bench.setting, bench.plans(SEEDS[0])[0], 0)

    def program() -> str:
        # A function of its own each time: jax keeps what it has traced.
        traced = jax.jit(lambda *arguments: one_round(*arguments))
        return traced.lower(bench.setting, key_of(SEEDS[0]), bench.start(), row, *bench.data).as_text()

    if program() == program():
        return None
    remedy = "what a part computes has to follow from its arguments alone, not from globals or generators of NumPy"
    return f"received another program when a round is traced again, must be the same: {remedy}"


def _halve(number: Any) -> Any:
    return number / 2 if is_number(number) and isinstance(number, float) else number


def _copy_parts(setting: Setting) -> Setting:
    """Copies the parts, so that they are equal to the given ones but not identical."""

    def copy_of(part: Any) -> Any:
        try:
            return copy.deepcopy(part)
        except TypeError:  # such as one with a module in a static field, which is shared anyway
            return part

    return dataclasses.replace(setting, parts=tuple(map(copy_of, setting.parts)))
