"""Synthetic run folders, and a place for the paces that runs leave behind."""

import pytest
from report.conftest import make_run  # noqa: F401

from fedjax_bal.lab import paces


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    """The file of remembered paces, which isn't there yet."""
    monkeypatch.setattr(paces, "_file", lambda: tmp_path / "paces.json")
    paces._remembered.cache_clear()
    yield tmp_path / "paces.json"
    paces._remembered.cache_clear()
