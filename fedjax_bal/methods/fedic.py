"""FedIC: the server distils a calibrated ensemble of the clients' models into the mean model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import distillation_loss
from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows, shared_model
from fedjax_bal.methods.roles import Need, Server, Step, part, static
from fedjax_bal.types import Array, Key, PyTree, ServerContext, Variables

_DECAY = 2e-4  # weight decay of the server's two models


class Calibration(NamedTuple):
    """The trained numbers that combine several models into one teacher, see `CalibratedDistillation`.

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
    """The server's state.

    Attributes:
        calibration: the calibration, trained further in each round.
        received: the model at the start of the round.
        seed: seed of the round's batches, `UInt32[]`.
    """

    calibration: Calibration
    received: Variables
    seed: Array


class ModelOutputs(NamedTuple):
    """The models' outputs on the server's rows.

    Attributes:
        logits: the clients' logits, `Float[G, A, C]`.
        features: the mean of the clients' features, `Float[A, F]`.
        tuned: logits of the fine-tuned mean model, `Float[A, C]`.
        counted: whether a chain delivers, `Bool[G]`.
    """

    logits: Array
    features: Array
    tuned: Array
    counted: Array


@part
class CalibratedDistillation(Step, Server):
    r"""Distils the clients' models into their mean, on the server's balanced rows.

    First, the mean model is fine-tuned on the rows; its logits are $z'$. The clients' logits $z_k$ are summed to z with
    weights proportional to $\sigma(a \cdot z_k + b)$. The teacher's logits are $g (s z + t) + (1 - g) z'$, with the
    gate $g = \sigma(v \cdot h + r)$ of the clients' mean features h. Second, the numbers $a, b, s, t, v, r$ are trained
    by cross-entropy, starting from their values in the last round. Third, the mean model is trained on $\lambda$ times
    the divergence from the teacher plus $1 - \lambda$ times the cross-entropy. All three trainings take the same number
    of Adam steps.

    Attributes:
        share: $\lambda$.
        temperature: temperature of the distillation, without the factor $T^2$.
        rate: Adam's learning rate.
        steps: steps of each training.
        batch_size: rows per step.
        distilled: rows per step for the divergence.

    References:
        FedIC (Shang et al., 2022), and the authors' code with its constants. That code distils on CIFAR-100 if the
        rows are from CIFAR-10, keeps Adam's state from round to round, augments the rows, and trains in training mode,
        with each client's batch statistics. Here all rows are the balanced ones, Adam's state is reset, and models are
        applied in evaluation mode, with the statistics from the start of the round.
    """

    share: float = 0.5
    temperature: float = 2.0
    rate: float = 0.001
    steps: int = static(100)
    batch_size: int = static(20)
    distilled: int = static(128)

    needs_deltas = True
    needs_same_start = True
    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rows of the server's own, and a model that the clients use as it is."""
        why = "the server would distil models that no client uses"
        return shared_model("fedic", why), SERVER_ROWS

    def init_server(self, server: ServerContext) -> TeacherState:
        """Returns a neutral calibration with a random gate."""
        classes = server.federation.num_classes
        width = jax.eval_shape(lambda: _apply(server, server.variables)[1]).shape[-1]
        bound = width**-0.5
        gate = jax.random.uniform(server.key, (width + 1,), minval=-bound, maxval=bound)
        zero = jnp.zeros(())
        ones = jnp.ones(classes)
        calibration = Calibration(ones, zero, ones, jnp.zeros(classes), gate[:-1], gate[-1])
        return TeacherState(calibration, server.variables, jnp.zeros((), jnp.uint32))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[TeacherState, tuple[()]]:
        """Sends nothing beyond the model; keeps the model and a seed for the end of the round."""
        return server.state._replace(received=server.variables, seed=jax.random.bits(key, dtype=jnp.uint32)), ()

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, TeacherState]:
        """Returns the update to the distilled model, and the state with the trained calibration."""
        received = server.state.received
        labels = _labels(server)
        answers, calibration = self._calibrated(server)
        teacher = teacher_logits(calibration, answers)
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
        """Keeps the state that `step` has computed."""
        return server.state

    def _calibrated(self, server: ServerContext) -> tuple[ModelOutputs, Calibration]:
        """Computes the models' outputs, and trains the calibration on them."""
        labels = _labels(server)
        received = server.state.received
        counted = server.aggregate.weights > 0

        def hard(params: PyTree, _: Key, places: Array) -> Array:
            return _cross_entropy(_apply(server, received._replace(params=params), places)[0], labels[places])

        mean = jax.tree.map(jnp.add, received.params, server.aggregate.delta)
        tuned = self._train(hard, mean, _key(server, 0), len(labels), _DECAY)

        def one(chain: tuple[Array, PyTree]) -> tuple[Array, Array]:
            counts, change = chain  # excluded updates may contain anything, even nan
            own = jax.tree.map(lambda w, d: w + jnp.where(counts, d, 0.0), received.params, change)
            return _apply(server, received._replace(params=own))

        logits, features = lax.map(one, (counted, server.aggregate.deltas))
        spread = jnp.where(counted[:, None, None], features, 0.0).sum(0) / jnp.maximum(counted.sum(), 1)
        answers = ModelOutputs(logits, spread, _apply(server, received._replace(params=tuned))[0], counted)

        def loss(calibration: Calibration, _: Key, places: Array) -> Array:
            return _cross_entropy(teacher_logits(calibration, answers)[places], labels[places])

        return answers, self._train(loss, server.state.calibration, _key(server, 1), len(labels))

    def _train(
        self, loss: Callable[[PyTree, Key, Array], Array], start: PyTree, key: Key, rows: int, decay: float = 0.0
    ) -> PyTree:
        """Runs one of the trainings; each step draws new rows."""
        optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(self.rate))

        def step(index: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            params, state = carry
            own, order = jax.random.split(jax.random.fold_in(key, index))
            places = jax.random.permutation(order, rows)[: self.batch_size]
            updates, state = optimizer.update(jax.grad(loss)(params, own, places), state, params)
            return optax.apply_updates(params, updates), state

        return lax.fori_loop(0, self.steps, step, (start, optimizer.init(start)))[0]


def teacher_logits(calibration: Calibration, answers: ModelOutputs) -> Array:
    """Computes the teacher's logits, `Float[A, C]`."""
    a, b, s, t, v, r = calibration
    trust = jnp.where(answers.counted[:, None], jax.nn.sigmoid(answers.logits @ a + b), 0.0)
    trust = trust / jnp.maximum(trust.sum(0), jnp.finfo(trust.dtype).tiny)
    together = s * (trust[..., None] * answers.logits).sum(0) + t
    gate = jax.nn.sigmoid(answers.features @ v + r)[:, None]
    return gate * together + (1.0 - gate) * answers.tuned


def _key(server: ServerContext, training: int) -> Key:
    return jax.random.fold_in(jax.random.key(server.state.seed), training)


def _apply(server: ServerContext, model: Variables, places: Array | None = None) -> tuple[Array, Array]:
    """Returns logits and features of the server's rows, or of a subset."""
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
    """FedAvg whose server trains the mean model on its own balanced rows, with all clients' models as the teacher.

    Args:
        share: lambda, weight of the distillation in the loss, in [0, 1]. The configuration's `auxiliary.per_class`
            provides the rows.
        temperature: temperature of the distillation, above 0.
        learning_rate: Adam's learning rate, at least 0.
        steps: steps of each of the three trainings in a round: of a fine-tuned model, the teacher and the mean model.
        batch_size: rows per step.
        distillation_batch: rows per step for the distillation.

    Example:
        >>> [part.slot for part in fedic().parts]
        ['CalibratedDistillation']
    """
    part = CalibratedDistillation(share, temperature, learning_rate, steps, batch_size, distillation_batch)
    return Recipe("fedic", (part,))
