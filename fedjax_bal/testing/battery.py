"""The battery: all checks in order, and its two entry points."""

import inspect
from collections.abc import Callable
from typing import Any

from fedjax_bal.engine.host import build
from fedjax_bal.parts import Part
from fedjax_bal.recipes import Recipe, combine
from fedjax_bal.testing import forms, runs, signatures
from fedjax_bal.testing.coverage import missing
from fedjax_bal.testing.outcome import (
    FAILED,
    PASSED,
    SKIPPED,
    CheckResult,
    ConformanceError,
    ConformanceReport,
    NotApplicableError,
)
from fedjax_bal.testing.place import place
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.validate import finite_number, one_of

Check = Callable[[Bench], str | None]
"""Returns a fault in words, or None."""

STAGES: tuple[tuple[Check, ...], ...] = (
    (forms.fields,),
    (forms.round_trip,),
    (signatures.traced,),
    (signatures.types,),
    (runs.one_program,),
    (
        forms.representation,
        runs.finite,
        runs.jit,
        runs.cohort_order,
        runs.padded_rows,
        runs.undelivered,
        runs.seeds,
        runs.lanes,
        runs.longer_rows,
        runs.devices,
        runs.all_at_once,
    ),
)
"""Checks in stages, each of which needs the ones before."""

_NOT_OPTIONS = ("recipe", "rounds", "clients_per_round", "evaluate_every", "rounds_per_dispatch", "strategy", "devices")
_NOT_OPTIONS += ("chunk", "client_memory")


def check_part(
    part: Part, *, beside: Recipe | None = None, tolerance: float = 2e-6, **options: Any
) -> ConformanceReport:
    """Checks that a part composes: that its results don't depend on how, where and with what it is run.

    Args:
        part: the part.
        beside: a recipe that the part needs beside it, if any.
        tolerance: largest difference that rounding may make, relative to a leaf's largest number or to 1.
        **options: as in `check_recipe`.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with the result and the remedy.
        ValueError: an unknown option, or a setting that the part refuses.

    Example:
        >>> from fedjax_bal.parts import Proximal
        >>> check_part(Proximal(0.1)).failed
        ()
    """
    alone = Recipe(part.slot, (part,))
    report = _battery(alone if beside is None else combine(beside, alone), tolerance, options)
    return _raise_failures(report._replace(name=part.slot))


def check_recipe(recipe: Recipe, *, tolerance: float = 2e-6, **options: Any) -> ConformanceReport:
    """Checks that a recipe's results don't depend on how and where it is run.

    It trains a tiny network on eight tiny clients: some have a single class or a single row, some are unavailable, some
    don't deliver, and in one round nothing arrives. With these, every check is made but those of parts that a recipe
    doesn't have and the one that needs two devices. With others, a check whose subject never occurs is skipped, and
    says what to pass. Nearly all the time is compiling: for the package's recipes 3 to 7 s of CPU time each, more for
    larger models.

    Args:
        recipe: the recipe.
        tolerance: largest difference that rounding may make, relative to a leaf's largest number or to 1.
        **options: `model`, `federation` and `test` (all three together) in place of the tiny ones; and of
            `fedjax_bal.simulate` what the recipe needs: `local_optimizer`, `server_optimizer`, `drawing`, `selector`,
            `availability`, `delivery`, `speed`, `local_epochs`, `local_steps`, `batch_size`, `drop_last`.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with the result and the remedy.
        ValueError: an unknown option, or a setting that the recipe refuses.

    Example:
        >>> from fedjax_bal import recipes
        >>> check_recipe(recipes.fedavg()).failed
        ()
    """
    return _raise_failures(_battery(recipe, tolerance, options))


def meaning(check: Check) -> str:
    """The meaning of a check, in a line: the first one of its docstring.

    Example:
        >>> meaning(runs.devices)
        'One device and two come to the same.'
    """
    return (inspect.getdoc(check) or "").splitlines()[0]


def _battery(recipe: Recipe, tolerance: float, options: dict[str, Any]) -> ConformanceReport:
    allowed = [name for name in inspect.signature(build).parameters if name not in _NOT_OPTIONS]
    for name in options:
        one_of("option of the battery", name, allowed)
    bench = Bench(recipe, options, finite_number("tolerance", tolerance))
    checks: list[CheckResult] = []
    for stage in STAGES:
        failed = [check.name for check in checks if check.outcome == FAILED]
        if failed:
            checks += [CheckResult(_name(check), SKIPPED, f"it needs {failed[0]} to pass first") for check in stage]
            continue
        if stage == STAGES[2]:
            _raise_bad_setting(bench)
        checks += [_run_check(check, bench) for check in stage]
    return ConformanceReport(recipe.name, tuple(checks))


def _raise_bad_setting(bench: Bench) -> None:
    """Builds the simulation, so that a ValueError, a wrong setting, is raised; other errors are left to the checks."""
    try:
        bench.simulation  # noqa: B018
    except ValueError:
        raise
    except Exception:
        return


def _run_check(check: Check, bench: Bench) -> CheckResult:
    try:
        fault = check(bench)
        lacking = None if fault else missing(check, bench)
    except NotApplicableError as reason:
        return CheckResult(_name(check), SKIPPED, str(reason))
    except Exception as error:
        message = f"{meaning(check)} Received {type(error).__name__}{place(error)}: {error}"
        return CheckResult(_name(check), FAILED, message)
    if lacking:
        return CheckResult(_name(check), SKIPPED, lacking)
    return CheckResult(_name(check), FAILED if fault else PASSED, fault or meaning(check))


def _raise_failures(report: ConformanceReport) -> ConformanceReport:
    if report.failed:
        raise ConformanceError(report)
    return report


def _name(check: Check) -> str:
    return check.__name__.replace("_", " ")
