"""Rendezvous of a run's processes, before jax starts; checks that they agree on versions and configuration."""

import dataclasses
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from fedjax_bal.engine.processes.connection import Connection, Message, free_port, server
from fedjax_bal.engine.processes.process_group import differing_facts

PATIENCE_S = 120.0
_REMINDER_S = 10.0
_TRY_AGAIN_S = 0.2


@dataclasses.dataclass(frozen=True)
class ProcessPlace:
    """The address at which the first process waits for the others, and this process's number among them, from 0."""

    host: str
    port: int
    index: int
    count: int

    @property
    def address(self) -> str:
        """The host and the port."""
        return f"{self.host}:{self.port}"


class RendezvousError(ValueError):
    """The processes of a run didn't come together; the message names the missing ones, or the differences."""


def meet_processes(
    place: ProcessPlace, facts: Mapping[str, str], report: Callable[[str], None], patience_s: float = PATIENCE_S
) -> tuple[list[Connection], int]:
    """Connects the processes of a run; returns this process's connections, and a port of the first one's host for all.

    The first process is connected to all others, any other process to the first. `facts` must be the same for all
    processes; `report` is called every ten seconds with a text on those that are missing, until `patience_s` have
    passed or a number is taken twice, which raise `RendezvousError`, as differing facts do.
    """
    until = time.monotonic() + patience_s
    return _receive(place, facts, report, until) if place.index == 0 else _call(place, facts, report, until)


def _receive(
    place: ProcessPlace, facts: Mapping[str, str], report: Callable[[str], None], until: float
) -> tuple[list[Connection], int]:
    try:
        listening = server(place.host, place.port)
    except OSError as error:
        raise RendezvousError(
            f"{place.address}: process 0 can't wait for the others there ({(error.strerror or str(error)).lower()}); "
            "give --coordinator another port, or the host that process 0 runs on"
        ) from None
    present: dict[int, tuple[Connection, Message]] = {}
    try:
        with listening:
            _gather(listening, place, present, report, until)
        return _agreed(place, facts, present)
    except BaseException:
        for line, _ in present.values():
            line.close()
        raise


def _gather(
    listening: socket.socket,
    place: ProcessPlace,
    present: dict[int, tuple[Connection, Message]],
    report: Callable[[str], None],
    until: float,
) -> None:
    while len(present) < place.count - 1:
        missing = [index for index in range(1, place.count) if index not in present]
        line = Connection(_accepted(listening, _names(missing), place, report, until))
        line.wait_at_most(_REMINDER_S)
        hello = line.receive()
        problem = _problem(hello, place, present)
        if hello is None or problem is not None:
            line.send({"refused": problem})
            line.close()
        else:
            present[hello["process"]] = line, hello


def _agreed(
    place: ProcessPlace, facts: Mapping[str, str], present: Mapping[int, tuple[Connection, Message]]
) -> tuple[list[Connection], int]:
    lines = [present[index][0] for index in range(1, place.count)]
    differing = differing_facts([facts, *(present[index][1]["facts"] for index in range(1, place.count))])
    if differing:
        refusal = "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(differing[:8])
        _send_all(lines, {"refused": refusal})
        raise RendezvousError(refusal)
    port = free_port(place.host)
    _send_all(lines, {"port": port})
    return lines, port


def _accepted(
    listening: socket.socket, missing: str, place: ProcessPlace, report: Callable[[str], None], until: float
) -> socket.socket:
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise RendezvousError(
                f"{missing} of {place.count} did not come to {place.address}: start it with the same command and its "
                "own --process-id; see what it says, and whether it reaches that address"
            )
        listening.settimeout(min(left, _REMINDER_S))
        try:
            return listening.accept()[0]
        except TimeoutError:
            report(f"process 0 of {place.count}, at {place.address}: waiting for {missing}")


def _problem(hello: Message | None, place: ProcessPlace, present: Mapping[int, object]) -> str | None:
    if hello is None or not isinstance(hello.get("process"), int) or not isinstance(hello.get("facts"), dict):
        return "not a process of this run"
    if hello.get("of") != place.count:
        return f"received --processes {hello.get('of')}, but process 0 has {place.count}: give all the same number"
    if hello["process"] in present or not 0 < hello["process"] < place.count:
        return f"received --process-id {hello['process']}, which another process has: give each its own"
    return None


def _call(
    place: ProcessPlace, facts: Mapping[str, str], report: Callable[[str], None], until: float
) -> tuple[list[Connection], int]:
    line = Connection(_reached(place, report, until))
    try:
        return [line], _accept(place, line, facts, until)
    except BaseException:
        line.close()
        raise


def _accept(place: ProcessPlace, line: Connection, facts: Mapping[str, str], until: float) -> int:
    line.send({"process": place.index, "of": place.count, "facts": dict(facts)})
    line.wait_at_most(max(until - time.monotonic(), 0) + 2 * _REMINDER_S)  # process 0 gives up first
    answer = line.receive()
    if answer is None:
        raise RendezvousError(f"{place.address}: process 0 went away while this one waited there for the others")
    if "port" not in answer:
        raise RendezvousError(str(answer.get("refused")))
    line.wait_at_most(None)
    return int(answer["port"])


def _reached(place: ProcessPlace, report: Callable[[str], None], until: float) -> socket.socket:
    reminder = time.monotonic() + _REMINDER_S
    while True:
        try:
            return socket.create_connection((place.host, place.port), timeout=_REMINDER_S)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        if time.monotonic() > until:
            raise RendezvousError(
                f"process 0 does not answer at {place.address} ({reason}): start it, or correct --coordinator"
            )
        if time.monotonic() > reminder:
            report(f"process {place.index} of {place.count}: waiting for process 0 at {place.address} ({reason})")
            reminder += _REMINDER_S
        time.sleep(_TRY_AGAIN_S)


def _send_all(lines: Sequence[Connection], message: Message) -> None:
    for line in lines:
        line.send(message)
        line.wait_at_most(None)


def _names(missing: Sequence[int]) -> str:
    if len(missing) == 1:
        return f"process {missing[0]}"
    return f"processes {', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
