"""One run on several processes: their numbers, their common start, and their common end."""

import atexit
import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from fedjax_bal.cli.console import complain, messages
from fedjax_bal.engine.processes import ProcessPlace

COORDINATOR, PROCESS_ID, PROCESSES = (f"FEDJAX_BAL_{name}" for name in ("COORDINATOR", "PROCESS_ID", "PROCESSES"))
_HOW = (
    "give --coordinator HOST:PORT --process-id I --processes N on each, I from 0 to N - 1, or set "
    f"{COORDINATOR}, {PROCESS_ID} and {PROCESSES}; under SLURM all three are known"
)
_NOTHING_LOST = (
    "what was saved before is kept: start all processes again with the same command, and it goes on from there"
)
SWEEP_ALONE = (
    "--distributed: received for a sweep, whose runs need no common devices: give --engine ray to spread them over "
    "machines, or --distributed to each `fedjax-bal run`"
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HEARTBEAT_S, _SHUTDOWN_S = 60, 30


def place_of(
    distributed: bool,
    coordinator: str | None,
    process_id: int | None,
    processes: int | None,
    environment: Mapping[str, str],
) -> ProcessPlace | None:
    """The meeting address and this process's number: from the flags, else from the environment, else from SLURM.

    None for a run of one process. Raises `ValueError` for flags without `--distributed`, or a missing or invalid value.
    """
    given = {"--coordinator": coordinator, "--process-id": process_id, "--processes": processes}
    if not distributed:
        stray = [name for name, value in given.items() if value is not None]
        if stray:
            raise ValueError(f"{stray[0]}: received without --distributed, which it belongs to: give both")
        return None
    slurm = _slurm(environment)
    found = {}
    for flag, variable in zip(given, (COORDINATOR, PROCESS_ID, PROCESSES), strict=True):
        named = [(flag, given[flag]), (variable, environment.get(variable)), (f"SLURM ({flag})", slurm.get(flag))]
        found[flag] = next(((name, value) for name, value in named if value is not None), None)
    missing = [flag for flag, value in found.items() if value is None]
    if missing:
        raise ValueError(f"--distributed: {' and '.join(missing)} missing: {_HOW}")
    index, count = (_whole(*found[flag]) for flag in ("--process-id", "--processes"))
    if not 0 <= index < count or count < 2:
        raise ValueError(f"--distributed: received process {index} of {count}; there are at least 2, numbered from 0")
    return ProcessPlace(*_host_and_port(*found["--coordinator"]), index, count)


def is_first_process(place: ProcessPlace | None) -> bool:
    """Returns True for the only process of a run, or process 0 of several: the one that writes the run folder."""
    return place is None or place.index == 0


def shared_facts(config: Any) -> dict[str, str]:
    """Versions and configuration, on which the processes of a run have to agree before they start."""
    from fedjax_bal.config import config_leaves
    from fedjax_bal.experiments import versions

    return versions() | config_leaves(config)


@contextlib.contextmanager
def joined_processes(
    place: ProcessPlace | None, facts: Callable[[], Mapping[str, str]], devices: str | int | None
) -> Iterator[str | int | None]:
    """Joins this process to the others of a run, and leaves them at the end; yields the devices that share the work.

    `facts` are values, by name, that must be the same in all processes. Without a `place` nothing happens.

    Raises:
        ValueError: the processes don't come together.
    """
    if place is None:
        yield devices
        return
    notice = _DeathNotice(f"fedjax-bal: process {place.index} of {place.count} was ended from outside; {_NOTHING_LOST}")
    group = _join(place, facts(), notice)
    try:
        _check_devices(place, devices, group)
        yield "auto"
    except typer.Exit:  # all processes end like this
        group.finish()
        raise
    except BaseException as error:
        code = _report_error(error, group)
        group.leave("Ctrl-C twice" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__)
        _end(code, notice)
    else:
        group.finish()


class _DeathNotice:
    """Prints a text if this process is killed, even by jax, which ends it when another process dies."""

    def __init__(self, text: str) -> None:
        words = ["sh", "-c", 'read -r line || printf "%s\\n" "$0" >&2', text]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self.dismiss)

    def dismiss(self) -> None:
        """Cancels the notice."""
        with contextlib.suppress(OSError, ValueError):
            self._process.communicate(b"\n")


def _join(place: ProcessPlace, facts: Mapping[str, str], notice: _DeathNotice) -> Any:
    import jax

    from fedjax_bal.engine.processes import ProcessGroup, meet_processes, take_part

    def lost(text: str) -> None:
        _say(f"{text}; {_NOTHING_LOST}")
        _end(1, notice)

    lines, port = meet_processes(place, facts, _say)
    group = ProcessGroup(place.index, lines, lost)
    options: Any = {"heartbeat_timeout_seconds": _HEARTBEAT_S, "shutdown_timeout_seconds": _SHUTDOWN_S}
    jax.config.update("jax_enable_preemption_service", False)  # or else SIGTERM would no longer end this process
    address = f"[{place.host}]:{port}" if ":" in place.host else f"{place.host}:{port}"
    if place.host in _LOOPBACK:  # otherwise on all interfaces, as a host may not know the name that others use for it
        options["coordinator_bind_address"] = address
    jax.distributed.initialize(address, place.count, place.index, **options)
    take_part(group)
    return group


def _check_devices(place: ProcessPlace, devices: str | int | None, group: Any) -> None:
    import jax

    own = jax.local_device_count()
    group.agree({"devices": f"{own} {jax.local_devices()[0].device_kind}"})
    if isinstance(devices, int) and devices != own:
        raise ValueError(
            f"--devices: received {devices}, but each process has {own}: with --distributed all of them take part, so "
            "leave --devices out, and show each process only those that are meant for it"
        )
    if place.index:
        _say(f"process {place.index} of {place.count} is at work for process 0, which shows and writes everything")


def _report_error(error: BaseException, group: Any) -> int:
    """Reports an error, and returns the exit code."""
    from jax.errors import JaxRuntimeError

    if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
        group.wait_for_news()  # most likely another process is gone; jax only reports that it didn't answer
        _say(f"the devices of the processes lost each other ({str(error).splitlines()[0][:200]}); {_NOTHING_LOST}")
        return 1
    try:
        with messages():
            raise error
    except typer.Exit as exit_:
        return exit_.exit_code
    except BaseException:
        traceback.print_exc()
        return 1


def _end(code: int, notice: _DeathNotice) -> None:
    """Exits at once, without jax's wait for the other processes, which may be gone."""
    notice.dismiss()
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h\n")  # a live display has hidden the cursor
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _say(text: str) -> None:
    complain(text)


def _whole(name: str, value: Any) -> int:
    if not str(value).isdecimal():
        raise ValueError(f"{name}: received {value!r}, must be an integer; {_HOW}")
    return int(value)


def _host_and_port(name: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{name}: received {address!r}, must be HOST:PORT, such as 10.0.0.1:4321")
    return host.strip("[]"), int(port)


def _slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """The values that SLURM provides to each task of a step; the port is derived from the job's number."""
    wanted = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")
    if not all(environment.get(name) for name in wanted):
        return {}
    job, nodes, count, index = (environment[name] for name in wanted)
    first, _, ranges = nodes.partition(",")[0].partition("[")  # node[003-007,9],other or node3,node4
    host = first + ranges.partition("-")[0].rstrip("]")
    return {"--coordinator": f"{host}:{61440 + int(job) % 4096}", "--process-id": index, "--processes": count}
