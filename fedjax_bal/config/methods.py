"""Reads the methods of a configuration: recipes, names, and the sections with each method's overrides."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.annotations import parameters
from fedjax_bal.config.errors import KeyPath, Problem, dotted_path, nearest_choices, raise_all, received_value
from fedjax_bal.config.merge import merge
from fedjax_bal.config.schema import (
    KEYS_OF_METHODS,
    METHOD_NAME,
    Config,
    MethodConfig,
    RecipeSection,
    Sections,
    contradicted_parameter,
    resolve_alias,
)
from fedjax_bal.config.sections import check_section, to_plain
from fedjax_bal.validate import suggestion


def read_methods(entries: Any, shared: Sections | None) -> tuple[list[MethodConfig], list[Problem]]:
    """Reads the list of methods; returns the valid ones, and the problems of the others.

    Args:
        entries: the list as it is in the file.
        shared: the validated sections that methods override; None if they have problems, in which case overrides are
            neither validated nor completed.
    """
    methods: list[MethodConfig] = []
    problems: list[Problem] = []
    names: dict[str, int] = {}
    labels: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        path = ("methods", index)
        method, refusals = _read_method(entry, shared, path)
        problems += refusals
        if method is None:
            continue
        methods.append(method)
        for key, text, earlier in (("name", method.name, names), ("label", method.label or method.name, labels)):
            first = earlier.setdefault(text, index)
            if first == index:
                continue
            rule = f"already the {key} of methods.{first}; give one of them another `{key}`"
            problems.append(Problem((*path, key), f"received {received_value(text)}, {rule}"))
            break
    return methods, problems


def _read_method(entry: Any, shared: Sections | None, path: KeyPath) -> tuple[MethodConfig | None, Sequence[Problem]]:
    if not isinstance(entry, Mapping):
        rule = "must be a recipe's name or a mapping with the key recipe"
        return None, [Problem(path, f"received {received_value(entry)}, {rule}")]
    if "recipe" not in entry:
        names = nearest_choices("", MethodConfig.choices(), kind=MethodConfig.choices_kind)
        received = f", received only {', '.join(dotted_path([key]) for key in entry)}" if entry else ""
        near = next(filter(None, (suggestion(key, ["recipe"]) for key in entry)), "")
        return None, [Problem((*path, "recipe"), f"missing{received}; {near and f'{near} '}{names}")]
    recipes, problems = _read_recipes(entry, path)
    name = entry.get("name", "+".join(recipe.name for recipe in recipes))
    label = entry.get("label")
    for key, text in (("name", name), ("label", label)):
        if key in entry and not METHOD_NAME.accepts(text):
            problems.append(Problem((*path, key), f"received {received_value(text)}, must be {METHOD_NAME.wanted}"))
    # Reports have one column of rounds to the target, which has the same target for all methods.
    evaluation = entry.get("evaluation")
    if isinstance(evaluation, Mapping) and "target_accuracy" in evaluation:
        received = received_value(evaluation["target_accuracy"])
        rule = "but all methods have one target; give evaluation.target_accuracy outside of `methods`"
        problems.append(Problem((*path, "evaluation", "target_accuracy"), f"received {received}, {rule}"))

    # Only what the method changes is validated, over the completed sections of all methods: a run folder's file states
    # every default of these, and must mean the same when it is read again.
    sections = {key: getattr(shared, key, None) for key in Sections.model_fields}
    overrides = {key: value for key, value in entry.items() if key in sections}
    if overrides and shared:
        partition = overrides.get("partition")
        if isinstance(partition, Mapping) and contradicted_parameter(partition) is None:
            overrides["partition"] = resolve_alias(partition)
        merged = merge(sections, [((key,), value) for key, value in overrides.items()], Sections)
        changed, refusals = check_section(Sections, merged, path)
        problems += refusals
        if changed is not None:
            sections = dict(changed)
            overrides = _restrict(overrides, to_plain(changed))
    if problems:
        return None, problems
    method = MethodConfig.model_construct(
        name=name, label=label, recipes=tuple(recipes), overrides=overrides, **sections
    )
    try:
        _ = method.recipe
    except (ValueError, TypeError) as error:
        received = [recipe.name for recipe in recipes]
        return None, [Problem((*path, "recipe"), f"received {received}: {error}")]
    return method, []


def _read_recipes(entry: Mapping[str, Any], path: KeyPath) -> tuple[list[RecipeSection], list[Problem]]:
    """Reads a method's recipes: one with its hyperparameters next to it, or a list with theirs in its items."""
    hyperparameters = {key: entry[key] for key in entry if key not in KEYS_OF_METHODS}
    if not isinstance(entry["recipe"], list):
        parts = str(entry["recipe"]).split("+")
        if len(parts) > 1 and all(part in MethodConfig.choices() for part in parts):
            text = f"received {received_value(entry['recipe'])}; a combination is {{recipe: [{', '.join(parts)}]}}"
            return [], [Problem((*path, "recipe"), text)]
        recipe, problems = check_section(RecipeSection, {"name": entry["recipe"], **hyperparameters})
        return [recipe] * (recipe is not None), [_of_entry(problem, entry, path) for problem in problems]
    text = "unknown key; hyperparameters go into the items of a list of recipes"
    problems = [Problem((*path, key), text, unknown=True) for key in hyperparameters]
    path = (*path, "recipe")
    if not entry["recipe"]:
        problems.append(Problem(path, "received [], must be a name or a list of names"))
    recipes = []
    for index, item in enumerate(entry["recipe"]):
        named = item if isinstance(item, Mapping) else {"name": item}
        recipe, refusals = check_section(RecipeSection, named, (*path, index))
        recipes += [recipe] * (recipe is not None)
        problems += refusals
    return recipes, problems


def _of_entry(problem: Problem, entry: Mapping[str, Any], path: KeyPath) -> Problem:
    """Gives the problem of a recipe its place in the entry, where other keys than hyperparameters are allowed, too."""
    key = "recipe" if problem.path == ("name",) else problem.path[0] if problem.path else None
    problem = problem._replace(path=path if key is None else (*path, key))
    if not problem.unknown:
        return problem
    recipe = RecipeSection.choices()[entry["recipe"]]
    names = parameters(recipe)
    others = ", ".join(other for other in KEYS_OF_METHODS if other != "recipe")
    near = suggestion(key, {*names, *KEYS_OF_METHODS})
    takes = f"unknown key; recipe {entry['recipe']} takes: {', '.join(sorted(names)) or 'nothing'}; or {others}"
    return problem._replace(text=f"{takes}; {near}" if near else takes)


def _restrict(shape: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `values` whose keys `shape` has, at every level."""
    picked = {}
    for key, below in shape.items():
        nested = isinstance(below, Mapping) and isinstance(values[key], Mapping)
        picked[key] = _restrict(below, values[key]) if nested else values[key]
    return picked


def check_methods(config: Config, source: str, overridden: Sequence[KeyPath] = ()) -> None:
    """Raises `ConfigError`, with a line for each problem, beginning with `source`.

    The requirements of methods must be met, and partition seeds must make a difference.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> load_config(None, ["methods=[fedbn]"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.errors.ConfigError: ...: methods.0: fedbn: received the model mlp, none of ...
    """
    from fedjax_bal.models import normalisation
    from fedjax_bal.parts import BALANCED, BATCH_STATISTICS, NeedsContext, check_needs

    problems = []
    for index, method in enumerate(config.methods):
        recipe = method.recipe
        context = NeedsContext(
            parts=(*recipe.parts, *BATCH_STATISTICS[method.training.arguments()["batch_statistics"]]),
            local=method.training.optimizer.built,
            carried=bool(recipe.carried),
            rounds=method.training.rounds,
            clients=method.partition.training_clients,
            auxiliary=[BALANCED] * (method.auxiliary.per_class > 0),
            model=method.model.name,
            normalisation=normalisation(method.model.name, method.model.parameters),
            clips=method.execution.options.clips,
        )
        try:
            check_needs(context)
        except ValueError as error:
            text = f"{method.name}: {str(error).removeprefix(f'{method.name}: ')}"
            problems.append(Problem(("methods", index), text))
    if config.partition_seeds and not any(map(_draws_clients, config.methods)):
        text = f"received {received_value(list(config.partition_seeds))}, but nothing is drawn in the natural partition"
        problems.append(Problem(("partition_seeds",), f"{text} into all users; leave them out"))
    raise_all(source, problems, overridden)


def _draws_clients(method: MethodConfig) -> bool:
    """Returns whether the partition's seed decides which rows are whose."""
    partition, auxiliary, evaluation = method.partition, method.auxiliary, method.evaluation
    return (
        partition.scheme != "natural"
        or partition.known_clients is not None
        or partition.imbalance_factor != 1
        or partition.new_clients is not None
        or evaluation.validation.wanted
        or evaluation.client_test.wanted
        or (auxiliary.per_class > 0 and auxiliary.source == "train")
    )
