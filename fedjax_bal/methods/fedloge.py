"""FedLoGe: a fixed sparse simplex trains the body; two further classifiers are realigned for evaluation."""

import functools
import zlib

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.methods.combine import BelowOne, CountOrZero, Positive, Recipe, recipe
from fedjax_bal.methods.fedbabu import FrozenHead
from fedjax_bal.methods.heads import batch_loss, check_exclusive_head, classifier, classifier_shapes, with_extra_heads
from fedjax_bal.methods.roles import CheckContext, Loss, Refine, Separate, part, parts_with, static
from fedjax_bal.models import simplex, unit
from fedjax_bal.types import Array, Batch, Context, Key, Model, Outputs, PyTree, ServerContext, Variables

_GLOBAL = "global_head"
_OWN = "own_head"


_PURPOSE = zlib.crc32(b"fedloge")


_LENGTH = 0.1  # length of class vectors, as in the authors' code
_RATE = 1e-4  # Adam's learning rate, as in the authors' code


@part
class RealignedHeads(Separate, Loss, Refine):
    r"""Trains two classifiers on the features of a body that is trained with a sparse simplex as its classifier.

    `params["head"]` starts as the simplex and must be frozen. `params["global_head"]` is averaged over clients;
    `params["own_head"]` stays with its client and starts as zeros. Both are trained by cross-entropy, whose gradient
    doesn't reach the body. The test set is classified by the global classifier with class vectors $\nu w_c / \|w_c\|$,
    a client's own test rows by the class vectors $(1 + \|v_c\|) w_c$, with the client's own $v_c$, and the sum of both
    biases.

    Attributes:
        sparsity: share of zeros in each class vector of the simplex.
        norm: $\nu$.
        steps: initial Adam steps that push the class vectors apart and to the length 0.1.

    References:
        FedLoGe (Xiao et al., 2024), and the authors' code with its constants. That code draws zeros over all class
        vectors together, initialises the clients' own classifiers at random, realigns once after training, and excludes
        the classes that a client's test rows lack.
    """

    sparsity: float = static(0.6)
    norm: float = 1.7
    steps: int = static(10_000)

    evaluation_only = True
    own = (_OWN,)
    shared = (_GLOBAL,)

    def bind(self, model: Model) -> Model:
        """Returns the network with three classifiers.

        Rejects a network that doesn't end in a dense layer, or has fewer features than classes.
        """
        return _with_simplex(model, self.sparsity, self.steps)

    def check(self, context: CheckContext) -> None:
        """Rejects parts with other classifiers or personal models, and parts that would change the simplex."""
        check_exclusive_head("fedloge", self, context)
        for other in parts_with(context.parts, Refine):
            if other.slot != self.slot:
                raise ValueError(
                    f"fedloge: received {other.slot}, which changes the model between rounds, so the simplex "
                    "would not stay fixed; leave one of the two out"
                )

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the sum of the two classifiers' mean cross-entropies, `Float[]`."""
        features = lax.stop_gradient(outputs.features)
        logits = [ctx.model.head({**params, "head": params[name]}, features) for name in (_GLOBAL, _OWN)]
        return batch_loss(logits[0], batch) + batch_loss(logits[1], batch)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Replaces the simplex by the global classifier, with class vectors of equal norm."""
        aligned = lambda leaf: self.norm * unit(leaf.T).T if leaf.ndim == 2 else leaf
        head = jax.tree.map(aligned, variables.params[_GLOBAL])
        return variables._replace(params={**variables.params, "head": head})

    def own_model(self, variables: Variables) -> Variables:
        """Replaces the simplex by the global classifier, lengthened by the norms of the client's class vectors."""
        params = variables.params
        longer = lambda w, v: w * (1.0 + jnp.sqrt((v**2).sum(0))) if w.ndim == 2 else w + v
        return variables._replace(params={**params, "head": jax.tree.map(longer, params[_GLOBAL], params[_OWN])})


@functools.lru_cache(maxsize=64)  # equal models must be one object: another object would be compiled again
def _with_simplex(model: Model, sparsity: float, steps: int) -> Model:
    extended = with_extra_heads("fedloge", model, _GLOBAL, _OWN)
    shapes = [leaf.shape for leaf in jax.tree.leaves(classifier_shapes(model))]
    if not any(len(shape) == 2 and 2 <= shape[1] <= shape[0] for shape in shapes):
        raise ValueError(
            f"fedloge: received the model {model.name} with a classifier of shapes {shapes}, must end in a dense layer "
            "with at least as many features as classes, for a simplex of them"
        )
    return extended._replace(init=functools.partial(_init, extended, sparsity, steps))


def _init(model: Model, sparsity: float, steps: int, key: Key) -> Variables:
    variables = model.init(key)
    head = classifier(variables.params)
    own = jax.random.fold_in(key, _PURPOSE)
    fixed = lambda leaf: sparse_simplex(own, leaf.shape, sparsity, steps) if leaf.ndim == 2 else jnp.zeros_like(leaf)
    return variables._replace(params={**variables.params, "head": jax.tree.map(fixed, head), _GLOBAL: head})


def sparse_simplex(key: Key, shape: tuple[int, ...], sparsity: float, steps: int) -> Array:
    """Returns a rotated simplex's class vectors as columns, `Float[F, C]`; some entries are 0, the others adapted."""
    rotation, choice = jax.random.split(key)
    vectors = jax.nn.initializers.orthogonal()(rotation, shape, float) @ simplex(shape[1])
    ranks = jax.random.uniform(choice, shape).argsort(0).argsort(0)
    return driven_apart(jnp.where(ranks < int(sparsity * shape[0]), 0.0, vectors), steps)


def driven_apart(vectors: Array, steps: int) -> Array:
    """Trains columns to equal lengths and large angles to their nearest neighbours; zeros are kept."""
    optimizer = optax.adam(_RATE)
    kept = vectors != 0
    diagonal = jnp.eye(vectors.shape[1], dtype=bool)

    def loss(vectors: Array) -> Array:
        lengths = jnp.sqrt((vectors**2).sum(0))
        cosines = (vectors / lengths).T @ (vectors / lengths)
        nearest = jnp.where(diagonal, -1.0, cosines).max(1)
        return ((lengths - _LENGTH) ** 2).sum() - jnp.arccos(jnp.clip(nearest, -0.99999, 0.99999)).mean()

    def step(_: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        vectors, state = carry
        updates, state = optimizer.update(jnp.where(kept, jax.grad(loss)(vectors), 0.0), state)
        return optax.apply_updates(vectors, updates), state

    return lax.fori_loop(0, steps, step, (vectors, optimizer.init(vectors)))[0]


@recipe("personal", "xiao2024fedloge")
def fedloge(sparsity: BelowOne = 0.6, norm: Positive = 1.7, steps: CountOrZero = 10_000) -> Recipe:
    """A fixed sparse classifier trains the body; a shared and a personal classifier are trained on its features.

    The test set is classified by the shared classifier, with class vectors scaled to one norm; clients' own test rows
    by the shared classifier with the norms of the personal one.

    Args:
        sparsity: share of zeros in the fixed classifier, in [0, 1).
        norm: norm of the class vectors in evaluation, above 0.
        steps: steps that push the fixed class vectors apart, once before training.

    Example:
        >>> [part.slot for part in fedloge().parts]
        ['FrozenHead', 'RealignedHeads']
    """
    return Recipe("fedloge", (FrozenHead(), RealignedHeads(sparsity, norm, steps)))
