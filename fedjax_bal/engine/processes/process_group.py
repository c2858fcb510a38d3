"""Several processes in step, seen from one of them."""

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.engine.processes.connection import Connection, Message
from fedjax_bal.engine.processes.participants import T, differing_devices

_PATIENCE_S = 3.0  # until the others have heard why this one goes


class ProcessGroup:
    """Processes that take part in one run; the first one passes on what each of them says.

    Args:
        index: this process's number.
        lines: of the first process to all others, in order; of any other, to the first one.
        lost: told in words when another process has gone; it has to end this one, and may be called in any thread.
    """

    def __init__(self, index: int, lines: Sequence[Connection], lost: Callable[[str], None]) -> None:
        self.index = index
        self.count = len(lines) + 1 if index == 0 else -1
        self._lines, self._lost, self._leaving = list(lines), lost, False
        self._heard: list[queue.Queue[Message | None]] = [queue.Queue() for _ in lines]
        self._threads = [line.listen(self._ear(place)) for place, line in enumerate(self._lines)]

    @property
    def first(self) -> bool:
        """Whether this is the one that reads and writes the run folder, and shows what happens."""
        return self.index == 0

    def share(self, text: str) -> list[str]:
        """What every process says, in their order; waits until all have said it."""
        if not self.first:
            self._lines[0].send({"says": text})
            return self._next(0)["all"]
        texts = [text, *(self._next(place)["says"] for place in range(len(self._lines)))]
        for line in self._lines:
            line.send({"all": texts})
        return texts

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process."""
        return "yes" in self.share("yes" if flag else "no")

    def least(self, number: int | None) -> int | None:
        """The least of the processes' numbers; None where any of them has none."""
        numbers = [json.loads(text) for text in self.share(json.dumps(number))]
        return None if None in numbers else min(numbers)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes.

        Args:
            facts: in words, by name.

        Raises:
            ValueError: some differ; it says which.
        """
        lines = differing_devices([json.loads(text) for text in self.share(json.dumps(dict(facts)))])
        if lines:
            raise ValueError(
                "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(lines)
            )

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """What the first process makes, on all of them."""
        if not self.first:
            return unpack(self._sent(b""))
        made = make()
        self._sent(pack(made))
        return made

    def _sent(self, made: bytes) -> bytes:
        """The first process's bytes; they travel as the arrays of a round do."""
        length = int(self.share(str(len(made)))[0])
        if not length:
            return b""
        count = -(-length // 4)
        words = (
            np.frombuffer(made.ljust(4 * count, b"\0"), np.int32, count) if self.first else np.zeros(count, np.int32)
        )
        from jax.experimental import multihost_utils  # late: the processes meet before jax starts

        return np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes()[:length]

    def finish(self) -> None:
        """Ends together with the others."""
        self._leaving = True
        self.share("finished")
        for line in self._lines:
            line.close()

    def leave(self, why: str) -> None:
        """Goes before the others, and tells them why."""
        self._leaving = True
        for line in self._lines:
            line.send({"left": self.index, "why": why})
        for thread in self._threads if self.first else []:  # they hang up once they have heard
            thread.join(_PATIENCE_S)

    def wait_for_news(self) -> None:
        """Waits a little for word of another process's end, which ends this one."""
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _next(self, place: int) -> Message:
        message = self._heard[place].get()
        return {"says": "", "all": [""]} if message is None else message

    def _ear(self, place: int) -> Callable[[Message | None], bool]:
        who = place + 1 if self.first else 0

        def told(message: Message | None) -> bool:
            if message is not None and "left" not in message:
                self._heard[place].put(message)
                return True
            if not self._leaving:
                self._gone(message or {"left": who})
            self._heard[place].put(None)
            return False

        return told

    def _gone(self, message: dict[str, Any]) -> None:
        why = message.get("why")
        for line in self._lines if self.first else []:
            line.send(message | {"why": why})
        self._lost(f"process {message['left']} {f'has ended: {why}' if why else 'is gone, killed or cut off'}")
