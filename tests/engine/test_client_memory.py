"""Where the clients' memory is kept, and its rows that a checkpoint holds."""

import errno
import functools
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from fedjax_bal.engine.device import Layout, State
from fedjax_bal.engine.host import fetch
from fedjax_bal.engine.host import memory as host_memory

CLIENTS = 9


def memory(asked, first):
    """What clients remember who were asked so often; the others have what they began with."""
    drawn = np.random.default_rng(0).normal(size=(CLIENTS, 2, 3)).astype(np.float32)
    own = lambda rows: np.where((asked > 0).reshape(-1, *[1] * (rows.ndim - 1)), rows, np.asarray(first, rows.dtype))
    return {"A": {"w": own(drawn)}, "B": own(np.arange(CLIENTS, dtype=np.int32))}


def saved_and_restored(whole, asked, zeros=None):
    place = jax.tree.map(lambda leaf: leaf.sharding if isinstance(leaf, jax.Array) else None, whole)
    saved = host_memory.rows_to_save(whole, asked)
    return saved, host_memory.restore_rows(saved, asked, place, zeros)


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("trained", [[], [3], [0, 4, 8], range(CLIENTS - 1), range(CLIENTS)])
def test_what_is_saved_comes_back_to_the_bit(first, trained):
    asked = np.zeros(CLIENTS, bool)
    asked[list(trained)] = True
    whole = memory(asked, first)
    saved, restored = saved_and_restored(whole, asked, np.zeros)
    assert len(saved["B"]) == min(len(trained) + 1, CLIENTS)
    chex.assert_trees_all_equal(restored, whole)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("trained", [[3], [0, 4, 5, 8]])
def test_memory_on_devices_is_fetched_and_restored_in_blocks_to_the_bit(monkeypatch, devices, trained):
    monkeypatch.setattr(host_memory, "_BLOCK_BYTES", 3 * 28)  # three rows at a time
    fetched = []
    monkeypatch.setattr(host_memory, "fetch", lambda tree: fetched.append(tree) or fetch(tree))
    asked = np.isin(np.arange(10), trained)
    rows = np.random.default_rng(0).normal(size=(10, 2, 3)).astype(np.float32)
    rows[trained[0], 0] = -0.0, np.nan, np.inf
    rows[~asked] = 7
    layout = Layout("map", devices)
    whole = jax.device_put({"A": rows, "B": np.arange(10, dtype=np.int32) * asked}, layout.divided)
    saved, restored = saved_and_restored(whole, asked)
    assert max(len(block["B"]) for block in fetched) == 3 < len(whole["B"])
    for leaf, here in zip(jax.tree.leaves(restored), jax.tree.leaves(whole), strict=True):
        assert leaf.sharding == here.sharding and np.asarray(leaf).tobytes() == np.asarray(here).tobytes()
    assert saved["A"].tobytes() == rows[[*trained, np.argmin(asked)]].tobytes()


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


@pytest.mark.parametrize(("saved", "place"), [(0, "device"), (9 * 10**9, "host"), (15 * 10**9, None)])
def test_what_a_checkpoint_fetches_counts(monkeypatch, saved, place):
    monkeypatch.setattr(host_memory, "free_bytes", lambda layout: 15 * 10**9)
    monkeypatch.setattr(host_memory, "host_bytes", lambda: 18 * 10**9)
    shapes = State({}, (), {"ControlVariates": jax.ShapeDtypeStruct((10**6, 2000), np.float32)}, {})
    choose = lambda: host_memory.choose_memory_place("auto", shapes, 10**6, Layout("map", 1), saved=saved)
    if place:
        assert choose() == place
    else:
        with pytest.raises(
            ValueError, match="8.0 GB is what they remember.*, and 15.0 GB more for the last checkpoint"
        ):
            choose()


def test_memory_on_disk_lies_in_the_folder_and_leaves_nothing_there(tmp_path):
    row = {"w": np.full((1, 3), 7, np.float32), "zeros": np.zeros((1, 4), np.int32)}
    rows = host_memory.repeat_for_clients(row, 5, functools.partial(host_memory.zeros_on_disk, folder=tmp_path))
    assert all(isinstance(leaf, np.memmap) for leaf in rows.values()) and not list(tmp_path.iterdir())
    chex.assert_trees_all_equal(rows, host_memory.repeat_for_clients(row, 5))


def test_a_program_needs_what_it_returns_and_holds_meanwhile_except_in_place_of_its_arguments():
    analysis = SimpleNamespace(temp_size_in_bytes=5, output_size_in_bytes=30, alias_size_in_bytes=10)
    assert host_memory.program_bytes(SimpleNamespace(memory_analysis=lambda: analysis)) == 25


def test_a_full_disk_is_refused_with_the_figures(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host_memory.os, "posix_fallocate", full, raising=False)
    with pytest.raises(ValueError, match=r"disk, which needs 8.0 GB in .* GB are free \(No space"):
        host_memory.zeros_on_disk((10**6, 2000), np.dtype(np.float32), tmp_path)
