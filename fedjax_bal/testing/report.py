"""Results of the conformance battery: how a check fails, is skipped or passes, and the messages."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.parts import Part
from fedjax_bal.types import PyTree

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


class CheckResult(NamedTuple):
    """The result of one check.

    Attributes:
        name: the check's name.
        outcome: "passed", "failed" or "skipped".
        message: fault and remedy of a failed check, reason of a skipped one, meaning of a passed one.
    """

    name: str
    outcome: str
    message: str


class ConformanceReport(NamedTuple):
    """All checks of one part, recipe or model, in the order in which they ran.

    Attributes:
        name: the name of the part, recipe or model.
        checks: the checks.

    Example:
        >>> checks = (CheckResult("finite", PASSED, ""), CheckResult("devices", SKIPPED, "there is one"))
        >>> report = ConformanceReport("fedavg", checks)
        >>> report.passed, report.skipped
        (('finite',), ('devices',))
        >>> print(report)
        fedavg: 1 passed, 0 failed, 1 skipped
          skipped  devices: there is one
    """

    name: str
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the checks that passed."""
        return self._names(PASSED)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return self._names(FAILED)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that could not be made, or that the runs never exercised."""
        return self._names(SKIPPED)

    def _names(self, outcome: str) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.outcome == outcome)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        shown = [check for check in self.checks if check.outcome != PASSED]
        return "\n".join([f"{self.name}: {counts}", *(f"  {c.outcome}  {c.name}: {c.message}" for c in shown)])


class ConformanceError(ValueError):
    """Raised if at least one check failed; the message lists each failure with its remedy.

    Attributes:
        report: all checks.
    """

    def __init__(self, report: ConformanceReport) -> None:
        super().__init__(str(report))
        self.report = report


class FaultError(Exception):
    """Raised by a failing check; the message states the value received, the rule and the remedy."""


class NotApplicableError(Exception):
    """Raised by a check that can't be made; the message says why."""


def skipped_if(*conditions: Callable[[Any], bool]) -> Callable[[Callable], Callable]:
    """Declares conditions under which a check without faults is skipped, because the runs didn't exercise it.

    The report shows the docstring of the condition as the reason.
    """

    def declare(check: Callable) -> Callable:
        check.conditions = conditions  # pyright: ignore[reportFunctionMemberAccess]
        return check

    return declare


def run_checks(stages: Iterable[Iterable[Callable]], name: str, subject: Any) -> ConformanceReport:
    """Runs checks in stages, each only if the previous ones passed; raises `ConformanceError` if a check failed."""
    results: list[CheckResult] = []
    for stage in stages:
        failed = [result.name for result in results if result.outcome == FAILED]
        for check in stage:
            label = check.__name__.replace("_", " ")
            needed = (SKIPPED, f"it needs {failed[0]} to pass first") if failed else run_check(check, subject)
            results.append(CheckResult(label, *needed))
    report = ConformanceReport(name, tuple(results))
    if report.failed:
        raise ConformanceError(report)
    return report


def run_check(check: Callable[[Any], None], subject: Any) -> tuple[str, str]:
    """Runs a check and returns its outcome and message."""
    meaning = first_line(inspect.getdoc(check))
    try:
        check(subject)
        reasons = [first_line(unseen.__doc__) for unseen in getattr(check, "conditions", ()) if unseen(subject)]
    except FaultError as fault:
        return FAILED, str(fault)
    except NotApplicableError as reason:
        return SKIPPED, str(reason)
    except Exception as error:
        return FAILED, f"{meaning} Received {type(error).__name__}{place(error)}: {error}"
    return (SKIPPED, " ".join(reasons)) if reasons else (PASSED, meaning)


def first_line(text: object) -> str:
    """Returns the first line of a docstring or of an error's message."""
    return (str(text or "").strip().splitlines() or [""])[0]


def check_same(got: PyTree, wanted: PyTree, tolerance: float, when: str) -> None:
    """Raises `FaultError` if results differ by more than rounding; `when` describes the case and the remedy."""
    gap = difference(got, wanted, tolerance)
    if gap:
        raise FaultError(f"received {gap} {when}")


def difference(got: PyTree, wanted: PyTree, tolerance: float) -> str | None:
    """Describes the largest difference between two trees of arrays; None if it is within the tolerance.

    The tolerance is relative to a leaf's largest number, or to 1 if that is larger. Two NaN values count as equal.
    """
    gaps = []
    for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        ours = np.asarray(ours, float)
        theirs = np.asarray(theirs, float)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(ours - theirs))
        largest = float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0))
        scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0))
        gaps.append((largest / scale, largest, jax.tree_util.keystr(path)))
    relative, absolute, where = max(gaps, default=(0.0, 0.0, ""))
    if relative <= tolerance:
        return None
    return f"a difference of {absolute:.2g} in {where}, must be at most {tolerance:g} of its largest number or of 1,"


def place(error: BaseException) -> str:
    """Returns the innermost line of the user's code that an exception passed through, as ` (in METHOD, FILE:LINE)`.

    User code is code outside this package, installed packages and Python itself. Without user code, the innermost
    method of a part is named; without a part, the text is empty.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [pair for pair in frames if _is_users(pair[0])]
    chosen = users or [pair for pair in frames if isinstance(pair[0].f_locals.get("self"), Part)]
    if not chosen:
        return ""
    frame, line = chosen[-1]
    return f" (in {frame.f_code.co_qualname}, {frame.f_code.co_filename}:{line})"


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    path = Path(name).resolve()
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    inside = any(path.is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED))
    return not (installed or inside or name.startswith("<frozen"))
