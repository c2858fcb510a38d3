"""Attacks by generative regression: a network is trained until its image's features or gradient match a target."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fedjax_bal.annotations import Count, NonNegative, checked
from fedjax_bal.contrib.privacy.decoder import Upwards, Width, check_images, check_sides, minimise
from fedjax_bal.types import Key, Model, PyTree, Variables

Limits = tuple[Array, Array]


class Regression(NamedTuple):
    """The result of an attack by generative regression.

    Attributes:
        images: `[M, H, W, K]`, normalised.
        labels: probabilities of the classes, `[M, C]`; None for features, which don't depend on labels.
        losses: each target's loss before each step, `[iterations, M]`. If it is near 0 and the image is not the truth,
            the target does not determine the image; if it stays large, the search has failed.
    """

    images: Float[Array, "M H W K"]
    labels: Float[Array, "M C"] | None
    losses: Float[Array, "iterations M"]


@checked
def regress(
    key: Key,
    model: Model,
    variables: Variables,
    target: PyTree,
    *,
    of: Literal["features", "gradient"] = "features",
    iterations: Count = 1000,
    rate: NonNegative = 1e-3,
    width: Width = 32,
    latent: Count = 128,
    smoothness: NonNegative = 1e-6,
    limits: tuple[Array, Array] | None = None,
) -> Regression:
    r"""Searches for an image with the features, or the gradient, of a target, without any other image.

    For each of M targets, a separate small network computes an image x from a fixed random vector, and is trained on

    - `"features"`: the mean squared error of x's features f(x) and the target;
    - `"gradient"`: $\|g(x, y) - t\|^2 / \|t\|^2$, where g is the gradient of the cross-entropy of x and y with respect
      to all parameters, t the target, and y the softmax of a learned matrix times the same random vector,

    plus `smoothness` times the total variation, $2 (\overline{d_v^2} + \overline{d_h^2})$ with the differences of
    vertical and horizontal neighbours. The model is frozen and in evaluation mode. The optimizer is Adam, with a rate
    that falls to 0 along half a cosine.

    Args:
        key: the key of the networks' inputs and initial weights; those of target m don't depend on the other targets.
        model: the model under attack; for `"gradient"` one with second derivatives, `fedjax_bal.models.differentiable`.
        variables: the model's variables, which are not changed.
        target: features `[M, F]`, or, for `"gradient"`, M gradients as `single_gradients` gives them: like the model's
            params, with leaves `[M, ...]`.
        of: "features" or "gradient".
        iterations: number of steps.
        rate: Adam's learning rate at the first step.
        width: channels of the networks' first two stages; an integer of at least 2.
        latent: length of the networks' input.
        smoothness: weight of the total variation; 0 for none.
        limits: the least and the largest normalised pixel, each `[K]` or a number, enforced by a sigmoid:
            `(0 - mean) / std` and `(1 - mean) / std`. None for no limits.

    Returns:
        Images, labels and losses. A search for a gradient often ends at the negative image with an opposite label, with
            a large loss: repeat a target to search several times, and keep the result with the least loss.

    Raises:
        ValueError: `of` is unknown, the target doesn't fit the model, sides of images are not multiples of 4, a number
            is out of range, or the model has no second derivatives.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("tiny_bn", 3, (8, 8, 1))
        >>> variables = model.init(jax.random.key(0))
        >>> found = regress(jax.random.key(1), model, variables, jnp.ones((2, 64)), iterations=3, width=4)
        >>> found.images.shape, found.losses.shape
        ((2, 8, 8, 1), (3, 2))

    References:
        ReBaFL (Xu et al., 2023), section 5.6, uses GRNN on features and gives no settings. GRNN: Ren, Deng and Xie,
        "GRNN: Generative Regression Neural Network - A Data Leakage Attack for Federated Learning", ACM Transactions on
        Intelligent Systems and Technology, 2022, for gradients. Its code (github.com/Rand2AI/GRNN) differs from this:
        it adds the length of g - t (named after Wasserstein) to its square, and doesn't divide by the target, so that
        its smoothness, 1e-3 for LeNet and 1e-6 for ResNet, is not comparable between models; it has gated units and
        batch normalisation in the network, and RMSprop with rate 1e-4 and momentum 0.99 for 1000 steps.
    """
    check_sides(model.input_shape)
    target = jax.tree.map(jnp.asarray, target)
    (_check_features if of == "features" else _check_gradients)(model, variables, target)
    bounds = None if limits is None else (jnp.asarray(limits[0], float), jnp.asarray(limits[1], float))
    return _regress(key, model, variables, target, of, iterations, rate, width, latent, smoothness, bounds)


@partial(jax.jit, static_argnames="model")
def single_gradients(
    model: Model, variables: Variables, images: Float[Array, "M H W K"], labels: Int[Array, " M"]
) -> PyTree:
    """Computes the gradient of each labelled image alone, the target of an attack on gradients.

    Args:
        model: the model, in evaluation mode.
        variables: the model's variables.
        images: `[M, H, W, K]`, normalised.
        labels: `[M]`.

    Returns:
        Gradients of each image's cross-entropy, like the model's params with leaves `[M, ...]`.

    Raises:
        ValueError: images don't have the model's shape.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("tiny_bn", 3, (8, 8, 1))
        >>> images, labels = jnp.ones((2, 8, 8, 1)), jnp.array([0, 2])
        >>> single_gradients(model, model.init(jax.random.key(0)), images, labels)["head"]["dense"]["bias"].shape
        (2, 3)
    """
    check_images(model, images)
    return _gradients(model, variables, images, jax.nn.one_hot(labels, model.num_classes))


@partial(jax.jit, static_argnames=("model", "of", "iterations", "width", "latent"))
def _regress(
    key: Key,
    model: Model,
    variables: Variables,
    target: PyTree,
    of: str,
    iterations: int,
    rate: float,
    width: int,
    latent: int,
    smoothness: float,
    limits: Limits | None,
) -> Regression:
    """Attacks all targets at once; no target affects another one's loss, so the sum of losses gives all gradients."""
    count = jax.tree.leaves(target)[0].shape[0]
    network = Upwards(model.input_shape, width)
    keys = jax.vmap(lambda index: jax.random.split(jax.random.fold_in(key, index)))(jnp.arange(count))
    vectors = jax.vmap(lambda key: jax.random.normal(key, (1, latent)))(keys[:, 0])
    start = {
        "network": jax.vmap(network.init)(keys[:, 1], vectors),
        "label": jnp.zeros((count, latent, model.num_classes)),
    }
    distance = _feature_distance if of == "features" else _gradient_distance

    def images_of(params: PyTree) -> Array:
        images = jnp.asarray(jax.vmap(network.apply)(params["network"], vectors))[:, 0]
        return images if limits is None else limits[0] + (limits[1] - limits[0]) * jax.nn.sigmoid(images)

    def labels_of(params: PyTree) -> Array:
        return jax.nn.softmax(jnp.matmul(vectors, params["label"])[:, 0])

    def loss(params: PyTree, index: Array) -> tuple[Array, Array]:
        del index
        images = images_of(params)
        values = distance(model, variables, images, labels_of(params), target) + smoothness * total_variation(images)
        return values.sum(), values

    params, losses = minimise(loss, start, iterations, rate)
    return Regression(images_of(params), labels_of(params) if of == "gradient" else None, losses)


def _feature_distance(model: Model, variables: Variables, images: Array, labels: Array, target: Array) -> Array:
    """Computes the mean squared error of features, `[M]`."""
    del labels
    return ((model.apply(variables, images, train=False)[0].features - target) ** 2).mean(1)


def _gradient_distance(model: Model, variables: Variables, images: Array, labels: Array, target: PyTree) -> Array:
    """Computes squared distances of gradients, relative to the target's squared length (or 1 if it is 0), `[M]`."""
    gradients = _gradients(model, variables, images, labels)
    difference = _squared_length(jax.tree.map(jnp.subtract, gradients, target))
    length = _squared_length(target)
    return difference / jnp.where(length > 0, length, 1.0)


def _gradients(model: Model, variables: Variables, images: Array, probabilities: Array) -> PyTree:
    """Computes the gradient of each image's cross-entropy with class probabilities, leaves `[M, ...]`."""

    def loss(params: PyTree, image: Array, share: Array) -> Array:
        outputs, _ = model.apply(variables._replace(params=params), image[None], train=False)
        return optax.softmax_cross_entropy(outputs.logits[0], share)

    return jax.vmap(jax.grad(loss), (None, 0, 0))(variables.params, images, probabilities)


def _squared_length(tree: PyTree) -> Array:
    """Computes the sum of squares over all leaves, `[M]`."""
    squares = jax.tree.map(lambda leaf: (leaf.reshape(leaf.shape[0], -1) ** 2).sum(1), tree)
    return jax.tree.reduce(jnp.add, squares)


def total_variation(images: Float[Array, "M H W K"]) -> Float[Array, " M"]:
    """Computes twice the sum of the mean squared differences of vertical and of horizontal neighbours.

    Args:
        images: `[M, H, W, K]`, at least two pixels high and wide.

    Returns:
        `[M]`.

    Example:
        >>> total_variation(jnp.array([[0.0, 1.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)).tolist()
        [2.0]

    References:
        GRNN's code; squares instead of the usual absolute values.
    """
    down, across = ((jnp.diff(images, axis=axis) ** 2).mean((1, 2, 3)) for axis in (1, 2))
    return 2 * (down + across)


def _check_features(model: Model, variables: Variables, target: PyTree) -> None:
    """Raises `ValueError` unless the target has the shape of features of the model."""
    blank = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    seen = jax.eval_shape(lambda images: model.apply(variables, images, train=False)[0].features, blank)
    shapes = [leaf.shape for leaf in jax.tree.leaves(target)]
    if not isinstance(target, jax.Array) or target.ndim != 2 or target.shape[1] != seen.shape[1] or not len(target):
        raise ValueError(
            f"target: received shapes {shapes}, must be one array (M, {seen.shape[1]}) of features of the model "
            f"{model.name}, M of at least 1"
        )


def _check_gradients(model: Model, variables: Variables, target: PyTree) -> None:
    """Raises `ValueError` unless the target has the shapes of stacked gradients of the model."""
    expected, received = (
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (variables.params, target)
    )
    counts = {shape[:1] for shape in received.values()}
    if {name: shape[1:] for name, shape in received.items()} != expected or len(counts) != 1 or counts & {(), (0,)}:
        raise ValueError(
            f"target: received {received}, must be like the params of the model {model.name}, {expected}, with a "
            "leading axis of M gradients on each leaf: see fedjax_bal.contrib.privacy.single_gradients"
        )
