"""Exceptions of training that users may catch."""


class DivergenceError(RuntimeError):
    """Raised for a broken update or a non-finite global model; the message names the round and the client."""
