"""Leaves of the model that stay with the clients, as Personal parts choose them."""

import jax

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Personal
from fedjax_bal.types import Array, PyTree, Variables

PERSONAL = "personal"
"""The entry of the clients' memory for these leaves."""


def own_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """The leaves of a model that stay with the clients, by path; none without Personal parts."""
    own = [False] * len(jax.tree.leaves(variables))
    for part in setting.parts_with(Personal):
        stats = jax.tree.map(lambda _, keeps=part.keeps_statistics: keeps, variables.stats)
        own = [*map(max, own, jax.tree.leaves(Variables(_mask(part, variables.params), stats)))]
    named = jax.tree_util.tree_leaves_with_path(variables)
    return {jax.tree_util.keystr(path): leaf for (path, leaf), kept in zip(named, own, strict=True) if kept}


def _mask(part: Personal, params: PyTree) -> PyTree:
    answer = part.personal(params)
    odd = [leaf for leaf in jax.tree.leaves(answer) if not isinstance(leaf, bool)]
    if odd:
        raise ValueError(
            f"{part.slot}.personal: received {odd[0]!r}, must be True or False for each leaf or branch of the "
            "parameters: decide by its name, in Python"
        )
    return jax.tree.broadcast(answer, params)


def own_memory(setting: Setting, variables: Variables) -> dict[str, dict[str, Array]]:
    """A client's entry of the memory for its own leaves; empty without Personal parts."""
    return {PERSONAL: own_leaves(setting, variables)} if setting.parts_with(Personal) else {}


def with_leaves(variables: Variables, leaves: dict[str, Array]) -> Variables:
    """The model with other leaves in place of its own, by path."""
    replaced = lambda path, leaf: leaves.get(jax.tree_util.keystr(path), leaf)
    return jax.tree_util.tree_map_with_path(replaced, variables) if leaves else variables


def own_model(setting: Setting, variables: Variables) -> Variables:
    """The model that a client uses itself."""
    for part in setting.parts_with(Personal):
        variables = part.own_model(variables)
    return variables
