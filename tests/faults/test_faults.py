"""The short form of the campaign: three kills, a full disk, a closed folder and damaged checkpoints."""

import numpy as np
import pytest
from faults import damage, failing, killing
from faults.cases import case, results, session

from fedjax_bal.engine import checkpoint
from fedjax_bal.engine.checkpoint import CheckpointError

TREE = {"w": np.arange(6, dtype=np.float32), "round": np.int64(3)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, and what comes of it undisturbed."""
    whole = case("run", tmp_path_factory.mktemp("run"), "training.rounds=4")
    assert session(whole).code == 0
    return whole, results(whole)


def test_three_kills_change_nothing(run):
    whole, undisturbed = run
    how = iter(
        [
            {"fault": {"kind": "kill", "at": 18, "stage": "middle"}},  # within a checkpoint
            {"fault": {"kind": "kill", "at": 25, "stage": "after"}},
            {"kill_after": 3.0},
        ]
    )
    tally = killing.kill_until_done(whole.beside("killed"), how, 3, undisturbed)
    assert tally == (3, 3, 3, ())


def test_a_killed_sweep_comes_to_the_same_table(tmp_path):
    whole = case("sweep", tmp_path, "training.rounds=2", "methods=[{recipe: scaffold}]")
    assert session(whole).code == 0
    undisturbed = results(whole)
    assert [row["status"] for row in undisturbed["results.csv"]] == ["done", "done"]
    # Within the second run's checkpoint, so that the two stand at different rounds.
    how = iter([{"fault": {"kind": "kill", "at": 60, "stage": "middle"}}])
    assert killing.kill_until_done(whole.beside("killed"), how, 1, undisturbed) == (1, 1, 1, ())


def test_a_disk_that_fills_up_is_told_and_waited_for(run):
    whole, undisturbed = run
    assert failing.full_disk(whole.beside("full"), undisturbed, 30).troubles == ()


def test_a_folder_that_is_closed_is_told(run):
    whole, _ = run
    closed = whole.beside("closed")
    done = session(closed, {"kind": "closed", "at": 5})
    if "rights can't be dropped" in done.said:
        pytest.skip("root may write everywhere here")
    assert failing.refused(done, "permission denied", str(closed.out)) == []


@pytest.mark.parametrize("how", damage.OF_AN_ARCHIVE)
def test_a_damaged_checkpoint_is_recognised(tmp_path, how):
    file = checkpoint.save(tmp_path, 3, TREE)
    damage.apply(damage.OF_AN_ARCHIVE[how], file)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(file, TREE)


def test_no_flipped_bit_gives_other_numbers(tmp_path):
    file = checkpoint.save(tmp_path, 3, TREE)
    content, recognised = file.read_bytes(), 0
    for at in range(len(content)):
        file.write_bytes(damage.flipped(content, at))
        try:
            found = checkpoint.load(file, TREE)
        except CheckpointError:
            recognised += 1
        else:  # a time, or what else says nothing about the content
            assert all(found[name].tobytes() == np.asarray(TREE[name]).tobytes() for name in TREE)
    assert recognised > 0.8 * len(content)


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / ".round-00000002.npz.part").write_bytes(b"half")
    checkpoint.save(tmp_path, 3, TREE)
    assert [file.name for file in tmp_path.iterdir()] == ["round-00000003.npz"]
    (tmp_path / ".round-00000004.npz.part").write_bytes(b"half")
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
