"""FL-CIR: a client's class composition, estimated from the gradients of its trained model, and damped updates."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import composition_from_gradients
from fedjax_bal.data import normalised
from fedjax_bal.parts.auxiliary import SERVER_ROWS, balanced_rows
from fedjax_bal.parts.part import Need, RunSetting, part, static
from fedjax_bal.parts.roles import Probe, Step
from fedjax_bal.types import Array, Federation, Outcome, PyTree, ServerContext, Variables


@part
class CompositionProbe(Probe):
    r"""Estimates a client's class shares from its model's gradients on the server's balanced images.

    For each class c the mean cross-entropy of the trained model on the images of c is differentiated, and $g_c$ is the
    size of the gradient, which is small for a class that was learnt. The estimate is
    `fedjax_bal.balance.composition_from_gradients` of g.

    Attributes:
        mode: of the estimate, "inverse", "softmax_inv" or "softmax_rel".
        scope: "network": g is the sum over all parameter arrays of the mean squared derivative; "output": the squared
            norm of the derivative with respect to the weights of output c.
        beta: sharpness of the softmaxes.

    References:
        FL-CIR (Yang et al., 2021), eq. 7, is "softmax_inv" and "output". The authors' code is "inverse" and "network",
        and says that outputs alone did not do.
    """

    mode: str = static("inverse")
    scope: str = static("network")
    beta: float = 1.0

    travels = False

    @property
    def slot(self) -> str:
        """The name under which the selectors `cucb` and `greedy` find the estimates."""
        return "composition"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Rows of the server's own."""
        return (SERVER_ROWS,)

    def check(self, setting: RunSetting) -> None:
        """Refuses a federation without equally many images of each class on the server."""
        federation = setting.federation
        rows = balanced_rows(federation)
        labels = jnp.asarray(federation.labels)[jnp.asarray(rows)]
        counts = jnp.bincount(labels, length=federation.num_classes).tolist()
        if min(counts) != max(counts):
            raise ValueError(
                f"federation: received between {min(counts)} and {max(counts)} rows of a class in the auxiliary set, "
                "must be equally many of each, or else gradients don't compare: take them with data.carve"
            )

    def probe(self, outcome: Outcome) -> Array:
        """Class shares, `Float[C]`."""
        federation, model = outcome.ctx.federation, outcome.ctx.model
        rows = jnp.asarray(balanced_rows(federation))
        by_class = rows[jnp.argsort(federation.labels[rows], stable=True)].reshape(model.num_classes, -1)
        size = self._network if self.scope == "network" else self._output

        def one(place: tuple[Array, Array]) -> Array:
            label, own = place
            return size(outcome.end, model, _images(federation, own), label)

        norms = lax.map(one, (jnp.arange(model.num_classes), by_class))
        return composition_from_gradients(norms, self.mode, self.beta)

    def _network(self, variables: Variables, model: Any, images: Array, label: Array) -> Array:
        def loss(params: PyTree) -> Array:
            logits = model.apply(variables._replace(params=params), images, train=False)[0].logits
            labels = jnp.full(len(images), label)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        grads = jax.grad(loss)(variables.params)
        return sum(((leaf**2).mean() for leaf in jax.tree.leaves(grads)), jnp.zeros(()))

    def _output(self, variables: Variables, model: Any, images: Array, label: Array) -> Array:
        # d loss / d w_c = mean of (p_c - 1) h, whatever the classifier's weights are called.
        outputs = model.apply(variables, images, train=False)[0]
        slope = jax.nn.softmax(outputs.logits)[:, label] - 1.0
        return ((slope[:, None] * outputs.features).mean(0) ** 2).sum()


def _images(federation: Federation, rows: Array) -> Array:
    return normalised(federation.images[rows], federation.mean, federation.std)


@part
class ParticipatingShare(Step):
    r"""Scales the mean update by the share of all samples that the clients who delivered hold.

    $w \leftarrow \sum_S p_k w_k + (1 - \sum_S p_k) w$ with $p_k = n_k / n$ over all N clients: absent ones
    count as having kept the model.

    References:
        FL-CIR (Yang et al., 2021), eq. 4, and the authors' code. Batch statistics are averaged without it.
    """

    def step(self, delta: PyTree, server: ServerContext) -> PyTree:
        """The update times the share, like params."""
        cohort = server.cohort
        share = (cohort.sizes * cohort.delivered).sum() / jnp.maximum(cohort.total_size, 1.0)
        return jax.tree.map(lambda leaf: share * leaf, delta)
