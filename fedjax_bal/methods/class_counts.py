"""The class counts that a loss is balanced by: the client's, or those of all clients together."""

from typing import Literal

from fedjax_bal.types import Array, Context

Scope = Literal["local", "global"]
"""A client's own counts, which it knows, or the sum over all clients, which the server would have to ask for."""


def counts_in(ctx: Context, scope: Scope) -> Array:
    """Samples of each class, `Int32[C]`."""
    return ctx.class_counts if scope == "local" else ctx.federation.class_counts.sum(0)
