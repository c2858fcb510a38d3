"""Leaves of a model with special treatment: frozen, clipped separately, or kept by the clients.

Parts choose the leaves.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.device.roles import call
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Adapt, Freeze, Personal, Separate
from fedjax_bal.types import Array, Context, PyTree, Variables

PERSONAL = "personal"
"""The entry of the clients' memory for the leaves that stay with them."""

_MODEL = ""


def personal_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """Selects the leaves of a model that stay with the clients, by path; none without Personal parts."""
    return _kept_by(setting.parts_with(Personal), variables)


def exchanges(part: Personal) -> bool:
    """Returns whether the server changes the leaves that stay with the clients because of a part."""
    return type(part).exchange is not Personal.exchange


def exchanged_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """Selects those of the leaves that stay with the clients that the server exchanges, by path."""
    return _kept_by([part for part in setting.parts_with(Personal) if exchanges(part)], variables)


def _kept_by(parts: Iterable[Personal], variables: Variables) -> dict[str, Array]:
    params = variables.params
    masks = [
        Variables(leaf_mask(part.slot, "personal", part.personal(params), params), part.keeps_statistics)
        for part in parts
    ]
    return _chosen(variables, masks)


def frozen_leaves(setting: Setting, variables: Variables) -> dict[str, Array]:
    """Selects the leaves of a model that no client ever trains, by path; none without Freeze parts."""
    params = variables.params
    parts = [part for part in setting.parts_with(Freeze) if part.always]
    masks = [Variables(leaf_mask(part.slot, "frozen", part.frozen(params), params), False) for part in parts]
    return _chosen(variables, masks)


def _chosen(variables: Variables, masks: Iterable[Any]) -> dict[str, Array]:
    """Selects the leaves that at least one of the masks chooses, by path."""
    choices = [jax.tree.leaves(jax.tree.broadcast(mask, variables)) for mask in masks]
    # By path and not by position: memory and checkpoints keep only the chosen leaves.
    named = jax.tree_util.tree_leaves_with_path(variables)
    return {
        jax.tree_util.keystr(path): leaf
        for number, (path, leaf) in enumerate(named)
        if any(choice[number] for choice in choices)
    }


def leaf_mask(slot: str, method: str, answer: PyTree, params: PyTree) -> PyTree:
    """Expands a part's answer for leaves or whole branches to True or False for each leaf."""
    odd = [leaf for leaf in jax.tree.leaves(answer) if not isinstance(leaf, bool)]
    if odd:
        raise ValueError(
            f"{slot}.{method}: received {odd[0]!r}, must be True or False for each leaf or branch of the "
            "parameters: decide by its name, in Python"
        )
    return jax.tree.broadcast(answer, params)


def personal_memory(setting: Setting, variables: Variables) -> dict[str, dict[str, Array]]:
    """Returns a client's memory entry for the leaves that stay with it; empty without Personal parts."""
    return {PERSONAL: personal_leaves(setting, variables)} if setting.parts_with(Personal) else {}


def with_leaves(variables: Variables, leaves: dict[str, Array]) -> Variables:
    """Replaces leaves of a model, given by path."""
    replaced = lambda path, leaf: leaves.get(jax.tree_util.keystr(path), leaf)
    return jax.tree_util.tree_map_with_path(replaced, variables) if leaves else variables


def evaluated_memory(setting: Setting, memory: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Selects the entries of the clients' memory on which their own models depend."""
    slots = {PERSONAL, *(part.slot for part in setting.parts_with(Adapt))}
    return {slot: entry for slot, entry in memory.items() if slot in slots}


def personal_model(setting: Setting, variables: Variables, ctx: Context) -> Variables:
    """Returns the model that a client uses for its own predictions."""
    for part in setting.parts_with(Personal):
        variables = part.own_model(variables)
    frozen = frozen_leaves(setting, variables) if setting.parts_with(Adapt) else {}
    for part in setting.parts_with(Adapt):
        variables = call(setting, part, part.adapt, variables, ctx, onto=variables)
    return with_leaves(variables, frozen)


class Group(NamedTuple):
    """The group of a leaf of the parameters; leaves of one group share an optimizer state.

    Attributes:
        entry: the entry of `params` with a separate loss, see `parts.Separate`; empty for the model's leaves.
        frozen: the slots of the Freeze parts that chose the leaf.
    """

    entry: str
    frozen: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """The name of the optimizer state."""
        return "/".join([self.entry, *sorted(self.frozen)])


def trained_leaves(setting: Setting, active: Setting, ctx: Context, params: PyTree) -> PyTree:
    """Tells for each leaf whether this local step trains it, as a bool or `Bool[]`; None without Freeze parts.

    `active` is the setting with only those parts that have begun.
    """
    if not setting.parts_with(Freeze):
        return None
    always = {part.slot for part in active.parts_with(Freeze) if part.always}
    answers = {
        part.slot: call(setting, part, part.trained, ctx) for part in active.parts_with(Freeze) if not part.always
    }

    def is_trained(group: Group) -> Array | bool:
        if group.entry != _MODEL:
            return True
        if always & group.frozen:
            return False  # a Python bool, so that XLA doesn't compute the gradient
        said = [frozen if slot in group.frozen else others for slot, (frozen, others) in answers.items()]
        return functools.reduce(jnp.logical_and, said) if said else True

    return _like(params, map(is_trained, _groups(setting, params)))


def shifted_leaves(setting: Setting, trained: PyTree, params: PyTree) -> PyTree:
    """Tells for each leaf whether Shift parts move it: trained leaves of the model; None if these are all leaves."""
    if not setting.parts_with(Separate):
        return trained
    of_model = [group.entry == _MODEL for group in _groups(setting, params)]
    if trained is None:
        return _like(params, of_model)
    return _like(params, (ours and on for ours, on in zip(of_model, jax.tree.leaves(trained), strict=True)))


def moving_leaves(setting: Setting, params: PyTree) -> PyTree:
    """Tells for each leaf whether all clients train it jointly in some step; None if they train all leaves."""
    if not setting.parts_with(Separate, Freeze):
        return None
    personal = {name for part in setting.parts_with(Separate) for name in part.own}
    always = {part.slot for part in setting.parts_with(Freeze) if part.always}
    groups = _groups(setting, params)
    return _like(params, (group.entry not in personal and not always & group.frozen for group in groups))


def select(chosen: PyTree, new: PyTree, old: PyTree) -> PyTree:
    """Takes the chosen leaves from `new` and the others from `old`; all of `new` if `chosen` is None."""
    return new if chosen is None else jax.tree.map(_where, chosen, new, old)


def keep(chosen: PyTree, tree: PyTree) -> PyTree:
    """Replaces the leaves that aren't chosen by zeros; keeps all if `chosen` is None."""
    return tree if chosen is None else select(chosen, tree, jax.tree.map(jnp.zeros_like, tree))


def _where(on: Array | bool, new: Array, old: Array) -> Array:
    # A Python bool is decided while tracing, so that leaves that are frozen in all steps cost nothing.
    if isinstance(on, bool):
        return new if on else old
    return jnp.where(on, new, old)


def clip_by_entry(setting: Setting, grads: PyTree) -> PyTree:
    """Clips the gradient of the model and that of each separate entry, each by its own norm."""
    groups = _groups(setting, grads)
    leaves, structure = jax.tree.flatten(grads)
    for entry in sorted({group.entry for group in groups}):
        numbers = [number for number, group in enumerate(groups) if group.entry == entry]
        clipped = setting.optimizer.clipped([leaves[number] for number in numbers])
        for number, leaf in zip(numbers, clipped, strict=True):
            leaves[number] = leaf
    return structure.unflatten(leaves)


def local_optimizer(
    setting: Setting, round: Array, step: Any, params: PyTree, trained: PyTree = None
) -> optax.GradientTransformation:
    """Makes the optimizer of a local step, with a state for each group of leaves; its states fit all steps.

    Leaves that `trained` excludes get no update, and their group keeps its state; None excludes none.
    """
    transform = setting.optimizer.transform(round, step)
    # Models without groups keep a plain state: a partition would change the states that checkpoints hold.
    if not setting.parts_with(Separate, Freeze):
        return transform
    labels = [group.label for group in _groups(setting, params)]
    grouped = optax.partition(dict.fromkeys(labels, transform), _like(params, labels))
    if trained is None:
        return grouped
    on = dict(zip(labels, jax.tree.leaves(trained), strict=True))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        after: Any
        updates, after = grouped.update(updates, state, params)
        states = {
            label: jax.tree.map(functools.partial(_where, on[label]), new, state.inner_states[label])
            for label, new in after.inner_states.items()
        }
        return keep(trained, updates), state._replace(inner_states=states)

    return optax.GradientTransformation(grouped.init, update)


def _groups(setting: Setting, params: PyTree) -> list[Group]:
    """Returns the group of each leaf, in the order of `jax.tree.leaves`."""
    entries = {name for part in setting.parts_with(Separate) for name in (*part.own, *part.shared)}
    absent = entries - set(params) if entries else entries
    if absent:
        raise ValueError(
            f"Separate: received the entries {sorted(absent)}, must be among those of the parameters, "
            f"{sorted(params)}: add them in bind"
        )
    model = {name: branch for name, branch in params.items() if name not in entries} if entries else params
    masks = {
        part.slot: leaf_mask(part.slot, "frozen", part.frozen(model), model) for part in setting.parts_with(Freeze)
    }

    def group_of(_: Array, *frozen: bool) -> Group:
        return Group(_MODEL, frozenset(slot for slot, chosen in zip(masks, frozen, strict=True) if chosen))

    groups = jax.tree.map(group_of, model, *masks.values())
    if entries:
        groups = {
            name: jax.tree.map(lambda _, name=name: Group(name), branch) if name in entries else groups[name]
            for name, branch in params.items()
        }
    # `is_leaf`, because a group is a tuple, which jax would flatten.
    return jax.tree.leaves(groups, is_leaf=lambda node: isinstance(node, Group))


def _like(params: PyTree, leaves: Iterable[Any]) -> PyTree:
    return jax.tree.structure(params).unflatten(leaves)
