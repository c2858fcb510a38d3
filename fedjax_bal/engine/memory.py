"""Whether a state fits before it is allocated."""

import os

import jax

from fedjax_bal.types import PyTree


def size_in_bytes(tree: PyTree) -> int:
    """The size of all arrays in a tree, or of their shapes.

    Example:
        >>> import numpy as np
        >>> size_in_bytes({"w": np.zeros((2, 3), np.float32)})
        24
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def available_bytes() -> int | None:
    """Memory of the first device that may be used; None where nobody says."""
    device = jax.devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    if device.platform == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def check_fits(state: PyTree, num_clients: int, available: int | None) -> None:
    """Refuses a state that is larger than the memory there is.

    Args:
        state: the state's shapes.
        num_clients: N, for the message.
        available: bytes, or None to skip the check.

    Raises:
        ValueError: with both sizes, and what to do.

    Example:
        >>> import jax, numpy as np
        >>> shapes = {"memory": jax.ShapeDtypeStruct((1000, 10**9), np.float32)}
        >>> check_fits(shapes, 1000, 8 * 10**9)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the state needs 4000.0 GB for 1,000 clients, but 8.0 GB are there: use fewer clients, ...
    """
    needed = size_in_bytes(state)
    if available is not None and needed > available:
        raise ValueError(
            f"the state needs {needed / 1e9:.1f} GB for {num_clients:,} clients, but {available / 1e9:.1f} GB are "
            "there: use fewer clients, a smaller model, or a method that keeps nothing for each client"
        )
