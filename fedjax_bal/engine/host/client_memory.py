"""What methods remember of each client, on the devices or in the host's memory."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host.memory import free_bytes, host_bytes
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.types import PyTree, State, size_in_bytes


class MemoryTable(NamedTuple):
    """The part of the memory that a dispatch needs.

    Attributes:
        clients: the clients in it, ascending, `Int64[n]`.
        seats: where in the table each client of each plan sits, `Int32[T, G, L]`; empty places point behind it.
    """

    clients: np.ndarray
    seats: np.ndarray


def choose_memory_place(place: str, state: State, num_clients: int, layout: Layout) -> str:
    """Decides where the clients' memory is kept, and refuses a state that fits nowhere.

    Args:
        place: "auto", "device" or "host".
        state: the state's shapes.
        num_clients: N.
        layout: the layout.

    Returns:
        "device" or "host"; for "auto" the devices where it fits.

    Raises:
        ValueError: it doesn't fit; with the figures, and what to do.
    """
    memory, rest = size_in_bytes(state.memory), size_in_bytes(state._replace(memory={}))
    place = place if memory else "device"
    share = memory // layout.devices if divides(num_clients, layout) else memory
    device, host = free_bytes(layout), host_bytes()
    if place != "host" and (device is None or share + rest <= device):
        return "device"
    if place != "device" and memory and (host is None or memory <= host) and (device is None or rest <= device):
        return "host"
    there = [
        f"{size / 1e9:.1f} GB {name}" for name, size in (("on each device", device), ("on the host", host)) if size
    ]
    remedy = "set execution.client_memory to host, " if place == "device" and memory else ""
    raise ValueError(
        f"the state needs {(memory + rest) / 1e9:.1f} GB for {num_clients:,} clients ({memory / 1e9:.1f} GB is what "
        f"they remember), but there are {' and '.join(there)}: {remedy}use fewer clients, a smaller model, or a method "
        "that keeps nothing for each client"
    )


def divides(num_clients: int, layout: Layout) -> bool:
    """Whether the clients' memory can be cut into a piece for each device."""
    return layout.devices > 1 and num_clients % layout.devices == 0


def table_of(clients: np.ndarray, num_clients: int) -> MemoryTable:
    """Seats for the clients of a dispatch.

    Args:
        clients: client ids, `Int[T, G, L]`.
        num_clients: N, which marks empty places.

    Returns:
        The table's clients, and the seats.

    Example:
        >>> table_of(np.array([[[7], [2], [9]]]), 9).seats.tolist()
        [[[1], [0], [3]]]
    """
    listed = np.unique(clients[clients < num_clients])
    seats = np.where(clients < num_clients, np.searchsorted(listed, clients), clients.size)
    return MemoryTable(listed, seats.astype(np.int32))


def gather(memory: PyTree, table: MemoryTable) -> PyTree:
    """The table's rows of the memory, padded to as many seats as there can be."""
    size = table.seats.size

    def one(leaf: np.ndarray) -> np.ndarray:
        rows = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        np.take(leaf, table.clients, axis=0, out=rows[: len(table.clients)])
        return rows

    return jax.tree.map(one, memory)


def scatter(memory: PyTree, table: MemoryTable, rows: PyTree) -> PyTree:
    """Writes the table's rows back, in place."""

    def one(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
        leaf[table.clients] = new[: len(table.clients)]
        return leaf

    return jax.tree.map(one, memory, fetch(rows))


def repeat_for_clients(row: PyTree, num_clients: int) -> PyTree:
    """The same memory for all clients, on the host.

    Args:
        row: one client's, leaves `[1, ...]`.
        num_clients: N.

    Returns:
        NumPy arrays `[N, ...]`; zeros take up no memory until they are written to.
    """

    def one(leaf: jax.Array) -> np.ndarray:
        first = np.asarray(leaf)[0]
        rows = np.zeros((num_clients, *first.shape), first.dtype)
        if first.any():
            rows[:] = first
        return rows

    return jax.tree.map(one, row)
