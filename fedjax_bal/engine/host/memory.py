"""Memory: how much is free, and where the clients' memory is kept: on the devices, on the host, or in a file."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.data import available_bytes
from fedjax_bal.engine.device import PERSONAL, Layout, State
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.engine.processes import processes
from fedjax_bal.types import PyTree, size_in_bytes


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


def choose_memory_place(place: str, state: State, num_clients: int, layout: Layout, tested: bool = False) -> str:
    """Decides where the clients' memory is kept, "device", "host" or "disk"; "auto" is "device" if it fits, or "host".

    `tested` says whether clients have test rows, on which all clients' own models are evaluated on the devices.
    """
    if tested and PERSONAL in state.memory:
        if place in ("host", "disk"):
            raise ValueError(
                f"execution.client_memory: received {place}, but leaves of the model stay with the clients, and every "
                "client's model is evaluated on its test rows on the devices: set it to device or auto, or leave out "
                "the clients' test rows"
            )
        place = "device"
    memory = size_in_bytes(state.memory)
    rest = size_in_bytes(state._replace(memory={}))
    share = memory // layout.devices if divides(num_clients, layout) else memory
    device = free_bytes(layout)
    host = host_bytes()

    # "auto" never chooses the disk, because every round waits for it: the user has to ask for it.
    wanted = [place] if memory else ["device"]
    if wanted == ["auto"]:
        wanted = ["device", "host"]
    fits = {
        "device": device is None or share + rest <= device,
        "host": (device is None or rest <= device) and (host is None or memory <= host),
        "disk": device is None or rest <= device,
    }
    for candidate in wanted:
        if fits[candidate]:
            return candidate

    sizes = (("on each device", device), ("on the host", host))
    available = " and ".join(f"{size / 1e9:.1f} GB {name}" for name, size in sizes if size)
    larger = {"device": "host", "auto": "disk", "host": "disk"}.get(place) if memory else None
    remedy = f"set execution.client_memory to {larger}, " if larger else ""
    raise ValueError(
        f"the state needs {(memory + rest) / 1e9:.1f} GB for {num_clients:,} clients ({memory / 1e9:.1f} GB is what "
        f"they remember), but there are {available}: {remedy}use fewer clients, a smaller model, or a method "
        "that keeps nothing for each client"
    )


def divides(num_clients: int, layout: Layout) -> bool:
    """True if the clients' memory can be cut into equal pieces, one for each device."""
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


def move_to_disk(memory: PyTree, folder: Path | None) -> PyTree:
    """Moves the clients' memory to files of `folder`; arrays that are in a file already stay there."""

    def move(leaf: np.ndarray) -> np.ndarray:
        if isinstance(leaf, np.memmap):
            return leaf
        moved = zeros_on_disk(leaf.shape, leaf.dtype, folder)
        written = leaf.reshape(len(leaf), -1).any(1)  # rows of zeros would only take up blocks of the file
        moved[written] = leaf[written]
        return moved

    return jax.tree.map(move, memory)


def rows_to_save(memory: PyTree, asked: np.ndarray) -> PyTree:
    """Selects the memory rows to save: those of clients that were asked to train, and one for all other clients.

    `asked`, `Int[N]`, counts how often each was asked. The rows are in ascending order, the other one last. Clients
    that never trained all have the same memory. Returns all rows if the selection isn't smaller.
    """
    trained = np.flatnonzero(asked)
    rest = np.flatnonzero(asked == 0)[:1]
    if len(trained) + len(rest) >= len(asked):
        return memory
    return jax.tree.map(lambda leaf: np.asarray(leaf)[np.append(trained, rest)], memory)


def restore_rows(saved: PyTree, asked: np.ndarray, shapes: PyTree) -> PyTree:
    """Undoes `rows_to_save`; leaves of other shapes than it returns stay as they are."""
    trained = np.flatnonzero(asked)

    def restore(leaf: np.ndarray, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype != shape.dtype or leaf.shape != (len(trained) + 1, *shape.shape[1:]) or leaf.shape == shape.shape:
            return leaf
        rows = repeat_for_clients(leaf[-1:], len(asked))
        rows[trained] = leaf[:-1]
        return rows

    return jax.tree.map(restore, saved, shapes)
