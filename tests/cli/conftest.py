"""Run folders."""

from small_run import trained  # noqa: F401
