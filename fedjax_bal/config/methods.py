"""The list of methods: recipes with their hyperparameters, each entry's changes to the sections, and their needs."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedjax_bal.annotations import parameters
from fedjax_bal.config.configuration import METHOD_NAME, Config, MethodEntry, RecipeChoice, combined
from fedjax_bal.config.federation_sections import by_own_name, contradicted_parameter
from fedjax_bal.config.problems import KeyPath, Problem, nearest_choices, raise_all, received_value
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, check_section, merge_sections, to_plain, variant
from fedjax_bal.registry import plugin_errors


def read_methods(entries: Sequence[Any], base: Mapping[str, Any]) -> tuple[list[MethodEntry], list[Problem]]:
    """Reads the entries of the list of methods over the sections of the file.

    Returns the valid methods, and the problems of the others.
    """
    known = set(check_section(Sections, base)[1])
    methods, problems, names = [], [], {}
    for index, entry in enumerate(entries):
        path = ("methods", index)
        method, found = _read_method(entry, base, known, path)
        problems += found
        if method is None:
            continue
        methods.append(method)
        if names.setdefault(method.name, index) != index:
            rule = f"already the name of methods.{names[method.name]}; give one of them another `name`"
            problems.append(Problem((*path, "name"), f"received {received_value(method.name)}, {rule}"))
    return methods, problems


def check_methods(config: Config, source: str, overridden: Sequence[KeyPath] = ()) -> None:
    """Refuses methods that lack what they need; raises `ConfigError` with one line for each, beginning with `source`.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> load_config(None, ["methods=[fedbn]"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: ...: methods.0: fedbn: received the model mlp, none of ...
    """
    from fedjax_bal.models import normalisation
    from fedjax_bal.parts import BALANCED, BATCH_STATISTICS, RunFacts, check_needs

    problems = []
    for index in range(len(config.methods)):
        method = config.for_method(index)
        recipe, training, model = method.recipe, method.training, method.model
        facts = RunFacts(
            parts=(*recipe.parts, *BATCH_STATISTICS[training.options.batch_statistics]),
            local=training.optimizer.built,
            carried=bool(recipe.carried),
            rounds=training.rounds,
            clients=method.partition.known_clients,
            auxiliary=[BALANCED] * (method.auxiliary.per_class > 0),
            model=model.name,
            normalisation=normalisation(model.name, model.parameters),
        )
        try:
            check_needs(facts)
        except ValueError as error:
            text = f"{method.name}: {str(error).removeprefix(f'{method.name}: ')}"
            problems.append(Problem(("methods", index), text))
    raise_all(source, problems, overridden)


def unknown_published(accuracies: Iterable[str], methods: Collection[str]) -> list[Problem]:
    """The published names that are neither a method's nor made of recipes; a table may have more than is asked for.

    What follows in brackets tells variants of a recipe apart.
    """
    problems = []
    for name in accuracies:
        recipes = name.partition(" (")[0].split("+")
        if name not in methods and not all(recipe in MethodEntry.choices() for recipe in recipes):
            text = f"there is no method of this name; {nearest_choices(name, methods)}"
            problems.append(Problem(("paper", "accuracy", name), text))
    return problems


def _read_method(
    entry: Any, base: Mapping[str, Any], known: set[Problem], path: KeyPath
) -> tuple[MethodEntry | None, list[Problem]]:
    if not isinstance(entry, Mapping):
        rule = "must be a recipe's name or a mapping with the key recipe"
        return None, [Problem(path, f"received {received_value(entry)}, {rule}")]
    if "recipe" not in entry:
        return None, [Problem((*path, "recipe"), f"missing; {nearest_choices('', MethodEntry.choices())}")]
    specs, problems = _read_recipes(entry, path)
    name = entry.get("name", "+".join(spec.name for spec in specs))

    overrides = {key: value for key, value in entry.items() if key in Sections.model_fields}
    if overrides:
        if isinstance(overrides.get("partition"), Mapping) and contradicted_parameter(overrides["partition"]) is None:
            overrides["partition"] = by_own_name(overrides["partition"])
        sections, found = check_section(Sections, merge_sections(Sections, base, overrides))
        if sections is None:
            broken = {problem.path[0] for problem in known}
            new = [p for p in found if p not in known and not (p.text.startswith("missing") and p.path[0] in broken)]
            problems += [problem._replace(path=(*path, *problem.path)) for problem in new]
        else:
            overrides = _picked(overrides, to_plain(sections))

    if "name" in entry and not (isinstance(name, str) and METHOD_NAME.accepts(name)):
        problems.append(Problem((*path, "name"), f"received {received_value(name)}, must be {METHOD_NAME.wanted}"))
    return (None if problems else MethodEntry(name=name, recipes=tuple(specs), overrides=overrides)), problems


def _read_recipes(entry: Mapping[str, Any], path: KeyPath) -> tuple[list[RecipeChoice], list[Problem]]:
    own = {key: value for key, value in entry.items() if key not in {"recipe", "name", *Sections.model_fields}}
    if not isinstance(entry["recipe"], list):
        return _read_recipe(entry["recipe"], own, path, "recipe")
    place, specs = (*path, "recipe"), []
    text = "unknown key; hyperparameters go into the items of a list of recipes"
    problems = [Problem((*path, key), text, unknown=True) for key in own]
    if not entry["recipe"]:
        problems.append(Problem(place, "received [], must be a name or a list of names"))
    for index, item in enumerate(entry["recipe"]):
        named = item if isinstance(item, Mapping) else {"name": item}
        values = {key: value for key, value in named.items() if key != "name"}
        spec, found = _read_recipe(named.get("name"), values, (*place, index), "name")
        specs += spec
        problems += found
    if not problems:
        try:
            combined(specs)
        except (ValueError, TypeError) as error:
            problems.append(Problem(place, f"received {[spec.name for spec in specs]}: {error}"))
    return specs, problems


def _read_recipe(
    name: Any, values: Mapping[str, Any], path: KeyPath, key: str
) -> tuple[list[RecipeChoice], list[Problem]]:
    """The recipe in a list, which is empty if there are problems."""
    from fedjax_bal.recipes import RECIPES, with_reading

    if not isinstance(name, str) or name not in RECIPES:
        allowed = nearest_choices(name, RECIPES)
        own = "; one of your own needs --plugin FILE" if isinstance(name, str) and "did you mean" not in allowed else ""
        return [], [Problem((*path, key), f"received {received_value(name)}; {allowed}{own}")]
    try:
        values = with_reading(RECIPES[name], values)
    except ValueError as error:
        return [], [_refused(name, values, str(error), path)]
    fields = parameters(RECIPES[name])
    checked, problems = check_section(variant(Section, name, tuple(fields.items())), values, path)
    if checked is None:
        beside = ["name", *Sections.model_fields] if key == "recipe" else []
        return [], [_of_recipe(problem, name, fields, beside) for problem in problems]
    complete = to_plain(checked)
    try:
        with plugin_errors():
            RECIPES[name](**complete)
    except (ValueError, TypeError) as error:
        return [], [_refused(name, complete, str(error), path)]
    return [RecipeChoice(name=name, hyperparameters=complete)], []


def _of_recipe(problem: Problem, recipe: str, fields: Mapping[str, Any], beside: Sequence[str]) -> Problem:
    if not problem.unknown:
        return problem
    near = nearest_choices(problem.path[-1], {*fields, *Sections.model_fields}).partition("; ")[2]
    text = f"unknown key; recipe {recipe} takes: {', '.join(sorted(fields)) or 'nothing'}"
    text += f"; or {', '.join(beside)}" if beside else ""
    return problem._replace(text=f"{text}; {near}" if near else text)


def _refused(recipe: str, values: Mapping[str, Any], text: str, path: KeyPath) -> Problem:
    mentioned = [key for key in values if re.search(rf"\b{re.escape(key)}\b", text)]
    if len(mentioned) != 1:
        return Problem(path, f"refused by recipe {recipe}: {text}")
    _, told, rule = text.partition(f"{mentioned[0]}: received ")
    return Problem(
        (*path, mentioned[0]), f"received {rule if told else f'{received_value(values[mentioned[0]])}; {text}'}"
    )


def _picked(shape: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _picked(below, values[key])
        if isinstance(below, Mapping) and isinstance(values[key], Mapping)
        else values[key]
        for key, below in shape.items()
    }
