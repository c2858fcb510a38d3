"""The closing round: every client reports once on the global model, without training."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, client_context
from fedjax_bal.engine.device.held_out import fold_in_chunks
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.local_training import LocalState, outcome_of
from fedjax_bal.engine.device.personal import restored, seen
from fedjax_bal.engine.device.round import seen_by
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Closing
from fedjax_bal.types import Array, Federation, Key, PyTree, ServerContext, Variables


def close(setting: Setting, key: Key, variables: Variables, server: ServerContext) -> Variables:
    """Applies the Closing parts to the model that is evaluated; `key` is the round's."""
    parts = setting.parts_with(Closing)
    reports = _over_all_clients(setting, key, server.round, variables, server.federation) if parts else {}
    for part in parts:
        own = purpose_key(key, f"close/{part.slot}")
        context = seen_by(setting, part, server._replace(variables=variables))
        shown = part.close(own, context.variables, reports[part.slot], context)
        variables = restored(setting, part, shown, variables)
    return variables


def closing_reports(
    setting: Setting, key: Key, number: Array, variables: Variables, federation: Federation, client: Array
) -> dict[str, PyTree]:
    """One client's report to each Closing part, by slot."""
    shared = RoundInputs(key, number, variables, {}, federation)
    ctx = client_context(setting, shared, variables, ChainClients(client, jnp.ones((), bool), {}))
    untrained = LocalState(variables, None, jnp.zeros(()), {})
    outcome = outcome_of(setting, ctx._replace(steps=jnp.zeros_like(ctx.steps)), untrained)
    return {part.slot: part.closing_report(*seen(setting, part, outcome)) for part in setting.parts_with(Closing)}


def _over_all_clients(
    setting: Setting, key: Key, number: Array, variables: Variables, federation: Federation
) -> dict[str, PyTree]:
    """The sum of all clients' reports, by slot; each device takes its share of the clients."""

    def add(sums: PyTree, clients: Array, real: Array, setting: Setting, *given: Any) -> PyTree:
        def one(sums: PyTree, at: tuple[Array, Array]) -> tuple[PyTree, None]:
            client, counts = at
            own = closing_reports(setting, *given, client=client)
            return jax.tree.map(lambda total, new: total + jnp.where(counts, new, 0), sums, own), None

        return lax.scan(one, sums, (clients, real))[0]

    given = setting, key, number, variables, federation
    shapes = jax.eval_shape(closing_reports, *given, jnp.zeros((), jnp.int32))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return fold_in_chunks(add, zeros, federation.num_clients, setting.layout, *given)
