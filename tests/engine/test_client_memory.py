"""Where the clients' memory is kept, and its rows that a checkpoint holds."""

import errno
import functools

import chex
import jax
import numpy as np
import pytest

from fedjax_bal.engine.device import Layout, State
from fedjax_bal.engine.host import memory as host_memory
from fedjax_bal.engine.host import restore_rows, rows_to_save

CLIENTS = 9


def memory(asked, first):
    """What clients remember who were asked so often; the others have what they began with."""
    drawn = np.random.default_rng(0).normal(size=(CLIENTS, 2, 3)).astype(np.float32)
    own = lambda rows: np.where((asked > 0).reshape(-1, *[1] * (rows.ndim - 1)), rows, np.asarray(first, rows.dtype))
    return {"A": {"w": own(drawn)}, "B": own(np.arange(CLIENTS, dtype=np.int32))}


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("trained", [[], [3], [0, 4, 8], range(CLIENTS - 1), range(CLIENTS)])
def test_what_is_saved_comes_back_to_the_bit(first, trained):
    asked = np.zeros(CLIENTS, np.int32)
    asked[list(trained)] = 2
    whole = memory(asked, first)
    saved = rows_to_save(whole, asked)
    assert len(saved["B"]) == min(len(trained) + 1, CLIENTS)
    shapes = jax.eval_shape(lambda: whole)
    chex.assert_trees_all_equal(restore_rows(saved, asked, shapes), whole)
    chex.assert_trees_all_equal(restore_rows(whole, asked, shapes), whole)  # as earlier checkpoints have it


def test_rows_that_fit_nothing_are_left_for_the_reader_to_refuse():
    asked = np.array([1, *[0] * (CLIENTS - 1)])
    shapes = {"w": jax.ShapeDtypeStruct((CLIENTS, 2), np.float32)}
    for odd in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float32), np.zeros((2, 2)), np.float32(0)):
        assert restore_rows({"w": odd}, asked, shapes)["w"] is odd


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("auto", "set execution.client_memory to disk"),
        ("host", "set execution.client_memory to disk"),
        ("device", "set execution.client_memory to host"),
    ],
)
def test_more_than_fits_anywhere_is_refused_with_the_figures_and_never_allocated(monkeypatch, place, remedy):
    monkeypatch.setattr(host_memory, "free_bytes", lambda layout: 3 * 10**9)
    monkeypatch.setattr(host_memory, "host_bytes", lambda: 12 * 10**9)
    shapes = State({}, (), {"ControlVariates": jax.ShapeDtypeStruct((10**6, 5000), np.float32)}, {})
    message = rf"20.0 GB for 1,000,000 clients \(20.0 GB is .* 3.0 GB on each device and 12.0 GB on the host: {remedy}"
    with pytest.raises(ValueError, match=message):
        host_memory.choose_memory_place(place, shapes, 10**6, Layout("map", 1))


def test_memory_on_disk_lies_in_the_folder_and_leaves_nothing_there(tmp_path):
    row = {"w": np.full((1, 3), 7, np.float32), "zeros": np.zeros((1, 4), np.int32)}
    rows = host_memory.repeat_for_clients(row, 5, functools.partial(host_memory.zeros_on_disk, folder=tmp_path))
    assert all(isinstance(leaf, np.memmap) for leaf in rows.values()) and not list(tmp_path.iterdir())
    chex.assert_trees_all_equal(rows, host_memory.repeat_for_clients(row, 5))
    read = memory(np.array([1, 0, 0, 2, 0, 0, 0, 0, 0]), 0)
    moved = host_memory.move_to_disk(read, tmp_path)
    chex.assert_trees_all_equal(moved, read)
    again = host_memory.move_to_disk(moved, tmp_path)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(moved), strict=True))


def test_a_full_disk_is_refused_with_the_figures(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host_memory.os, "posix_fallocate", full, raising=False)
    with pytest.raises(ValueError, match=r"disk, which needs 8.0 GB in .* GB are free \(No space"):
        host_memory.zeros_on_disk((10**6, 2000), np.dtype(np.float32), tmp_path)
