"""Sweeps on a Ray cluster: each task is the command `sweep` with `--part`, and writes into the sweep's folder itself.

All machines must see the folder. Ray starts a task again whose worker or machine is lost, and the part resumes from
the folder's checkpoints, like any other session.
"""

import contextlib
import importlib
import logging
import os
import platform
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_CONNECT_S = 5.0
_PATIENCE_S = 0.5  # between checks for the user's wish to stop
_STOP_S = 60.0  # for workers to save their runs after the user stops
_MAX_RETRIES = 3  # of a part whose worker is lost
_TRAINED = (0, 1)  # exit codes of a part whose runs have ended; 1 if some have no result, as the table says


def train_on_ray(
    options: Sequence[str],
    sheet: Path,
    points: int,
    *,
    address: str | None,
    devices: int,
    note: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> list[str]:
    """Trains a sweep in as many parts as the cluster has room for; returns why parts have failed.

    Args:
        options: further options of the parts' command.
        sheet: the sweep's file in its folder, which all machines see.
        points: number of its points.
        address: HOST:PORT of the cluster's head, or "auto" for the cluster of this machine; None means RAY_ADDRESS if
            it is set, otherwise a local cluster that ends with the sweep.
        devices: number of devices for each part.
        note: called with messages for the user.
        should_stop: called now and then; True ends the session.

    Raises:
        ValueError: there is no Ray, no cluster, or no machine with as many devices.
        Stopped: `should_stop` returned True.
    """
    from fedjax_bal.lab import Stopped

    with _connected(address) as ray:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        on_gpus = any(machine.get("GPU", 0) >= 1 for machine in machines)
        kind = "GPU" if on_gpus else "CPU"
        places = sum(int(machine.get(kind, 0)) // devices for machine in machines)
        if not places:
            raise ValueError(
                f"--engine ray: a part needs {devices} {kind}(s) on one machine, and none of the cluster's "
                f"{len(machines)} machines has as many; ask for fewer with --devices"
            )
        parts = min(places, points)
        note(f"Ray: {len(machines)} machine(s); {parts} part(s) at a time with {devices} {kind}(s) each")
        resources = {"num_cpus": 1, "num_gpus": devices} if on_gpus else {"num_cpus": devices}
        # A new process for each part, because jax keeps its devices and settings until its process ends.
        train_part = ray.remote(max_retries=_MAX_RETRIES, max_calls=1, **resources)(_train_part)
        command = ("sweep", str(sheet), "--out", str(sheet.parent), "--devices", str(devices), "--plain", *options)
        waiting = {}
        for number in range(1, parts + 1):
            part = (*command, "--part", f"{number}/{parts}")
            waiting[train_part.remote(part, sheet.read_text(), on_gpus, _environment())] = f"part {number} of {parts}"
        failures = []
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=_PATIENCE_S)
            for task in done:
                name = waiting.pop(task)
                try:
                    code = ray.get(task)
                    if code not in _TRAINED:
                        failures.append(f"{name}: ended with code {code}, see above")
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    failures.append(f"{name}: {' '.join(str(cause).split())[:300]}")
            if waiting and should_stop():
                for task in waiting:
                    ray.cancel(task)  # as Ctrl-C there
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_STOP_S)
                raise Stopped
        return failures


def _train_part(command: Sequence[str], sheet: str, on_gpus: bool, environment: Mapping[str, str]) -> int:
    """Trains a part of a sweep in a worker; returns the command's exit code.

    Raises:
        ValueError: this machine doesn't see the sweep's folder, or has other versions or settings.
    """
    import jax

    from fedjax_bal.cli.app import app

    here = socket.gethostname()
    file = Path(command[1])
    if not file.is_file() or file.read_text() != sheet:
        raise ValueError(
            f"{here} doesn't see {file.parent}, where the sweep writes its results: with --out, choose a folder on a "
            "file system that all machines of the cluster share"
        )
    ours = _environment()
    differing = [f"{name} {ours.get(name)} in place of {value}" for name, value in environment.items()
                 if ours.get(name) != value]  # fmt: skip
    if differing:
        raise ValueError(
            f"{here}: {', '.join(differing)}; install the same versions on all machines, and set the same JAX_* "
            "variables where workers start"
        )
    if not on_gpus:
        jax.config.update("jax_platforms", "cpu")
    return app(list(command), standalone_mode=False) or 0


def _environment() -> dict[str, str]:
    """Returns the versions and jax settings that must be equal on all machines, for equal results."""
    from fedjax_bal.lab import numeric_settings, versions

    return {"Python": platform.python_version(), **versions(), **numeric_settings()}


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster; yields the module `ray`. Raises ValueError if there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default workers have the lowest priority on their machine
    try:
        ray = importlib.import_module("ray")
    except Exception as error:  # importing a package with incompatible dependencies can raise anything
        raise ValueError(
            f"--engine ray: ray can't be imported ({error}); install it with pip install 'fedjax_bal[cluster]', "
            "or leave out --engine ray"
        ) from error
    option = "--address" if address is not None else "RAY_ADDRESS"
    wanted = address if address is not None else os.environ.get("RAY_ADDRESS") or "local"
    if wanted not in ("auto", "local"):
        # Ray would wait for minutes at an address that doesn't answer, and then end the process.
        host, _, port = wanted.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{option}: received {wanted!r}, where no Ray cluster answers ({error}); give HOST:PORT that ray start "
                "--head printed, with the port open to this machine, or auto for the cluster of this machine"
            ) from error
    try:
        with warnings.catch_warnings():
            # Ray forks only to start its own programs, which don't inherit jax's locks.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            local = {"include_dashboard": False} if wanted == "local" else {}
            ray.init(address=wanted, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, SystemExit) as error:  # SystemExit if another kind of server answers
        ray.shutdown()
        raise ValueError(
            f"{option}: {wanted}: the Ray cluster can't be used ({' '.join(str(error).split())}); this machine has "
            f"Ray {ray.__version__} and Python {platform.python_version()}; leave the address out for a cluster on "
            "this machine alone"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
