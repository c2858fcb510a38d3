"""The battery: all checks in order, and the two ways to call it."""

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
"""Says what is wrong; None where nothing is."""

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
"""Each stage needs the ones before."""

_OURS = ("recipe", "rounds", "clients_per_round", "evaluate_every", "rounds_per_dispatch", "strategy", "devices")
_OURS += ("chunk", "client_memory")


def check_part(
    part: Part, *, beside: Recipe | None = None, tolerance: float = 2e-6, **options: Any
) -> ConformanceReport:
    """Checks that a part composes: that it computes the same however, wherever and with whomever it is run.

    Args:
        part: the part.
        beside: what it needs beside it, if anything.
        tolerance: largest difference that rounding may make, in units of a leaf's largest number or of 1.
        **options: as in `check_recipe`.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with what was found and what to do.
        ValueError: an unknown option, or a setting that the part refuses.

    Example:
        >>> from fedjax_bal.parts import Proximal
        >>> check_part(Proximal(0.1)).failed
        ()
    """
    alone = Recipe(part.slot, (part,))
    report = _battery(alone if beside is None else combine(beside, alone), tolerance, options)
    return _passed(report._replace(name=part.slot))


def check_recipe(recipe: Recipe, *, tolerance: float = 2e-6, **options: Any) -> ConformanceReport:
    """Checks that a recipe computes the same however and wherever it is run.

    It trains a tiny network on eight tiny clients, some of them with a single class or a single row, some away, some
    not delivering, with one round in which nothing arrives. With that every check is made, but for the one that needs
    two devices and those that look at parts where there are none. With others a check in which nothing came up that it
    looks at is skipped, and says what to pass. Nearly all the time is compiling: for the package's recipes 3 to 7 s
    of CPU time each, more for larger models.

    Args:
        recipe: the recipe.
        tolerance: largest difference that rounding may make, in units of a leaf's largest number or of 1.
        **options: `model`, `federation` and `test` (all three together) where the tiny ones lack something; and of
            `fedjax_bal.simulate` what the recipe needs: `local_optimizer`, `server_optimizer`, `drawing`, `selector`,
            `availability`, `delivery`, `speed`, `local_epochs`, `local_steps`, `batch_size`, `drop_last`.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with what was found and what to do.
        ValueError: an unknown option, or a setting that the recipe refuses.

    Example:
        >>> from fedjax_bal import recipes
        >>> check_recipe(recipes.fedavg()).failed
        ()
    """
    return _passed(_battery(recipe, tolerance, options))


def meaning(check: Check) -> str:
    """What a check means, in a line.

    Example:
        >>> meaning(runs.devices)
        'One device and two come to the same.'
    """
    return (inspect.getdoc(check) or "").splitlines()[0]


def _battery(recipe: Recipe, tolerance: float, options: dict[str, Any]) -> ConformanceReport:
    allowed = [name for name in inspect.signature(build).parameters if name not in _OURS]
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
            _refuse(bench)
        checks += [_checked(check, bench) for check in stage]
    return ConformanceReport(recipe.name, tuple(checks))


def _refuse(bench: Bench) -> None:
    """Lets a ValueError through: the setting is wrong, not the part. What else goes wrong is for a check to say."""
    try:
        bench.simulation  # noqa: B018
    except ValueError:
        raise
    except Exception:
        return


def _checked(check: Check, bench: Bench) -> CheckResult:
    try:
        wrong = check(bench)
        lacking = None if wrong else missing(check, bench)
    except NotApplicableError as reason:
        return CheckResult(_name(check), SKIPPED, str(reason))
    except Exception as error:
        message = f"{meaning(check)} Received {type(error).__name__}{place(error)}: {error}"
        return CheckResult(_name(check), FAILED, message)
    if lacking:
        return CheckResult(_name(check), SKIPPED, lacking)
    return CheckResult(_name(check), FAILED if wrong else PASSED, wrong or meaning(check))


def _passed(report: ConformanceReport) -> ConformanceReport:
    if report.failed:
        raise ConformanceError(report)
    return report


def _name(check: Check) -> str:
    return check.__name__.replace("_", " ")
