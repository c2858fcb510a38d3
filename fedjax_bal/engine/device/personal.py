"""Leaves of the model that stay with the clients, as Personal parts choose them."""

from collections.abc import Sequence

import jax

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Freeze, Personal
from fedjax_bal.types import Array, PyTree, Variables

PERSONAL = "personal"
"""The entry of the clients' memory for these leaves."""


def own_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """The leaves of a model that stay with the clients, by path; none without Personal parts."""
    own = [False] * len(jax.tree.leaves(variables))
    for part in setting.parts_with(Personal):
        stats = jax.tree.map(lambda _, keeps=part.keeps_statistics: keeps, variables.stats)
        own = [*map(max, own, jax.tree.leaves(Variables(_mask(part, variables.params), stats)))]
    return _chosen(variables, own)


def frozen_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """The leaves of a model that no client ever trains, by path; none without Freeze parts."""
    frozen, stats = [False] * len(jax.tree.leaves(variables)), jax.tree.map(lambda _: False, variables.stats)
    for part in setting.parts_with(Freeze):
        if part.always:
            mask = jax.tree.broadcast(part.frozen(variables.params), variables.params)
            frozen = [*map(max, frozen, jax.tree.leaves(Variables(mask, stats)))]
    return _chosen(variables, frozen)


def _chosen(variables: Variables, mask: Sequence[bool]) -> dict[str, Array]:
    named = jax.tree_util.tree_leaves_with_path(variables)
    return {jax.tree_util.keystr(path): leaf for (path, leaf), chosen in zip(named, mask, strict=True) if chosen}


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
