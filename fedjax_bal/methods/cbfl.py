"""CBFL: clients also train on images of the classes that they lack, made by a generator trained on the global model."""

import abc
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge
from jax import lax

from fedjax_bal import balance
from fedjax_bal.data import append_rows, are_tokens
from fedjax_bal.methods import roles
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, positive, recipe, variants
from fedjax_bal.methods.needs import shared_model
from fedjax_bal.methods.roles import CheckContext, Need, NeedsContext, Part, part, static
from fedjax_bal.models import BATCH_NORMALISED, Generator, build_generator
from fedjax_bal.types import Array, Batch, Context, Exhibit, Key, Model, Outputs, PyTree, ServerContext, Variables

SLOT = "generator"
SHOWN = 8  # fakes of each class in a report
SHOWN_CLASSES = 20


class Teacher(NamedTuple):
    """The models with which clients generate fakes and predict on them.

    Attributes:
        generator: the generator's `Variables`.
        teacher: the classifier's `Variables`: those that the generator was trained against, or this round's.
    """

    generator: Variables
    teacher: Variables


def teacher_of(ctx: Context) -> Teacher:
    """Returns the client's generator, its own or the shared one, and the generator's teacher."""
    return Teacher(ctx.prepared[SLOT], ctx.start) if SLOT in ctx.prepared else ctx.broadcast[SLOT]


class WarmUp(Part, abc.ABC):
    """A part that is active from the round `warm_up`, counted from 0."""

    warm_up: int

    @property
    def first_round(self) -> int:
        """The first round after warm-up."""
        return self.warm_up

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires at least one round after warm-up."""
        return (Need(f"at least {self.warm_up + 1} rounds" if self.warm_up else "", self._check_warm_up),)

    def _check_warm_up(self, context: NeedsContext) -> None:
        if self.warm_up >= context.rounds:
            begin = self.warm_up + 1
            raise ValueError(
                f"warm_up: the first fakes come in round {begin}, but rounds={context.rounds}, so there would be "
                f"none: lower warm_up so that they come in round {context.rounds} or earlier, or set rounds to {begin} "
                "or more"
            )


@part
class _Generating(WarmUp, abc.ABC):
    """Trains generators against the model; subclasses train one for all clients, or one for each.

    Attributes:
        warm_up: the first round, from 0, in which a generator is trained.
        width: the generator's width, see `fedjax_bal.models.generator`.
        latent: length of the noise.
        iterations: steps of a training.
        batch_size: images per step.
        rate: Adam's learning rate.
        gamma: weight of the batch statistics' divergence.
        layers: how the divergence is reduced over layers, "mean" or "sum".
        classification: weight of the cross-entropy, 1 in the paper.

    References:
        CBFL (Li et al., 2023), eq. 6 to 9, Algorithm 2; Adam's betas (0.5, 0.999) are from the authors' code.
    """

    warm_up: int = static(700)
    width: int = static(128)
    latent: int = static(100)
    iterations: int = static(2000)
    batch_size: int = static(256)
    rate: float = 0.001
    gamma: float = 10.0
    layers: Literal["mean", "sum"] = static("mean")
    classification: float = 1.0

    @property
    def slot(self) -> str:
        """The same name for both kinds of generators, so that they can't be combined."""
        return SLOT

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rounds after warm-up, and batch statistics to learn from."""
        return *super().needs, Need("batch normalisation" if self.gamma else "", self._check_statistics)

    def check(self, context: CheckContext) -> None:
        """Rejects image sizes that the generator doesn't support."""
        self.network(context.model)

    def _check_statistics(self, context: NeedsContext) -> None:
        if self.gamma and context.normalisation and not context.normalisation.statistics:
            raise ValueError(
                f"generator: received the model {context.model!r} without batch normalisation and "
                f"gamma={self.gamma:g}, the weight of batch statistics in the generator's loss: use a model with "
                f"batch normalisation ({', '.join(BATCH_NORMALISED)}), or set gamma to 0 to train the generator on the "
                "model's answers alone"
            )

    def network(self, model: Model) -> Generator:
        """Builds the generator's architecture."""
        return build_generator(model.num_classes, model.input_shape, self.width, self.latent)

    def fit(self, key: Key, model: Model, teacher: Variables) -> Variables:
        r"""Trains a new generator against a frozen network.

        Each step draws noise and, uniformly, classes y. It takes an Adam step on the mean cross-entropy of y under the
        teacher in evaluation mode, plus $\gamma$ times the divergence between the images' statistics and the running
        statistics at each batch normalisation.
        """
        net = self.network(model)
        running = jax.tree.leaves(teacher.stats)
        optimizer = optax.adam(self.rate, b1=0.5, b2=0.999)
        start = net.init(jax.random.fold_in(key, self.iterations))

        def loss(params: PyTree, stats: PyTree, latents: Array, labels: Array) -> tuple[Array, PyTree]:
            images, after = net.apply(Variables(params, stats), latents, labels, train=True)
            outputs, _ = model.apply(teacher, images, train=False)
            means, variances = zip(*outputs.norm_inputs, strict=True) if outputs.norm_inputs else ((), ())
            divergence = balance.batch_norm_statistics_loss(means, variances, running[::2], running[1::2], self.layers)
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
class SharedGenerator(_Generating, roles.Server):
    """Trains one generator on the server, against the global model, and sends it to all clients.

    It is trained from scratch in the rounds `warm_up`, `warm_up + interval`, ..., even if no updates arrive in them,
    and costs nothing in other rounds. Sending it doesn't count as traffic, because it stands in for generators that
    clients train themselves, as in the paper. With an interval above 1 or a snapshot, a client that was absent when the
    generator was trained would need the generator, or the model of that round; this isn't counted either.

    Attributes:
        interval: rounds from one training to the next.
        teacher: "current": the global model of each round predicts on the fakes; "snapshot": that of the last training.

    References:
        CBFL (Li et al., 2023), Algorithm 1 and 2. There every client trains its own generator. All are random results
        of one procedure on the same model, so that sharing one only makes the clients' fakes more similar.
    """

    interval: int = static(1)
    teacher: str = static("current")

    travels: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model that the clients use as it is."""
        why = "the generator would learn from a model that no client uses (generator='per_client' takes each client's)"
        return *super().needs, shared_model("cbfl", why)

    def init_server(self, server: ServerContext) -> Teacher:
        """Returns an untrained generator, and the initial model if a snapshot is kept."""
        return Teacher(self.network(server.model).init(jax.random.key(0)), self._kept(server))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Teacher, Teacher]:
        """Returns the generator, newly trained if due, and the teacher."""
        since = server.round - self.warm_up
        due = (since >= 0) & (since % self.interval == 0)
        new = lambda: Teacher(self.fit(key, server.model, server.variables), self._kept(server))
        state = lax.cond(due, new, lambda: server.state)
        return state, state if self.teacher == "snapshot" else Teacher(state.generator, server.variables)

    def _kept(self, server: ServerContext) -> Variables:
        return server.variables if self.teacher == "snapshot" else Variables({}, {})

    def update(self, key: Key, server: ServerContext) -> Teacher:
        """Returns the state unchanged."""
        return server.state

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Returns fakes of the first classes, made by the last generator."""
        net = self.network(server.model)
        classes = min(net.num_classes, SHOWN_CLASSES)
        labels = jnp.repeat(jnp.arange(classes), SHOWN)
        latents = jax.random.normal(key, (len(labels), net.latent))
        images, _ = net.apply(server.state.generator, latents, labels, train=False)
        return Exhibit(images=images.reshape(classes, SHOWN, *net.image_shape))


@part
class LocalGenerator(_Generating, roles.Prepare):
    """Trains a generator at each client, before its local training, against the received model.

    References:
        CBFL (Li et al., 2023), Algorithm 1, as printed.
    """

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Variables:
        """Returns the `Variables` of the client's generator; an untrained one during warm-up."""
        new = lambda: self.fit(key, ctx.model, variables)
        return lax.cond(ctx.round >= self.warm_up, new, lambda: self.network(ctx.model).init(key))


@part
class Fakes(WarmUp, roles.Batches, roles.Loss):
    r"""Adds fakes to each mini-batch, on which the student learns from the teacher.

    Real images and fakes go through the student in one pass and share batch statistics. The added loss, over fakes
    only, is $\lambda (T^2 KL(t \| s) + \beta \sum_l MSE(A(s_l), A(t_l)))$: distillation at temperature T, and the
    transfer of the attention maps A at each tap.

    Attributes:
        count: fakes per mini-batch.
        labels: distribution of the fakes' labels: "balanced", with probability (1 - P_c) / (C - 1) for a client whose
            share of class c is P_c; "uniform"; "rarest", with the same weights, but only the client's `rarest` least
            frequent classes.
        rarest: number of these classes.
        images: "generator"; "gaussian" for noise from the standard normal distribution; or a function
            `images(key, labels, ctx)` that makes them, `Float[A, H, W, K]`.
        learn: "distillation", or "cross_entropy" on the fakes' labels.
        weight: lambda.
        distillation: weight of the distillation in the added loss, 1 in the paper.
        attention: beta.
        temperature: T.
        direction: direction of the divergence, see `fedjax_bal.balance.distillation_loss`.
        warm_up: rounds without fakes.
        width: the generator's width.
        latent: length of its noise.

    References:
        CBFL (Li et al., 2023), eq. 3 to 5 and 10 to 13. As in the authors' code, real images enter neither added term.
        The teacher is the one that `SharedGenerator` sends; without a generator, it is the model that the client
        received, which in a mediator's chain is its predecessor's. In Table 6 the sampler for the rarest classes equals
        the balanced one if all classes are included, so "rarest" uses the balanced weights.
    """

    count: int = static(70)
    labels: str = static("balanced")
    rarest: int = static(0)
    images: Literal["generator", "gaussian"] | Callable[[Key, Array, Context], Array] = static("generator")
    learn: str = static("distillation")
    weight: float = 1.0
    distillation: float = 1.0
    attention: float = 400.0
    temperature: float = 5.0
    direction: Literal["teacher_student", "student_teacher"] = static("teacher_student")
    warm_up: int = static(700)
    width: int = static(128)
    latent: int = static(100)

    def check(self, context: CheckContext) -> None:
        """Rejects token inputs, models with too few classes, and fakes whose source isn't in the recipe."""
        if are_tokens(context.federation.images):
            raise ValueError("fakes: received token ids, must be images: ids have no fakes; use fedavg")
        classes = context.model.num_classes
        if classes < 2:
            raise ValueError(
                f"fakes: received a model of {classes} class, must have at least 2: no other class can be added; "
                "use fedavg"
            )
        if self.labels == "rarest" and not 1 <= self.rarest <= classes:
            raise ValueError(
                f"fakes: rarest: received {self.rarest}, must be from 1 to {classes}, the number of classes"
            )
        if self.images == "generator" and not any(part.slot == SLOT for part in context.parts):
            raise ValueError(
                "fakes: received images='generator' without a generator; put SharedGenerator or "
                "LocalGenerator into the recipe, or use images='gaussian'"
            )

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Appends the fakes to the batch."""
        label_key, noise_key = jax.random.split(key)
        labels = draw_labels(label_key, self.label_law(ctx.class_counts), self.count)
        return append_rows(batch, self.make_images(noise_key, labels, ctx), labels)

    def added(self, class_counts: Array) -> Array:
        """Returns the mean number of fakes of each class."""
        return self.count * self.label_law(class_counts)

    def label_law(self, class_counts: Array) -> Array:
        """Computes the probabilities of the fakes' classes, `Float[C]`."""
        classes = class_counts.shape[-1]
        if self.labels == "uniform":
            return jnp.full(classes, 1 / classes)
        law = balance.inverse_class_probs(class_counts)
        if self.labels == "balanced":
            return law
        # Classes with equal counts, such as all that a client lacks, share the slots that rarer classes leave free.
        rarer = (class_counts[..., None, :] < class_counts[..., :, None]).sum(-1)
        equal = (class_counts[..., None, :] == class_counts[..., :, None]).sum(-1)
        law = law * jnp.clip((self.rarest - rarer) / equal, 0.0, 1.0)
        return law / law.sum()

    def make_images(self, key: Key, labels: Array, ctx: Context) -> Array:
        """Makes fakes of the given classes, `Float[A, H, W, K]`."""
        model = ctx.model
        if self.images == "gaussian":
            return jax.random.normal(key, (len(labels), *model.input_shape))
        if callable(self.images):
            return self.images(key, labels, ctx)
        net = build_generator(model.num_classes, model.input_shape, self.width, self.latent)
        latents = jax.random.normal(key, (len(labels), self.latent))
        return lax.stop_gradient(net.apply(teacher_of(ctx).generator, latents, labels, train=False)[0])

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the added loss, `Float[]`."""
        own = slice(ctx.batch_size, ctx.batch_size + self.count)
        if self.learn == "cross_entropy":
            logits = outputs.logits[own]
            labels = batch.labels[own]
            return self.weight * optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        teacher = teacher_of(ctx).teacher if self.images == "generator" else ctx.start
        theirs, _ = ctx.model.apply(lax.stop_gradient(teacher), batch.images[own], train=False)
        return self.transfer_loss(outputs, theirs, ctx.batch_size)

    def transfer_loss(self, outputs: Outputs, teacher: Outputs, first: int) -> Array:
        """Returns the loss of distillation and attention transfer on the fakes, the batch's rows from `first` on."""
        own = slice(first, first + self.count)
        distilled = balance.distillation_loss(
            outputs.logits[own], teacher.logits, self.temperature, direction=self.direction
        )
        maps = balance.attention_transfer_loss([tap[own] for tap in outputs.taps], teacher.taps)
        return self.weight * (self.distillation * distilled + self.attention * maps)


def draw_labels(key: Key, law: Array, count: int) -> Array:
    """Draws `Int32[count]` classes with replacement by their probabilities `Float[C]`; none of probability 0."""
    # Not via a cumulative sum of the probabilities: with many classes its rounding may select classes of probability 0.
    return jax.random.categorical(key, jnp.log(law), shape=(count,)).astype(jnp.int32)


@recipe("generators", "li2023cbfl")
@variants(
    paper={"direction": "student_teacher", "layers": "sum", "generator": "per_client"},
    code={
        "warm_up": 701, "interval": 3, "teacher": "snapshot", "iterations": 1000, "generator_rate": 0.003, "gamma": 3.0,
    },
)  # fmt: skip
def cbfl(
    warm_up: CountOrZero = 700,
    interval: Count = 1,
    teacher: Literal["current", "snapshot"] = "current",
    generator: Literal["shared", "per_client", "gaussian"] = "shared",
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
) -> Recipe:
    """CBFL: images of the classes that clients lack, from a generator trained on the global model's batch statistics.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; explicit
    arguments override it.

    Args:
        warm_up: the first round with fakes, counted from 1, which the run must reach; 0 means the same as 1. The
            authors' code starts a round later.
        interval: rounds from one training of a shared generator to the next.
        teacher: teacher on a shared generator's fakes: the global model of the round ("current") or of the last
            training ("snapshot").
        generator: "shared", one for all clients; "per_client", one for each local training; "gaussian", noise instead.
            The plug-in `fedjax_bal.contrib.dcgan` has DCGANs of the clients.
        labels: labels of the fakes: "balanced", by inverse class frequency; "uniform"; "rarest", only the client's
            least frequent classes.
        rarest: number of classes, with "rarest"; equally rare ones, such as all that a client lacks, share the last
            slots.
        learn: the student's targets on fakes: the teacher's outputs ("distillation") or their labels
            ("cross_entropy").
        fakes: number of fakes per mini-batch.
        weight: lambda, weight of the loss on fakes.
        distillation: weight of the distillation in this loss, 1 in the paper; 0 leaves only attention transfer.
        attention: beta, weight of the attention transfer in this loss.
        temperature: T of the distillation.
        direction: direction of its divergence.
        gamma: weight of the batch statistics in the generator's loss; 0 for a model without batch normalisation.
        layers: "mean" or "sum" of their divergence over layers.
        classification: weight of the cross-entropy in the generator's loss, 1 in the paper.
        iterations: the generator's steps.
        generator_batch: the generator's images per step.
        generator_rate: the generator's learning rate, for Adam.
        width: the generator's channels.
        latent: length of the generator's noise.

    Raises:
        ValueError: a value is out of range, `rarest` is given without `labels="rarest"` or vice versa, or `interval` or
            `teacher` is set for per-client generators, which are trained in each round against the received model.

    Example:
        >>> [type(part).__name__ for part in cbfl(generator="gaussian").parts]
        ['Fakes']

    References:
        CBFL (Li et al., 2023), Algorithms 1 and 2, with the paper's constants for CIFAR-10. The direction of the
        divergence, T, the mean over layers, and the restriction of the added loss to fakes are from the authors' code.
        In the paper every client trains its own generator. Noise: section 6.2, Table 5.
    """
    if (rarest is None) == (labels == "rarest"):
        raise ValueError(f"cbfl: rarest: received {rarest} with labels={labels!r}; it goes with labels='rarest' alone")
    if generator == "per_client" and (interval, teacher) != (1, "current"):
        raise ValueError(
            f"cbfl: received interval={interval} and teacher={teacher!r} with generator='per_client', must be 1 and "
            "'current': clients' own generators are trained at each local training, against the model received; or "
            "use 'shared'"
        )
    begin = max(warm_up - 1, 0)  # parts count rounds from 0
    images = "gaussian" if generator == "gaussian" else "generator"
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
    }
    return Recipe("cbfl", (*makers[generator], made))
