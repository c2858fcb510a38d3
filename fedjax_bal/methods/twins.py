"""A second set of the network's parameters, a personal model that clients train along with the first."""

import functools

import jax
import jax.numpy as jnp

from fedjax_bal.methods.heads import apply_without
from fedjax_bal.methods.roles import CheckContext, Need, NeedsContext, Separate, parts_with
from fedjax_bal.types import Key, Model, PyTree, Variables


@functools.lru_cache(maxsize=64)  # equal models must be one object: another object would be compiled again
def with_twin(model: Model, twin: str, *numbers: str) -> Model:
    """Returns the network with a second set of its parameters, the entry `twin`, which starts like the first.

    Further entries, `numbers`, are single numbers that start as 0. The network itself works without all of these.
    """
    return model._replace(
        init=functools.partial(_init, model, twin, numbers),
        apply=functools.partial(apply_without, model, frozenset((twin, *numbers))),
    )


def without(params: PyTree, *names: str) -> PyTree:
    """Leaves entries out."""
    return {name: branch for name, branch in params.items() if name not in names}


def check_twin(method: str, twin: str, context: CheckContext) -> None:
    """Rejects parts that change the network after it was doubled, so that the two sets no longer correspond."""
    params = jax.eval_shape(context.model.init, jax.random.key(0)).params
    separate = {name for part in parts_with(context.parts, Separate) for name in part.own}
    shapes = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)
    if shapes(params[twin]) != shapes(without(params, *separate)):
        raise ValueError(
            f"{method}: received a method after it that changes the network, so the clients' own models no "
            f"longer fit; combine it before {method}"
        )


def no_statistics(method: str) -> Need:
    """Requires a model without batch statistics, as two models would need two sets of them."""

    def check(context: NeedsContext) -> None:
        if context.normalisation and context.normalisation.statistics:
            raise ValueError(
                f"{method}: received the model {context.model}, whose batch statistics can't be those of two models: "
                "use one without batch normalisation"
            )

    return Need("a model without batch normalisation", check)


def _init(model: Model, twin: str, numbers: tuple[str, ...], key: Key) -> Variables:
    variables = model.init(key)
    dtype = jax.tree.leaves(variables.params)[0].dtype
    zeros = {name: jnp.zeros((), dtype) for name in numbers}
    return variables._replace(params={**variables.params, twin: variables.params, **zeros})
