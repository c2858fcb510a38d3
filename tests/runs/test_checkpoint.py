"""Checkpoints: arrays of every form, and those that earlier versions wrote."""

import io
import time
import tracemalloc
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.runs import checkpoint


class Earlier(NamedTuple):
    progress: Any
    chosen: Any


class Now(NamedTuple):
    snapshot: Any
    chosen: Any


def test_a_name_that_has_changed_is_read_as_the_present_one():
    written = checkpoint.encode(Earlier({"round": np.int64(7)}, np.arange(3)))
    read = checkpoint.load(io.BytesIO(written), Now({"round": np.int64(0)}, np.zeros(3, int)))
    assert read.snapshot["round"] == 7
    assert read.chosen.tolist() == [0, 1, 2]


def test_arrays_of_every_form_come_back_and_are_ordinary_npz_members():
    tree = {
        "scalar": np.float32(1.5),
        "number": np.int64(3),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 4)),
        "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
    }
    content = checkpoint.encode(tree)
    read = checkpoint.load(io.BytesIO(content), tree)
    for name, leaf in tree.items():
        assert read[name].dtype == np.asarray(leaf).dtype
        np.testing.assert_array_equal(read[name], leaf)
    with np.load(io.BytesIO(content)) as arrays:
        np.testing.assert_array_equal(arrays["['columns first']"], tree["columns first"])


def test_saving_does_not_copy_the_arrays(tmp_path):
    large = np.ones(20_000_000, np.uint8)
    tracemalloc.start()
    checkpoint.save(tmp_path, 1, {"large": large})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes / 4


def test_a_clock_that_an_archive_can_not_hold_is_no_hindrance_and_changes_no_bit(monkeypatch):
    tree = {"w": np.arange(3)}
    written = checkpoint.encode(tree)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert checkpoint.encode(tree) == written
