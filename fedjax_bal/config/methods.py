"""The list of methods: recipes with their hyperparameters, and each entry's changes to the sections."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import create_model

from fedjax_bal.config.configuration import METHOD_NAME, MethodEntry, RecipeChoice
from fedjax_bal.config.federation_sections import by_own_name, contradicted_parameter
from fedjax_bal.config.parameters import parameters
from fedjax_bal.config.problems import KeyPath, Problem, nearest_choices, received_value
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, check_section, merge_sections, to_plain
from fedjax_bal.registry import plugin_errors


def read_methods(entries: Sequence[Any], base: Mapping[str, Any]) -> tuple[list[MethodEntry], list[Problem]]:
    """Reads the entries of the list of methods over the sections of the file.

    Returns the valid methods, and the problems of the others.
    """
    known = set(check_section(Sections, base)[1])
    methods, problems, names = [], [], {}
    for index, entry in enumerate(entries):
        method, found = _read_method(entry, base, known, ("methods", index))
        problems += found
        if method is None:
            continue
        methods.append(method)
        if names.setdefault(method.name, index) != index:
            first = f"methods.{names[method.name]}"
            text = (
                f"received {received_value(method.name)}, already the name of {first}; give one of them another `name`"
            )
            problems.append(Problem(("methods", index, "name"), text))
    return methods, problems


def unknown_published(accuracies: Iterable[str], methods: Collection[str]) -> list[Problem]:
    """The published names that are neither a method's nor made of recipes; a table may have more than is asked for.

    What follows in brackets tells variants of a recipe apart.
    """
    made_of_recipes = lambda name: all(recipe in _recipes() for recipe in name.partition(" (")[0].split("+"))
    unknown = [name for name in accuracies if name not in methods and not made_of_recipes(name)]
    return [
        Problem(("paper", "accuracy", name), f"there is no method of this name; {nearest_choices(name, methods)}")
        for name in unknown
    ]


def _read_method(
    entry: Any, base: Mapping[str, Any], known: set[Problem], path: KeyPath
) -> tuple[MethodEntry | None, list[Problem]]:
    if not isinstance(entry, Mapping):
        return None, [
            Problem(path, f"received {received_value(entry)}, must be a recipe's name or a mapping with the key recipe")
        ]
    if "recipe" not in entry:
        return None, [Problem((*path, "recipe"), f"missing; {nearest_choices('', _recipes())}")]
    specs, problems = _read_recipes(entry, path)
    overrides, found = _read_overrides(entry, base, known, path)
    problems += found
    name = entry.get("name", "+".join(spec.name for spec in specs))
    if "name" in entry and not (isinstance(name, str) and METHOD_NAME.accepts(name)):
        problems.append(Problem((*path, "name"), f"received {received_value(name)}, must be {METHOD_NAME.wanted}"))
    if problems:
        return None, problems
    return MethodEntry(name=name, recipes=tuple(specs), overrides=overrides), []


def _read_recipes(entry: Mapping[str, Any], path: KeyPath) -> tuple[list[RecipeChoice], list[Problem]]:
    own = {key: value for key, value in entry.items() if key not in {"recipe", "name", *Sections.model_fields}}
    if not isinstance(entry["recipe"], list):
        spec, problems = _read_recipe(entry["recipe"], own, path, "recipe")
        return [spec] if spec else [], problems
    place = (*path, "recipe")
    problems = [
        Problem((*path, key), "unknown key; hyperparameters go into the items of a list of recipes", unknown=True)
        for key in own
    ]
    if not entry["recipe"]:
        problems.append(Problem(place, "received [], must be a name or a list of names"))
    specs = []
    for index, item in enumerate(entry["recipe"]):
        named = item if isinstance(item, Mapping) else {"name": item}
        values = {key: value for key, value in named.items() if key != "name"}
        spec, found = _read_recipe(named.get("name"), values, (*place, index), "name")
        specs += [spec] if spec else []
        problems += found
    if specs and not problems:
        problems = _combination_problems(specs, place)
    return specs, problems


def _read_recipe(
    name: Any, values: Mapping[str, Any], path: KeyPath, key: str
) -> tuple[RecipeChoice | None, list[Problem]]:
    functions = _recipes()
    if not isinstance(name, str) or name not in functions:
        allowed = nearest_choices(name, functions)
        own = "; one of your own needs --plugin FILE" if isinstance(name, str) and "did you mean" not in allowed else ""
        return None, [Problem((*path, key), f"received {received_value(name)}; {allowed}{own}")]
    try:
        values = _with_reading(functions[name], values)
    except ValueError as error:
        return None, [_refused(name, values, str(error), path)]
    fields = parameters(functions[name])
    checked, problems = check_section(_hyperparameters(tuple(fields.items())), values, path)
    if checked is None:
        return None, [_of_recipe(problem, name, fields) for problem in problems]
    complete = to_plain(checked)
    try:
        with plugin_errors():
            functions[name](**complete)
    except (ValueError, TypeError) as error:
        return None, [_refused(name, complete, str(error), path)]
    return RecipeChoice(name=name, hyperparameters=complete), []


def _with_reading(recipe: Callable[..., Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    from fedjax_bal.recipes import with_reading

    return with_reading(recipe, values)


def _recipes() -> Mapping[str, Callable[..., Any]]:
    from fedjax_bal.recipes import RECIPES

    return RECIPES


@functools.lru_cache(maxsize=256)
def _hyperparameters(fields: tuple[tuple[str, Any], ...]) -> type[Section]:
    return create_model("Hyperparameters", __base__=Section, **dict(fields))


def _of_recipe(problem: Problem, recipe: str, fields: Mapping[str, Any]) -> Problem:
    if not problem.unknown:
        return problem
    key = problem.path[-1]
    rest = (
        ""
        if problem.path[-2] != "recipe" and "recipe" in problem.path
        else f"; or name, {', '.join(Sections.model_fields)}"
    )
    near = nearest_choices(key, {*fields, *Sections.model_fields}).partition("; ")[2]
    text = f"unknown key; recipe {recipe} takes: {', '.join(sorted(fields)) or 'nothing'}{rest}"
    return problem._replace(text=f"{text}; {near}" if near else text)


def _refused(recipe: str, values: Mapping[str, Any], text: str, path: KeyPath) -> Problem:
    mentioned = [key for key in values if re.search(rf"\b{re.escape(key)}\b", text)]
    if len(mentioned) != 1:
        return Problem(path, f"refused by recipe {recipe}: {text}")
    _, told, rule = text.partition(f"{mentioned[0]}: received ")
    return Problem(
        (*path, mentioned[0]), f"received {rule if told else f'{received_value(values[mentioned[0]])}; {text}'}"
    )


def _combination_problems(specs: Sequence[RecipeChoice], path: KeyPath) -> list[Problem]:
    from fedjax_bal.recipes import combine

    try:
        combine(*(_recipes()[spec.name](**spec.hyperparameters) for spec in specs))
    except (ValueError, TypeError) as error:
        return [Problem(path, f"received {[spec.name for spec in specs]}: {error}")]
    return []


def _read_overrides(
    entry: Mapping[str, Any], base: Mapping[str, Any], known: set[Problem], path: KeyPath
) -> tuple[dict[str, Any], list[Problem]]:
    patch = {key: value for key, value in entry.items() if key in Sections.model_fields}
    if not patch:
        return {}, []
    if isinstance(patch.get("partition"), Mapping) and contradicted_parameter(patch["partition"]) is None:
        patch["partition"] = by_own_name(patch["partition"])
    sections, problems = check_section(Sections, merge_sections(Sections, base, patch))
    if sections is None:
        broken = {problem.path[0] for problem in known}
        own = [p for p in problems if p not in known and not (p.text.startswith("missing") and p.path[0] in broken)]
        return {}, [problem._replace(path=(*path, *problem.path)) for problem in own]
    return _picked(patch, to_plain(sections)), []


def _picked(shape: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _picked(below, values[key])
        if isinstance(below, Mapping) and isinstance(values[key], Mapping)
        else values[key]
        for key, below in shape.items()
    }
