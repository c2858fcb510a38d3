"""TCP connections between the processes of a run.

The first process listens, the others call it; a lost process is noticed at once.
"""

import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
_LONGEST = 2**24  # bytes of a line; longer ones don't come from a process of this run
_IDLE = getattr(socket, "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE")  # the latter on macOS
_SILENCE = ((_IDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))  # a lost machine: 30 s


class Connection:
    """A connection to another process, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _SILENCE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._stream = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends a message; if the other process is gone, does nothing."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """The next message; None at the end of the connection, or for anything that isn't a message."""
        try:
            line = self._stream.readline(_LONGEST)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def wait_at_most(self, seconds: float | None) -> None:
        """Sets the timeout of `receive`; None for no timeout."""
        self._connection.settimeout(seconds)

    def listen(self, handle: Callable[[Message | None], bool]) -> threading.Thread:
        """Passes every message to `handle`, in a thread of its own, until that returns False; None marks the end."""

        def work() -> None:
            while handle(self.receive()):
                pass

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._connection.close()


def server(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, or on all interfaces if the address isn't one of this machine's own."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EADDRINUSE):
            raise
        return socket.create_server(("", port))


def free_port(host: str) -> int:
    """A port that is free at the moment."""
    with server(host, 0) as one:
        return one.getsockname()[1]
