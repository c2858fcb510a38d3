"""The run folder that a report's cost is measured with."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import long_run

from fedjax_bal.lab import RunFolder

pytestmark = pytest.mark.slow


def test_a_report_can_read_the_folder_that_is_made_up(tmp_path):
    long_run.make_up(tmp_path / "synthetic", 20)
    record = RunFolder(tmp_path / "synthetic").read()
    assert len(record.lines) == 20
    assert len(record.summary["runs"]) == len(long_run.METHODS) * len(long_run.SEEDS)
