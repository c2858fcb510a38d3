"""The same configuration, the same strategy, the same devices: the same bits, however often it is begun."""

import subprocess
import sys

import numpy as np
import pytest
import small_run
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.lab import checkpoint

RUN = ("run", "small.yaml", "seeds=[0]", "methods=[{recipe: [scaffold, rebafl]}]", "--devices", "2", "--plain", "--out")


def final(folder):
    """All that the last checkpoint holds, bit by bit."""
    with np.load(checkpoint.generations(folder / "checkpoints" / "scaffold+rebafl-seed-0")[0]) as arrays:
        return {name: (arrays[name].dtype, arrays[name].shape, arrays[name].tobytes()) for name in arrays.files[1:]}


@pytest.mark.slow
def test_the_same_command_gives_the_same_bits_twice_in_a_row_and_in_another_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    for out in ("first", "second"):
        assert CliRunner().invoke(app, [*RUN, out]).exit_code == 0
    subprocess.run([sys.executable, "-m", "fedjax_bal", *RUN, "elsewhere"], check=True, stdout=subprocess.DEVNULL)
    first, *others = [(small_run.metrics(folder), final(folder)) for folder in map(tmp_path.__truediv__, OUT)]
    assert len(first[0]) == 4
    assert any("params" in name for name in first[1])
    assert all(other == first for other in others)


OUT = ("first", "second", "elsewhere")
