"""FedGen: the server trains a generator of features on the clients' classifiers, from which clients' classifiers learn.

The generator makes features of a class that the clients' classifiers agree on, and thereby carries what each of them
knows to the others, without any images.
"""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, recipe, variants
from fedjax_bal.methods.needs import shared_model
from fedjax_bal.methods.prototypes import num_features
from fedjax_bal.methods.roles import Loss, Need, Prepare, Server, Step, Steps, part, static
from fedjax_bal.models import Generator, build_feature_generator
from fedjax_bal.types import Array, Batch, Context, Key, Model, Outputs, PyTree, ServerContext, Variables

_DECAY = 0.98  # of the generator's learning rate and the clients' weights, per round
_LEAST = 1e-4  # lower bound of the clients' weights


class SentGenerator(NamedTuple):
    """What the server sends.

    Attributes:
        variables: the generator's.
        trainings: the number of rounds in which it was trained, `Int32[]`.
    """

    variables: Variables
    trainings: Array


class GeneratorState(NamedTuple):
    """The server's state: the generator as it is sent, and Adam's state."""

    sent: SentGenerator
    adam: PyTree


@part
class FeatureGenerator(Server, Step, Prepare, Steps, Loss):
    r"""Trains a generator G(z, y) of features on the clients' classifiers, and these on its features.

    Server, in every round, before it averages: steps of Adam on
    $\sum_k p_{ky} CE(h_k(G(z, y)), y) + \eta \exp(-\overline{\|z_i - z_j\|^2 |G_i - G_j|})$, where $h_k$ is the
    classifier of client k, which has a share of $p_{ky}$ of the cohort's rows of class y. Labels are drawn uniformly
    from the cohort's classes. The second term wants different features for different noise; both distances are means
    over coordinates, and the bar is the mean over all pairs of the batch. With `teacher="logits"` the first term is the
    cross-entropy of the mean of the clients' logits.

    Clients, once the generator was trained, with their classifier h: the loss gains
    $\alpha_t \frac{B'}{B} CE(h(G(z', y')), y')$ on B' features of classes drawn uniformly from all that exist, and
    $\beta_t KL(h(G(z, y)) \| h(x))$ on the batch's own B rows and labels, where the former has no gradient. The weights
    are $\alpha$ and $\beta$ times 0.98 for every training of the generator, at least 0.0001 unless they are 0.

    Attributes:
        weight: alpha.
        alignment: beta.
        features: B', generated features in each local step.
        diversity: eta.
        teacher: "losses" or "logits".
        steps: the generator's steps in a round.
        batch_size: features per step.
        rate: the generator's learning rate, multiplied by 0.98 after every round.
        decay: the generator's weight decay, added to the gradient.
        width: outputs of the generator's first layer.
        latent: length of the noise.

    References:
        FedGen (Zhu et al., 2021), in the form and with the constants of the authors' code for MNIST. In the paper
        (eq. 4, 5) the teacher is the mean of logits, the clients' second term is missing, classes are drawn by their
        frequency, and noise is normal; here as in the code it is uniform in [0, 1). There the shares $p_{ky}$ count 1
        and the rows that were drawn, here the client's rows, and a broadcast multiplies a client's mean loss over the
        batch by the mean of its shares, not each loss by its share; clients learn from features in their first 20
        local steps only; and a student's loss on the server, whose weight is 0, is left out here.
    """

    weight: float = 10.0
    alignment: float = 10.0
    features: int = static(32)
    diversity: float = 1.0
    teacher: Literal["losses", "logits"] = static("losses")
    steps: int = static(50)
    batch_size: int = static(32)
    rate: float = 0.0003
    decay: float = 0.01
    width: int = static(256)
    latent: int = static(32)

    needs_deltas: ClassVar[bool] = True
    needs_same_start: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that features and classifiers are those of all clients."""
        return (shared_model("fedgen", "its generator can't learn from them what the classifiers of others can use"),)

    def network(self, model: Model, variables: Variables) -> Generator:
        """Builds the generator's architecture."""
        return build_feature_generator(model.num_classes, num_features(model, variables), self.width, self.latent)

    def init_server(self, server: ServerContext) -> GeneratorState:
        """Returns an untrained generator."""
        variables = self.network(server.model, server.variables).init(server.key)
        # Layers start in float32 whatever the precision, in which the training's other numbers would not fit them.
        variables = jax.tree.map(lambda leaf: leaf.astype(float), variables)
        sent = SentGenerator(variables, jnp.zeros((), jnp.int32))
        return GeneratorState(sent, self._optimizer().init(variables.params))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[GeneratorState, SentGenerator]:
        """Sends the generator."""
        return server.state, server.state.sent

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, GeneratorState]:
        """Returns the update as it is, and the generator after its steps on the clients' classifiers."""
        counted = server.aggregate.weights > 0
        keep = lambda leaf: jnp.where(counted.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0.0)
        # Excluded updates may contain anything, even nan.
        clients = jax.tree.map(lambda w, d: w + keep(d), server.variables.params, server.aggregate.deltas)
        counts = keep(server.cohort.class_counts)
        shares = counts / jnp.maximum(counts.sum(0), 1.0)
        classes = jnp.log((counts.sum(0) > 0).astype(shares.dtype))
        net = self.network(server.model, server.variables)
        optimizer = self._optimizer()
        sent, adam = server.state
        rate = self.rate * _DECAY**sent.trainings

        def loss(params: PyTree, stats: PyTree, latents: Array, labels: Array) -> tuple[Array, PyTree]:
            made, after = net.apply(Variables(params, stats), latents, labels, train=True)
            logits = jax.vmap(lambda own: server.model.head(own, made))(clients)
            if self.teacher == "logits":
                mean = keep(logits).sum(0) / jnp.maximum(counted.sum(), 1)
                wrong = _cross_entropy(mean, labels)
            else:
                wrong = (shares[:, labels] * jax.vmap(_cross_entropies, (0, None))(logits, labels)).sum(0).mean()
            return wrong + self.diversity * _sameness(latents, made), after.stats

        def train(index: Array, carry: tuple[Variables, PyTree]) -> tuple[Variables, PyTree]:
            variables, state = carry
            noise_key, label_key = jax.random.split(jax.random.fold_in(server.key, index))
            latents = jax.random.uniform(noise_key, (self.batch_size, net.latent))
            labels = jax.random.categorical(label_key, classes, shape=(self.batch_size,))
            grads, stats = jax.grad(loss, has_aux=True)(variables.params, variables.stats, latents, labels)
            updates, state = optimizer.update(grads, state, variables.params)
            return Variables(optax.apply_updates(variables.params, optax.tree.scale(-rate, updates)), stats), state

        variables, adam = lax.fori_loop(0, self.steps, train, (sent.variables, adam))
        trainings = sent.trainings + min(self.steps, 1)
        return delta, GeneratorState(SentGenerator(variables, trainings), adam)

    def update(self, key: Key, server: ServerContext) -> GeneratorState:
        """Keeps the generator that `step` has trained."""
        return server.state

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Array:
        """Draws the seed of the local steps' noise, `UInt32[]`."""
        return jax.random.bits(key, dtype=jnp.uint32)

    def init_steps(self, ctx: Context) -> Array:
        """Returns the number of the first local step."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """Counts the local steps."""
        return carry + 1

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the two terms on generated features, `Float[]`; 0 before the generator's first training."""
        sent: SentGenerator = ctx.broadcast[self.slot]
        net = self.network(ctx.model, ctx.start)
        key = jax.random.fold_in(jax.random.key(ctx.prepared[self.slot]), ctx.steps_state[self.slot])
        label_key, noise_key, own_key = jax.random.split(key, 3)

        def classify(key: Key, labels: Array) -> Array:
            latents = jax.random.uniform(key, (len(labels), net.latent))
            made, _ = net.apply(lax.stop_gradient(sent.variables), latents, labels, train=False)
            return ctx.model.head(params, made)

        exist = jnp.log((ctx.federation.class_counts.sum(0) > 0).astype(float))
        labels = jax.random.categorical(label_key, exist, shape=(self.features,))
        taught = _cross_entropy(classify(noise_key, labels), labels)
        target = lax.stop_gradient(jax.nn.softmax(classify(own_key, batch.labels)))
        apart = optax.kl_divergence(jax.nn.log_softmax(outputs.logits), target)
        apart = jnp.where(batch.real, apart, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)
        faded = lambda weight: jnp.where(weight > 0, jnp.maximum(weight * _DECAY**sent.trainings, _LEAST), 0.0)
        terms = faded(self.weight) * self.features / ctx.batch_size * taught + faded(self.alignment) * apart
        return jnp.where(sent.trainings > 0, terms, 0.0)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.add_decayed_weights(self.decay), optax.scale_by_adam())


def _cross_entropies(logits: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return _cross_entropies(logits, labels).mean()


def _sameness(latents: Array, made: Array) -> Array:
    """Computes how alike features of different noise are, `Float[]`; 1 for equal ones."""
    noise = ((latents[:, None] - latents) ** 2).mean(-1)
    return jnp.exp(-(noise * jnp.abs(made[:, None] - made).mean(-1)).mean())


@recipe("generators", "zhu2021fedgen")
@variants(paper={"teacher": "logits", "alignment": 0.0})
def fedgen(
    weight: NonNegative = 10.0,
    alignment: NonNegative = 10.0,
    features: Count = 32,
    diversity: NonNegative = 1.0,
    teacher: Literal["losses", "logits"] = "losses",
    steps: CountOrZero = 50,
    batch_size: Count = 32,
    learning_rate: NonNegative = 0.0003,
    weight_decay: NonNegative = 0.01,
    width: Count = 256,
    latent: Count = 32,
) -> Recipe:
    """FedAvg whose clients also learn from generated features, which the last cohort's classifiers recognise.

    `variant="paper"` has the losses of the paper; the defaults are those of the authors' code.

    Args:
        weight: alpha, weight of the classifier's loss on generated features, at least 0.
        alignment: beta, weight of the divergence of a row's probabilities from those of a generated feature of its
            class, at least 0.
        features: generated features in each local step, besides one for each row of the batch.
        diversity: eta, weight of the generator's term for different features, at least 0.
        teacher: whether the generator learns from the clients' losses, each weighted by its share of the class
            ("losses"), or from the mean of their logits ("logits").
        steps: the generator's steps in a round; with 0 this is FedAvg.
        batch_size: its features per step.
        learning_rate: its learning rate, for Adam, at least 0; multiplied by 0.98 after every round.
        weight_decay: its weight decay, at least 0.
        width: its width.
        latent: length of its noise.

    Example:
        >>> [part.slot for part in fedgen().parts]
        ['FeatureGenerator']
    """
    made = FeatureGenerator(
        weight, alignment, features, diversity, teacher, steps, batch_size, learning_rate, weight_decay, width, latent
    )
    return Recipe("fedgen", (made,))
