"""Calls of parts' roles: each part sees only the parameters and the state that belong to it."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Part, Separate
from fedjax_bal.types import Aggregate, Context, Outcome, PyTree, ServerContext, Variables

R = TypeVar("R")


def call(setting: Setting, part: Part, role: Callable[..., R], *values: Any, onto: PyTree = None) -> R:
    """Calls a role of a part, as in `call(setting, part, part.gradient, grads, params, ctx, onto=grads)`.

    The entries of `params` that other Separate parts keep with clients are hidden from the part: they are taken out of
    the values (parameters, variables, contexts, outcomes), and put back into the result from `onto`. A dict counts as
    parameters, so a part's own state, which may be any pytree, is bound to the role instead. In a `ServerContext`, the
    part sees its own state in place of all parts'.

    Args:
        setting: the setting.
        part: the part.
        role: a method of the part, or a function that calls one.
        *values: the arguments, with all entries.
        onto: the parameters or variables that the role changes; None if it returns something else.

    Returns:
        The role's result, with all entries.
    """
    hidden = _hidden_from(setting, part)
    result = role(*(_visible(value, hidden, part) for value in values))
    return result if onto is None else restored(setting, part, result, onto)


def restored(setting: Setting, part: Part, new: Any, old: PyTree) -> Any:
    """Adds to a role's result, parameters or variables, the entries of `old` that were hidden from the part."""
    if not _hidden_from(setting, part):
        return new
    if isinstance(new, Variables):
        return new._replace(params={**old.params, **new.params})
    return {**old, **new}


def _hidden_from(setting: Setting, part: Part) -> set[str]:
    others = (other for other in setting.parts_with(Separate) if other.slot != part.slot)
    return {name for other in others for name in other.own}


def _visible(value: Any, hidden: set[str], part: Part) -> Any:
    match value:
        case dict() if hidden:
            return {name: branch for name, branch in value.items() if name not in hidden}
        case Variables():
            fields = ("params",)
        case Context():
            fields = ("start", "trained", "shift")
        case Outcome():
            fields = ("start", "end", "trained", "ctx")
        case Aggregate():
            fields = ("delta", "deltas")
        case ServerContext():
            value = value._replace(state=value.state.get(part.slot))
            fields = ("variables", "aggregate")
        case _:
            return value
    return value._replace(**{field: _visible(getattr(value, field), hidden, part) for field in fields})
