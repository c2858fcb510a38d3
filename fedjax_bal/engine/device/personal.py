"""Leaves of the model that stay with the clients, as Personal parts choose them, and what other parts see of them."""

from collections.abc import Sequence, Set
from typing import Any

import jax

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Freeze, Part, Personal, Separate
from fedjax_bal.types import Aggregate, Array, Context, Outcome, PyTree, ServerContext, Variables

PERSONAL = "personal"
"""The entry of the clients' memory for these leaves."""


def own_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """The leaves of a model that stay with the clients, by path; none without Personal parts."""
    own = [False] * len(jax.tree.leaves(variables))
    for part in setting.parts_with(Personal):
        stats = jax.tree.map(lambda _, keeps=part.keeps_statistics: keeps, variables.stats)
        mask = leaf_mask(part.slot, "personal", part.personal(variables.params), variables.params)
        own = [*map(max, own, jax.tree.leaves(Variables(mask, stats)))]
    return _chosen(variables, own)


def frozen_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """The leaves of a model that no client ever trains, by path; none without Freeze parts."""
    frozen, stats = [False] * len(jax.tree.leaves(variables)), jax.tree.map(lambda _: False, variables.stats)
    for part in setting.parts_with(Freeze):
        if part.always:
            mask = leaf_mask(part.slot, "frozen", part.frozen(variables.params), variables.params)
            frozen = [*map(max, frozen, jax.tree.leaves(Variables(mask, stats)))]
    return _chosen(variables, frozen)


def _chosen(variables: Variables, mask: Sequence[bool]) -> dict[str, Array]:
    named = jax.tree_util.tree_leaves_with_path(variables)
    return {jax.tree_util.keystr(path): leaf for (path, leaf), chosen in zip(named, mask, strict=True) if chosen}


def leaf_mask(slot: str, method: str, answer: PyTree, params: PyTree) -> PyTree:
    """True or False for each leaf, from what a part's method answered for leaves or whole branches."""
    odd = [leaf for leaf in jax.tree.leaves(answer) if not isinstance(leaf, bool)]
    if odd:
        raise ValueError(
            f"{slot}.{method}: received {odd[0]!r}, must be True or False for each leaf or branch of the "
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


def seen(setting: Setting, part: Part, *values: Any) -> tuple[Any, ...]:
    """Parameters, variables, contexts and outcomes without the entries that other Separate parts keep with clients."""
    hidden = _hidden_from(setting, part)
    return tuple(_without(hidden, value) for value in values) if hidden else values


def restored(setting: Setting, part: Part, new: PyTree, old: PyTree) -> PyTree:
    """Parameters or variables that a part returned, with the entries of `old` that it didn't see."""
    if not _hidden_from(setting, part):
        return new
    if isinstance(new, Variables):
        return new._replace(params={**old.params, **new.params})
    return {**old, **new}


def _hidden_from(setting: Setting, part: Part) -> Set[str]:
    others = (other for other in setting.parts_with(Separate) if other.slot != part.slot)
    return {name for other in others for name in other.own}


def _without(names: Set[str], value: Any) -> Any:
    def changed(*fields: str) -> Any:
        return value._replace(**{field: _without(names, getattr(value, field)) for field in fields})

    match value:
        case Variables():
            return changed("params")
        case Context():
            return changed("start", "trained")
        case Outcome():
            return changed("start", "end", "ctx")
        case Aggregate():
            return changed("delta", "deltas")
        case ServerContext():
            return changed("variables", "aggregate")
        case dict():
            return {name: branch for name, branch in value.items() if name not in names}
    return value
