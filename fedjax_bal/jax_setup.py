"""Starts jax on all cores, and sets the jax options under which the package computes."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_MOST_ON_FEW_CORES = 64
_SETTINGS = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_transfer_guard": "allow",
}


@contextlib.contextmanager
def package_settings() -> Iterator[None]:
    """Applies jax's default settings in this thread, regardless of the user's settings for their own code.

    Random numbers, types and results then have 32 bits, and there is no mesh of `jax.set_mesh`, as the engine has its
    own.
    """
    with (
        _without_mesh(),
        jax.enable_x64(_SETTINGS["jax_enable_x64"]),
        jax.numpy_dtype_promotion(_SETTINGS["jax_numpy_dtype_promotion"]),
        jax.numpy_rank_promotion(_SETTINGS["jax_numpy_rank_promotion"]),
        jax.transfer_guard(_SETTINGS["jax_transfer_guard"]),
    ):
        yield


def _without_mesh() -> contextlib.AbstractContextManager[Any]:
    # A user's jit has chosen the devices already.
    if jax.sharding.get_abstract_mesh().empty or is_traced():
        return contextlib.nullcontext()
    return jax.set_mesh(None)


def is_traced() -> bool:
    """Tells whether the caller runs inside one of jax's transformations, as `jax.jit`.

    Example:
        >>> is_traced(), bool(jax.jit(is_traced)())
        (False, True)
    """
    with jax.transfer_guard("allow"):  # of the zero, where the user allows none
        return isinstance(jax.numpy.zeros(()), Tracer)


def in_32_bits(tree: Any) -> Any:
    """Converts arrays of 64 bits, which a caller may have enabled in jax, to the package's 32 bits.

    Example:
        >>> import numpy as np
        >>> in_32_bits({"rate": np.float64(0.1), "name": "sgd"})["rate"].dtype
        dtype('float32')
    """
    narrow = {jax.numpy.dtype(f"{kind}64"): f"{kind}32" for kind in ("float", "int", "uint")}
    dtype = lambda leaf: narrow.get(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic | jax.Array) else None
    return jax.tree.map(lambda leaf: leaf.astype(dtype(leaf)) if dtype(leaf) else leaf, tree)


def in_package_settings(function: Callable) -> Callable:
    """Wraps a function to run in `package_settings`, with arguments `in_32_bits`: for models, which users call, too."""

    @functools.wraps(function)
    def narrowed(*args: Any, **settings: Any) -> Any:
        with package_settings():
            return function(*in_32_bits(args), **in_32_bits(settings))

    return narrowed


def settle_process() -> None:
    """Applies the package's settings to all threads of a process, which must be one of the package's commands."""
    for name, value in _SETTINGS.items():
        jax.config.update(name, value)


def start_jax() -> None:
    """Starts jax with all cores, unless it has started; functions that need jax call this first.

    Raises:
        ValueError: jax doesn't start on the configured platform.
    """
    split_cpu()
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # the former for "cuda" without the plug-in for it
        config: Any = jax.config
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise ValueError(
            f"JAX_PLATFORMS: received {config.jax_platforms!r}, which jax can't use here{reason}: unset it, or set it "
            "to cpu"
        ) from error


def split_cpu(devices: str | int = "auto", least: int = 1) -> None:
    """Splits the CPU into several jax devices, at least `least`, each of which trains one client at a time.

    Their number is limited to one for each core or 64, whichever is larger, because hundreds of devices take minutes to
    start and are no faster; `device_count` then refuses more.

    "auto" is one for each core that this process may use, unless the user has set another number in jax. Has no effect
    if jax has started or runs on an accelerator.
    """
    if devices == "auto" and _is_set():
        return
    with contextlib.suppress(RuntimeError):  # jax has started
        wanted = max(cores() if devices == "auto" else int(devices), least)
        jax.config.update("jax_num_cpu_devices", min(wanted, max(cores(), _MOST_ON_FEW_CORES)))


@functools.cache
def warn_of_idle_cores() -> None:
    """Warns, once, if jax started before the CPU was split, and says how to split it."""
    if jax.default_backend() == "cpu" and not _is_set() and jax.device_count() < cores():
        warnings.warn(
            f"training on {jax.device_count()} of {cores()} cores, as jax started before fedjax_bal could split the "
            f'CPU: call jax.config.update("jax_num_cpu_devices", {cores()}) right after importing jax, or ask for '
            "Execution(devices=1)",
            stacklevel=2,
        )


def cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_set() -> bool:
    config: Any = jax.config
    flags = os.environ.get("XLA_FLAGS", "")
    return config.jax_num_cpu_devices >= 0 or "xla_force_host_platform_device_count" in flags
