"""Sweeps on a Ray cluster: each task trains one part of the sweep, and writes into the sweep's folder itself.

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.jax_setup import settle_process, split_cpu
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.environment import numeric_settings, versions
from fedjax_bal.lab.folder import SHEET
from fedjax_bal.lab.loop import Stopped
from fedjax_bal.lab.sweep import run_sweep
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Sweep, load_sweep
from fedjax_bal.plugins import load_plugins, loaded_plugins

_CONNECT_S = 5.0
_PATIENCE_S = 0.5  # between checks for the user's wish to stop
_STOP_S = 60.0  # for workers to finish a dispatch after the user stops
_MAX_RETRIES = 3  # of a part whose worker is lost


class PartTask(NamedTuple):
    """What a worker needs to train a part of a sweep."""

    path: str  # of the folder
    text: str  # of its sweep.yaml
    part: tuple[int, int]
    form: str  # of convolutions, in place of "auto"
    devices: int
    on_gpus: bool
    data_dir: str | None
    most: int | None
    plugins: Sequence[str]
    environment: dict[str, str]  # see `_environment`


def train_on_ray(
    sweep: Sweep,
    folder: SweepFolder,
    *,
    form: str,
    address: str | None,
    devices: int,
    data_dir: str | None,
    most: int | None,
    note: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> list[str]:
    """Trains a sweep in as many parts as the cluster has room for; returns why parts have failed.

    Args:
        sweep: the sweep.
        folder: its folder, on a file system that all machines share; not claimed, because the parts claim it.
        form: the form of convolutions in place of "auto".
        address: HOST:PORT of the cluster's head, or "auto" for the cluster of this machine; None means RAY_ADDRESS if
            it is set, otherwise a local cluster that ends with the sweep.
        devices: number of devices for each part.
        data_dir: the data sets' folder on every machine.
        most: maximum number of runs per batch.
        note: called with messages for the user.
        should_stop: called now and then; True ends the session.

    Raises:
        Stopped: `should_stop` returned True. Rounds since the last checkpoints are lost.
        ValueError: there is no Ray, no cluster, or no machine with as many devices.
    """
    with _connected(address) as ray:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        on_gpus = any(machine.get("GPU", 0) >= 1 for machine in machines)
        kind = "GPU" if on_gpus else "CPU"
        places = sum(int(machine.get(kind, 0)) // devices for machine in machines)
        if not places:
            largest = max((int(machine.get(kind, 0)) for machine in machines), default=0)
            raise ValueError(
                f"--engine ray: a part asks for {devices} {kind}(s) of one machine, but the largest of the cluster's "
                f"{len(machines)} has {largest}: ask for fewer with --devices"
            )
        parts = min(places, len(sweep.points))
        note(f"Ray: {len(machines)} machine(s); {parts} part(s) at a time with {devices} {kind}(s) each")
        resources = {"num_cpus": 1, "num_gpus": devices} if on_gpus else {"num_cpus": devices}
        # A new process for each part, because jax keeps its devices and settings until its process ends.
        train_part = ray.remote(max_retries=_MAX_RETRIES, max_calls=1, **resources)(_train_part)
        path = str(folder.path.absolute())
        common = (form, devices, on_gpus, data_dir, most, loaded_plugins(), _environment())
        waiting = {
            train_part.remote(PartTask(path, sweep.text, (number, parts), *common)): number
            for number in range(1, parts + 1)
        }
        failures = []
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=_PATIENCE_S)
            for task in done:
                number = waiting.pop(task)
                try:
                    ray.get(task)
                    note(f"part {number} of {parts} is done")
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    failures.append(f"part {number} of {parts}: {' '.join(str(cause).split())[:300]}")
                    note(failures[-1])
            if waiting and should_stop():
                for task in waiting:
                    ray.cancel(task)
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_STOP_S)
                raise Stopped
        return failures


def _train_part(task: PartTask) -> None:
    """Trains a part of a sweep in a worker.

    Raises:
        ValueError: this machine doesn't see the folder, or has other versions or settings.
    """
    sheet = Path(task.path, SHEET)
    if not sheet.is_file() or sheet.read_text() != task.text:
        raise ValueError(
            f"{socket.gethostname()} doesn't see {task.path}, where the sweep writes its results: choose a folder with "
            "--out on a file system that all machines of the cluster share"
        )
    settle_process()
    if not task.on_gpus:
        jax.config.update("jax_platforms", "cpu")
        split_cpu(task.devices)
    here = _environment()
    differing = [
        f"{name} {here.get(name)} in place of {value}"
        for name, value in task.environment.items()
        if here.get(name) != value
    ]
    if differing:
        raise ValueError(
            f"{socket.gethostname()}: {', '.join(differing)}; install the same versions on all machines, and set the "
            "same JAX_* variables where workers start"
        )
    keep_compiled_programs()
    load_plugins(task.plugins)
    folder = SweepFolder(Path(task.path), task.part)
    with folder.claimed():
        sweep = load_sweep(sheet).with_convolution(task.form)
        options: Any = {"data_dir": task.data_dir, "devices": task.devices, "most": task.most}
        run_sweep(sweep, folder, Progress(Console(), plain=True), **options)


def _environment() -> dict[str, str]:
    """Returns the versions and jax settings that must be equal on all machines, for equal results."""
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
            f"{option}: {wanted}: the Ray cluster can't be used ({' '.join(str(error).split())}); here are Ray "
            f"{ray.__version__} and Python {platform.python_version()}; leave the address out for a cluster on this "
            "machine alone"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
