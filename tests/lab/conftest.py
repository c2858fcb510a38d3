"""Run folders."""

from report.conftest import make_run  # noqa: F401
from small_run import trained  # noqa: F401
