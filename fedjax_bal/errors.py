"""Errors that users of training catch."""


class DivergenceError(RuntimeError):
    """A client's parameters are no longer finite; the message names the round and the client."""
