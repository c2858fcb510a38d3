"""FedDecorr (Shi et al., ICLR 2023), as a part alone: against features that collapse onto few dimensions."""

import jax.numpy as jnp

import fedjax_bal
from fedjax_bal.parts import Loss, part


@fedjax_bal.register("part", "feddecorr")
@part
class Decorrelation(Loss):
    """Adds weight times the mean squared correlation of the features within a batch."""

    weight: float = 0.1

    def loss(self, outputs, batch, params, ctx):
        real = batch.real[:, None]
        count = jnp.maximum(batch.real.sum(), 1)
        centred = jnp.where(real, outputs.features - jnp.where(real, outputs.features, 0).sum(0) / count, 0)
        scaled = centred / jnp.sqrt((centred**2).sum(0) / count + 1e-8)
        return self.weight * ((scaled.T @ scaled / count) ** 2).mean()
