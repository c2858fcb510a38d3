"""The battery: all checks in order, and its two entry points."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from fedjax_bal.engine.host import runs_users_code
from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.models import check_is_model, renewed
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.parts import Part
from fedjax_bal.recipes import Recipe, combine
from fedjax_bal.testing import compilation, forms, padding, runs, signatures, toy
from fedjax_bal.testing.coverage import missing
from fedjax_bal.testing.messages import place
from fedjax_bal.testing.outcome import (
    FAILED,
    PASSED,
    SKIPPED,
    CheckResult,
    ConformanceError,
    ConformanceReport,
    NotApplicableError,
)
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.types import Federation, Model
from fedjax_bal.validate import finite_number

Check = Callable[[Bench], str | None]
"""Returns a fault in words, or None."""

STAGES: tuple[tuple[Check, ...], ...] = (
    (forms.fields,),
    (forms.round_trip,),
    (signatures.traced,),
    (signatures.types,),
    (compilation.one_program,),
    (
        forms.representation,
        runs.finite,
        compilation.repeatable,
        runs.cohort_order,
        padding.padded_rows,
        runs.undelivered,
        runs.seeds,
        runs.lanes,
        runs.longer_rows,
        runs.devices,
        runs.all_at_once,
    ),
)
"""Checks in stages, each of which needs the ones before."""


def check_part(part: Part, *, beside: Recipe | None = None, **options: Any) -> ConformanceReport:
    """Checks that a part composes: that it computes the same wherever, in whatever order and beside whatever it runs.

    Args:
        part: the part.
        beside: what it needs beside it, if anything.
        **options: as in `check_recipe`, which says what is returned and raised too.

    Example:
        >>> from fedjax_bal.parts import Proximal
        >>> check_part(Proximal(0.1)).failed
        ()
    """
    if not isinstance(part, Part):
        raise ValueError(
            f"part: received {part!r:.80}, must be an object of a class with @part, as parts.Proximal(0.1)"
        )
    alone = Recipe(part.slot, (part,))
    recipe = alone if beside is None else dataclasses.replace(combine(beside, alone), name=part.slot)
    return check_recipe(recipe, **options)


@package_settings()
def check_recipe(
    recipe: Recipe,
    *,
    model: Model | None = None,
    federation: Federation | None = None,
    test: tuple[Any, Any] | None = None,
    local: LocalTraining | None = None,
    participation: Participation | None = None,
    server_optimizer: AnyOptimizer | None = None,
    tolerance: float = 2e-6,
) -> ConformanceReport:
    """Checks that a recipe computes the same however and wherever it is run.

    It trains a tiny network on eight tiny clients: some have a single class or a single row, some are unavailable, some
    don't deliver, and in one round nothing arrives. With these, every check is made but those of parts that a recipe
    doesn't have and the one that needs two devices. With others, a check whose subject never occurs is skipped, and
    says what to pass. Nearly all the time is compiling: for the package's recipes 3 to 7 s of CPU time each, more for
    larger models.

    Args:
        recipe: the recipe.
        model: where the tiny one lacks something; then with a federation and a test set.
        federation: in place of the tiny one.
        test: images and labels, in place of the tiny ones.
        local: in place of batches of 4 rows and SGD.
        participation: in place of five or six clients a round, some of them unavailable, some not delivering.
        server_optimizer: as in `fedjax_bal.simulate`.
        tolerance: largest difference that rounding may make, in units of a leaf's largest number or of 1.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with what was found and what to do.
        ValueError: a setting that the recipe refuses.

    Example:
        >>> from fedjax_bal import recipes
        >>> check_recipe(recipes.fedavg()).failed
        ()
    """
    recipe = combine(recipe)  # refuses what is none
    start_jax()
    model = toy.network() if model is None else model
    check_is_model(model)
    local = toy.local_training(model) if local is None else local
    if runs_users_code(model, recipe):
        model = renewed(model)  # or what was traced before a value that it reads has changed would be checked
    data = (model, federation or toy.federation(), test or toy.test_set())
    bench = Bench(recipe, finite_number("tolerance", tolerance), *data, local, participation, server_optimizer)
    return concluded(ConformanceReport(recipe.name, tuple(_battery(bench))))


def concluded(report: ConformanceReport) -> ConformanceReport:
    """Returns a report none of whose checks failed; raises it otherwise."""
    if report.failed:
        raise ConformanceError(report)
    return report


def meaning(check: Callable) -> str:
    """The meaning of a check: the first line of its docstring."""
    return (inspect.getdoc(check) or "").splitlines()[0]


def _battery(bench: Bench) -> list[CheckResult]:
    checks: list[CheckResult] = []
    for stage in STAGES:
        if stage == STAGES[2] and not _failed(checks):
            _raise_bad_setting(bench)
        checks += run_stage(stage, bench, checks)
    return checks


def run_stage(stage: Iterable[Callable], subject: Any, before: list[CheckResult]) -> list[CheckResult]:
    """Runs the checks of a stage on what they are about, unless one before has failed."""
    failed = _failed(before)
    if failed:
        return [CheckResult(_name(check), SKIPPED, f"it needs {failed[0]} to pass first") for check in stage]
    return [_run_check(check, subject) for check in stage]


def _failed(checks: list[CheckResult]) -> list[str]:
    return [check.name for check in checks if check.outcome == FAILED]


def _raise_bad_setting(bench: Bench) -> None:
    """Builds the simulation, so that a ValueError, a wrong setting, is raised; other errors are left to the checks."""
    try:
        bench.simulation  # noqa: B018
    except ValueError:
        raise
    except Exception:
        return


def _run_check(check: Callable[[Any], str | None], subject: Any) -> CheckResult:
    try:
        fault = check(subject)
        lacking = None if fault else missing(check, subject)
    except NotApplicableError as reason:
        return CheckResult(_name(check), SKIPPED, str(reason))
    except Exception as error:
        message = f"{meaning(check)} Received {type(error).__name__}{place(error)}: {error}"
        return CheckResult(_name(check), FAILED, message)
    if lacking:
        return CheckResult(_name(check), SKIPPED, lacking)
    return CheckResult(_name(check), FAILED if fault else PASSED, fault or meaning(check))


def _name(check: Callable) -> str:
    return check.__name__.replace("_", " ")
