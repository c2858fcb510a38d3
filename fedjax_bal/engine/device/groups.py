"""Groups of parameters in local training: which are clipped together, and which a local step trains."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.device.personal import leaf_mask, seen
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Freeze, Separate
from fedjax_bal.types import Array, Context, PyTree

_MODEL = ""


class Group(NamedTuple):
    """The group of a leaf of the parameters; leaves of one group have a common optimizer state.

    Attributes:
        entry: the entry of `params` that has a loss of its own, see `parts.Separate`; empty for the model's leaves.
        frozen: the slots of the Freeze parts that chose the leaf.
    """

    entry: str
    frozen: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """The name of the optimizer state."""
        return "/".join([self.entry, *sorted(self.frozen)])


def trained_leaves(setting: Setting, begun: Setting, ctx: Context, params: PyTree) -> PyTree:
    """For each leaf whether this local step trains it, as a bool or `Bool[]`; None if no part freezes any.

    `begun` is the setting with only those parts that have begun.
    """
    if not setting.parts_with(Freeze):
        return None
    always = {part.slot for part in begun.parts_with(Freeze) if part.always}
    answers = {
        part.slot: part.trained(*seen(setting, part, ctx)) for part in begun.parts_with(Freeze) if not part.always
    }

    def one(group: Group) -> Array | bool:
        if group.entry != _MODEL:
            return True
        if always & group.frozen:
            return False  # known here, so that the gradient isn't computed
        said = [frozen if slot in group.frozen else others for slot, (frozen, others) in answers.items()]
        return functools.reduce(jnp.logical_and, said) if said else True

    return _like(params, [one(group) for group in _groups(setting, params)])


def shifted_leaves(setting: Setting, trained: PyTree, params: PyTree) -> PyTree:
    """For each leaf whether a Shift part moves it: leaves of the model that are trained; None if these are all."""
    if not setting.parts_with(Separate):
        return trained
    model = [group.entry == _MODEL for group in _groups(setting, params)]
    on = model if trained is None else [here and on for here, on in zip(model, jax.tree.leaves(trained), strict=True)]
    return _like(params, on)


def moving_leaves(setting: Setting, params: PyTree) -> PyTree:
    """For each leaf whether it is trained at all and not a client's own model; None if that holds for all."""
    if not setting.parts_with(Separate, Freeze):
        return None
    own = {name for part in setting.parts_with(Separate) for name in part.own}
    always = {part.slot for part in setting.parts_with(Freeze) if part.always}
    groups = _groups(setting, params)
    return _like(params, [group.entry not in own and not always & group.frozen for group in groups])


def select(chosen: PyTree, new: PyTree, old: PyTree) -> PyTree:
    """The chosen leaves of `new` and the others of `old`; all of `new` if `chosen` is None."""
    return new if chosen is None else jax.tree.map(_where, chosen, new, old)


def keep(chosen: PyTree, tree: PyTree) -> PyTree:
    """The chosen leaves, and zeros for the others; all if `chosen` is None."""
    return tree if chosen is None else select(chosen, tree, jax.tree.map(jnp.zeros_like, tree))


def clip_by_entry(setting: Setting, grads: PyTree) -> PyTree:
    """Clips the gradient of the model, and that of each separate entry by itself."""
    groups = _groups(setting, grads)
    leaves, structure = jax.tree.flatten(grads)
    for entry in sorted({group.entry for group in groups}):
        places = [place for place, group in enumerate(groups) if group.entry == entry]
        for place, leaf in zip(places, setting.optimizer.clipped([leaves[place] for place in places]), strict=True):
            leaves[place] = leaf
    return structure.unflatten(leaves)


def local_optimizer(
    setting: Setting, round: Array, step: Any, params: PyTree, trained: PyTree = None
) -> optax.GradientTransformation:
    """The optimizer of a local step, which treats each group of leaves by itself; states of all steps are alike.

    Leaves that `trained` leaves out get no update and keep their state; None if there are none.
    """
    transform = setting.optimizer.transform(round, step)
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
    """The group of each leaf, in the order of `jax.tree.leaves`."""
    entries = {name for part in setting.parts_with(Separate) for name in (*part.own, *part.shared)}
    freezing = setting.parts_with(Freeze)

    def of_model(params: PyTree) -> PyTree:
        masks = [leaf_mask(part.slot, "frozen", part.frozen(params), params) for part in freezing]
        slots = lambda _, *on: Group(_MODEL, frozenset(p.slot for p, here in zip(freezing, on, strict=True) if here))
        return jax.tree.map(slots, params, *masks)

    if not entries:
        groups = of_model(params)
    elif absent := entries - set(params):
        raise ValueError(
            f"Separate: received the entries {sorted(absent)}, must be among those of the parameters, "
            f"{sorted(params)}: add them in bind"
        )
    else:
        model = of_model({name: branch for name, branch in params.items() if name not in entries})
        groups = {
            name: jax.tree.map(lambda _, name=name: Group(name), branch) if name in entries else model[name]
            for name, branch in params.items()
        }
    return jax.tree.leaves(groups, is_leaf=lambda node: isinstance(node, Group))


def _like(params: PyTree, leaves: list) -> PyTree:
    return jax.tree.structure(params).unflatten(leaves)


def _where(on: Array | bool, new: Array, old: Array) -> Array:
    # A bool is decided here, so that what is frozen in all steps costs nothing.
    if isinstance(on, bool):
        return new if on else old
    return jnp.where(on, new, old)
