"""Run folders, and a place for the paces that runs leave behind."""

import pytest
import small_run
from report.conftest import make_run  # noqa: F401

from fedjax_bal.lab import paces


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    """The file of remembered paces, which isn't there yet."""
    monkeypatch.setattr(paces, "_file", lambda: tmp_path / "paces.json")
    paces._remembered.cache_clear()
    yield tmp_path / "paces.json"
    paces._remembered.cache_clear()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A folder in which the small comparison ran without interruption."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    small_run.run(path, small_run.config(path.parent))
    return path
