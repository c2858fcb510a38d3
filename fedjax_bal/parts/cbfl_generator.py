"""CBFL's generator: learns images from the batch statistics that a network has kept of its training data."""

import abc
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import batch_norm_statistics_loss
from fedjax_bal.models import BATCH_NORMALISED, Generator, build_generator
from fedjax_bal.parts.part import Need, Part, RunFacts, RunSetting, part, static
from fedjax_bal.parts.roles import Prepare, Server
from fedjax_bal.types import Array, Context, Exhibit, Key, Model, PyTree, ServerContext, Variables

SLOT = "generator"
SHOWN, SHOWN_CLASSES = 8, 20
"""Fakes of each class in a report, and of how many classes."""


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
class Generating(WarmUp, abc.ABC):
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
        net, running = self.network(model), jax.tree.leaves(teacher.stats)
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
class SharedGenerator(Generating, Server):
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
class LocalGenerator(Generating, Prepare):
    """Trains a generator in each client's local training, against the model that the client received.

    References:
        CBFL (Li et al., 2023), Algorithm 1, as it is printed.
    """

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Variables:
        """A generator of this client's own, its `Variables`; an untrained one during warm-up."""
        new = lambda: self.fit(key, ctx.model, variables)
        return lax.cond(ctx.round >= self.warm_up, new, lambda: self.network(ctx.model).init(key))
