"""Training switches: the arguments and fields by which networks and their layers tell training from evaluation."""

import enum
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import numpy as np

IN_TRAINING = {
    **dict.fromkeys(
        ("train", "training", "is_train", "is_training", "in_training", "train_mode", "training_mode"), True
    ),
    **dict.fromkeys(("enable_dropout", "update_stats"), True),
    **dict.fromkeys(("deterministic", "use_running_average", "use_running_stats"), False),
    **dict.fromkeys(
        ("eval", "evaluate", "evaluation", "is_eval", "is_evaluation", "eval_mode", "evaluation_mode"), False
    ),
    **dict.fromkeys(("test", "testing", "is_test", "is_testing", "test_mode", "testing_mode"), False),
    **dict.fromkeys(("infer", "inference", "is_inference", "inference_mode", "predict", "prediction"), False),
}
"""Names of training switches, and the value of each in training; the value in evaluation is the other one."""

USUAL = "train, is_training or deterministic"
"""Names of switches, for messages."""

_CHOICE = re.compile(r"\b(bool|str|Literal)\b")
"""Annotations of arguments that could be switches."""

_SHARES = ("rate", "dropout_rate")


class SwitchError(ValueError):
    """Raised if a network or layer runs in training mode during evaluation, or the other way round."""


def read_switches(network: str, parameters: Iterable[inspect.Parameter]) -> dict[bool, dict[str, Any]]:
    """Returns the switches among the arguments of a network's call, in training (key True) and in evaluation (False).

    Raises:
        ValueError: the call needs another argument; or a further one is a Boolean, a text, an enumeration's, 0 or 1, so
            that it could be a switch that nothing would set.
    """
    switches = []
    for parameter in parameters:
        default = parameter.default
        if parameter.name in IN_TRAINING:
            switches.append(parameter.name)
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        elif default is parameter.empty:
            raise ValueError(
                f"{network}: __call__ needs {parameter.name}, must need the batch alone, and at most a switch such as "
                f"{USUAL}: give the others defaults, or make them fields of the module"
            )
        elif _is_switch(default) or isinstance(default, str | enum.Enum) or _CHOICE.search(str(parameter.annotation)):
            raise ValueError(
                f"{network}: received the argument {parameter.name}={default!r} of __call__, which isn't known as a "
                f"training switch, so nothing would ever set it: call it {USUAL} if it tells training from "
                "evaluation, otherwise make it a field of the module"
            )
    return {train: {name: train == IN_TRAINING[name] for name in switches} for train in (True, False)}


def check_switches(
    network: str, layer: str, fields: Mapping[str, Any], arguments: Mapping[str, Any], train: bool
) -> None:
    """Refuses a call of a layer of which a field or an argument is a switch with the wrong value.

    Args:
        network: the name of the network.
        layer: the name of the layer, for messages.
        fields: the fields of the layer by name, switches or not.
        arguments: the arguments of the call by name.
        train: whether the network is in training.
    """
    if any(not isinstance(fields.get(name, True), bool) and fields[name] == 0 for name in _SHARES):
        return  # dropout that drops nothing
    for name, value in (*fields.items(), *arguments.items()):
        if name in IN_TRAINING and _is_switch(value) and bool(value) != (train == IN_TRAINING[name]):
            raise SwitchError(
                f"{network}: received {name}={value} of {layer} in {'training' if train else 'evaluation'}, must be "
                f"{not value}: give __call__ of the network an argument such as {USUAL}, and pass it on to its layers; "
                f"rename {name} if it means something else"
            )


def _is_switch(value: Any) -> bool:
    """Tells whether a value is a Boolean, NumPy's and 0 and 1 included."""
    return isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))


def arguments_of(method: Callable, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name, with defaults; none if they don't fit, as the call itself will say."""
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    return bound.arguments


def linen_interceptor(network: str, train: bool, within: nn.Module | None = None) -> Callable:
    """Makes an interceptor for `flax.linen.intercept_methods` that refuses layers with the wrong switch.

    Args:
        network: the name of the network.
        train: whether the network is in training.
        within: the network. A module with weights of its own that it calls (`backbone.apply(weights, images)`) may be
            in evaluation, as nothing of it is trained. By default every module is checked.
    """
    others = set()

    def intercept(
        next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext
    ) -> Any:
        module = context.module
        kind = type(module)
        root = id(module.scope.root) if module.scope else None
        lifted = kind.__module__ == "flax.linen.transforms"
        if within is not None and module.path == () and not lifted and not isinstance(within, kind):
            others.add(root)
        if root not in others:
            layer = f"{'/'.join(module.path)} ({kind.__name__})" if module.path else "the network itself"
            check_switches(network, layer, vars(module), arguments_of(context.orig_method, args, kwargs), train)
        return next_fun(*args, **kwargs)

    return intercept
