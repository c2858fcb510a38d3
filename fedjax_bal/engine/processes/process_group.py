"""Several processes in step, seen from one of them."""

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.engine.processes.connection import Connection, Message
from fedjax_bal.engine.processes.participants import T, differing_devices

_PATIENCE_S = 3.0  # until the other processes have received the reason


class ProcessGroup:
    """Processes that take part in one run; the first one passes on every process's messages.

    Args:
        index: this process's number.
        lines: connections of the first process to all others, in order; of any other process, to the first one.
        lost: called, in any thread, with a text when another process is gone; must end this process.
    """

    def __init__(self, index: int, lines: Sequence[Connection], lost: Callable[[str], None]) -> None:
        self.index = index
        self.count = len(lines) + 1 if index == 0 else -1
        self._lines, self._lost, self._leaving = list(lines), lost, False
        self._received: list[queue.Queue[Message | None]] = [queue.Queue() for _ in lines]
        self._threads = [line.listen(self._handler(place)) for place, line in enumerate(self._lines)]

    @property
    def first(self) -> bool:
        """Whether this process reads and writes the run folder, and shows progress."""
        return self.index == 0

    def share(self, text: str) -> list[str]:
        """Every process's text, in their order; waits for all of them."""
        if not self.first:
            self._lines[0].send({"says": text})
            return self._next(0)["all"]
        texts = [text, *(self._next(place)["says"] for place in range(len(self._lines)))]
        for line in self._lines:
            line.send({"all": texts})
        return texts

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return "yes" in self.share("yes" if flag else "no")

    def least(self, number: int | None) -> int | None:
        """The least of the processes' numbers; None if any of them has none."""
        numbers = [json.loads(text) for text in self.share(json.dumps(number))]
        return None if None in numbers else min(numbers)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes with a ValueError that names them."""
        lines = differing_devices([json.loads(text) for text in self.share(json.dumps(dict(facts)))])
        if lines:
            raise ValueError(
                "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(lines)
            )

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """The first process's value, on all of them."""
        if not self.first:
            return unpack(self._broadcast(b""))
        value = make()
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
