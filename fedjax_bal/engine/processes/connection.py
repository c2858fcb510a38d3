"""Lines between the processes of a run: the first one listens, the others call; who falls silent is noticed at once."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
_LONGEST = 2**24  # bytes of a line; longer ones come from somebody who doesn't belong here
_SILENCE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))  # a lost machine: 30 s


class Connection:
    """A connection to another process.

    Args:
        connection: the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _SILENCE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._stream = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends a message; to somebody who has gone, nothing."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """The next message; None at the end, or for what is none."""
        try:
            line = self._stream.readline(_LONGEST)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def wait_at_most(self, seconds: float | None) -> None:
        """How long `receive` waits; None for as long as it takes."""
        self._connection.settimeout(seconds)

    def listen(self, told: Callable[[Message | None], bool]) -> threading.Thread:
        """Hands on every message, in a thread of its own, until `told` returns False; None is the end."""

        def hear() -> None:
            while told(self.receive()):
                pass

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Hangs up."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._connection.close()


def server(host: str, port: int) -> socket.socket:
    """Listens at an address, or on all interfaces where the address isn't this machine's own name for itself.

    Args:
        host: the host by which others call it.
        port: the port.

    Returns:
        The socket.

    Raises:
        OSError: the port is taken.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno in (13, 98):  # not ours to take, or taken
            raise
        return socket.create_server(("", port))


def free_port(host: str) -> int:
    """A port that nobody uses at the moment."""
    with server(host, 0) as one:
        return one.getsockname()[1]
