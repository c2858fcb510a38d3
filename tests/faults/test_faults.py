"""Three kills, a full disk and a closed folder in a run; and damaged checkpoints. `campaign.py` kills many times."""

import os
import random

import numpy as np
import pytest
from faults import killing
from faults.cases import case, results, session

from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.checkpoint import CheckpointError

TREE = {"w": np.arange(6, dtype=np.float32), "round": np.int64(3)}


# One program, with a memory of clients and a selector that learns.
ONE = "methods=[{recipe: scaffold, selection: {name: power_of_choice, candidates: 6}}]"


def refused(done, *words):
    """What is wrong with how a command ended that had to end with a message and exit code 2."""
    found = [] if done.code == 2 else [f"exit code {done.code}"]
    found += [f"does not say {word!r}" for word in words if word not in done.said.lower()]
    found += ["a traceback"] if "Traceback" in done.said else []
    return [f"{one}: {done.said[-400:]}" for one in found]


@pytest.mark.slow
def test_kills_a_full_disk_and_a_closed_folder_change_nothing(tmp_path):
    whole = case("run", tmp_path, ONE)
    assert session(whole).code == 0
    undisturbed, killed = results(whole.out), whole.beside("killed")
    # In the middle of the second line of metrics, so that there is half a line.
    full = session(killed, {"kind": "full", "of": "/metrics.jsonl", "at": 8})
    assert refused(full, "no space left on device", str(killed.out)) == []
    closed = session(killed, {"kind": "closed", "at": 5})
    if "rights can't be dropped" not in closed.said:  # as they can't in some containers
        assert refused(closed, "permission denied", str(killed.out)) == []
        for folder, _, _ in os.walk(killed.out):
            os.chmod(folder, 0o755)
    # A checkpoint is opened, written, put on the disk and renamed: within the second one, and behind a renaming.
    inside = {"kind": "kill", "of": "/.round-", "at": 6, "stage": "middle"}
    behind = {"kind": "kill", "of": "/.round-", "at": 4, "stage": "after"}
    last = {"kind": "kill", "of": "/.summary.json", "at": 1, "stage": "middle"}
    how = iter([{"fault": inside}, {"fault": behind}, {"fault": last}])
    assert killing.kill_until_done(killed, how, 3, undisturbed) == (3, 3, 3, ())


@pytest.mark.nightly
def test_a_killed_sweep_comes_to_the_same_table(tmp_path):
    whole = case("sweep", tmp_path, "training.rounds=2", ONE)
    assert session(whole).code == 0
    undisturbed, killed = results(whole.out), whole.beside("killed")
    assert [row["status"] for row in undisturbed["results.csv"]] == ["done", "done"]
    # Within the second run's last checkpoint: the first one is done then.
    place = "learning_rate=0.2/checkpoints/scaffold-seed-0/.round-00000002"
    how = iter([{"fault": {"kind": "kill", "of": place, "at": 2, "stage": "middle"}}])
    assert killing.kill_until_done(killed, how, 1, undisturbed) == (1, 1, 1, ())


DAMAGE = {
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "another archive": lambda content: b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_recognised(tmp_path, how):
    file = checkpoint.save(tmp_path, 3, TREE)
    file.write_bytes(DAMAGE[how](file.read_bytes()))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(file, TREE)


@pytest.mark.slow
def test_no_flipped_bit_gives_other_numbers(tmp_path):
    file = checkpoint.save(tmp_path, 3, TREE)
    content, recognised = file.read_bytes(), 0
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            found = checkpoint.load(file, TREE)
        except CheckpointError:
            recognised += 1
        else:  # a time, or what else says nothing about the content
            assert all(found[name].tobytes() == np.asarray(TREE[name]).tobytes() for name in TREE)
    assert recognised > 0.8 * len(content)


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / ".round-00000002.npz.1a2b3c4d.part").write_bytes(b"half")
    checkpoint.save(tmp_path, 3, TREE)
    assert [file.name for file in tmp_path.iterdir()] == ["round-00000003.npz"]
