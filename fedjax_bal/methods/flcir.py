"""FL-CIR: class compositions are estimated from gradients of the clients' models, and updates are damped."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_bal.balance import composition_from_gradients
from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import NonNegative, Recipe, Share, recipe, variants
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows
from fedjax_bal.methods.roles import CheckContext, Need, Probe, Step, part, static
from fedjax_bal.selection import Choice
from fedjax_bal.types import Array, Federation, Model, Outcome, PyTree, ServerContext, Variables

_SMALL_SHARE = 0.05  # of the clients in a round; the share is also the factor on every update


@part
class CompositionProbe(Probe):
    r"""Estimates a client's class shares from its model's gradients on the server's balanced images.

    For each class c, $g_c$ is the size of the gradient of the trained model's mean cross-entropy on the images of c; it
    is small for a class that the client has learned. The estimate is `fedjax_bal.balance.composition_from_gradients` of
    g.

    Attributes:
        mode: form of the estimate, "inverse", "softmax_inv" or "softmax_rel".
        scope: "network": g is the sum over all parameter arrays of the mean squared derivative; "output": the squared
            norm of the derivative with respect to the weights of output c.
        beta: sharpness of the softmaxes.

    References:
        FL-CIR (Yang et al., 2021), eq. 7, is "softmax_inv" and "output". The authors' code is "inverse" and "network",
        and notes that the output layer alone didn't suffice.
    """

    mode: Literal["inverse", "softmax_inv", "softmax_rel"] = static("inverse")
    scope: str = static("network")
    beta: float = 1.0

    travels = False

    @property
    def slot(self) -> str:
        """The name under which the selectors `cucb` and `greedy` find the estimates."""
        return "composition"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rows of the server's own."""
        return (SERVER_ROWS,)

    def check(self, context: CheckContext) -> None:
        """Rejects a server without equally many images of each class, and a classifier without a closed form."""
        if self.scope == "output" and not _ends_in_products(context.model):
            raise ValueError(
                f"flcir: received scope 'output' and the model {context.model.name}, whose outputs aren't products of "
                "weights and features, as those of cosines aren't: use scope 'network', or leave out the method that "
                "changes the classifier"
            )
        federation = context.federation
        rows = balanced_rows(federation)
        labels = jnp.asarray(federation.labels)[jnp.asarray(rows)]
        counts = jnp.bincount(labels, length=federation.num_classes).tolist()
        if min(counts) != max(counts):
            raise ValueError(
                f"federation: received between {min(counts)} and {max(counts)} rows of a class in the auxiliary set, "
                "must be equally many of each, or else gradients don't compare: take them with data.carve"
            )

    def probe(self, outcome: Outcome) -> Array:
        """Estimates class shares, `Float[C]`."""
        federation = outcome.ctx.federation
        model = outcome.ctx.model
        rows = jnp.asarray(balanced_rows(federation))
        by_class = rows[jnp.argsort(federation.labels[rows], stable=True)].reshape(model.num_classes, -1)
        size = self._network if self.scope == "network" else self._output

        def one(place: tuple[Array, Array]) -> Array:
            label, own = place
            return size(outcome.end, model, _images(federation, own), label)

        norms = lax.map(one, (jnp.arange(model.num_classes), by_class))
        return composition_from_gradients(norms, self.mode, self.beta)

    def _network(self, variables: Variables, model: Any, images: Array, label: Array) -> Array:
        def loss(params: PyTree) -> Array:
            logits = model.apply(variables._replace(params=params), images, train=False)[0].logits
            labels = jnp.full(len(images), label)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        grads = jax.grad(loss)(variables.params)
        return sum(((leaf**2).mean() for leaf in jax.tree.leaves(grads)), jnp.zeros(()))

    def _output(self, variables: Variables, model: Any, images: Array, label: Array) -> Array:
        # In closed form, d loss / d w_c = mean of (p_c - 1) h, which doesn't depend on the name of the weights.
        outputs = model.apply(variables, images, train=False)[0]
        slope = jax.nn.softmax(outputs.logits)[:, label] - 1.0
        return ((slope[:, None] * outputs.features).mean(0) ** 2).sum()


def _ends_in_products(model: Model) -> bool:
    """Whether each output is the product of its weights and the features, as the closed form assumes.

    Without a classifier under its usual name, which can't be examined, this is assumed too.
    """
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    if "head" not in params:
        return True
    head = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.5, leaf.dtype), params["head"])
    image = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.dtype(model.input_dtype))
    outputs = jax.eval_shape(
        lambda key, image: model.apply(model.init(key), image, train=False)[0], jax.random.key(0), image
    )
    features = 1.0 + jnp.arange(outputs.features.shape[-1], dtype=outputs.features.dtype)[None]
    slopes = jax.jit(jax.grad(lambda own: model.head({**params, "head": own}, features)[0, 0]))(head)
    found = sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(slopes) if leaf.ndim > 1)
    return bool(np.allclose(found, (np.asarray(features) ** 2).sum(), rtol=1e-3))


def _images(federation: Federation, rows: Array) -> Array:
    return normalised(federation.images[rows], federation.mean, federation.std)


@part
class ParticipatingShare(Step):
    r"""Scales the mean update by the delivering clients' share of all samples.

    $w \leftarrow \sum_S p_k w_k + (1 - \sum_S p_k) w$ with $p_k = n_k / n$ over all clients that can train: absent
    ones count as having kept the model.

    References:
        FL-CIR (Yang et al., 2021), eq. 4, and the authors' code. The average of batch statistics isn't scaled.
    """

    def caution(self, context: CheckContext, cohort: int) -> str:
        """Names the mean share if it is so small that the model hardly moves."""
        clients = np.count_nonzero(context.federation.sizes)
        if cohort >= _SMALL_SHARE * clients:
            return ""
        return (
            f"a round trains {cohort:,} of {clients:,} clients, and aggregation 'all_clients' scales the mean update "
            f"by their share, about {cohort / clients:.2g}, so the model hardly moves: use aggregation "
            "'selected', or more clients a round"
        )

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the update times the share, shaped like the parameters."""
        cohort = server.cohort
        share = (cohort.sizes * cohort.delivered).sum() / jnp.maximum(cohort.total_size, 1.0)
        return jax.tree.map(lambda leaf: share * leaf, delta), server.state


@recipe("selection", "yang2021flcir")
@variants(
    paper={
        "composition": "softmax_inv",
        "scope": "output",
        "reward": "literal",
        "direction": "to_uniform",
        "first": "left_out",
    },
    code={"alpha": 0.8, "rho": 1.0},
)
def flcir(
    choose: Literal["cucb", "greedy", "random"] = "cucb",
    alpha: NonNegative = 0.2,
    rho: Share = 0.99,
    reward: Literal["bounded", "literal"] = "bounded",
    direction: Literal["from_uniform", "to_uniform"] = "from_uniform",
    first: Literal["counted", "left_out"] = "counted",
    composition: Literal["inverse", "softmax_inv", "softmax_rel"] = "inverse",
    scope: Literal["network", "output"] = "network",
    beta: NonNegative = 1.0,
    aggregation: Literal["all_clients", "selected"] = "all_clients",
) -> Recipe:
    """FL-CIR: a bandit learns the clients' class compositions and chooses cohorts with balanced classes.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; explicit
    arguments override it.

    Args:
        choose: "cucb", the bandit; "greedy", without exploration; "random", the baseline without estimates.
        alpha: weight of the bandit's exploration bonus; ignored by the other two.
        rho: discount of older estimates, above 0 and at most 1.
        reward: see `fedjax_bal.balance.composition_reward`.
        direction: direction of the divergence from uniform, see `fedjax_bal.selection.class_balancing_set`.
        first: whether the first client's classes count when others are added, see `class_balancing_set`.
        composition: see `fedjax_bal.balance.composition_from_gradients`.
        scope: gradients of the whole "network", or of the "output" layer.
        beta: sharpness of the softmaxes.
        aggregation: "all_clients": absent clients count as having kept the model; "selected": FedAvg's average.

    Example:
        >>> flcir().selector.name, [part.slot for part in flcir().parts]
        ('cucb', ['composition', 'ParticipatingShare'])

    References:
        Yang et al., 2021, Algorithms 1 and 2. The server needs its own balanced images (`auxiliary.per_class`), 32 per
        class in the authors' code; the paper only says that they are few. Where paper and code differ, alpha and rho
        are the paper's (the code has 0.8 and 1); reward, direction, first and composition are the code's. In the paper,
        eq. 9 has no bound, eq. 8 takes the divergence in the other direction, Algorithm 2 omits the first client from
        R_total, and eq. 7 ("softmax_inv") results in one-hot estimates.
    """
    if rho == 0:
        raise ValueError("flcir: rho: received 0, must be above 0 and at most 1")
    damped = (ParticipatingShare(),) if aggregation == "all_clients" else ()
    if choose == "random":
        return Recipe("flcir", damped)
    options = {"direction": direction, "first": first, "reward": reward, "rho": rho}
    if choose == "cucb":
        options = {"alpha": alpha, **options}
    return Recipe(
        "flcir", (CompositionProbe(composition, scope, beta), *damped), selector=Choice(choose, tuple(options.items()))
    )
