"""The library's functions with options by name, for tests that vary one of them at a time."""

import dataclasses

from fedjax_bal import testing
from fedjax_bal.engine import host
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.testing import toy, workbench

KINDS = {"local": LocalTraining, "participation": Participation, "evaluation": Evaluation, "execution": Execution}
NAMES = {"local_epochs": "epochs", "local_steps": "steps", "local_optimizer": "optimizer", "evaluate_every": "every"}
"""Of fields that say too little by themselves."""


def grouped(options, **defaults):
    """Options by name as the four objects that they belong to, beside what is no option of any.

    None for an optimizer, availability or delivery stands for the default.
    """
    rest = {NAMES.get(name, name): value for name, value in options.items()}
    made = {}
    for name, kind in KINDS.items():
        given = {field: rest.pop(field.name) for field in dataclasses.fields(kind) if field.name in rest}
        kept = {
            field.name: value
            for field, value in given.items()
            if value is not None or field.default_factory is dataclasses.MISSING
        }
        made[name] = dataclasses.replace(defaults.get(name) or kind(), **kept)
    return made | rest


def build(recipe, model, federation, test, **options):
    """A simulation, which does a round at a time unless told otherwise."""
    return host.build(recipe, model, federation, test, **grouped({"rounds_per_dispatch": 1} | options))


def simulate(recipe, model, federation, test, **options):
    """A run, a round at a time unless told otherwise."""
    return host.simulate(recipe, model, federation, test, **grouped({"rounds_per_dispatch": 1} | options))


def battery(recipe, **options):
    """What the battery takes, with its own values for options that are not given."""
    own = {"local": toy.local_training(options.get("model", toy.network())), "participation": toy.participation(recipe)}
    options = ({"clients_per_round": None} if "selector" in options else {}) | options
    kept = grouped(options, **own)
    return {name: value for name, value in kept.items() if name not in ("evaluation", "execution")}


def bench(recipe, **options):
    """A workbench."""
    return workbench.Bench(recipe, **battery(recipe, **options))


def check_recipe(recipe, **options):
    """The battery."""
    return testing.check_recipe(recipe, **battery(recipe, **options))
