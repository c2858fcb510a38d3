"""Models of the clients' own, from which they train: what they need of a run, and those that the server passes on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.fedawe import EchoedInnovation
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.needs import only_rescaling, without_other
from fedjax_bal.methods.roles import Need, NeedsContext, Part, keeps_model
from fedjax_bal.methods.scaffold import Controls
from fedjax_bal.types import Array, PyTree, ServerContext


def own_start(method: str, own: Part) -> tuple[Need, ...]:
    """Requires that no other part gives clients a model, or takes the change of the received one for their training."""
    drift = f"which takes a client's change of the received model for its drift, while {method} trains from another"
    scaled = f"which scales the mean change of the received model, while {method} trains from others"

    def check(context: NeedsContext) -> None:
        for other in context.parts:
            if other.slot != own.slot and keeps_model(other):
                raise ValueError(
                    f"{method}: received {other.slot}, by which each client already has a model or leaves of its own; "
                    "leave one of the two out"
                )

    return (
        Need("", check),
        without_other(method, own, Controls, DynamicRegularisation, EchoedInnovation, because=drift),
        only_rescaling(method, own, because=scaled),
    )


class LatestModels(NamedTuple):
    """The models that the server last received from each client.

    Attributes:
        params: leaves `[N, ...]`, zeros for a client that has never delivered.
        known: whether the client has delivered, `Bool[N]`.
    """

    params: PyTree
    known: Array


def no_models(server: ServerContext) -> LatestModels:
    """Returns a server's state before the first round."""
    count = server.federation.num_clients
    zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), server.variables.params)
    return LatestModels(zeros, jnp.zeros(count, bool))


def with_delivered(latest: LatestModels, server: ServerContext) -> LatestModels:
    """Adds the models of a round, given the context of `Step.step`, for a part with `needs_deltas`, without chains."""
    cohort = server.cohort
    owners = jnp.where(cohort.local_steps > 0, cohort.clients, server.federation.num_clients)[:, 0]  # N is dropped

    def put(all_: Array, received: Array, deltas: Array) -> Array:
        return all_.at[owners].set(received + deltas, mode="drop")

    params = jax.tree.map(put, latest.params, server.variables.params, server.aggregate.deltas)
    return LatestModels(params, latest.known.at[owners].set(True, mode="drop"))
