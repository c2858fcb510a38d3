"""Distributed runs: how processes join, which facts they must agree on, and how they end."""

import contextlib
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import typer

from fedjax_bal.cli.arguments import most_devices, split_cpu_for
from fedjax_bal.cli.console import BAD_INPUT, complain, fail, messages

COORDINATOR, PROCESS_ID, PROCESSES = (f"FEDJAX_BAL_{name}" for name in ("COORDINATOR", "PROCESS_ID", "PROCESSES"))
_HOW = (
    "give --coordinator HOST:PORT --process-id I --processes N on each, I from 0 to N - 1, or set "
    f"{COORDINATOR}, {PROCESS_ID} and {PROCESSES}; under SLURM, Open MPI and Kubernetes jax detects them"
)
_NOTHING_LOST = "saved results are kept; start all processes again with the same command to resume"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# A killed process is detected within a second, because its connections break; a process that hangs, or whose machine is
# gone, after two thirds to all of the heartbeat timeout. At the end the other processes wait for process 0, which still
# writes pages; jax ends them all if that exceeds the shutdown timeout.
_JOIN_S = 120
_HEARTBEAT_S = 30
_SHUTDOWN_S = 3600


class ProcessPlace(NamedTuple):
    """A process among several, as given by the user.

    None leaves a value to jax, which detects SLURM, Open MPI and Kubernetes.

    Attributes:
        address: HOST:PORT at which process 0 waits for the others.
        index: this process's number, from 0.
        count: the number of processes.
    """

    address: str | None = None
    index: int | None = None
    count: int | None = None


def process_place(
    distributed: bool,
    coordinator: str | None,
    process_id: int | None,
    processes: int | None,
    environment: Mapping[str, str],
) -> ProcessPlace | None:
    """Reads this process's place from the options, otherwise from the environment; None for a single process.

    Raises:
        ValueError: options without `--distributed`, or an invalid value.
    """
    given = {"--coordinator": coordinator, "--process-id": process_id, "--processes": processes}
    if not distributed:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name}: received without --distributed; give both")
        return None
    variables = dict(zip(given, (COORDINATOR, PROCESS_ID, PROCESSES), strict=True))
    values = {name: environment.get(variables[name]) if value is None else value for name, value in given.items()}
    address = values.pop("--coordinator")
    host, _, port = str(address or "").rpartition(":")
    if address is not None and (not host or not port.isdecimal() or not 0 < int(port) < 2**16):
        raise ValueError(f"--coordinator: received {address!r}, must be HOST:PORT, such as 10.0.0.1:4321")
    for name, value in values.items():
        if value is not None and not str(value).isdecimal():
            raise ValueError(f"{name}, {variables[name]}: received {value!r}, must be an integer; {_HOW}")
    index, count = (None if value is None else int(value) for value in values.values())
    if (count is not None and count < 2) or (index is not None and not 0 <= index < (count or 2**31)):
        raise ValueError(f"--distributed: received process {index} of {count}; at least 2 are needed, numbered from 0")
    return ProcessPlace(None if address is None else str(address), index, count)


def shared_facts(config: Any) -> dict[str, str]:
    """Lists the facts that affect results and may differ between processes; `open_comparison` compares the data."""
    from fedjax_bal.config import config_leaves
    from fedjax_bal.lab import numeric_settings, versions

    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith("--xla_dump"))
    return versions() | numeric_settings() | {"XLA_FLAGS": " ".join(flags)} | config_leaves(config)


@contextlib.contextmanager
def joined_processes(place: ProcessPlace | None, config: Any, devices: str | int | None) -> Iterator[None]:
    """Joins this process to the others of a run, and leaves them at the end; does nothing without a `place`.

    Args:
        place: this process's place among the others; jax must not have started.
        config: the configuration, which must be equal in all processes.
        devices: the value of `--devices` for each process.

    Raises:
        ValueError: the processes can't connect or don't agree.
    """
    if place is None:
        yield
        return
    import jax

    split_cpu_for([config], devices or most_devices([config]))
    _connect(place)
    try:
        try:
            _check_agreement(place, shared_facts(config))
        except ValueError as error:
            fail(str(error), BAD_INPUT)
        if isinstance(devices, int) and devices != (count := jax.local_device_count()):
            raise ValueError(
                f"--devices: received {devices}, but each process has {count}; --distributed uses all of them: "
                "leave --devices out, and make visible to each process only the devices that it should use"
            )
        yield
    except typer.Exit:  # reached by all processes, which wait for each other: one that left early would end the rest
        jax.distributed.shutdown()
        raise
    except BaseException as error:
        _exit_at_once(error)
    else:
        jax.distributed.shutdown()


def _connect(place: ProcessPlace) -> None:
    """Starts jax's coordination of processes; waits until all of them are there."""
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # otherwise SIGTERM would no longer end this process
    address = place.address
    bound = None
    if address is not None and address.rpartition(":")[0] in _LOOPBACK:
        bound = address  # else it listens on all interfaces, as a host may not know the name that others use for it
    if address is not None and place.index == 0:
        _check_port(address)
    complain(f"waiting at most {_JOIN_S} s for the other processes at {address or 'the address that jax has found'}")
    try:
        jax.distributed.initialize(
            address,
            num_processes=place.count,
            process_id=place.index,
            initialization_timeout=_JOIN_S,
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
            coordinator_bind_address=bound,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--distributed: {error}: {_HOW}") from error


def _exit_at_once(error: BaseException) -> NoReturn:
    """Says why this process ends, and ends it.

    jax would wait for the other processes, which may be gone, and otherwise notice this exit.
    """
    from jax.errors import JaxRuntimeError

    text = str(error)
    code = 1
    if "Gloo" in text or (isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in text):
        complain(f"another process has ended, or can't be reached ({text.splitlines()[0][:200]}); {_NOTHING_LOST}")
    else:
        try:
            with messages():
                raise error
        except typer.Exit as exit_:
            code = exit_.exit_code
        except BaseException:
            traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h\n")  # shows the cursor, which a live display has hidden
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _check_port(address: str) -> None:
    """Rejects a port in use: jax would silently share it with another run and mix up the processes."""
    host, _, port = address.rpartition(":")
    name = host.strip("[]") if host in _LOOPBACK else ""
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        socket.create_server((name, int(port)), family=family).close()
    except OSError as error:
        raise ValueError(
            f"{address}: process 0 can't listen there ({(error.strerror or str(error)).lower()}); "
            "give --coordinator another port"
        ) from None


def _check_agreement(place: ProcessPlace, facts: Mapping[str, str]) -> None:
    """Raises the same ValueError in all processes if they don't agree."""
    import jax

    from fedjax_bal.engine.processes import processes

    group = processes()
    if group.count < 2:
        raise ValueError(f"--distributed: received process {group.index} of {group.count}; at least 2 are needed")
    # From jax itself, because processes with different numbers couldn't even exchange them.
    numbers = Counter(device.process_index for device in jax.devices())
    if len(set(numbers.values())) > 1:
        each = ", ".join(f"{number} on process {index}" for index, number in sorted(numbers.items()))
        raise ValueError(f"--distributed: all processes must have the same number of devices, but there are {each}")
    count = jax.local_device_count()
    kind = jax.local_devices()[0].device_kind
    group.agree({**facts, "devices": f"{count} {kind}", "--processes": str(place.count or group.count)})
    if not group.first:
        complain(f"process {group.index} of {group.count} works for process 0, which prints and writes everything")
