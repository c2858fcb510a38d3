"""Synthetic run folders."""

from report.conftest import make_run  # noqa: F401
