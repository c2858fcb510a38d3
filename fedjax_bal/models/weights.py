"""Weights from elsewhere: checked by name and shape, and as the start of a model in place of drawn ones."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fedjax_bal.jax_setup import in_package_settings, start_jax
from fedjax_bal.types import Key, Model, PyTree, Variables

_CLASSIFIER = "params.head."
_MOST_NAMES = 8
_STATISTICS = ("stats", "batch_stats")


def named_leaves(tree: PyTree, separator: str = ".") -> dict[str, Any]:
    """Returns the leaves of a tree by name, such as "params.head.kernel"."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator=separator): leaf for path, leaf in paths}


def match_weights(
    given: Any, wanted: Variables, model: Model, *, owner: str, remedy: str, classifier: bool = True
) -> dict[str, Any]:
    """Returns given weights by the names of `wanted`; refuses other names or shapes.

    Args:
        given: `Variables`, or a mapping with "params" and perhaps "stats" or "batch_stats", as a module's `init`
            returns it. The classifier may have the network's own name for it.
        wanted: the model's variables, or their shapes.
        model: the model.
        owner: the owner of the names and shapes, for messages.
        remedy: the remedy, for messages.
        classifier: whether the classifier's weights must be among them.
    """
    if isinstance(given, Mapping) and set(given) <= {"params", *_STATISTICS} and "params" in given:
        stats = [given[name] for name in _STATISTICS if name in given]
        given = Variables(given["params"], stats[0] if stats else {})
    if isinstance(given, Variables) and isinstance(given.params, Mapping):
        params = {"head" if name == model.classifier else name: leaf for name, leaf in given.params.items()}
        given = given._replace(params=params)
    ours = named_leaves(wanted)
    theirs = named_leaves(given)
    lacking = {name for name in ours if name.startswith(_CLASSIFIER)}
    if classifier or not lacking.isdisjoint(theirs):
        lacking = set()
    odd = sorted((ours.keys() - lacking) ^ theirs.keys())
    different = [name for name in ours if name in theirs and np.shape(theirs[name]) != ours[name].shape]
    if odd or different:
        name = (odd or different)[0]
        received, needed = (f"{list(np.shape(tree[name]))}" if name in tree else "nothing" for tree in (theirs, ours))
        renamed = name.startswith(_CLASSIFIER) and model.classifier != "head"
        own = f" (the module's `{model.classifier}` is called `head` here)" if renamed else ""
        raise ValueError(f"variables: received {received} for {name}, where {owner} has {needed}{own}: {remedy}")
    return theirs


def check_finite(weights: Mapping[str, Any]) -> None:
    """Refuses named weights that contain infinite numbers or NaN."""
    for name, leaf in weights.items():
        if not isinstance(leaf, Tracer) and not np.isfinite(leaf).all():
            raise ValueError(
                f"variables: received numbers that aren't finite in {name}, must be finite: the training that made "
                "them diverged; give weights from before that"
            )


def with_weights(model: Model, variables: Any) -> Model:
    """Replaces a model's initial weights, for instance random ones by pretrained ones.

    Every run then starts from them, whatever its seed. Layers that a method adds to the model are drawn as ever.

    Args:
        model: a model from `build`, `from_linen` or `from_nnx`.
        variables: its weights, as `simulate(...).variables`, `load_run(...).variables()`, `fedjax_bal.load_weights` or
            `weights_from_torch` return them; or for a module of `flax.linen` what its `init` returns, under its own
            names. The classifier's may be left out, for instance because it was trained for other classes: it is then
            drawn with the seed.

    Returns:
        The model.

    Raises:
        ValueError: the names or shapes aren't those of the model, or a number isn't finite.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("mlp", 3, (4, 4, 1), hidden=[2])
        >>> weights = model.init(jax.random.key(7))
        >>> start = with_weights(model, weights).init(jax.random.key(0))
        >>> bool((start.params["head"]["dense"]["kernel"] == weights.params["head"]["dense"]["kernel"]).all())
        True
        >>> with_weights(build("mlp", 3, (4, 4, 1), hidden=[5]), weights)  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: variables: received [2] for params.body.dense_0.dense.bias, where the model mlp has [5]: give
        weights of the same network, with or without the classifier; its arrays: params.body.dense_0.dense.bias [5],
        params.body.dense_0.dense.kernel [16, 5], params.head.dense.bias [3], params.head.dense.kernel [5, 3]
    """
    start_jax()
    wanted = jax.eval_shape(model.init, jax.random.key(0))
    ours = named_leaves(wanted)
    arrays = [f"{name} {list(leaf.shape)}" for name, leaf in ours.items()]
    more = f" and {len(arrays) - _MOST_NAMES} more" if len(arrays) > _MOST_NAMES else ""
    remedy = (
        "give weights of the same network, with or without the classifier; its arrays: "
        f"{', '.join(arrays[:_MOST_NAMES])}{more}"
    )
    theirs = match_weights(variables, wanted, model, owner=f"the model {model.name}", remedy=remedy, classifier=False)
    given = {name: np.asarray(leaf, ours[name].dtype) for name, leaf in theirs.items()}
    check_finite(given)

    def init(key: Key) -> Variables:
        drawn = model.init(key)
        leaves = [given.get(name, leaf) for name, leaf in named_leaves(drawn).items()]
        return jax.tree.unflatten(jax.tree.structure(drawn), leaves)

    return model._replace(init=jax.jit(in_package_settings(init), inline=True))
