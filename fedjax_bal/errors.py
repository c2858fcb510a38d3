"""Errors that users of training catch."""


class DivergenceError(RuntimeError):
    """A client's update is broken, or the global model is not finite; the message names the round and the client."""
