"""The devices that programs are compiled for: jax's own, or others, which need not be present."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from fedjax_bal.jax_setup import start_jax

_CHOSEN: list[Sequence[Any]] = []


def target_devices() -> Sequence[Any]:
    """Returns the devices that programs are compiled for."""
    if _CHOSEN:
        return _CHOSEN[-1]
    start_jax()
    return jax.devices()


def target_platform() -> str:
    """Returns the platform that programs are compiled for: "cpu", "gpu" or "tpu".

    Example:
        >>> target_platform() in ("cpu", "gpu", "tpu")
        True
    """
    if not _CHOSEN:
        start_jax()
        return jax.default_backend()
    platform = _CHOSEN[-1][0].platform
    return "gpu" if platform in ("cuda", "rocm") else platform


@contextlib.contextmanager
def compiling_for(devices: Sequence[Any]) -> Iterator[None]:
    """Compiles programs for these devices within the context; nothing can be run on them, or placed there.

    `devices` are those of a `jax.experimental.topologies` description; they need not be present.
    """
    # A trace contains its platform's forms of convolutions and sums, so it must not be reused for another platform.
    jax.clear_caches()
    _CHOSEN.append(devices)
    try:
        yield
    finally:
        _CHOSEN.pop()
        jax.clear_caches()
