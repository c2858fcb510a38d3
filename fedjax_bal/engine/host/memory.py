"""Memory: how much is free, and where the clients' memory is kept: on the devices, on the host, or in a file."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_bal.data import available_bytes
from fedjax_bal.engine.device import Layout, State
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.engine.processes import processes
from fedjax_bal.target import target_platform
from fedjax_bal.types import PyTree, size_in_bytes

_BLOCK_BYTES = 2**26  # of the clients' memory, fetched or restored at a time


def free_bytes(layout: Layout) -> int | None:
    """Returns the free memory of each device in bytes, None if unknown; CPU devices share the host's memory."""
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return processes().least(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    host = host_bytes() if device.platform == "cpu" else None
    return None if host is None else host // layout.devices


def host_bytes() -> int | None:
    """Returns the host's available memory in bytes (the minimum over the processes' hosts), or None if unknown."""
    return processes().least(available_bytes())


def program_bytes(compiled: Any) -> int:
    """Returns the bytes that a program needs on each device in addition to its arguments; 0 if it isn't reported."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes


def fit_to_memory(layout: Layout, needed: int, free: int | None, *, fixed: bool) -> int | None:
    """Returns a smaller number of clients at a time to try if a program doesn't fit into memory; None if it fits.

    `needed` and `free` are bytes on each device; `fixed` forbids another number.

    Raises:
        ValueError: it doesn't fit, and the number can't be smaller.

    Example:
        >>> fit_to_memory(Layout("vmap", 1, width=12, lanes=True), needed=30, free=10, fixed=False)
        3
    """
    if free is None or needed <= free:
        return None
    if fixed or layout.width == 1:
        remedy = f"set execution.chunk below {layout.width}, or " if layout.width > 1 else ""
        raise ValueError(
            f"training {layout.width} client(s) at a time needs {needed / 1e9:.1f} GB on each of {layout.devices} "
            f"device(s) in addition to the data and the state, but {free / 1e9:.1f} GB are free: {remedy}use a smaller "
            "batch size, fewer clients a round, or a smaller model"
        )
    # All memory is assumed to grow with the width, which errs on the side of fitting.
    return max(1, min(layout.width - 1, int(layout.width * free / needed * 0.9)))


class MemoryTable(NamedTuple):
    """The memory rows that a dispatch needs.

    Attributes:
        clients: the clients in the table, ascending, `Int64[n]`.
        seats: each planned client's row of the table, `Int32[T, G, L]`; empty places point beyond it.
    """

    clients: np.ndarray
    seats: np.ndarray


def choose_memory_place(
    place: str, state: State, num_clients: int, layout: Layout, tested: bool = False, saved: int = 0
) -> str:
    """Decides where the clients' memory is kept, "device", "host" or "disk"; "auto" is "device" if it fits, or "host".

    `tested` says whether clients have test rows, on which models that depend on the memory are evaluated on the
    devices. `saved` is the bytes of the memory rows that the last checkpoint fetches to the host.
    """
    if tested:
        if place in ("host", "disk"):
            raise ValueError(
                f"execution.client_memory: received {place}, but each client's test rows are classified on the "
                "devices, by a model that depends on its memory: set it to device or auto, or leave out the clients' "
                "test rows"
            )
        place = "device"
    memory = size_in_bytes(state.memory)
    rest = size_in_bytes(state._replace(memory={}))
    on_each = bytes_on_device(state, num_clients, layout)
    device = free_bytes(layout)
    host = host_bytes()
    # CPU devices share the host's memory, so what is fetched from them takes up theirs.
    shared = saved // layout.devices if target_platform() == "cpu" else 0
    fetched = host is None or saved <= host

    # "auto" never chooses the disk, because every round waits for it: the user has to ask for it.
    wanted = [place] if memory else ["device"]
    if wanted == ["auto"]:
        wanted = ["device", "host"]
    fits = {
        "device": (device is None or on_each + shared <= device) and fetched,
        "host": (device is None or rest <= device) and (host is None or memory + saved <= host),
        "disk": (device is None or rest + shared <= device) and fetched,
    }
    for candidate in wanted:
        if fits[candidate]:
            return candidate

    sizes = (("on each device", device), ("on the host", host))
    available = " and ".join(f"{size / 1e9:.1f} GB {name}" for name, size in sizes if size)
    larger = {"device": "host", "auto": "disk", "host": "disk"}.get(place) if memory else None
    remedy = f"set execution.client_memory to {larger}, " if larger else ""
    last = f", and {saved / 1e9:.1f} GB more for the last checkpoint" if saved >= 5e7 else ""
    raise ValueError(
        f"the state needs {(memory + rest) / 1e9:.1f} GB for {num_clients:,} clients ({memory / 1e9:.1f} GB is what "
        f"they remember){last}, but there are {available}: {remedy}use fewer clients, a smaller model, or a method "
        "that keeps nothing for each client"
    )


def bytes_on_device(state: State, num_clients: int, layout: Layout) -> int:
    """Returns the bytes of a state on each device, with the clients' memory."""
    memory = size_in_bytes(state.memory)
    share = memory // layout.devices if divides(num_clients, layout) else memory
    return share + size_in_bytes(state._replace(memory={}))


def divides(num_clients: int, layout: Layout) -> bool:
    """Returns whether the clients' memory can be cut into equal pieces, one for each device."""
    return layout.devices > 1 and num_clients % layout.devices == 0


def table_of(clients: np.ndarray, num_clients: int) -> MemoryTable:
    """Makes the memory table for the clients of a dispatch, `Int[T, G, L]`; `num_clients` marks empty places.

    Example:
        >>> table_of(np.array([[[7], [2], [9]]]), 9).seats.tolist()
        [[[1], [0], [3]]]
    """
    # There are as many rows as seats, so that shapes never change, although a client may have a seat in several rounds.
    listed = np.unique(clients[clients < num_clients])
    seats = np.where(clients < num_clients, np.searchsorted(listed, clients), clients.size)
    return MemoryTable(listed, seats.astype(np.int32))


def gather(memory: PyTree, table: MemoryTable) -> PyTree:
    """Copies the table's rows of the memory, padded to the number of seats."""
    size = table.seats.size

    def rows_of(leaf: np.ndarray) -> np.ndarray:
        # Written directly into the padded array, as the memory of many clients is too large to copy twice.
        rows = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        np.take(leaf, table.clients, axis=0, out=rows[: len(table.clients)])
        return rows

    return jax.tree.map(rows_of, memory)


def scatter(memory: PyTree, table: MemoryTable, rows: PyTree) -> PyTree:
    """Writes the table's rows back into the memory, in place."""

    def write(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
        leaf[table.clients] = new[: len(table.clients)]
        return leaf

    return jax.tree.map(write, memory, fetch(rows))


def repeat_for_clients(row: PyTree, num_clients: int, zeros: Callable[..., np.ndarray] = np.zeros) -> PyTree:
    """Repeats one client's memory, leaves `[1, ...]`, for N clients as NumPy arrays `[N, ...]`.

    `zeros(shape, dtype)` makes the arrays. Zeros take up no memory until they are written to.
    """

    def repeat(leaf: jax.Array) -> np.ndarray:
        first = np.asarray(leaf)[0]
        rows = zeros((num_clients, *first.shape), first.dtype)
        if first.any():
            rows[:] = first
        return rows

    return jax.tree.map(repeat, row)


def zeros_on_disk(shape: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    """Makes zeros in a file of `folder`, by default the system's folder for temporary files.

    The file has no name and disappears with the array, even if the process is killed.

    Raises:
        ValueError: there is no room for them.
    """
    needed = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            # Space is reserved now: a later write to a mapped page would kill the process if the disk were full.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, needed)
            else:  # macOS
                file.truncate(needed)
        except OSError as error:
            where = folder or tempfile.gettempdir()
            raise ValueError(
                f"execution.client_memory: received disk, which needs {needed / 1e9:.1f} GB in {where}, where "
                f"{shutil.disk_usage(where).free / 1e9:.1f} GB are free ({error.strerror}): use fewer clients, or "
                "another folder"
            ) from error
        return np.memmap(file, dtype, "r+", shape=shape)


def memory_rows(asked: np.ndarray) -> np.ndarray | None:
    """Returns the clients whose memory must be saved: all that were asked to train, and one other client, last.

    `asked`, `Bool[N]`, says whether each client was asked. Clients that never trained all have the same memory. None if
    these are no fewer than all clients.
    """
    rows = np.append(np.flatnonzero(asked), np.flatnonzero(~asked)[:1])
    return rows if len(rows) < len(asked) else None


def rows_to_save(memory: PyTree, asked: np.ndarray) -> PyTree:
    """Fetches the rows of `memory_rows`, or all rows; all processes must call it."""
    rows = memory_rows(asked)
    leaves = jax.tree.leaves(memory)
    if rows is None or not leaves:
        return fetch(memory)
    if not isinstance(leaves[0], jax.Array):
        return jax.tree.map(lambda leaf: leaf[rows], memory)
    if size_in_bytes(memory) <= _BLOCK_BYTES:
        return jax.tree.map(lambda leaf: leaf[rows], fetch(memory))  # needs no program of its own
    # The memory may be most of what the devices hold, so a copy of it may not fit: rows are selected there, in blocks
    # of a fixed size, so that a single program is compiled.
    place = leaves[0].sharding
    whole = NamedSharding(place.mesh, PartitionSpec()) if isinstance(place, NamedSharding) else place
    take = jax.jit(_take_rows, out_shardings=whole)
    saved = jax.tree.map(lambda leaf: np.empty((len(rows), *leaf.shape[1:]), leaf.dtype), memory)
    for first, index in _blocks(rows, _rows_in_block(memory)):
        fetched = fetch(take(memory, index))
        for target, block in zip(jax.tree.leaves(saved), jax.tree.leaves(fetched), strict=True):
            target[first : first + len(index)] = block[: len(target) - first]
    return saved


def restore_rows(saved: PyTree, asked: np.ndarray, place: PyTree, zeros: Callable[..., np.ndarray] | None) -> PyTree:
    """Undoes `rows_to_save`: leaves `[N, ...]`.

    `zeros(shape, dtype)` makes arrays for memory on the host; with None it is put on the devices of `place`, the
    shardings of the leaves.
    """
    rows = memory_rows(asked)
    if rows is None or not jax.tree.leaves(saved):
        return saved
    first = jax.tree.map(lambda leaf: leaf[-1:], saved)
    small = size_in_bytes(first) * len(asked) <= _BLOCK_BYTES
    if zeros is not None or small:
        memory = repeat_for_clients(first, len(asked), zeros or np.zeros)
        for target, source in zip(jax.tree.leaves(memory), jax.tree.leaves(saved), strict=True):
            target[rows] = source
        return memory
    repeat = lambda row: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (len(asked), *leaf.shape[1:])), row)
    memory = jax.jit(repeat, out_shardings=place)(first)
    write = jax.jit(_put_rows, donate_argnums=0, out_shardings=place)
    for start, index in _blocks(rows, _rows_in_block(saved)):
        positions = np.minimum(np.arange(start, start + len(index)), len(rows) - 1)
        memory = write(memory, index, jax.tree.map(lambda leaf, at=positions: leaf[at], saved))
    return memory


def _rows_in_block(memory: PyTree) -> int:
    return max(1, _BLOCK_BYTES // max(1, size_in_bytes(jax.tree.map(lambda leaf: leaf[:1], memory))))


def _blocks(rows: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields where each block starts, and its rows; the last block repeats its last row up to the same size."""
    for first in range(0, len(rows), size):
        block = rows[first : first + size]
        yield first, np.pad(block, (0, size - len(block)), mode="edge").astype(np.int32)


def _take_rows(memory: PyTree, rows: jax.Array) -> PyTree:
    def take(leaf: jax.Array) -> jax.Array:
        # Rows of a divided array are added up over the devices, which would turn -0.0 into 0.0; not so with integers.
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf[rows]
        bits = lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
        return lax.bitcast_convert_type(bits[rows], leaf.dtype)

    return jax.tree.map(take, memory)


def _put_rows(memory: PyTree, rows: jax.Array, values: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, new: leaf.at[rows].set(new), memory, values)
