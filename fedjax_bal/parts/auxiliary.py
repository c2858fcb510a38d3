"""The balanced rows that the server holds for itself."""

from typing import Any

from fedjax_bal.parts.part import Need, RunFacts
from fedjax_bal.types import Federation

BALANCED = "balanced"
"""The name of the auxiliary set."""


def balanced_rows(federation: Federation) -> Any:
    """The server's own rows, of all classes, `Int32[A]`."""
    return federation.auxiliary[BALANCED]


def _check_rows(facts: RunFacts) -> None:
    if BALANCED not in facts.auxiliary:
        raise ValueError(
            f"federation: received the auxiliary sets {sorted(facts.auxiliary)}, must have rows in {BALANCED!r} "
            "for the server to work with: set auxiliary.per_class, or give data.federate the rows that data.carve takes"
        )


SERVER_ROWS = Need("auxiliary rows (auxiliary.per_class)", _check_rows)
"""The need for these rows."""
