"""Checkpoints: arrays of every form, and which of them are kept."""

import hashlib
import io
import json
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from fedjax_bal.lab import checkpoint


def test_the_newest_are_kept_also_where_names_have_other_lengths(tmp_path):
    for round in (99_999_998, 99_999_999, 100_000_000, 100_000_001):
        checkpoint.save(tmp_path, round, {"w": np.zeros(1)})
    assert [checkpoint.round_of(file) for file in checkpoint.generations(tmp_path)] == [100_000_001, 100_000_000]


def test_a_checkpoint_of_another_format_is_not_damaged(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_FORMAT", 2)
        file = checkpoint.save(tmp_path, 1, {"w": np.zeros(1)})
    with pytest.raises(checkpoint.StateError, match="its format is 2, this version reads 1"):
        checkpoint.read(file)


def test_arrays_of_every_form_come_back_and_are_ordinary_npz_members(tmp_path):
    tree = {
        "scalar": np.float32(1.5),
        "number": np.int64(3),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 4)),
        "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
    }
    file = checkpoint.save(tmp_path, 1, tree)
    read = checkpoint.load(file, tree)
    for name, leaf in tree.items():
        assert read[name].dtype == np.asarray(leaf).dtype
        np.testing.assert_array_equal(read[name], leaf)
    with np.load(file) as arrays:
        np.testing.assert_array_equal(arrays["['columns first']"], tree["columns first"])


def test_saving_does_not_copy_the_arrays(tmp_path):
    large = np.ones(20_000_000, np.uint8)
    tracemalloc.start()
    checkpoint.save(tmp_path, 1, {"large": large})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes / 4


def test_a_clock_that_an_archive_can_not_hold_is_no_hindrance_and_changes_no_bit(tmp_path, monkeypatch):
    tree = {"w": np.arange(3)}
    written = checkpoint.save(tmp_path, 1, tree).read_bytes()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert checkpoint.save(tmp_path, 2, tree).read_bytes() == written


def test_a_checkpoint_is_never_unpickled(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}], object), allow_pickle=True)
    content = stream.getvalue()
    manifest = {"format": 1, "sha256": {"w.npy": hashlib.sha256(content).hexdigest()}}
    with zipfile.ZipFile(tmp_path / "round-00000001.npz", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("w.npy", content)
    with pytest.raises(checkpoint.CheckpointError, match="pickle"):
        checkpoint.load(tmp_path / "round-00000001.npz", {"w": np.zeros(3)})
