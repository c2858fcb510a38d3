"""Two recipes and a part."""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge, Gt, Le

import fedjax_bal
from fedjax_bal.parts import Criterion, Loss, Weigh, part
from fedjax_bal.recipes import Recipe

PAPER = """
@inproceedings{szegedy2016rethinking,
  author    = {Szegedy, Christian and Vanhoucke, Vincent and Ioffe, Sergey and Shlens, Jon and Wojna, Zbigniew},
  title     = {Rethinking the Inception Architecture for Computer Vision},
  booktitle = {Proceedings of the IEEE Conference on Computer Vision and Pattern Recognition},
  year      = {2016},
  venue     = {CVPR},
}
"""


@part
class SoftLabels(Criterion):
    """The cross-entropy to labels of which a share is spread over all classes."""

    share: float = 0.1
    temperature: float = 1.0

    def losses(self, logits, labels, ctx):
        wanted = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), self.share)
        return optax.softmax_cross_entropy(logits / self.temperature, wanted)


@fedjax_bal.register("recipe", "soft_labels", citation=PAPER)
def soft_labels(share: Annotated[float, Ge(0), Le(1)] = 0.1, temperature: Annotated[float, Gt(0)] = 1.0) -> Recipe:
    """Soft labels: keeps a model from being sure.

    Args:
        share: of a label that is spread over all classes, in [0, 1].
        temperature: what logits are divided by, above 0.
    """
    return Recipe("soft_labels", (SoftLabels(share, temperature),))


@part
class Alike(Weigh):
    """Weighs all chains that deliver the same."""

    def weigh(self, weights, cohort, server):
        return jnp.where(weights > 0, 1.0, 0.0)


@fedjax_bal.register("recipe", "alike")
def alike() -> Recipe:
    """FedAvg whose clients weigh the same."""
    return Recipe("alike", (Alike(),))


@fedjax_bal.register("part", "small_features")
@part
class SmallFeatures(Loss):
    """Adds weight times the mean squared feature."""

    weight: float = 0.1

    def loss(self, outputs, batch, params, ctx):
        squares = jnp.where(batch.real, (outputs.features**2).mean(-1), 0.0)
        return self.weight * squares.sum() / jnp.maximum(batch.real.sum(), 1)
