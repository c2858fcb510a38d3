"""LDAM: the rarer its class, the larger the margin by which a row must be classified correctly."""

import jax
import jax.numpy as jnp

from fedjax_bal.balance import logit_calibration
from fedjax_bal.models import with_cosine_head
from fedjax_bal.parts.class_counts import counts_in
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Logits
from fedjax_bal.types import Array, Batch, Context, Model


@part
class LabelMargins(Logits):
    r"""Takes $s m_y$ off the training logit of a row's own class, on a classifier of cosines times s.

    $m_c$ is proportional to $n_c^{-1/4}$; the rarest class that is present has the largest margin.

    Attributes:
        margin: the largest margin, in units of cosines.
        scale: s.
        counts: whose $n_c$: "local", the client's, or "global", those of all clients together.

    References:
        LDAM (Cao et al., 2019), section 3.2, with the normalised classifier of its experiments. The scale is
        part of the classifier, so that evaluation sees it.
    """

    margin: float = 0.5
    scale: float = static(30.0)
    counts: str = static("local")

    def bind(self, model: Model) -> Model:
        """The network with a classifier of cosines."""
        return with_cosine_head(model, "trained", self.scale)

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """`Float[B, C]` to `Float[B, C]`."""
        counts = counts_in(ctx, self.counts)
        margins = jnp.where(counts > 0, logit_calibration(counts, 1.0), 0.0)
        margins = self.margin * margins / jnp.maximum(margins.max(), jnp.finfo(margins.dtype).tiny)
        return logits - self.scale * margins * jax.nn.one_hot(batch.labels, logits.shape[-1], dtype=logits.dtype)
