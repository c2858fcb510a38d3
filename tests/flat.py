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
    """Options by name as the four objects that they belong to, beside what is no option of any."""
    groups, rest = {name: {} for name in KINDS}, {}
    for name, value in options.items():
        field = NAMES.get(name, name)
        owners = [own for own, kind in KINDS.items() if field in {one.name for one in dataclasses.fields(kind)}]
        (groups[owners[0]] if owners else rest)[field] = value
    made = {name: dataclasses.replace(defaults.get(name) or KINDS[name](), **own) for name, own in groups.items()}
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
