"""Parts that the battery adds to a recipe to observe more; they change none of its results."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts import Batches, Server, part
from fedjax_bal.types import Batch, Context, Key, PyTree, ServerContext


@part
class Padding(Batches):
    """Changes the padded rows of a batch.

    Attributes:
        amount: number added to their pixels and, rounded, to their labels; 0 changes nothing.
    """

    amount: float = 0.0

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Shifts padded rows; real rows stay as they are."""
        real = batch.real.reshape(-1, *[1] * (batch.images.ndim - 1))
        images = jnp.where(real, batch.images, batch.images + self.amount)
        shift = jnp.asarray(self.amount).astype(batch.labels.dtype)
        others = (batch.labels + shift) % ctx.federation.num_classes
        return batch._replace(images=images, labels=jnp.where(batch.real, batch.labels, others))


@part
class ReportTotals(Server):
    """Sums all reports over the rounds, so that reports that no server part reads are compared too."""

    def init_server(self, server: ServerContext) -> PyTree:
        """Nothing yet: only a trained client shows what is reported; `first_state` puts zeros there."""
        return {}

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends nothing."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Adds the round's."""
        return jax.tree.map(jnp.add, server.state, dict(server.aggregate.reports))
