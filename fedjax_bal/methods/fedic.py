"""FedIC: the server teaches the mean model with a calibrated ensemble of the clients' models."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import distillation_loss
from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows
from fedjax_bal.methods.part import Need, part, static
from fedjax_bal.methods.roles import Server, Step
from fedjax_bal.types import Array, Key, PyTree, ServerContext, Variables

_DECAY = 2e-4  # of the server's two models


class Calibration(NamedTuple):
    """The trained numbers that make one teacher of several, as in `CalibratedDistillation`.

    Attributes:
        client_scale: a, `Float[C]`.
        client_offset: b, `Float[]`.
        class_scale: s, `Float[C]`.
        class_offset: t, `Float[C]`.
        gate: v, `Float[F]`.
        gate_offset: r, `Float[]`.
    """

    client_scale: Array
    client_offset: Array
    class_scale: Array
    class_offset: Array
    gate: Array
    gate_offset: Array


class TeacherState(NamedTuple):
    """What the server keeps.

    Attributes:
        calibration: the calibration, trained a little further in each round.
        received: the model that the round began with.
        seed: of the round's batches, `UInt32[]`.
    """

    calibration: Calibration
    received: Variables
    seed: Array


class Answers(NamedTuple):
    """What models say about the server's rows.

    Attributes:
        logits: of the clients, `Float[G, A, C]`.
        features: their mean over clients, `Float[A, F]`.
        tuned: logits of the fine-tuned mean model, `Float[A, C]`.
        counted: chains that deliver, `Bool[G]`.
    """

    logits: Array
    features: Array
    tuned: Array
    counted: Array


@part
class CalibratedDistillation(Step, Server):
    r"""Distils the clients' models into their mean, on balanced rows of the server's.

    First the mean model is fine-tuned on the rows; its logits are $z'$. The clients' logits $z_k$ are added up with
    weights proportional to $\sigma(a \cdot z_k + b)$ to z. The teacher's logits are
    $g (s z + t) + (1 - g) z'$, with the gate $g = \sigma(v \cdot h + r)$ of the clients' mean features h. Its numbers
    $a, b, s, t, v, r$ are trained by cross-entropy, and go on from round to round. Last, the mean model is trained on
    $\lambda$ times the divergence from the teacher plus $1 - \lambda$ times the cross-entropy. All three take as many
    steps of Adam.

    Attributes:
        share: $\lambda$.
        temperature: of the distillation, without the factor $T^2$.
        rate: of Adam.
        steps: of each training.
        batch_size: rows a step.
        distilled: rows a step of the divergence.

    References:
        FedIC (Shang et al., 2022), and the authors' code with its constants, which distils on CIFAR-100 where rows are
        of CIFAR-10, keeps Adam's state from round to round, augments the rows, and trains in training mode, with each
        client's batch statistics. Here all rows are the balanced ones, Adam begins anew, and models are applied in
        evaluation mode, with the statistics that the round began with.
    """

    share: float = 0.5
    temperature: float = 2.0
    rate: float = 0.001
    steps: int = static(100)
    batch_size: int = static(20)
    distilled: int = static(128)

    needs_deltas = True
    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Rows of the server's own."""
        return (SERVER_ROWS,)

    def init_server(self, server: ServerContext) -> TeacherState:
        """Everything counts alike but for the gate, which is drawn."""
        classes = server.federation.num_classes
        width = jax.eval_shape(lambda: _apply(server, server.variables)[1]).shape[-1]
        bound = width**-0.5
        gate = jax.random.uniform(server.key, (width + 1,), minval=-bound, maxval=bound)
        zero = jnp.zeros(())
        ones = jnp.ones(classes)
        calibration = Calibration(ones, zero, ones, jnp.zeros(classes), gate[:-1], gate[-1])
        return TeacherState(calibration, server.variables, jnp.zeros((), jnp.uint32))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[TeacherState, tuple[()]]:
        """Clients need nothing but the model; what is needed again at the end of the round is kept."""
        return server.state._replace(received=server.variables, seed=jax.random.bits(key, dtype=jnp.uint32)), ()

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, TeacherState]:
        """The update to the taught model, like params, and the calibration that made its teacher."""
        received = server.state.received
        labels = _labels(server)
        answers, calibration = self._calibrated(server)
        teacher = teach(calibration, answers)
        size = min(self.distilled, len(labels))

        def loss(params: PyTree, own: Key, places: Array) -> Array:
            more = jax.random.permutation(own, len(labels))[:size]
            model = received._replace(params=params)
            unlike = distillation_loss(_apply(server, model, more)[0], teacher[more], self.temperature)
            hard = _cross_entropy(_apply(server, model, places)[0], labels[places])
            return self.share * unlike / self.temperature**2 + (1.0 - self.share) * hard

        mean = jax.tree.map(jnp.add, received.params, delta)
        taught = self._train(loss, mean, _key(server, 2), len(labels), _DECAY)
        update = jax.tree.map(jnp.subtract, taught, received.params)
        return update, server.state._replace(calibration=calibration)

    def update(self, key: Key, server: ServerContext) -> TeacherState:
        """The calibration, from `step`."""
        return server.state

    def _calibrated(self, server: ServerContext) -> tuple[Answers, Calibration]:
        """The models' answers, and the calibration trained on them."""
        labels = _labels(server)
        received = server.state.received
        counted = server.aggregate.weights > 0

        def hard(params: PyTree, _: Key, places: Array) -> Array:
            return _cross_entropy(_apply(server, received._replace(params=params), places)[0], labels[places])

        mean = jax.tree.map(jnp.add, received.params, server.aggregate.delta)
        tuned = self._train(hard, mean, _key(server, 0), len(labels), _DECAY)

        def one(chain: tuple[Array, PyTree]) -> tuple[Array, Array]:
            counts, change = chain  # an update that doesn't count may be anything, nan too
            own = jax.tree.map(lambda w, d: w + jnp.where(counts, d, 0.0), received.params, change)
            return _apply(server, received._replace(params=own))

        logits, features = lax.map(one, (counted, server.aggregate.deltas))
        spread = jnp.where(counted[:, None, None], features, 0.0).sum(0) / jnp.maximum(counted.sum(), 1)
        answers = Answers(logits, spread, _apply(server, received._replace(params=tuned))[0], counted)

        def loss(calibration: Calibration, _: Key, places: Array) -> Array:
            return _cross_entropy(teach(calibration, answers)[places], labels[places])

        return answers, self._train(loss, server.state.calibration, _key(server, 1), len(labels))

    def _train(
        self, loss: Callable[[PyTree, Key, Array], Array], start: PyTree, key: Key, rows: int, decay: float = 0.0
    ) -> PyTree:
        """Takes the steps of one of the trainings, each on rows drawn anew."""
        optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(self.rate))

        def step(index: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            params, state = carry
            own, order = jax.random.split(jax.random.fold_in(key, index))
            places = jax.random.permutation(order, rows)[: self.batch_size]
            updates, state = optimizer.update(jax.grad(loss)(params, own, places), state, params)
            return optax.apply_updates(params, updates), state

        return lax.fori_loop(0, self.steps, step, (start, optimizer.init(start)))[0]


def teach(calibration: Calibration, answers: Answers) -> Array:
    """The teacher's logits, `Float[A, C]`."""
    a, b, s, t, v, r = calibration
    trust = jnp.where(answers.counted[:, None], jax.nn.sigmoid(answers.logits @ a + b), 0.0)
    trust = trust / jnp.maximum(trust.sum(0), jnp.finfo(trust.dtype).tiny)
    together = s * (trust[..., None] * answers.logits).sum(0) + t
    gate = jax.nn.sigmoid(answers.features @ v + r)[:, None]
    return gate * together + (1.0 - gate) * answers.tuned


def _key(server: ServerContext, training: int) -> Key:
    return jax.random.fold_in(jax.random.key(server.state.seed), training)


def _apply(server: ServerContext, model: Variables, places: Array | None = None) -> tuple[Array, Array]:
    """Logits and features of the server's rows, or of some of them."""
    federation = server.federation
    rows = jnp.asarray(balanced_rows(server.federation))
    rows = rows if places is None else rows[places]
    images = normalised(jnp.asarray(federation.images)[rows], federation.mean, federation.std)
    outputs, _ = server.model.apply(model, images, train=False)
    return outputs.logits, outputs.features


def _labels(server: ServerContext) -> Array:
    return jnp.asarray(server.federation.labels)[jnp.asarray(balanced_rows(server.federation))]


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@recipe("long_tail", "shang2022fedic")
def fedic(
    share: Share = 0.5,
    temperature: Positive = 2.0,
    learning_rate: NonNegative = 0.001,
    steps: CountOrZero = 100,
    batch_size: Count = 20,
    distillation_batch: Count = 128,
) -> Recipe:
    """FedAvg whose mean model a server trains on balanced rows of its own, with all clients' models for a teacher.

    Args:
        share: lambda, of the distillation in the loss, in [0, 1]. The rows come with the configuration's
            `auxiliary.per_class`.
        temperature: of the distillation, above 0.
        learning_rate: of Adam, at least 0.
        steps: of each of the three trainings in a round: of a fine-tuned model, the teacher and the mean model.
        batch_size: rows a step.
        distillation_batch: rows a step of the distillation.

    Example:
        >>> [part.slot for part in fedic().parts]
        ['CalibratedDistillation']
    """
    part = CalibratedDistillation(share, temperature, learning_rate, steps, batch_size, distillation_batch)
    return Recipe("fedic", (part,))
