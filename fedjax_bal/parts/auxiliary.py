"""The balanced rows that the server holds for itself."""

from typing import Any

from fedjax_bal.types import Federation

BALANCED = "balanced"
"""The name of the auxiliary set."""


def balanced_rows(federation: Federation) -> Any:
    """The server's own rows, of all classes, `Int32[A]`; raises `ValueError` if there are none."""
    rows = federation.auxiliary.get(BALANCED, ())
    if not len(rows):
        raise ValueError(
            f"federation: received the auxiliary sets {sorted(federation.auxiliary)}, must have rows in {BALANCED!r} "
            "for the server to work with: set auxiliary.per_class, or give data.federate the rows that data.carve takes"
        )
    return rows
