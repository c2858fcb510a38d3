"""One run on several processes: how they join, what they must agree on, and how they end."""

import contextlib
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import typer

from fedjax_bal.cli.console import complain, messages

COORDINATOR, PROCESS_ID, PROCESSES = (f"FEDJAX_BAL_{name}" for name in ("COORDINATOR", "PROCESS_ID", "PROCESSES"))
_HOW = (
    "give --coordinator HOST:PORT --process-id I --processes N on each, I from 0 to N - 1, or set "
    f"{COORDINATOR}, {PROCESS_ID} and {PROCESSES}; under SLURM, Open MPI and Kubernetes jax knows them"
)
_NOTHING_LOST = (
    "what was saved before is kept: start all processes again with the same command, and it goes on from there"
)
SWEEP_ALONE = (
    "--distributed: received for a sweep, whose runs need no common devices: to spread them over machines, give "
    "--part I/N to each process, or --engine ray"
)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# A killed process is noticed within a second, as its connections break; one that has hung, or whose machine is gone,
# after two thirds of the heartbeat's seconds to all of them. At the end the others wait for process 0, which still
# writes pages: jax ends all of them if that takes longer than the last number.
_JOIN_S, _HEARTBEAT_S, _SHUTDOWN_S = 120, 30, 3600


class ProcessPlace(NamedTuple):
    """What the user says of a process of several; None is left to jax, which knows SLURM, Open MPI and Kubernetes.

    Attributes:
        address: HOST:PORT, where process 0 waits for the others.
        index: this process's number, from 0.
        count: the number of processes.
    """

    address: str | None = None
    index: int | None = None
    count: int | None = None


def place_of(
    distributed: bool,
    coordinator: str | None,
    process_id: int | None,
    processes: int | None,
    environment: Mapping[str, str],
) -> ProcessPlace | None:
    """This process's place among several: from the flags, else from the environment; None for a run of one process.

    Raises:
        ValueError: flags without `--distributed`, or an invalid value.
    """
    given = {"--coordinator": coordinator, "--process-id": process_id, "--processes": processes}
    if not distributed:
        stray = [name for name, value in given.items() if value is not None]
        if stray:
            raise ValueError(f"{stray[0]}: received without --distributed, which it belongs to: give both")
        return None
    named = [
        (variable, environment.get(variable)) if value is None else (flag, value)
        for variable, (flag, value) in zip((COORDINATOR, PROCESS_ID, PROCESSES), given.items(), strict=True)
    ]
    (name, address), *numbers = named
    host, _, port = str(address or "").rpartition(":")
    if address is not None and (not host or not port.isdecimal() or not 0 < int(port) < 2**16):
        raise ValueError(f"{name}: received {address!r}, must be HOST:PORT, such as 10.0.0.1:4321")
    for name, value in numbers:
        if value is not None and not str(value).isdecimal():
            raise ValueError(f"{name}: received {value!r}, must be an integer; {_HOW}")
    index, count = (None if value is None else int(value) for _, value in numbers)
    if (count is not None and count < 2) or (index is not None and not 0 <= index < (count or 2**31)):
        raise ValueError(f"--distributed: received process {index} of {count}; there are at least 2, numbered from 0")
    return ProcessPlace(None if address is None else str(address), index, count)


def shared_facts(config: Any) -> dict[str, str]:
    """All that results depend on and that may differ between processes, but for the data, which `Runner` compares."""
    from fedjax_bal.config import config_leaves
    from fedjax_bal.lab import numeric_settings, versions

    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith("--xla_dump"))
    return versions() | numeric_settings() | {"XLA_FLAGS": " ".join(flags)} | config_leaves(config)


@contextlib.contextmanager
def joined_processes(
    place: ProcessPlace | None, facts: Callable[[], Mapping[str, str]], devices: str | int | None
) -> Iterator[None]:
    """Joins this process to the others of a run, and leaves them at the end; without a `place` nothing happens.

    The CPU has to be split before, and jax must not have started. `facts` are values, by name, that must be the same in
    all processes; `devices` are those that each is to have, as on the command line.

    Raises:
        ValueError: the processes don't come together.
    """
    if place is None:
        yield
        return
    import jax
    from jax.errors import JaxRuntimeError

    jax.config.update("jax_enable_preemption_service", False)  # or else SIGTERM would no longer end this process
    options: dict[str, Any] = {}
    if place.address is not None and place.address.rpartition(":")[0] in _LOOPBACK:
        # Otherwise on all interfaces, as a host may not know the name that others use for it.
        options["coordinator_bind_address"] = place.address
    if place.address is not None and place.index == 0:
        _check_port(place.address)
    known = "" if place.index is None else f" {place.index} of {place.count or 'several'}"
    complain(
        f"process{known}: waiting for the others, for at most {_JOIN_S} s, at {place.address or 'the address of jax'}"
    )
    try:
        jax.distributed.initialize(
            place.address,
            num_processes=place.count,
            process_id=place.index,
            initialization_timeout=_JOIN_S,
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
            **options,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--distributed: {error}: {_HOW}") from error

    try:
        _check_agreement(place, facts(), devices)
        yield
    except typer.Exit:  # all processes end like this
        jax.distributed.shutdown()
        raise
    except BaseException as error:
        # Exits at once, without jax's wait for the others, which may be gone, and which notice that this one is.
        text, code = str(error), 1
        if "Gloo" in text or (isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in text):
            complain(f"another process has ended, or can't be reached ({text.splitlines()[0][:200]}); {_NOTHING_LOST}")
        else:
            try:
                with messages():
                    raise
            except typer.Exit as exit_:
                code = exit_.exit_code
            except BaseException:
                traceback.print_exc()
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[?25h\n")  # a live display has hidden the cursor
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    else:
        jax.distributed.shutdown()


def _check_port(address: str) -> None:
    """Refuses a port that is taken: jax would share it with another run in silence, and mix up their processes."""
    host, _, port = address.rpartition(":")
    name = host.strip("[]") if host in _LOOPBACK else ""
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        socket.create_server((name, int(port)), family=family).close()
    except OSError as error:
        raise ValueError(
            f"{address}: process 0 can't wait for the others there ({(error.strerror or str(error)).lower()}); "
            "give --coordinator another port"
        ) from None


def _check_agreement(place: ProcessPlace, facts: Mapping[str, str], devices: str | int | None) -> None:
    import jax

    from fedjax_bal.engine.processes import processes

    group = processes()
    if group.count < 2:
        raise ValueError(f"--distributed: received process {group.index} of {group.count}; there are at least 2")
    # From jax itself: processes with different numbers couldn't even exchange them.
    numbers = Counter(device.process_index for device in jax.devices())
    if len(set(numbers.values())) > 1:
        each = ", ".join(f"{number} on process {index}" for index, number in sorted(numbers.items()))
        raise ValueError(f"--distributed: all processes must have as many devices, but there are {each}")
    own, kind = jax.local_device_count(), jax.local_devices()[0].device_kind
    group.agree({**facts, "devices": f"{own} {kind}", "--processes": str(place.count or group.count)})
    if isinstance(devices, int) and devices != own:
        raise ValueError(
            f"--devices: received {devices}, but each process has {own}: with --distributed all of them take part, so "
            "leave --devices out, and show each process only those that are meant for it"
        )
    if not group.first:
        complain(f"process {group.index} of {group.count} is at work for process 0, which shows and writes everything")
