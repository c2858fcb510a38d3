"""Checks that the pieces of a simulation fit together, and chooses between the recipe's and the user's values."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_bal.data import are_tokens, check_one_type, class_numbers, columns_by_name, is_frame
from fedjax_bal.engine.device import TestSet
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.models import Normalisation, check_finite, match_weights, named_leaves
from fedjax_bal.optim import AnyOptimizer, Optimizer, as_optimizer, optimizer
from fedjax_bal.options import CLIENTS_PER_ROUND, LocalTraining, Participation, derived
from fedjax_bal.parts import Draw, Probe, parts_with
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import LOSS, Choice, Pattern, Selector, Speed, Trace
from fedjax_bal.types import Dataset, Federation, Model, Variables

ROUNDS_PER_DISPATCH = 5
"""The value of "auto": enough rounds that the devices never wait for the host."""


def check_options(**options: tuple[Any, type]) -> None:
    """Refuses options of a wrong type; each argument is a value and the type that it must have."""
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name}: received {value!r}, must be a fedjax_bal.{kind.__name__}")


def check_is_federation(federation: Any) -> None:
    """Refuses a value that isn't a `Federation`."""
    if not isinstance(federation, Federation):
        raise ValueError(f"federation: received {type(federation).__name__}, must be what data.federate returns")


def checked_test(test: Any, federation: Federation) -> tuple[Any, Any]:
    """Returns the inputs and labels of a test set; names of columns and classes are looked up in the federation's.

    Args:
        test: the argument of `simulate`.
        federation: the federation.

    Raises:
        ValueError: the test set is of another type, or has names of columns or classes that the federation lacks.
    """
    if isinstance(test, Dataset):
        if (test.input_names is None) != (federation.input_names is None):
            raise ValueError(
                "test: received a data set, but only one of it and the federation has names of columns: make both of "
                "tables, or pass arrays with the columns in the order of training, (dataset.test_images, "
                "dataset.test_labels)"
            )
        inputs = test.test_images
        if test.input_names is not None:
            inputs = dict(zip(test.input_names, np.asarray(test.test_images).T, strict=True))
        labels = np.array(test.class_names)[np.asarray(test.test_labels)]
    elif isinstance(test, tuple | list) and len(test) == 2:
        inputs, labels = test
    else:
        raise ValueError(
            f"test: received {type(test).__name__}, must be inputs and labels, as (dataset.test_images, "
            "dataset.test_labels), or a data set"
        )
    beside_frame = is_frame(inputs)
    if beside_frame:
        if federation.input_names is None:
            raise ValueError(
                f"test: received a {type(inputs).__name__}, but the federation has no names of columns by which to "
                "take them: make the federation of a data set, data.federate(data.from_pandas(...), rows), or pass an "
                "array with the columns in the order of training"
            )
        inputs = columns_by_name("test", inputs, federation.input_names)
    return inputs, _test_labels(labels, federation.class_names, beside_frame=beside_frame)


def _test_labels(labels: Any, class_names: Sequence[str] | None, *, beside_frame: bool) -> Any:
    """Returns labels as numbers of classes.

    Integers beside a frame are names, as in its column of labels, if the classes have integers as names; otherwise they
    are numbers of classes already.

    Raises:
        ValueError: names of classes that the federation lacks, or integers beside arrays that could be either.
    """
    given = np.asarray(labels).dtype
    names = class_names or ()
    named = any(name.lstrip("-").isdecimal() for name in names)
    if given.kind in "iuf" and not (beside_frame and named):
        found = np.unique(np.asarray(labels)).tolist() if named and given.kind in "iu" else []
        both = all(0 <= label < len(names) and str(label) in names for label in found)
        if both and any(names[label] != str(label) for label in found):
            raise ValueError(
                f"test labels: received the integers {', '.join(map(str, found[:9]))} beside an array, which may be "
                f"names or numbers of the classes {', '.join(names[:9])}: pass texts, labels.astype(str) for names, or "
                "np.array(federation.class_names)[labels] for numbers; or a data set"
            )
        return labels
    if class_names is None:
        raise ValueError(
            f"test labels: received names of classes ({given}), but the federation has none: make it of a data set, "
            "data.federate(dataset, rows), or pass the numbers of the classes"
        )
    return class_numbers("test labels", labels, class_names)


def check_parameters(model: Model) -> None:
    """Refuses parameters of fewer than 32 bits, the precision in which optimizers and server averages compute."""
    for name, leaf in named_leaves(jax.eval_shape(model.init, jax.random.key(0)).params).items():
        if leaf.dtype.kind != "f" or leaf.dtype.itemsize < 4:
            raise ValueError(
                f"model {model.name}: received {leaf.dtype} for the parameter {name}, must be float32: leave out its "
                "param_dtype; Execution(precision='bfloat16') computes in bfloat16"
            )


def check_shapes(model: Model, federation: Federation, test: TestSet) -> None:
    """Refuses images, classes or labels that don't fit the model."""
    shape = tuple(np.shape(federation.images)[1:])
    for name, received in (("federation", shape), ("test set", tuple(np.shape(test.images)[2:]))):
        if received != tuple(model.input_shape):
            raise ValueError(
                f"{name}: received images of shape {received}, but the model {model.name} was built for "
                f"{tuple(model.input_shape)}: build it with input_shape={received}"
            )
    for name, inputs in (("federation", federation.images), ("test set", test.images)):
        takes_ids = np.dtype(model.input_dtype).kind == "i"
        if are_tokens(inputs) != takes_ids:
            takes = "token ids (input_dtype='int32')" if takes_ids else "numbers"
            raise ValueError(
                f"{name}: received inputs of type {inputs.dtype}, but the model {model.name} takes {takes}; integers "
                "other than uint8 are token ids: pass pixels as uint8, other numbers as floats"
                f"{'' if takes_ids else ', or use a model for token ids, such as text_mean'}"
            )
        check_vocabulary(name, inputs, model)
    check_one_type(federation.images, test.images)
    if federation.num_classes != model.num_classes:
        raise ValueError(
            f"federation: received {federation.num_classes} classes, but the model {model.name} was built for "
            f"{model.num_classes}: build it with num_classes={federation.num_classes}"
        )
    labels = fetch(test.labels)
    if not (labels.min() >= 0 and labels.max() < model.num_classes):
        raise ValueError(
            f"test set: received labels from {labels.min()} to {labels.max()}, "
            f"must be from 0 to {model.num_classes - 1}"
        )


def check_vocabulary(name: str, inputs: Any, model: Model) -> None:
    """Refuses token ids without an embedding, for which a model would compute NaN or take another token's."""
    vocabulary = model.vocabulary
    if vocabulary is None:
        return
    low, high = fetch((inputs.min(), inputs.max()))
    if low < 0 or high >= vocabulary:
        remedy = f"build it with vocabulary={high + 1} or more" if low >= 0 else "number tokens from 1; 0 is padding"
        raise ValueError(
            f"{name}: received token ids from {low} to {high}, but the model {model.name} has a vocabulary of "
            f"{vocabulary} (0 to {vocabulary - 1}): {remedy}"
        )


def fit_variables(given: Any, wanted: Variables, model: Model) -> Variables:
    """Copies variables to NumPy arrays with the structure and types of `wanted`; refuses what `arranged` does."""
    # Always a copy: jax may use a NumPy array in place, and the state's buffers are donated to the program.
    return jax.tree.map(lambda leaf, like: np.array(leaf, like.dtype), arranged(given, wanted, model), wanted)


def arranged(given: Any, wanted: Variables, model: Model) -> Variables:
    """Arranges variables in the structure of `wanted`; refuses other names or shapes, and infinite numbers or NaN."""
    remedy = "give weights of the same network, trained by a method that adds the same to it"
    theirs = match_weights(given, wanted, model, owner="the method's model", remedy=remedy)
    check_finite(theirs)
    return jax.tree.unflatten(jax.tree.structure(wanted), [theirs[name] for name in named_leaves(wanted)])


def check_clients(participation: Participation, clients: int) -> None:
    """Refuses availability, delivery or speed of a wrong type, or recorded for another number of clients."""
    for name in ("availability", "delivery", "speed"):
        given = getattr(participation, name)
        if not isinstance(given, Speed | None if name == "speed" else Pattern):
            example = "speed(...)" if name == "speed" else "bernoulli(0.5)"
            raise ValueError(f"{name}: received {given!r}, must be from fedjax_bal.selection, as {example}")
        try:
            if isinstance(given, Trace | Speed):
                given.check_clients(clients)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def fitting_optimizer(name: str, given: AnyOptimizer, model: Model) -> Optimizer:
    """Converts a value to an `Optimizer`; refuses an optax transformation that fails on the model's parameters."""
    made = as_optimizer(name, given)
    if made is not given:
        transform = made.transform(0)
        params = jax.eval_shape(model.init, jax.random.key(0)).params
        try:
            jax.eval_shape(lambda params: transform.update(params, transform.init(params), params), params)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: received an optax transformation that fails on the parameters of the model {model.name}, "
                f"with nothing but gradients and parameters to work with: {error}"
            ) from None
    return made


def choose_server_optimizer(recipe: Recipe, wanted: AnyOptimizer | None, model: Model) -> Optimizer:
    """Chooses the recipe's or the user's server optimizer, or plain averaging; refuses a schedule by local steps."""
    ours, theirs = (
        None if given is None else fitting_optimizer("server_optimizer", given, model)
        for given in (recipe.server_optimizer, wanted)
    )
    server = resolve_choice("server_optimizer", ours, theirs) or optimizer("sgd", 1.0)
    if server.step_schedule is not None:
        raise ValueError("server_optimizer: received a step_schedule, which is for local steps; give it a schedule")
    return server


def choose_selector(recipe: Recipe, participation: Participation, federation: Federation) -> Selector:
    """Chooses the recipe's or the user's selector; refuses one that doesn't fit the federation or the parts."""
    total = federation.num_clients
    selector = participation.selector
    size = participation.clients_per_round
    wanted = min(CLIENTS_PER_ROUND, total) if size is None else size
    if not federation.sizes.any():
        raise ValueError("federation: received no client with any row; partition at least one row")
    if not isinstance(selector, Selector | Choice | None):
        raise ValueError(
            f"selector: received {selector!r}, must be a selection.Selector or a choice of one by name, as "
            "selection.Choice('round_robin')"
        )
    if recipe.selector is not None and selector not in (None, recipe.selector):
        received = repr(selector.name) if isinstance(selector, Choice) else "one"
        raise ValueError(
            f"selector: received {received} together with the recipe {recipe.name}, which chooses clients itself "
            f"({recipe.selector.name}): leave one of them out"
        )
    chosen = selector or recipe.selector or Choice()
    made = chosen if isinstance(chosen, Selector) else chosen.build(wanted, federation)
    if isinstance(selector, Selector) and size is not None:
        raise ValueError("clients_per_round: received together with a selector, which has its own; give one of them")
    if made.most > total:
        raise ValueError(
            f"clients_per_round: received {made.most}, but there are only {total} clients: ask for at most {total}"
        )
    reported = {LOSS, *(part.slot for part in parts_with(recipe.parts, Probe))}
    missing = [slot for slot in made.needs if slot not in reported]
    if missing:
        raise ValueError(
            f"selector: received one that learns from {missing[0]!r}, which no part of the recipe {recipe.name} "
            "reports: combine it with a recipe that does (flcir has the composition), or choose another selector"
        )
    return made


def check_asynchrony(recipe: Recipe, selector: Selector, participation: Participation) -> None:
    """Refuses, for asynchronous rounds, a deadline and parts whose clients must all have received the same model."""
    if selector.asynchrony is None:
        return
    speed = participation.speed
    if speed is not None and speed.limit:
        raise ValueError(
            f"speed.{speed.limit} together with asynchronous rounds, which don't wait for slow "
            "clients: leave it out; the selector's max_staleness limits how late an update may be"
        )
    for part in recipe.parts:
        if part.needs_same_start:
            raise ValueError(
                f"{recipe.name}: received asynchronous rounds, in which clients train on models of different rounds, "
                f"but {part.slot} finds each client's model from the current one: use another selector"
            )


def check_chains(recipe: Recipe, selector: Selector) -> None:
    """Refuses chains for parts whose clients must train alone, and once a round."""
    for part in recipe.parts:
        if part.forbids_chains and (selector.chain_length, selector.passes) != (1, 1):
            raise ValueError(
                f"{recipe.name}: received chains of {selector.chain_length} clients that train {selector.passes} "
                f"time(s) a round, but {part.slot} needs each client to train alone and once a round: use a "
                "selector without chains"
            )


def choose_rounds_per_dispatch(rounds_per_dispatch: str | int, selector: Selector) -> int:
    """Chooses the number of rounds in a program: 1 if the selector needs each round's outcome before the next."""
    if rounds_per_dispatch == "auto":
        return 1 if selector.closed_loop else ROUNDS_PER_DISPATCH
    if selector.closed_loop and rounds_per_dispatch != 1:
        raise ValueError(
            f"rounds_per_dispatch: received {rounds_per_dispatch}, but this selector looks at each round's outcome "
            "before it chooses again: set it to 1, or to 'auto'"
        )
    return int(rounds_per_dispatch)


def resolve_choice(name: str, ours: Any, theirs: Any) -> Any:
    """Returns the value of the recipe (ours) or of the user (theirs), None if neither gives one; refuses a conflict."""
    if ours is not None and theirs is not None and ours != theirs:
        raise ValueError(f"{name}: received {theirs!r}, but the recipe sets {ours!r}; leave one of them out")
    return ours if ours is not None else theirs


def choose_local_training(
    recipe: Recipe, local: LocalTraining, largest: int, normalisation: Normalisation
) -> LocalTraining:
    """Makes all choices of local training; batches are no larger than the largest client can fill."""
    weighs = bool(parts_with(recipe.parts, Draw))
    drawing = resolve_choice("drawing", recipe.drawing, local.drawing) or ("replacement" if weighs else "epochs")
    if weighs and drawing == "epochs":
        raise ValueError("drawing: received 'epochs', but the recipe weighs samples, which needs 'replacement'")
    # Batches beyond the largest client would only be padded. With `drop_last` the size is kept, because a smaller size
    # would turn short batches, which are dropped, into full ones.
    batch_size = local.batch_size if local.drop_last else min(local.batch_size, largest)
    lone_rows = local.lone_rows
    if lone_rows == "auto":
        lone_rows = "drop" if normalisation.statistics else "keep"
    return derived(local, batch_size=batch_size, drawing=drawing, lone_rows=lone_rows)
