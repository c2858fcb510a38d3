"""What is recorded: every recipe, a few combinations, and options that touch each feature of the engine once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import table

from fedjax_bal import data, optimizer, recipes, selection
from fedjax_bal.optim.schedules import schedule
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.types import Federation

CLASSES, SIDE = 4, 4
SIZES = (9, 1, 16, 5, 12, 8, 3, 20, 7, 11)
PER_CLASS = 3
MLP, BATCH_NORM = ("mlp", {"hidden": [6]}), ("tiny_bn", {})
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=optimizer("sgd", 0.3))
CLIENTS = Participation(clients_per_round=6, availability=selection.bernoulli(0.8), delivery=selection.bernoulli(0.8))


class Case(NamedTuple):
    """A run to record.

    Attributes:
        about: what it is, in Python.
        recipe: makes the recipe.
        changes: option objects, in place of the common ones.
        model: its name and options.
        held_out: whether validation rows and clients' test rows are held out.
        fine_tuning: epochs for which the clients' own models are trained at the end.
        tolerance: to which numbers are compared.
        why: why not to 1e-5.
        left_out: parts of the paths of leaves that aren't compared, for they are rounding.
    """

    about: str
    recipe: Callable[[], Any]
    changes: Mapping[str, Any] = {}
    model: tuple[str, Mapping[str, Any]] = MLP
    held_out: bool = False
    fine_tuning: int = 0
    tolerance: float = 1e-5
    why: str = ""
    left_out: tuple[str, ...] = ()

    def options(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """All options of the simulation in a layout."""
        options = {"rounds": 3, "local": LOCAL, "participation": CLIENTS, "execution": Execution(), **self.changes}
        return options | {"execution": replace(options["execution"], **layout)}


@cache
def _pool() -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of 4x4 pixels, in which a class brightens a row."""
    rng = np.random.RandomState(7)
    labels = rng.randint(0, CLASSES, sum(SIZES) + 2 * PER_CLASS * CLASSES + 2 * len(SIZES))
    images = rng.randint(0, 150, (len(labels), SIDE, SIDE, 1))
    images[np.arange(len(labels)), labels] += 90
    return images.astype(np.uint8), labels


@cache
def federation(held_out: bool) -> Federation:
    """Ten clients of 1 to 20 rows with skewed labels, and rows of each class for the server."""
    images, labels = _pool()
    spare = np.concatenate([np.flatnonzero(labels == c)[: 2 * PER_CLASS] for c in range(CLASSES)])
    spare = spare.reshape(CLASSES, 2, PER_CLASS)
    rest = np.setdiff1d(np.arange(len(labels)), spare)
    noisy = labels[rest] + np.random.RandomState(8).normal(0, 0.8, len(rest))
    ends = np.cumsum(SIZES)
    rows = np.split(rest[np.argsort(noisy, kind="stable")], ends)
    tests, sets = np.array_split(rows.pop(), len(SIZES)), {"balanced": spare[:, 0].ravel()}
    if not held_out:
        return data.federate(images, labels, rows, CLASSES, sets)
    return data.federate(images, labels, rows, CLASSES, sets | {"validation": spare[:, 1].ravel()}, tests=tests)


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Every other row of the pool."""
    images, labels = _pool()
    return images[::2], labels[::2]


def _named(recipe: str, values: Mapping[str, Any]) -> str:
    return f"{recipe}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def _of_recipe(name: str, more: Mapping[str, Any] = {}, **fields: Any) -> Case:
    """A recipe with what it takes in the table, and more."""
    values = {**table.ACTIVE[name], **more}
    return Case(f"recipes.{_named(name, values)}", lambda: recipes.RECIPES[name](**values), **fields)


def _combined(specs: Mapping[str, Mapping[str, Any]], **fields: Any) -> Case:
    """Recipes with what they take in the table, and more."""
    values = {name: {**table.ACTIVE[name], **more} for name, more in specs.items()}
    about = ", ".join(_named(name, own) for name, own in values.items())
    build = lambda: recipes.combine(*(recipes.RECIPES[name](**own) for name, own in values.items()))
    return Case(f"recipes.combine({about})", build, **fields)


def _fedavg(about: str, **fields: Any) -> Case:
    return Case(f"recipes.fedavg(): {about}", recipes.fedavg, **fields)


def _local(**changes: Any) -> dict[str, Any]:
    return {"local": replace(LOCAL, **changes)}


def _clients(**changes: Any) -> dict[str, Any]:
    return {"participation": replace(CLIENTS, **changes)}


def _execution(**changes: Any) -> dict[str, Any]:
    return {"execution": Execution(**changes)}


DEAD = (
    "dense.dense.bias", "conv_0.conv.bias", "conv_1.conv.bias", "conv_2.conv.bias", "stats.norm", "norm_0.bias",
    "norm_1.bias",
)  # fmt: skip
"""Leaves of CBFL's generator that are rounding: a normalisation takes away what they add, and Adam makes whole steps of
what is left of their gradients."""

DEAD_OF_FEDGEN = (
    "mu.dense_0.dense.bias",
    "nu.dense_0.dense.bias",
    "sent.variables.params.dense_0.dense.bias",
    "stats.norm.mean",
)
"""The same of FedGen's generator."""
WHOLE_STEPS = "Adam makes whole steps of the smallest gradients, and so of rounding"

SLOWLY = _local(optimizer=optimizer("sgd", 0.05))
SPECIAL: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    # An untrained generator: fakes would carry the rounding that training makes of its dead biases.
    "cbfl": ({"iterations": 0}, {"model": BATCH_NORM, "changes": SLOWLY}),
    "faults": ({}, {"changes": _execution(broken_clients="exclude")}),
    "fedbn": ({}, {"model": BATCH_NORM}),
    "fedper": ({}, {"held_out": True}),
    "feddecorr": ({}, {"tolerance": 5e-3, "why": "gradients of correlations of two or three rows nearly cancel"}),
    "fedic": ({}, {"tolerance": 1e-3, "why": WHOLE_STEPS}),
    "fedgen": ({}, {"tolerance": 1e-4, "why": WHOLE_STEPS, "left_out": DEAD_OF_FEDGEN}),
    "ratio_loss": ({}, {"tolerance": 5e-3, "why": "a ratio is divided by a sum that nearly cancels"}),
}
"""Hyperparameters that aren't in the table, and what a recipe needs beside them."""

RECIPES = {
    name: _of_recipe(name, SPECIAL.get(name, ({}, {}))[0], **SPECIAL.get(name, ({}, {}))[1]) for name in recipes.RECIPES
}

COMBINATIONS = {
    "rebafl_and_scaffold": _combined({"rebafl": {}, "scaffold": {}}),
    "iwds_and_astraea": _combined(
        {"iwds": {}, "astraea": {"optimizer_state": "carried", "order": "shuffled"}},
        changes=_local(optimizer=optimizer("adam", 0.01)) | {"evaluation": Evaluation(traffic="exact")},
    ),
    "fedprox_balanced_softmax_and_norm_clipping": _combined(
        {"fedprox": {}, "balanced_softmax": {}, "norm_clipping": {}}
    ),
    "moon_fedlc_and_fedadam": _combined({"moon": {}, "fedlc": {}, "fedadam": {}}),
    "median_of_huge_updates": _combined(
        {"median": {}, "faults": {"kind": "huge", "rounds": [1, 3]}}, changes=_execution(huge_factor=None)
    ),
    "stale_updates_clipped": _combined(
        {"feddyn": {}, "faults": {"kind": "stale"}}, changes=_execution(broken_clients="clip", clip_factor=1.0)
    ),
    "cbfl_generator": _of_recipe(
        "cbfl", {"generator_rate": 0.02, "weight": 0.0, "warm_up": 2, "teacher": "current"},
        changes=_local(optimizer=optimizer("sgd", 0.001)), model=BATCH_NORM,
        left_out=(*DEAD, "variables"), tolerance=5e-3,
        why="Adam makes steps of the rate of gradients, however small, and so enlarges their rounding",
    ),
    "cbfl_noise": _of_recipe("cbfl", {
        "generator": "gaussian", "interval": 1, "teacher": "current", "labels": "rarest", "rarest": 2,
        "learn": "cross_entropy",
    }, changes=SLOWLY, model=BATCH_NORM),
    "flcir_greedy": _of_recipe("flcir", {"choose": "greedy", "reward": "literal", "scope": "output"}),
}  # fmt: skip

BY_STEP, BY_ROUND = schedule("exponential", factor=0.8), schedule("cosine", length=4, warmup=2)
OPTIONS = {
    "local_steps": _fedavg(
        "five steps with momentum, clipped, at rates that fall by step; a deadline, with what is done by then",
        changes=_local(
            epochs=None, steps=5, optimizer=optimizer("sgd", 0.2, momentum=0.5, clip_norm=0.5, step_schedule=BY_STEP)
        ) | _clients(
            speed=selection.speed.uniform(2.0, 9.0, deadline=1.0), availability=selection.periodic(0.7, 2)
        ),
    ),
    "whole_batches": _fedavg(
        "rows drawn with replacement in two whole batches an epoch, weight decay, a cosine schedule by round; a "
        "deadline after which clients are dropped",
        changes=_local(
            drop_last=True, drawing="replacement", batches_per_epoch=2,
            optimizer=optimizer("sgd", 0.3, weight_decay=0.1, clip_value=0.1, schedule=BY_ROUND),
        ) | _clients(
            speed=selection.speed.lognormal(9.0, 1.0, deadline=1.0, late="drop"), availability=selection.clustered()
        ),
    ),
    "adam_on_both_sides": _fedavg(
        "Adam on clients and on the server, no more than three batches an epoch",
        changes=_local(optimizer=optimizer("adam", 0.02), batches_per_epoch=3)
        | {"server_optimizer": optimizer("adam", 0.02, eps=1e-2)},
    ),
    "local_statistics": _fedavg(
        "batch statistics of the clients' own", changes=_local(batch_statistics="local"), model=BATCH_NORM
    ),
    "reset_statistics": _fedavg(
        "batch statistics that begin anew", changes=_local(batch_statistics="server_reset"), model=BATCH_NORM
    ),
    "evaluation": _fedavg(
        "all that can be evaluated: validation rows, clients' test rows, their own models, fine-tuned ones",
        changes={"evaluation": Evaluation(update_diversity=True, local_accuracy=True, local_test_images=7, every=2)},
        held_out=True, fine_tuning=2,
    ),
    "power_of_choice": _fedavg(
        "the clients with the highest loss among eight",
        changes=_clients(selector=selection.power_of_choice(3, 8, sizes=SIZES), clients_per_round=None),
    ),
    "bfloat16": _fedavg(
        "networks compute in bfloat16", changes=_execution(precision="bfloat16"), tolerance=0.03,
        why="bfloat16 has three digits, and each version of XLA rounds where it likes",
    ),
}  # fmt: skip

CASES: dict[str, Case] = {**RECIPES, **COMBINATIONS, **OPTIONS}

QUICK = ("scaffold",)
"""Those that are compared wherever tests run."""
