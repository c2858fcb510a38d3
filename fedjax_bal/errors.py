"""What can go wrong while a federation trains."""


class DivergenceError(RuntimeError):
    """A client's parameters stopped being finite; the message names round and client."""
