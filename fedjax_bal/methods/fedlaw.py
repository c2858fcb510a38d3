"""FedLAW: the server learns the clients' weights, and their sum, on rows of its own."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows, shared_model
from fedjax_bal.methods.roles import Need, Reduce, part, static
from fedjax_bal.types import Array, Key, PyTree, ServerContext

_HALVED_EVERY = 20  # epochs


@part
class LearnedMixture(Reduce):
    r"""Replaces the mean of the clients' models by $\gamma \sum_k \lambda_k w_k$, with numbers trained on the server.

    With form "exp" $\gamma = e^y$ and $\lambda$ is the softmax of numbers x, which start at the logarithms of FedAvg's
    weights, and y at 0. With form "square" $\gamma = y^2$ and $\lambda_k = x_k^2 / \sum_j x_j^2$, and they start at
    equal weights and 1. In every round x and y are trained by the cross-entropy of the mixed model on the server's
    balanced rows.

    Attributes:
        rate: learning rate of x and y, which is halved after every 20 epochs.
        epochs: passes over the rows.
        batch_size: rows per step.
        form: "exp" or "square".
        optimizer: "adam", with decays of 0.5 and 0.999, or "sgd", with a momentum of 0.9.

    References:
        FedLAW (Li et al., 2023), with the constants of the authors' code, whose rate is 0.01 for CIFAR-10 and 0.005 for
        other data. There rows are augmented. The variant that trains x first, with an average of its values, and then y
        isn't included. Models are applied in training mode, as there, but batch statistics are averaged as in FedAvg.
    """

    rate: float = 0.01
    epochs: int = static(20)
    batch_size: int = static(128)
    form: str = static("exp")
    optimizer: str = static("adam")

    needs_same_start = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rows of the server's own, and a model that the clients use as it is."""
        return shared_model("fedlaw", "the server would mix models that no client uses"), SERVER_ROWS

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the update to the mixed model."""
        counted = weights > 0
        on = counted | ~counted.any()  # a softmax over nothing would be nan
        # Excluded updates may contain anything, even nan.
        each = jax.tree.map(lambda leaf: jnp.where(counted.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0.0), deltas)
        received = server.variables.params

        def mixed(numbers: tuple[Array, Array]) -> PyTree:
            gamma, shares = self._coefficients(numbers, on)
            return jax.tree.map(lambda w, d: gamma * (w + jnp.tensordot(shares, d, 1)), received, each)

        def start() -> tuple[Array, Array]:
            if self.form == "exp":
                return jnp.log(jnp.where(counted, weights, 1.0)), jnp.zeros(())
            return jnp.where(on, 1.0 / jnp.sqrt(jnp.maximum(on.sum(), 1)), 0.0), jnp.ones(())

        trained = mixed(self._trained(start(), mixed, server))
        return jax.tree.map(jnp.subtract, trained, received)

    def _coefficients(self, numbers: tuple[Array, Array], on: Array) -> tuple[Array, Array]:
        """Returns gamma and lambda, `Float[G]`."""
        x, y = numbers
        if self.form == "exp":
            return jnp.exp(y), jax.nn.softmax(x, where=on)
        squares = jnp.where(on, x**2, 0.0)
        return y**2, squares / jnp.maximum(squares.sum(), 1e-30)

    def _trained(self, numbers: PyTree, mixed: PyTree, server: ServerContext) -> PyTree:
        """Trains the numbers on the server's rows."""
        federation = server.federation
        rows = jnp.asarray(balanced_rows(federation))
        count = len(rows)
        size = min(self.batch_size, count)
        rule = optax.scale_by_adam(b1=0.5, b2=0.999) if self.optimizer == "adam" else optax.trace(0.9)
        order_key, model_key = jax.random.split(server.key)
        # Each epoch has every row once, and is padded with the number of rows.
        epochs = jnp.arange(self.epochs)
        order = jax.vmap(lambda epoch: jax.random.permutation(jax.random.fold_in(order_key, epoch), count))(epochs)
        order = jnp.pad(order, ((0, 0), (0, -count % size)), constant_values=count)
        steps = -(-count // size)
        places = order.reshape(self.epochs * steps, size)

        def loss(numbers: PyTree, key: Key, places: Array) -> Array:
            real = places < count
            chosen = rows.at[places].get(mode="clip")
            images = normalised(jnp.asarray(federation.images)[chosen], federation.mean, federation.std)
            model = server.variables._replace(params=mixed(numbers))
            outputs, _ = server.model.apply(model, images, train=True, key=key, real=real)
            labels = jnp.asarray(federation.labels)[chosen]
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels)
            return jnp.where(real, losses, 0.0).sum() / real.sum()

        def step(carry: tuple[PyTree, PyTree], at: tuple[Array, Array]) -> tuple[tuple[PyTree, PyTree], None]:
            numbers, state = carry
            epoch, places = at
            key = jax.random.fold_in(jax.random.fold_in(model_key, epoch), places[0])
            directions, state = rule.update(jax.grad(loss)(numbers, key, places), state)
            rate = self.rate * 0.5 ** (epoch // _HALVED_EVERY)
            return (jax.tree.map(lambda number, way: number - rate * way, numbers, directions), state), None

        return lax.scan(step, (numbers, rule.init(numbers)), (jnp.repeat(epochs, steps), places))[0][0]


@recipe("averaging", "li2023fedlaw")
def fedlaw(
    learning_rate: NonNegative = 0.01,
    epochs: CountOrZero = 20,
    batch_size: Count = 128,
    form: Literal["exp", "square"] = "exp",
    optimizer: Literal["adam", "sgd"] = "adam",
) -> Recipe:
    """FedAvg whose server trains the weights of the clients' models, and the sum of the weights, on its own rows.

    Args:
        learning_rate: learning rate of the weights, at least 0. The configuration's `auxiliary.per_class` provides the
            rows.
        epochs: passes over the rows in a round; with 0 and form "exp" this is FedAvg.
        batch_size: rows per step.
        form: whether weights are made of exponentials ("exp") or squares ("square") of the trained numbers.
        optimizer: "adam" or "sgd".

    Example:
        >>> fedlaw().parts[0].slot
        'LearnedMixture'
    """
    return Recipe("fedlaw", (LearnedMixture(learning_rate, epochs, batch_size, form, optimizer),))
