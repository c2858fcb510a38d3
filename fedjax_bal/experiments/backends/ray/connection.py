"""Connects to a Ray cluster, or starts one of this machine's own."""

import contextlib
import importlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

_PATIENCE_S = 5.0
_STORE_BYTES = 512 * 2**20  # states pass through it, one batch's at a time; the rest goes to disk


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster; yields the module `ray`.

    `address` is HOST:PORT of the cluster's head, or "auto" for the cluster of this machine; None stands for
    RAY_ADDRESS, if set, or else for a cluster of this machine's own that ends with the sweep.

    Raises:
        ValueError: Ray isn't installed, or the address has no cluster, or one of another version.
    """
    ray = _imported()
    name = "--address" if address is not None else "RAY_ADDRESS"
    wanted = address if address is not None else os.environ.get("RAY_ADDRESS") or None
    if wanted not in (None, "auto", "local"):
        _check_reachable(name, str(wanted))
    own = wanted in (None, "local")
    options = {"include_dashboard": False, "object_store_memory": _STORE_BYTES} if own else {}
    try:
        _start(ray, f"{name}: {wanted}", address=wanted or "local", **options)
        yield ray
    finally:
        ray.shutdown()


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # or else every other process of the machine comes first
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except Exception as error:  # a package that doesn't fit the others here may raise anything when it is imported
        raise ValueError(
            f"--engine ray: ray can't be imported ({error}); install it with pip install 'fedjax_bal[cluster]', "
            "or leave out --engine ray"
        ) from error


def _start(ray: Any, name: str, **options: Any) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        with warnings.catch_warnings():
            # Ray forks only to start programs of its own, which take none of jax's locks with them.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(**options, **quiet)
    except ConnectionError as error:
        raise ValueError(
            f"{name}: no Ray cluster is there that lets this machine in ({_first_line(error)}); start one with ray "
            "start --head, set RAY_AUTH_MODE and RAY_AUTH_TOKEN where it asks for a token, or leave the address out "
            "for one of this machine's own"
        ) from error
    except SystemExit as error:  # Ray's answer to a server of another kind
        raise ValueError(f"{name}: what answers there is no Ray cluster; give HOST:PORT of its head") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        here = f"here are Ray {ray.__version__} and Python {sys.version.split()[0]}"
        raise ValueError(
            f"{name}: Ray can't be used ({reason}); {here}: use the cluster's own versions of both"
        ) from error


def _check_reachable(name: str, address: str) -> None:
    """Refuses an address at which nothing answers; Ray itself would wait for minutes, and end the process."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"{name}: received {address!r}, must be HOST:PORT of a Ray cluster's head, for instance 10.0.0.1:6379, or "
            "auto for the one that this machine belongs to"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{name}: nothing answers at {address} ({reason}); give the address that ray start --head printed, with "
            "the port open to this machine"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
