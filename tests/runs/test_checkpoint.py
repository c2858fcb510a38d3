"""Checkpoints that earlier versions wrote."""

import io
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
