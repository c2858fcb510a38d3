"""The processes of a run, in step: this one alone, or several.

Every process runs the same host code on the same numbers, and its devices do their part of every round. Decisions
that depend on the machine or on the moment must not differ between processes; they are made here.
"""

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fedjax_bal.engine.processes.connection import Connection, Message

T = TypeVar("T")
_PATIENCE_S = 3.0  # until the other processes have received the reason


class ProcessGroup:
    """Processes that take part in one run, seen from one of them; the first one passes on every process's messages.

    Args:
        index: this process's number.
        lines: connections of the first process to all others, in order; of any other process, to the first one. A
            process without connections is alone.
        lost: called, in any thread, with a text when another process is gone; must end this process.
    """

    def __init__(self, index: int, lines: Sequence[Connection], lost: Callable[[str], None]) -> None:
        self.index = index
        self._lines, self._lost, self._leaving = list(lines), lost, False
        self._received: list[queue.Queue[Message | None]] = [queue.Queue() for _ in lines]
        self._threads = [line.listen(self._handler(place)) for place, line in enumerate(self._lines)]

    @property
    def first(self) -> bool:
        """True on the process that reads and writes the run folder and shows progress."""
        return self.index == 0

    def share(self, text: str) -> list[str]:
        """Every process's text, in their order; waits for all processes."""
        if not self.first:
            self._lines[0].send({"says": text})
            return self._next(0)["all"]
        texts = [text, *(self._next(place)["says"] for place in range(len(self._lines)))]
        for line in self._lines:
            line.send({"all": texts})
        return texts

    def any(self, flag: bool) -> bool:
        """True if the flag is set on any process."""
        return "yes" in self.share("yes" if flag else "no")

    def least(self, number: int | None) -> int | None:
        """The smallest of the processes' numbers; None if any process has none."""
        numbers = [json.loads(text) for text in self.share(json.dumps(number))]
        return None if None in numbers else min(numbers)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes with a ValueError that names them."""
        lines = differing_facts([json.loads(text) for text in self.share(json.dumps(dict(facts)))])
        if lines:
            raise ValueError(
                "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(lines)
            )

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """The first process's value, on all processes; `pack` and `unpack` turn it into bytes and back."""
        if not self.first:
            return unpack(self._broadcast(b""))
        value = make()
        if self._lines:
            self._broadcast(pack(value))
        return value

    def _broadcast(self, packed: bytes) -> bytes:
        """The first process's bytes, sent as the arrays of a round are."""
        length = int(self.share(str(len(packed)))[0])
        if not length:
            return b""
        count = -(-length // 4)
        words = (
            np.frombuffer(packed.ljust(4 * count, b"\0"), np.int32, count) if self.first else np.zeros(count, np.int32)
        )
        from jax.experimental import multihost_utils  # late: the processes meet before jax starts

        return np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes()[:length]

    def finish(self) -> None:
        """Ends together with the other processes."""
        self._leaving = True
        self.share("finished")
        for line in self._lines:
            line.close()

    def leave(self, why: str) -> None:
        """Ends before the other processes, and sends them the reason."""
        self._leaving = True
        for line in self._lines:
            line.send({"left": self.index, "why": why})
        for thread in self._threads if self.first else []:  # the others close once they have received it
            thread.join(_PATIENCE_S)

    def wait_for_news(self) -> None:
        """Waits a little for the message that another process has ended, which ends this one."""
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _next(self, place: int) -> Message:
        message = self._received[place].get()
        return {"says": "", "all": [""]} if message is None else message

    def _handler(self, place: int) -> Callable[[Message | None], bool]:
        sender = place + 1 if self.first else 0

        def handle(message: Message | None) -> bool:
            if message is not None and "left" not in message:
                self._received[place].put(message)
                return True
            if not self._leaving:
                self._report_loss(message or {"left": sender})
            self._received[place].put(None)
            return False

        return handle

    def _report_loss(self, message: dict[str, Any]) -> None:
        why = message.get("why")
        for line in self._lines if self.first else []:
            line.send(message | {"why": why})
        self._lost(f"process {message['left']} {f'has ended: {why}' if why else 'is gone, killed or cut off'}")


# As in jax itself: a process joins one group at most, until it ends.
_HERE = [ProcessGroup(0, (), lambda text: None)]


def processes() -> ProcessGroup:
    """The processes of this run."""
    return _HERE[0]


def take_part(group: ProcessGroup) -> None:
    """Makes this process one of a group, seen from this process."""
    _HERE[0] = group


def differing_facts(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each fact that differs between processes: the first value, and the first other one."""
    lines = []
    for name in sorted(set().union(*facts)):
        values = [own.get(name, "nothing") for own in facts]
        other = next((index for index, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            lines.append(f"{name}: {values[0]} on process 0, {values[other]} on process {other}")
    return lines
