"""The class counts with which a loss is balanced: the client's, or those of all clients together."""

from typing import Literal

from fedjax_bal.types import Array, Context

Scope = Literal["local", "global"]
"""The client's own counts, which it knows, or the sum over all clients, which the server would have to collect."""


def counts_in(ctx: Context, scope: Scope) -> Array:
    """Returns the number of samples of each class, `Int32[C]`."""
    return ctx.class_counts if scope == "local" else ctx.federation.class_counts.sum(0)
