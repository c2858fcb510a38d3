"""Run folders."""

import pytest
import small_run
from report.conftest import make_run  # noqa: F401


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A folder in which the small comparison ran without interruption."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    small_run.run(path, small_run.config(path.parent))
    return path
