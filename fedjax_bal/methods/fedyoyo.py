"""FedYoYo: each image's strong view learns from its weak view, with logits adjusted by a mixed class prior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.balance import affine_matrix, distillation_loss, smoothed_prior, warp
from fedjax_bal.data import check_images, over_rows, random_order
from fedjax_bal.methods.auto_augment import as_images, as_pixels, augmented
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.crop_flip import CropAndFlip, holes
from fedjax_bal.methods.prototypes import feature_sums, prototypes_of
from fedjax_bal.methods.roles import (
    Batches,
    CheckContext,
    Logits,
    Loss,
    Prepare,
    Report,
    Server,
    Steps,
    part,
    parts_with,
    static,
)
from fedjax_bal.types import Array, Batch, Context, Federation, Key, Outcome, Outputs, PyTree, ServerContext, Variables

_SMALLEST = 1e-9  # added to the power of a prior
_LEAST_MEAN = 1e-6  # lower bound of a mean cosine
_MOST = 1e4  # effective sizes above this one are replaced in the first round
_MOST_CHANGE = 100.0  # relative; a larger change of an effective size is ignored
_KEPT = 0.9  # share of the old effective sizes in the new ones


class EffectiveSizes(NamedTuple):
    """The server's state in FedYoYo.

    Attributes:
        sizes: the effective size of each class, smoothed over rounds, `Float[C]`.
        begun: whether any client has reported, `Bool[]`.
    """

    sizes: Array
    begun: Array


class Adjustment(NamedTuple):
    """The prior of a local step, which is carried from step to step.

    Attributes:
        prior: `Float[C]`.
        offset: what it adds to the logits, `Float[C]`.
    """

    prior: Array
    offset: Array


def effective_sizes(features: Array, labels: Array, real: Array, means: Array) -> Array:
    """Computes the effective size of each class in a batch, `Float[C]`: one over the mean cosine of its rows.

    Args:
        features: `Float[B, F]`, from which the mean of their class is subtracted first.
        labels: `Int32[B]`.
        real: `Bool[B]`.
        means: `Float[C, F]`.

    Returns:
        At most 1e6; 1 for a class with a single row, 0 for one without rows.
    """
    centred = features - means[labels]
    norms = jnp.linalg.norm(centred, axis=-1, keepdims=True)
    own = jax.nn.one_hot(labels, len(means)) * real[:, None]
    counts = own.sum(0)
    # The cosines of all pairs sum to the squared length of the summed directions, which rounds less: directions cancel.
    summed = own.T @ (centred / jnp.where(norms > 0, norms, 1.0))
    mean = (summed**2).sum(-1) / jnp.maximum(counts, 1.0) ** 2
    return jnp.where(counts > 1, 1.0 / jnp.maximum(mean, _LEAST_MEAN), counts)


@part
class MixedPrior(Prepare, Report, Server, Steps, Logits):
    r"""Adds $\log(p_c^\tau + 10^{-9})$ to the training logits, for a mixture p of a global and the client's prior.

    Before training, a client computes features with the received model in evaluation mode, centres them by class, and
    goes through its rows in random batches. The effective size of a class is the sum over batches of one over the mean
    cosine of the batch's rows of the class, where all pairs count, also of a row with itself. The server adds up these
    sizes over the cohort, plus 1, and smooths them over rounds, $s \leftarrow 0.9 s + 0.1 s_{new}$. The global prior is
    proportional to s; in the first round it is uniform. In each local step
    $p \leftarrow (1 - \gamma) p + \gamma p_k$, for the client's class shares $p_k$, starting from the global prior.

    Attributes:
        tau: the power.
        gamma: share of the client's own prior.
        repeated: whether each local step mixes again, as above; False mixes once.

    References:
        FedYoYo (Yan et al., 2025), distribution-aware logit adjustment, in the form and with the constants of the
        authors' code. There the cohort reports sizes before it trains; here they are used one round later. In the first
        round, sizes above 1e4 become the mean of the others; later, a size that changes more than a hundredfold is
        kept. Repeated mixing is the code's: after a few dozen steps little of the global prior is left.
    """

    tau: float = 1.5
    gamma: float = 0.1
    repeated: bool = static(True)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Array:
        """Computes the effective sizes of the client's classes, `Float[C]`."""
        means = prototypes_of(feature_sums(variables, ctx)).means

        def add(sizes: Array, batch: Batch) -> Array:
            outputs, _ = ctx.model.apply(variables, batch.images, train=False)
            return sizes + effective_sizes(outputs.features, batch.labels, batch.real, means)

        return over_rows(add, jnp.zeros(len(means)), ctx, random_order(key, ctx))

    def report(self, outcome: Outcome) -> Array:
        """Returns the effective sizes."""
        return outcome.ctx.prepared[self.slot]

    def init_server(self, server: ServerContext) -> EffectiveSizes:
        """Returns equal sizes."""
        return EffectiveSizes(jnp.ones(server.federation.num_classes), jnp.array(False))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[EffectiveSizes, Array]:
        """Sends the global prior."""
        return server.state, server.state.sizes / server.state.sizes.sum()

    def update(self, key: Key, server: ServerContext) -> EffectiveSizes:
        """Smooths the effective sizes."""
        old = server.state
        new = 1.0 + server.aggregate.reports[self.slot]
        usual = new <= _MOST
        mean = jnp.where(usual, new, 0.0).sum() / jnp.maximum(usual.sum(), 1)
        first = jnp.where(usual | ~usual.any(), new, mean)
        later = _KEPT * old.sizes + (1.0 - _KEPT) * new
        later = jnp.where(jnp.abs(later - old.sizes) > _MOST_CHANGE * old.sizes, old.sizes, later)
        return EffectiveSizes(jnp.where(old.begun, later, first), jnp.array(True))

    def init_steps(self, ctx: Context) -> Adjustment:
        """Returns the prior of the first step."""
        return self._mixed(ctx.broadcast[self.slot], ctx)

    def next_steps(self, carry: Adjustment, outputs: Outputs, batch: Batch, ctx: Context) -> Adjustment:
        """Returns the prior of the next step."""
        return self._mixed(carry.prior, ctx) if self.repeated else carry

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`."""
        return logits + ctx.steps_state[self.slot].offset

    def _mixed(self, prior: Array, ctx: Context) -> Adjustment:
        mixed = (1.0 - self.gamma) * prior + self.gamma * smoothed_prior(ctx.class_counts, 0.0)
        return Adjustment(mixed, jnp.log(mixed**self.tau + _SMALLEST))


@part
class TwoViews(Batches, Loss):
    r"""Trains on a weak and a strong view of each image, and adds $\lambda \min(r / W, 1) KL(p_{weak} \| p_{strong})$.

    Each local step draws both views: random crops, mirrored with probability one half; the weak one is also rotated,
    the strong one is also changed by `AutoAugment` and gets a black hole. Both go through the model together, and the
    cross-entropy is the mean over both. p are the probabilities of the logits over T, adjusted by `MixedPrior` if that
    is in the recipe. The divergence is the mean over rows whose weak view is classified correctly by these logits; the
    weak view gets no gradient from it. r is the round, from 1.

    Attributes:
        weight: lambda.
        temperature: T.
        warm_up: W, the rounds until the divergence has its full weight.
        pad: width of the border from which crops are taken.
        rotate: the largest angle of the weak view, in degrees, to either side.
        hole: side of the strong view's hole, in pixels.
        policy: whether `AutoAugment` is applied.

    References:
        FedYoYo (Yan et al., 2025), augmented self-bootstrap distillation, in the form of the authors' code, which has
        no factor $T^2$. The weight and the warm-up are those of its command for CIFAR-10; the code's default weight is
        1.5. Rotations are bilinear here; there they take the nearest pixel.
    """

    weight: float = 4.0
    temperature: float = 1.5
    warm_up: int = 50
    pad: int = static(4)
    rotate: float = 15.0
    hole: int = static(16)
    policy: bool = static(True)

    def check(self, context: CheckContext) -> None:
        """Rejects inputs that aren't images, and parts that add rows to a batch."""
        check_images("views", context.federation.images)
        for other in parts_with(context.parts, Batches):
            if type(other).added is not Batches.added:
                raise ValueError(
                    f"fedyoyo: received {other.slot}, which adds rows to batches, while a view is made of each of the "
                    "client's own rows; leave one of the two out"
                )

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the weak views, then the strong views."""
        crops = CropAndFlip(self.pad, flip=self.pad > 0)
        weak_key, angle_key, strong_key, policy_key, hole_key = jax.random.split(key, 5)
        weak = crops.batch(weak_key, batch, ctx).images
        weak = self._rotated(angle_key, weak, ctx.federation)
        strong = crops.batch(strong_key, batch, ctx).images
        if self.policy:
            strong = as_images(augmented(policy_key, as_pixels(strong, ctx.federation)), ctx.federation)
        if self.hole:
            black = -ctx.federation.mean / ctx.federation.std
            strong = jnp.where(holes(hole_key, strong.shape, self.hole), black, strong)
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch._replace(images=None))
        # No row is extra: both views are the client's own rows, with labels that count.
        return twice._replace(images=jnp.concatenate([weak, strong]), extra=jnp.zeros(len(twice.rows), bool))

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted divergence, `Float[]`; 0 if no weak view is classified correctly."""
        adjustment = ctx.steps_state.get(MixedPrior.__name__)
        logits = outputs.logits if adjustment is None else outputs.logits + adjustment.offset
        weak, strong = jnp.split(logits, 2)
        right = batch.real[: len(weak)] & (weak.argmax(-1) == batch.labels[: len(weak)])
        divergence = distillation_loss(strong, weak, self.temperature, real=right) / self.temperature**2
        return self.weight * jnp.minimum((ctx.round + 1) / self.warm_up, 1.0) * divergence

    def _rotated(self, key: Key, images: Array, federation: Federation) -> Array:
        angles = jax.random.uniform(key, (len(images),), minval=-self.rotate, maxval=self.rotate)
        matrices = jax.vmap(lambda angle: affine_matrix(jnp.zeros(2), angle, 0.0, 1.0))(angles)
        turned = warp(images * federation.std + federation.mean, matrices)
        return (turned - federation.mean) / federation.std


@recipe("long_tail", "yan2025fedyoyo")
def fedyoyo(
    weight: NonNegative = 4.0,
    temperature: Positive = 1.5,
    warm_up: Count = 50,
    tau: NonNegative = 1.5,
    gamma: Share = 0.1,
    repeated: bool = True,
    pad: CountOrZero = 4,
    rotate: NonNegative = 15.0,
    hole: CountOrZero = 16,
    policy: bool = True,
) -> Recipe:
    """Strong views of images learn from weak ones, with logits adjusted by a mixture of global and local prior.

    Args:
        weight: lambda, weight of the divergence, at least 0.
        temperature: divisor of logits in the divergence, above 0.
        warm_up: rounds until the divergence has its full weight, at least 1.
        tau: power of the prior, at least 0; 0 leaves logits as they are.
        gamma: share of the client's own prior, in [0, 1].
        repeated: whether each local step mixes the client's prior in again, as in the authors' code.
        pad: width of the border from which crops are taken; with 0 images are neither cropped nor mirrored.
        rotate: largest angle of weak views, in degrees.
        hole: side of the hole in strong views, in pixels; half of the image's side in the authors' code.
        policy: whether strong views are changed by `auto_augment`.

    Example:
        >>> [part.slot for part in fedyoyo().parts]
        ['MixedPrior', 'TwoViews']

    References:
        Yan et al., 2025, as in the authors' code, github.com/gzhu-hcai/LongTailLib. There every epoch leaves out its
        last short batch, so that a client with fewer rows than a batch doesn't train: set training.drop_last.
    """
    views = TwoViews(weight, temperature, warm_up, pad, rotate, hole, policy)
    return Recipe("fedyoyo", (MixedPrior(tau, gamma, repeated), views))
