"""CBFL's local training: generated images of the classes that a client lacks, behind each of its mini-batches."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import attention_transfer_loss, distillation_loss, inverse_class_probs
from fedjax_bal.data import are_tokens, join
from fedjax_bal.models import build_generator
from fedjax_bal.parts.cbfl_generator import SLOT, WarmUp, teacher_of
from fedjax_bal.parts.dcgan import SharedDcgans, borrow_images
from fedjax_bal.parts.part import RunSetting, part, parts_with, static
from fedjax_bal.parts.roles import Batches, Loss
from fedjax_bal.types import Array, Batch, Context, Key, Outputs, PyTree


@part
class Fakes(WarmUp, Batches, Loss):
    r"""Adds fakes to each mini-batch, and has the student learn from the teacher on them.

    Real images and fakes go through the student in one pass, so that batch statistics are those of both. The added
    loss is, over fakes alone, $\lambda (T^2 KL(t \| s) + \beta \sum_l MSE(A(s_l), A(t_l)))$: distillation at
    temperature T, and the transfer of the attention maps A at each tap.

    Attributes:
        count: fakes a mini-batch.
        labels: of the fakes: "balanced", drawn with probability (1 - P_c) / (C - 1) for a client whose share of class
            c is P_c; "uniform"; "rarest", with the same weights, but only the `rarest` classes of which the client
            holds the least.
        rarest: how many classes.
        images: "generator"; "gaussian" for noise from the standard normal law; or "dcgan" for images from DCGANs of
            other clients, see `SharedDcgans`.
        learn: "distillation", or "cross_entropy" of the fakes' labels in its place.
        weight: lambda.
        distillation: weight of the distillation in it, 1 in the paper.
        attention: beta.
        temperature: T.
        direction: of the divergence, see `fedjax_bal.balance.distillation_loss`.
        warm_up: rounds without fakes.
        width: the generator's.
        latent: length of its noise.

    References:
        CBFL (Li et al., 2023), eq. 3 to 5 and 10 to 13. Real images enter neither added term in the authors' code. The
        teacher is the one that `SharedGenerator` sends; with other fakes it is the model that the client received,
        which along a mediator's chain is its predecessor's. Table 6 has the balanced sampler where all classes are the
        rarest, so that rarest ones keep its weights.
    """

    count: int = static(70)
    labels: str = static("balanced")
    rarest: int = static(0)
    images: str = static("generator")
    learn: str = static("distillation")
    weight: float = 1.0
    distillation: float = 1.0
    attention: float = 400.0
    temperature: float = 5.0
    direction: str = static("teacher_student")
    warm_up: int = static(700)
    width: int = static(128)
    latent: int = static(100)

    def check(self, setting: RunSetting) -> None:
        """Refuses a model without as many classes as are asked for, and generated images where nothing makes them."""
        if are_tokens(setting.federation.images):
            raise ValueError("fakes: received token ids, must be images: no fake can be made of ids; take fedavg")
        classes = setting.model.num_classes
        if classes < 2:
            raise ValueError(
                f"fakes: received a model of {classes} class, must have at least 2: there is no other class to add; "
                "take fedavg"
            )
        if self.labels == "rarest" and not 1 <= self.rarest <= classes:
            raise ValueError(
                f"fakes: rarest: received {self.rarest}, must be from 1 to {classes}, the number of classes"
            )
        if self.images == "dcgan" and not parts_with(setting.parts, SharedDcgans):
            raise ValueError(
                "fakes: received images='dcgan' without DCGANs beside it; put SharedDcgans into the recipe, or take "
                "images='gaussian'"
            )
        if self.images == "generator" and not any(part.slot == SLOT for part in setting.parts):
            raise ValueError(
                "fakes: received images='generator' without a generator beside it; put SharedGenerator or "
                "LocalGenerator into the recipe, or take images='gaussian'"
            )

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """The batch with the fakes behind it."""
        label_key, noise_key = jax.random.split(key)
        labels = draw_labels(label_key, self.label_law(ctx.class_counts), self.count)
        return join(batch, self.make_images(noise_key, labels, ctx), labels)

    def added(self, class_counts: Array) -> Array:
        """As many fakes of each class as are drawn on average."""
        return self.count * self.label_law(class_counts)

    def label_law(self, class_counts: Array) -> Array:
        """Probabilities of the fakes' classes, `Float[C]`."""
        classes = class_counts.shape[-1]
        if self.labels == "uniform":
            return jnp.full(classes, 1 / classes)
        law = inverse_class_probs(class_counts)
        if self.labels == "balanced":
            return law
        # Classes of equal counts, such as all that a client lacks, share the places that rarer ones leave.
        rarer = (class_counts[..., None, :] < class_counts[..., :, None]).sum(-1)
        equal = (class_counts[..., None, :] == class_counts[..., :, None]).sum(-1)
        law = law * jnp.clip((self.rarest - rarer) / equal, 0.0, 1.0)
        return law / law.sum()

    def make_images(self, key: Key, labels: Array, ctx: Context) -> Array:
        """Fakes of given classes, `Float[A, H, W, K]`."""
        model = ctx.model
        if self.images == "gaussian":
            return jax.random.normal(key, (len(labels), *model.input_shape))
        if self.images == "dcgan":
            return borrow_images(key, labels, ctx)
        net = build_generator(model.num_classes, model.input_shape, self.width, self.latent)
        latents = jax.random.normal(key, (len(labels), self.latent))
        return lax.stop_gradient(net.apply(teacher_of(ctx).generator, latents, labels, train=False)[0])

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The added loss, `Float[]`."""
        own = slice(ctx.batch_size, ctx.batch_size + self.count)
        if self.learn == "cross_entropy":
            logits, labels = outputs.logits[own], batch.labels[own]
            return self.weight * optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        teacher = teacher_of(ctx).teacher if self.images == "generator" else ctx.start
        theirs, _ = ctx.model.apply(lax.stop_gradient(teacher), batch.images[own], train=False)
        return self.transfer_loss(outputs, theirs, ctx.batch_size)

    def transfer_loss(self, outputs: Outputs, teacher: Outputs, first: int) -> Array:
        """Distillation and attention transfer from the teacher's outputs on the fakes, rows `first` on of the batch."""
        own = slice(first, first + self.count)
        distilled = distillation_loss(outputs.logits[own], teacher.logits, self.temperature, direction=self.direction)
        maps = attention_transfer_loss([tap[own] for tap in outputs.taps], teacher.taps)
        return self.weight * (self.distillation * distilled + self.attention * maps)


def draw_labels(key: Key, law: Array, count: int) -> Array:
    """Classes drawn with replacement by their probabilities `Float[C]`, `Int32[count]`; none of probability 0."""
    # Not by a running sum of the law: its rounding gives classes of probability 0 a share where there are many.
    return jax.random.categorical(key, jnp.log(law), shape=(count,)).astype(jnp.int32)
