"""CBFL: clients train on images of classes that they lack, from a generator that has learned from the global model."""

import abc
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge
from jax import lax

from fedjax_bal.annotations import Seed
from fedjax_bal.balance import (
    attention_transfer_loss,
    batch_norm_statistics_loss,
    distillation_loss,
    inverse_class_probs,
)
from fedjax_bal.data import are_tokens, join
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, positive, readings, recipe
from fedjax_bal.methods.dcgan import SharedDcgans, borrow_images
from fedjax_bal.methods.part import Need, Part, RunFacts, RunSetting, part, parts_with, static
from fedjax_bal.methods.roles import Batches, Loss, Prepare, Server
from fedjax_bal.models import BATCH_NORMALISED, Generator, build_generator
from fedjax_bal.types import Array, Batch, Context, Exhibit, Key, Model, Outputs, PyTree, ServerContext, Variables

SLOT = "generator"
SHOWN = 8  # fakes of each class in a report
SHOWN_CLASSES = 20


class Teacher(NamedTuple):
    """The models with which clients make and judge fakes.

    Attributes:
        generator: the generator's `Variables`.
        teacher: the `Variables` that it was trained against, or those of this round.
    """

    generator: Variables
    teacher: Variables


def teacher_of(ctx: Context) -> Teacher:
    """The generator that a client makes fakes with, its own or the one that all share, and its teacher."""
    return Teacher(ctx.prepared[SLOT], ctx.start) if SLOT in ctx.prepared else ctx.broadcast[SLOT]


class WarmUp(Part, abc.ABC):
    """Begins in the round `warm_up`, counted from 0."""

    warm_up: int

    @property
    def first_round(self) -> int:
        """The first round after warm-up."""
        return self.warm_up

    @property
    def needs(self) -> tuple[Need, ...]:
        """A round after warm-up."""
        return (Need(f"at least {self.warm_up + 1} rounds" if self.warm_up else "", self._check_warm_up),)

    def _check_warm_up(self, facts: RunFacts) -> None:
        if self.warm_up >= facts.rounds:
            begin = self.warm_up + 1
            raise ValueError(
                f"warm_up: the first fakes come in round {begin}, but rounds={facts.rounds}, so that there would be "
                f"none: lower warm_up so that they come in round {facts.rounds} or earlier, or set rounds to {begin} "
                "or more"
            )


@part
class _Generating(WarmUp, abc.ABC):
    """Trains generators against the model: one for all clients, or one for each; the kinds differ in that.

    Attributes:
        warm_up: the first round, from 0, in which it is trained.
        width: the generator's, see `fedjax_bal.models.generator`.
        latent: length of the noise.
        iterations: steps of a training.
        batch_size: images a step.
        rate: Adam's learning rate.
        gamma: weight of the batch statistics' divergence.
        layers: "mean" or "sum" of it over layers.
        classification: weight of the cross-entropy, 1 in the paper.

    References:
        CBFL (Li et al., 2023), eq. 6 to 9, Algorithm 2; Adam's betas (0.5, 0.999) are the authors' code's.
    """

    warm_up: int = static(700)
    width: int = static(128)
    latent: int = static(100)
    iterations: int = static(2000)
    batch_size: int = static(256)
    rate: float = 0.001
    gamma: float = 10.0
    layers: str = static("mean")
    classification: float = 1.0

    @property
    def slot(self) -> str:
        """The same for all kinds, so that no two of them can be combined."""
        return SLOT

    @property
    def needs(self) -> tuple[Need, ...]:
        """Rounds after warm-up, and the batch statistics to learn from."""
        return *super().needs, Need("batch normalisation" if self.gamma else "", self._check_statistics)

    def check(self, setting: RunSetting) -> None:
        """Refuses images of a size that no generator has."""
        self.network(setting.model)

    def _check_statistics(self, facts: RunFacts) -> None:
        if self.gamma and facts.normalisation and not facts.normalisation.statistics:
            raise ValueError(
                f"generator: received the model {facts.model!r} without batch normalisation and gamma={self.gamma:g}, "
                "the weight of batch statistics in the generator's loss: take a model with batch normalisation "
                f"({', '.join(BATCH_NORMALISED)}), or set gamma to 0 to train the generator on the model's answers "
                "alone"
            )

    def network(self, model: Model) -> Generator:
        """The generator's architecture."""
        return build_generator(model.num_classes, model.input_shape, self.width, self.latent)

    def fit(self, key: Key, model: Model, teacher: Variables) -> Variables:
        r"""Trains a new generator against a frozen network.

        Each step draws noise and, uniformly, classes y, and takes Adam's step on the mean cross-entropy of y under the
        teacher in evaluation mode plus $\gamma$ times the divergence of the statistics that the images have at each
        batch normalisation from the running ones.
        """
        net = self.network(model)
        running = jax.tree.leaves(teacher.stats)
        optimizer = optax.adam(self.rate, b1=0.5, b2=0.999)
        start = net.init(jax.random.fold_in(key, self.iterations))

        def loss(params: PyTree, stats: PyTree, latents: Array, labels: Array) -> tuple[Array, PyTree]:
            images, after = net.apply(Variables(params, stats), latents, labels, train=True)
            outputs, _ = model.apply(teacher, images, train=False)
            means, variances = zip(*outputs.norm_inputs, strict=True) if outputs.norm_inputs else ((), ())
            divergence = batch_norm_statistics_loss(means, variances, running[::2], running[1::2], self.layers)
            wrong = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels).mean()
            return self.classification * wrong + self.gamma * divergence, after.stats

        def step(index: Array, carry: tuple[Variables, PyTree]) -> tuple[Variables, PyTree]:
            variables, state = carry
            noise_key, label_key = jax.random.split(jax.random.fold_in(key, index))
            latents = jax.random.normal(noise_key, (self.batch_size, net.latent))
            labels = jax.random.randint(label_key, (self.batch_size,), 0, net.num_classes)
            grads, stats = jax.grad(loss, has_aux=True)(variables.params, variables.stats, latents, labels)
            updates, state = optimizer.update(grads, state, variables.params)
            return Variables(optax.apply_updates(variables.params, updates), stats), state

        return lax.fori_loop(0, self.iterations, step, (start, optimizer.init(start.params)))[0]


@part
class SharedGenerator(_Generating, Server):
    """Trains one generator on the server, against the global model, and sends it to all clients.

    It is trained from scratch in the rounds `warm_up`, `warm_up + interval`, ..., whether or not updates arrive in
    them; in others nothing of it runs. Nothing of what it sends counts as traffic: it stands for generators that
    clients train themselves, as in the paper. With an interval above 1 or a snapshot, a client that was absent when a
    generator was trained would have to be sent it, or the model of that round; this is left out too.

    Attributes:
        interval: rounds from one training to the next.
        teacher: "current", the global model of each round judges the fakes; "snapshot", the one of the last training.

    References:
        CBFL (Li et al., 2023), Algorithm 1 and 2. There every client trains its own; all are draws of one procedure on
        the same model, so that one for all changes only how alike the clients' fakes are.
    """

    interval: int = static(1)
    teacher: str = static("current")

    travels: ClassVar[bool] = False

    def init_server(self, server: ServerContext) -> Teacher:
        """An untrained generator, and the initial model where a snapshot is kept."""
        return Teacher(self.network(server.model).init(jax.random.key(0)), self._kept(server))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Teacher, Teacher]:
        """The generator, new where it is due, and the teacher."""
        since = server.round - self.warm_up
        due = (since >= 0) & (since % self.interval == 0)
        new = lambda: Teacher(self.fit(key, server.model, server.variables), self._kept(server))
        state = lax.cond(due, new, lambda: server.state)
        return state, state if self.teacher == "snapshot" else Teacher(state.generator, server.variables)

    def _kept(self, server: ServerContext) -> Variables:
        return server.variables if self.teacher == "snapshot" else Variables({}, {})

    def update(self, key: Key, server: ServerContext) -> Teacher:
        """As it was."""
        return server.state

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Fakes of each of the first classes, from the last generator."""
        net = self.network(server.model)
        classes = min(net.num_classes, SHOWN_CLASSES)
        labels = jnp.repeat(jnp.arange(classes), SHOWN)
        latents = jax.random.normal(key, (len(labels), net.latent))
        images, _ = net.apply(server.state.generator, latents, labels, train=False)
        return Exhibit(images=images.reshape(classes, SHOWN, *net.image_shape))


@part
class LocalGenerator(_Generating, Prepare):
    """Trains a generator in each client's local training, against the model that the client received.

    References:
        CBFL (Li et al., 2023), Algorithm 1, as it is printed.
    """

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Variables:
        """A generator of this client's own, its `Variables`; an untrained one during warm-up."""
        new = lambda: self.fit(key, ctx.model, variables)
        return lax.cond(ctx.round >= self.warm_up, new, lambda: self.network(ctx.model).init(key))


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
            logits = outputs.logits[own]
            labels = batch.labels[own]
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


@recipe("generators", "li2023cbfl")
@readings(
    paper={"direction": "student_teacher", "layers": "sum", "generator": "per_client"},
    code={
        "warm_up": 701, "interval": 3, "teacher": "snapshot", "iterations": 1000, "generator_rate": 0.003, "gamma": 3.0,
    },
)  # fmt: skip
def cbfl(
    warm_up: CountOrZero = 700,
    interval: Count = 1,
    teacher: Literal["current", "snapshot"] = "current",
    generator: Literal["shared", "per_client", "gaussian", "dcgan"] = "shared",
    labels: Literal["balanced", "uniform", "rarest"] = "balanced",
    rarest: Count | None = None,
    learn: Literal["distillation", "cross_entropy"] = "distillation",
    fakes: Count = 70,
    weight: NonNegative = 1.0,
    distillation: NonNegative = 1.0,
    attention: NonNegative = 400.0,
    temperature: float = 5.0,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    gamma: NonNegative = 10.0,
    layers: Literal["mean", "sum"] = "mean",
    classification: NonNegative = 1.0,
    iterations: CountOrZero = 2000,
    generator_batch: Count = 256,
    generator_rate: NonNegative = 0.001,
    width: Annotated[int, Ge(2)] = 128,
    latent: Count = 100,
    dcgan_iterations: CountOrZero = 2000,
    dcgan_pool: Count = 256,
    dcgan_seed: Seed = 0,
) -> Recipe:
    """CBFL: images of the classes that clients lack, from a generator trained on the global model's batch statistics.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; what is
    given beside it comes first.

    Args:
        warm_up: the first round with fakes, counted from 1, which the run must reach; 0 is as good as 1. The authors'
            code begins a round later.
        interval: rounds from one training of a shared generator to the next.
        teacher: of a shared generator and its fakes: the global model of the round ("current") or of the last training
            ("snapshot").
        generator: "shared", one for all clients; "per_client", one for each local training; "gaussian", noise instead;
            "dcgan", a DCGAN that each client trains on its own data before the first round and lends all others.
        labels: of the fakes: "balanced", by inverse class frequency; "uniform"; "rarest", of the classes that the
            client holds least of.
        rarest: how many classes, with "rarest"; equally rare ones, such as all that a client lacks, share the last
            places.
        learn: what the student learns on fakes, the teacher's answers ("distillation") or their labels
            ("cross_entropy").
        fakes: for each mini-batch.
        weight: lambda, of all that is learnt on fakes.
        distillation: of the teacher's answers in it, 1 in the paper; 0 leaves attention transfer alone.
        attention: beta, of the attention transfer in it.
        temperature: T of the distillation.
        direction: of its divergence.
        gamma: weight of the batch statistics in the generator's loss; 0 for a model without batch normalisation.
        layers: "mean" or "sum" of them over layers.
        classification: weight of the cross-entropy in that loss, 1 in the paper.
        iterations: the generator's steps.
        generator_batch: images a step.
        generator_rate: its learning rate, Adam's.
        width: its channels; a DCGAN's too.
        latent: length of its noise; a DCGAN's too.
        dcgan_iterations: each DCGAN's steps.
        dcgan_pool: images that each DCGAN makes, from which fakes are drawn.
        dcgan_seed: decides the DCGANs, from 0 to 2**32 - 1; all seeds of a run share them.

    Raises:
        ValueError: a value out of range; `rarest` without its labels or the other way round; `interval` or `teacher`
            with generators of the clients' own, which are trained in each round, against the model received.

    Example:
        >>> [type(part).__name__ for part in cbfl(generator="gaussian").parts]
        ['Fakes']

    References:
        CBFL (Li et al., 2023), Algorithms 1 and 2, with the paper's constants for CIFAR-10. The direction of the
        divergence, T, the mean over layers, and fakes alone in the added loss are the authors' code's. In the paper
        every client trains a generator of its own. Noise and DCGANs: section 6.2, Table 5. Of the DCGANs nothing more
        is known; `fedjax_bal.parts.SharedDcgans` says what was chosen, and that lending them is not counted as traffic.
    """
    if (rarest is None) == (labels == "rarest"):
        raise ValueError(f"cbfl: rarest: received {rarest} with labels={labels!r}; it goes with labels='rarest' alone")
    if generator == "per_client" and (interval, teacher) != (1, "current"):
        raise ValueError(
            f"cbfl: received interval={interval} and teacher={teacher!r} with generator='per_client', must be 1 and "
            "'current': clients' own generators are trained at each local training, against the model received; or "
            "take 'shared'"
        )
    begin = max(warm_up - 1, 0)  # parts count rounds from 0
    images = generator if generator in ("gaussian", "dcgan") else "generator"
    temperature = positive("cbfl: temperature", temperature)
    sizes = {"width": width, "latent": latent}
    made = Fakes(
        count=fakes, labels=labels, rarest=rarest or 0, images=images, learn=learn, weight=weight,
        distillation=distillation, attention=attention, temperature=temperature, direction=direction, warm_up=begin,
        **sizes,
    )  # fmt: skip
    training = {
        "warm_up": begin, "iterations": iterations, "batch_size": generator_batch, "rate": generator_rate,
        "gamma": gamma, "layers": layers, "classification": classification, **sizes,
    }  # fmt: skip
    makers = {
        "shared": (SharedGenerator(interval=interval, teacher=teacher, **training),),
        "per_client": (LocalGenerator(**training),),
        "gaussian": (),
        "dcgan": (SharedDcgans(iterations=dcgan_iterations, pool=dcgan_pool, seed=dcgan_seed, **sizes),),
    }
    return Recipe("cbfl", (*makers[generator], made))
