"""Results of the conformance battery."""

from typing import NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CheckResult(NamedTuple):
    """The result of one check.

    Attributes:
        name: the check's name.
        outcome: "passed", "failed" or "skipped".
        message: fault and remedy of a failed check, the reason of a skipped one, the meaning of a passed one.
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
        """Names of the checks that could not be made, or whose subject never occurred."""
        return self._names(SKIPPED)

    def _names(self, outcome: str) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.outcome == outcome)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        worth = [check for check in self.checks if check.outcome != PASSED]
        return "\n".join([f"{self.name}: {counts}", *(f"  {c.outcome}  {c.name}: {c.message}" for c in worth)])


class ConformanceError(ValueError):
    """At least one check failed; the message lists each one with the result and the remedy.

    Attributes:
        report: all checks.
    """

    def __init__(self, report: ConformanceReport) -> None:
        super().__init__(str(report))
        self.report = report


class NotApplicableError(Exception):
    """A check can't be made; the message says why."""
