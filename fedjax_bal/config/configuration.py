"""A whole configuration: shared sections, the methods to compare, each with its overrides, and the seeds."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import MinLen
from pydantic import Field

from fedjax_bal.annotations import DISTINCT, ParsedBy, PositiveShare, Seed, ShortForm, TextMatching, parameters
from fedjax_bal.config.problems import KeyPath, Problem, nearest_choices, raise_all, received_value
from fedjax_bal.config.schema import Sections, contradicted_parameter, resolve_alias
from fedjax_bal.config.sections import Section, check_section, merge_sections, refused, to_plain, variant
from fedjax_bal.registry import plugin_errors
from fedjax_bal.validate import suggestion

if TYPE_CHECKING:
    from fedjax_bal.recipes import Recipe

FOLDER_NAME = TextMatching(
    "a name of letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100 characters",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch,
)
METHOD_NAME = TextMatching(
    "printable text of 1 to 60 characters", lambda text: text.isprintable() and 0 < len(text.strip()) == len(text) <= 60
)

MOST_SEEDS = 1000
"""The largest number of seeds that may be given in place of a list of them."""

_SOURCE = TextMatching(
    "printable text of 1 to 300 characters", lambda text: text.isprintable() and 0 < len(text) <= 300
)
_COUNT = ShortForm(f"a count from 1 to {MOST_SEEDS} (3 for [0, 1, 2])")
_Seeds = Annotated[tuple[Seed, ...], MinLen(1), DISTINCT, _COUNT]
_Value = Annotated[Any, ParsedBy("a value of the key", lambda value: value)]


KEYS_OF_METHODS = ("name", "label", "recipe", *Sections.model_fields)
"""The keys of a method's entry next to its recipe's hyperparameters."""


class RecipeChoice(Section):
    """A recipe by name.

    Attributes:
        name: one of `fedjax_bal.recipes.RECIPES`.
        hyperparameters: all hyperparameters; the recipe is `RECIPES[name](**hyperparameters)`.
    """

    name: str
    hyperparameters: dict[str, Any]


class MethodConfig(Sections):
    """A method: its recipes, and the sections with its overrides applied.

    Attributes:
        name: the method's name in results.
        label: its name in reports; None for `name`. A change of it alone resumes a run.
        recipes: the recipes, to be combined in this order.
        overrides: the method's changes to the sections of the configuration.
    """

    registry: ClassVar[str] = "recipes.RECIPES"
    choices_kind: ClassVar[str] = "recipes"
    choice: ClassVar[str | None] = "recipe"
    listed: ClassVar[bool] = True

    name: str
    label: str | None = None
    recipes: tuple[RecipeChoice, ...]
    overrides: dict[str, Any]

    @property
    def recipe(self) -> "Recipe":
        """The combined recipe."""
        return _combined(self.recipes)


# pydantic passes entries on as they are: `read_methods` validates them once the shared sections are valid.
_WANTED = "a recipe's name, such as fedavg, or a mapping with the key recipe"
_Entry = Annotated[MethodConfig, ParsedBy(_WANTED, lambda entry: entry)]


class ReportedResults(Section):
    """A paper's results, which the report compares with this run's.

    Attributes:
        source: the paper and table, and where its setting differs.
        accuracy: test accuracy in (0, 1] by the method's name in this configuration.
        which: `final`, `best` over all rounds, or `last5`, the mean of the last five evaluations.
        setting: the paper's values of keys that this configuration changes, by their dotted paths. Changes on the
            command line, and in a file based on the paper's, are noted here.
    """

    source: Annotated[str, _SOURCE]
    accuracy: Annotated[dict[str, PositiveShare], MinLen(1)]
    which: Literal["final", "best", "last5"] = "final"
    setting: dict[str, _Value] = Field(default_factory=dict)


class Config(Sections):
    """A complete, checked configuration.

    Attributes:
        name: the name of the run folder; by default the file's name.
        methods: the methods to compare; an entry is a recipe's name, or a mapping with the key recipe, the recipe's
            hyperparameters, changes to the sections, a `name` in results, and a `label` in reports.
        seeds: distinct seeds; every method runs once with each.
        partition_seeds: one partition seed for each of `seeds`, so that intervals over seeds include the variation
            between partitions; None for a single partition, drawn with `partition.seed`.
        paper: a paper's results in this setting; None for none.
        plugins: the plug-ins that a run used, with the digests of their sources.
        files: the files that a run read because its configuration names them, with their SHA-256; other content is
            refused. `{}` accepts any.
    """

    name: Annotated[str, FOLDER_NAME]
    methods: Annotated[tuple[_Entry, ...], MinLen(1)]
    seeds: _Seeds = (0,)
    partition_seeds: _Seeds | None = None
    paper: ReportedResults | None = None
    plugins: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def child(cls, key: str) -> type[Section] | None:
        """Returns the class of the section at a key; for `methods`, the class of its entries."""
        return MethodConfig if key == "methods" else super().child(key)

    def with_partition_of(self, seed: int, method: MethodConfig) -> MethodConfig:
        """Returns a method's configuration with the partition seed that belongs to one of `seeds`.

        Example:
            >>> from fedjax_bal.config import load_config
            >>> config = load_config(None, ["seeds=[0, 1]", "partition_seeds=[5, 6]"])
            >>> config.with_partition_of(1, config.methods[0]).partition.seed
            6
        """
        if self.partition_seeds is None:
            return method
        partition = method.partition.model_copy(update={"seed": self.partition_seeds[self.seeds.index(seed)]})
        return method.model_copy(update={"partition": partition})

    def _check(self) -> Self:
        if self.partition_seeds is not None and len(self.partition_seeds) != len(self.seeds):
            rule = f"must be as many as the {len(self.seeds)} of `seeds`"
            raise refused(f"received {len(self.partition_seeds)} seeds, {rule}", "partition_seeds")
        return super()._check()


def _combined(recipes: Iterable[RecipeChoice]) -> "Recipe":
    """Combines recipes into one; raises `ValueError` if they can't be combined."""
    from fedjax_bal.recipes import RECIPES, combine

    return combine(*(RECIPES[recipe.name](**recipe.hyperparameters) for recipe in recipes))


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
            if key == "name" and not any("name" in entries[each] for each in (first, index)):
                after = "recipe" if isinstance(entry["recipe"], str) else "recipes"
                both = f"methods.{first} and methods.{index} are both called {received_value(text)} after their {after}"
                problems.append(Problem(path, f"{both}; give one of them a `name`"))
            else:
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
        return None, [Problem((*path, "recipe"), f"missing; {names}")]
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

    # A run folder's file states every default of the shared sections and must mean the same when it is read again, so
    # overrides are merged into the completed sections.
    sections = {key: getattr(shared, key, None) for key in Sections.model_fields}
    overrides = {key: value for key, value in entry.items() if key in Sections.model_fields}
    if overrides and shared:
        partition = overrides.get("partition")
        if isinstance(partition, Mapping) and contradicted_parameter(partition) is None:
            overrides["partition"] = resolve_alias(partition)
        changed, refusals = check_section(Sections, merge_sections(Sections, to_plain(sections), overrides), path)
        problems += refusals
        if changed is not None:
            sections = dict(changed)
            overrides = _restrict(overrides, to_plain(changed))
    if problems:
        return None, problems
    method = MethodConfig.model_construct(
        name=name, label=label, recipes=tuple(recipes), overrides=overrides, **sections
    )
    return method, []


def _read_recipes(entry: Mapping[str, Any], path: KeyPath) -> tuple[list[RecipeChoice], list[Problem]]:
    hyperparameters = {key: entry[key] for key in entry if key not in KEYS_OF_METHODS}
    if not isinstance(entry["recipe"], list):
        recipe, problems = _read_recipe(entry["recipe"], hyperparameters, path, "recipe")
        return ([recipe] if recipe else []), problems
    text = "unknown key; hyperparameters go into the items of a list of recipes"
    problems = [Problem((*path, key), text, unknown=True) for key in hyperparameters]
    path = (*path, "recipe")
    if not entry["recipe"]:
        problems.append(Problem(path, "received [], must be a name or a list of names"))
    recipes = []
    for index, item in enumerate(entry["recipe"]):
        named = item if isinstance(item, Mapping) else {"name": item}
        if "name" not in named:
            rule = "lacks the key name: an item is a recipe's name, or {name: NAME, ...} with its hyperparameters"
            problems.append(Problem((*path, index), rule))
            continue
        values = {key: value for key, value in named.items() if key != "name"}
        recipe, refusals = _read_recipe(named["name"], values, (*path, index), "name")
        recipes += [recipe] if recipe else []
        problems += refusals
    if not problems:
        try:
            _combined(recipes)
        except (ValueError, TypeError) as error:
            problems.append(Problem(path, f"received {[recipe.name for recipe in recipes]}: {error}"))
    return recipes, problems


def _read_recipe(
    name: Any, values: Mapping[str, Any], path: KeyPath, key: str
) -> tuple[RecipeChoice | None, list[Problem]]:
    from fedjax_bal.recipes import RECIPES, with_variant

    if not isinstance(name, str) or name not in RECIPES:
        hint = nearest_choices(name, RECIPES, kind=MethodConfig.choices_kind)
        return None, [Problem((*path, key), f"received {received_value(name)}; {hint}")]
    try:
        values = with_variant(RECIPES[name], values)
        fields = parameters(RECIPES[name])
        checked, problems = check_section(variant(Section, name, tuple(fields.items())), values, path)
        if checked is not None:
            values = to_plain(checked)
            with plugin_errors():
                RECIPES[name](**values)
            return RecipeChoice(name=name, hyperparameters=dict(values)), []
    except (ValueError, TypeError) as error:  # raised by the recipe, perhaps about one of its hyperparameters
        text = str(error)
        mentioned = [given for given in values if re.search(rf"\b{re.escape(given)}\b", text)]
        if len(mentioned) != 1:
            return None, [Problem(path, f"refused by recipe {name}: {text}")]
        _, received, rule = text.partition(f"{mentioned[0]}: received ")
        rule = rule if received else f"{received_value(values[mentioned[0]])}; {text}"
        return None, [Problem((*path, mentioned[0]), f"received {rule}")]

    # An unknown key may be meant for the recipe or, in an entry of a single recipe, for the sections.
    takes = f"unknown key; recipe {name} takes: {', '.join(sorted(fields)) or 'nothing'}"
    if key == "recipe":
        takes += f"; or {', '.join(key for key in KEYS_OF_METHODS if key != 'recipe')}"
    for index, problem in enumerate(problems):
        if problem.unknown:
            near = suggestion(problem.path[-1], {*fields, *Sections.model_fields})
            problems[index] = problem._replace(text=f"{takes}; {near}" if near else takes)
    return None, problems


def _restrict(shape: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `values` whose keys `shape` has, at every level."""
    picked = {}
    for key, below in shape.items():
        nested = isinstance(below, Mapping) and isinstance(values[key], Mapping)
        picked[key] = _restrict(below, values[key]) if nested else values[key]
    return picked


def check_methods(config: Config, source: str, overridden: Sequence[KeyPath] = ()) -> None:
    """Raises `ConfigError` for methods whose requirements aren't met, one line each, beginning with `source`.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> load_config(None, ["methods=[fedbn]"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: ...: methods.0: fedbn: received the model mlp, none of ...
    """
    from fedjax_bal.models import normalisation
    from fedjax_bal.parts import BALANCED, BATCH_STATISTICS, NeedsContext, check_needs

    problems = []
    for index, method in enumerate(config.methods):
        recipe = method.recipe
        facts = NeedsContext(
            parts=(*recipe.parts, *BATCH_STATISTICS[method.training.arguments()["batch_statistics"]]),
            local=method.training.optimizer.built,
            carried=bool(recipe.carried),
            rounds=method.training.rounds,
            clients=method.partition.known_clients,
            auxiliary=[BALANCED] * (method.auxiliary.per_class > 0),
            model=method.model.name,
            normalisation=normalisation(method.model.name, method.model.parameters),
            clips=method.execution.options.clips,
        )
        try:
            check_needs(facts)
        except ValueError as error:
            text = f"{method.name}: {str(error).removeprefix(f'{method.name}: ')}"
            problems.append(Problem(("methods", index), text))
    raise_all(source, problems, overridden)


def unknown_published(accuracies: Iterable[str], methods: Collection[str]) -> list[Problem]:
    """Finds published names that are neither methods nor combinations of recipes.

    A table may list recipes that the configuration doesn't run; text in brackets distinguishes variants of a recipe.
    """
    problems = []
    for name in accuracies:
        recipes = name.partition(" (")[0].split("+")
        if name not in methods and not all(recipe in MethodConfig.choices() for recipe in recipes):
            text = f"there is no method of this name; {nearest_choices(name, methods)}"
            problems.append(Problem(("paper", "accuracy", name), text))
    return problems
