"""The plan of a search: the keys that each method searches, and the seeds, partitions and rows that it searches on."""

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import (
    COMMAND_LINE,
    SEED_LISTS,
    Config,
    ConfigError,
    KeyPath,
    MethodConfig,
    Sections,
    build_config,
    completed_path,
    config_of,
    dump_yaml,
    key_paths,
    merge,
    nearest_choices,
    read_command,
    received_value,
    resolved_sheet,
    to_plain,
    with_changes,
    with_entries,
)
from fedjax_bal.lab.sweep_plan import in_words, path_of, shown
from fedjax_bal.metrics import stopping_metrics
from fedjax_bal.validate import suggestion

VALIDATION_SHARE = 0.2
"""The share of each class that a search sets aside if the configuration has no validation rows."""
_SEARCHED = ("training", "model", "selection")
"""Sections whose keys can be searched. The others describe the task, whose easiest version would always win."""
_FIRST_SEED = 1000  # so that more seeds of the comparison stay others than those of the search
_PREFIX = "validation_"
_DIGITS = 5  # of values within a range: names of folders and tables show the exact value, and no two trials are equal
_NEAR = 0.05  # share of a range that counts as its border


class Wanted(NamedTuple):
    """The values to search of a key, as the command line gives them: a range, or a list."""

    text: str
    low: float = 0
    high: float = 0
    log: bool = False
    values: tuple[Any, ...] = ()

    @property
    def checked(self) -> tuple[Any, ...]:
        """The values that a method must accept."""
        return self.values or (self.low, self.high)


class SearchedKey(NamedTuple):
    """A key that a method searches.

    Attributes:
        name: the key, as the command line gives it.
        path: its path in the method's entry.
        wanted: its values.
        whole: whether a range has whole numbers only.
        own: the method's value in the configuration.
    """

    name: str
    path: KeyPath
    wanted: Wanted
    whole: bool
    own: Any

    @property
    def change(self) -> KeyPath:
        """Its path in a configuration that has no other method."""
        return ("methods", "0", *self.path)

    @property
    def dotted(self) -> str:
        """The same, as an axis of a sweep has it."""
        return ".".join(map(str, self.change))

    @property
    def by_text(self) -> dict[str, Any]:
        """The listed values by the texts that stand for them in a study; empty for a range."""
        return {shown(value): value for value in self.wanted.values}

    @property
    def has_own(self) -> bool:
        """True if the method's value in the configuration can be drawn."""
        if self.wanted.values:
            return self.own in self.wanted.values
        number = isinstance(self.own, int | float) and not isinstance(self.own, bool)
        return number and self.wanted.low <= self.own <= self.wanted.high

    def value(self, drawn: Any) -> Any:
        """Returns the key's value for a value drawn by a study."""
        if self.wanted.values:
            return self.by_text[drawn]
        if self.whole:
            return int(drawn)
        if drawn == self.own:
            return drawn
        return min(max(float(f"{drawn:.{_DIGITS}g}"), self.wanted.low), self.wanted.high)

    def is_at_border(self, value: Any) -> bool:
        """Returns whether a value is so near to an end of its range that a better one may lie outside."""
        if self.wanted.values:
            return False
        low = self.wanted.low
        high = self.wanted.high
        if self.whole:
            return value in (low, high)
        scale = math.log if self.wanted.log else float
        share = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return not _NEAR < share < 1 - _NEAR


class MethodSearch(NamedTuple):
    """The search of one method.

    Attributes:
        name: the method's name.
        index: its position in the configuration.
        data: the configuration with this method alone, on the search's seeds and partitions, with validation rows.
        keys: the keys to search.
        default_share: whether the validation rows are `VALIDATION_SHARE`, because the configuration has none.
    """

    name: str
    index: int
    data: dict[str, Any]
    keys: tuple[SearchedKey, ...]
    default_share: bool

    def config(self, values: Mapping[str, Any]) -> Config:
        """Returns the configuration of a trial; raises `ConfigError` for values that don't go together."""
        return build_config(self.data, [(key.change, values[key.name]) for key in self.keys], in_words(values))


class Search(NamedTuple):
    """A search after reading and checking.

    Attributes:
        config: the configuration, without the searched keys.
        data: the same, as it was stated.
        methods: the search of each method that has one of the keys.
        metric: the validation metric.
        seeds: the seeds of every trial, and of its partitions; the configuration uses none of them.
        text: what identifies the search, as YAML.
    """

    config: Config
    data: dict[str, Any]
    methods: tuple[MethodSearch, ...]
    metric: str
    seeds: tuple[int, ...]
    text: str

    def compared(self, best: Mapping[str, Mapping[str, Any]]) -> Config:
        """Returns the comparison of all methods with their best values, and with their own where these are others.

        Those with their best values come first, so that differences are from the first method at its best. It has the
        configuration's own seeds, partitions and rows.

        Args:
            best: the best values by method's name and key, without methods whose own settings are the best.
        """
        at_best: list[Any] = []
        before: list[Any] = []
        searches = {search.index: search for search in self.methods}
        for index, method in enumerate(self.config.methods):
            entry = _spelled_out(self.data["methods"][index])
            if method.name not in best:
                at_best.append(entry)
            else:
                before.append(entry)
                changes = [(key.change, best[method.name][key.name]) for key in searches[index].keys]
                [tuned] = with_changes({**self.data, "methods": [entry]}, changes, "")[0]["methods"]
                label = {"label": f"{entry['label']}, tuned"} if "label" in entry else {}
                at_best.append({**tuned, "name": tuned_name(method.name), **label})
        data = {key: value for key, value in self.data.items() if key != "paper"}
        return build_config({**data, "methods": [*at_best, *before]}, [], "comparison")

    def changes(self, best: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Returns the changes of the command that trains all methods with their best settings; empty for none."""
        several = len(self.config.methods) > 1
        changes = []
        for search in self.methods:
            entry = self.data["methods"][search.index]
            for key in search.keys:
                if search.name not in best:
                    continue
                if key.path[0] == "recipe":
                    return []  # a combination's hyperparameters have no path before they are given
                own = several or len(key.path) == 1 or key.path[0] in entry
                name = ".".join(map(str, ("methods", search.index, *key.path))) if own else key.name
                changes.append(f"{name}={shown(best[search.name][key.name])}")
        return changes


def tuned_name(method: str) -> str:
    """Returns the name, in the comparison, of a method with its best values."""
    return f"{method}-tuned"


def plan_search(
    path: str | os.PathLike[str] | None,
    arguments: Sequence[str],
    *,
    metric: str = "balanced_accuracy",
    repeats: int = 1,
) -> Search:
    """Reads and checks a search.

    Args:
        path: a configuration; None for the quickstart.
        arguments: the keys to search, `lr=0.001..1:log` or `batch_size=10,20`, and changes, as on the command line.
        metric: the validation metric to search by, with or without `validation_`.
        repeats: the number of seeds, each with its own partition, that a trial is trained with.

    Raises:
        ValueError: a key, its values, the metric or the configuration is invalid.

    Example:
        >>> search = plan_search(None, ["methods=fedavg,fedprox", "lr=0.01..1:log", "mu=0..1"])
        >>> [(method.name, [key.name for key in method.keys]) for method in search.methods], search.seeds
        ([('fedavg', ['lr']), ('fedprox', ['lr', 'mu'])], (1000,))
    """
    metric = validation_metric(metric)
    wanted: dict[str, Wanted] = {}
    changes = []
    for text in arguments:
        key, _, value = text.partition("=")
        if not _is_range(value):
            changes.append(text)
        elif key in wanted:
            raise ConfigError(f"{COMMAND_LINE}: {key}: received two ranges; give one of them")
        else:
            wanted[key] = read_range(key, value)
    command = read_command(path, changes)
    if command.file_axes is not None:
        raise ConfigError(
            f"{command.source}: has the key `sweep`, so it is a sweep; search a configuration without it, and give the "
            "keys as KEY=LOW..HIGH on the command line"
        )
    for key, values in command.line_axes.items():
        if key in wanted:
            raise ConfigError(f"{COMMAND_LINE}: {key}: received a range and a list of values; give one of them")
        wanted[key] = Wanted(",".join(map(shown, values)), values=tuple(values))
    if not wanted:
        raise ConfigError(f"{COMMAND_LINE}: received no key to search; give one or more, such as lr=0.001..1:log")

    config = config_of(command._replace(line_axes={}))
    data, _ = with_changes(command.stated, with_entries(command.changes, command.stated), COMMAND_LINE)
    seeds = tuple(itertools.islice(_fresh_seeds(config), repeats))
    searches = tuple(_method_search(data, config, index, wanted, seeds) for index in range(len(config.methods)))
    for key, values in wanted.items():
        if not any(key == searched.name for search in searches for searched in search.keys):
            raise _unknown_key(key, values, config)
    for search in searches:
        twice = [key for key in search.keys if [other.path for other in search.keys].count(key.path) > 1]
        if twice:
            names = ", ".join(key.name for key in twice)
            raise ConfigError(f"{COMMAND_LINE}: {names}: are the same key of {search.name}; give one of them")
    keys = {key: values.text for key, values in wanted.items()}
    # The comparison may have more seeds later.
    setting = {key: value for key, value in resolved_sheet(config).items() if key not in SEED_LISTS}
    identity = {"search": {"metric": metric, "seeds": list(seeds), "keys": keys}, **setting}
    searches = tuple(search for search in searches if search.keys)
    return Search(config, data, searches, metric, seeds, dump_yaml(identity))


def validation_metric(name: str) -> str:
    """Returns the validation metric that a name stands for: `accuracy` for `validation_accuracy`.

    Raises:
        ValueError: no validation metric has this name.

    Example:
        >>> validation_metric("balanced_accuracy")
        'validation_balanced_accuracy'
    """
    known = [metric.removeprefix(_PREFIX) for metric in stopping_metrics()]
    short = name.removeprefix(_PREFIX)
    if short not in known:
        raise ValueError(
            f"--metric: received {received_value(name)}; a search goes by a metric of the validation rows, never of "
            f"the test set: {nearest_choices(name, known)}"
        )
    return _PREFIX + short


def _is_range(value: str) -> bool:
    low, dots, _ = value.partition("..")
    return bool(low and dots) and not set(value) & set("/\\[{\"'")


def read_range(key: str, text: str) -> Wanted:
    """Reads `LOW..HIGH` or `LOW..HIGH:log`.

    Example:
        >>> read_range("lr", "0.001..1:log")[1:4]
        (0.001, 1, True)
    """
    where = f"{COMMAND_LINE}: {key}: received {text}"
    ends, colon, scale = text.partition(":")
    low, high = map(_number, ends.split("..", 1))
    if low is None or high is None:
        raise ConfigError(
            f"{where}, must be LOW..HIGH with two numbers, such as 0.001..1:log; other values are listed: {key}=A,B"
        )
    if colon and scale != "log":
        raise ConfigError(f"{where}, must end with the second number, or with :log for a logarithmic scale")
    if low >= high:
        raise ConfigError(f"{where}, must begin with the smaller number: {high:g}..{low:g}")
    if colon and low <= 0:
        raise ConfigError(f"{where}, must begin above 0 with a logarithmic scale, such as 0.001..{high:g}:log")
    return Wanted(text, low, high, bool(colon))


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


def _fresh_seeds(config: Config) -> Iterator[int]:
    """Yields the seeds that neither runs nor partitions of a configuration use."""
    used = {*config.seeds, *(config.partition_seeds or ()), *(method.partition.seed for method in config.methods)}
    return (seed for seed in itertools.count(_FIRST_SEED) if seed not in used)


def _method_search(
    data: Mapping[str, Any], config: Config, index: int, wanted: Mapping[str, Wanted], seeds: Sequence[int]
) -> MethodSearch:
    method = config.methods[index]
    entry = _spelled_out(data["methods"][index])
    default_share = not method.evaluation.validation.wanted
    if default_share:
        entry = merge(entry, [(("evaluation", "validation", "fraction"), VALIDATION_SHARE)], MethodConfig)
    alone = {key: value for key, value in data.items() if key != "paper"}
    alone |= {"methods": [entry], "seeds": list(seeds), "partition_seeds": list(seeds)}
    keys = []
    for key, values in wanted.items():
        found = _find_key(key, values.checked[0], method, listed=isinstance(entry["recipe"], list))
        if found is not None:
            keys.append(SearchedKey(key, found[0], values, False, found[1]))
    checked = tuple(_checked(key, keys, method.name, alone) for key in keys)
    return MethodSearch(method.name, index, alone, checked, default_share)


def _spelled_out(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a method's entry in which each recipe of a list is a mapping, so that its hyperparameters have paths."""
    recipe = entry["recipe"]
    if isinstance(recipe, list):
        recipe = [item if isinstance(item, Mapping) else {"name": item} for item in recipe]
    return {**entry, "recipe": recipe}


def _find_key(key: str, value: Any, method: MethodConfig, *, listed: bool) -> tuple[KeyPath, Any] | None:
    """Finds a key of a method: its path in the method's entry, and its value; None if the method hasn't got it.

    A short key means the sections' first. `RECIPE.KEY` is always the recipe's hyperparameter.
    """
    sections = _sections_of(method)
    path = completed_path(path_of(key), value, sections)
    is_known = path in set(key_paths(Sections, sections))
    if is_known and path[0] in _SEARCHED:
        found: Any = sections
        for name in path:
            found = found.get(name)
        return path, found
    *above, name = key.split(".")
    holders = [
        (place, recipe)
        for place, recipe in enumerate(method.recipes)
        if name in recipe.hyperparameters and above in ([], [recipe.name])
    ]
    if len(holders) > 1:
        recipes = " or ".join(f"{recipe.name}.{name}" for _, recipe in holders)
        raise ConfigError(f"{COMMAND_LINE}: {key}: ambiguous for {method.name}; give {recipes}")
    if holders:
        [(place, recipe)] = holders
        return ("recipe", str(place), name) if listed else (name,), recipe.hyperparameters[name]
    if is_known:
        raise ConfigError(
            f"{COMMAND_LINE}: {key}: is {'.'.join(map(str, path))}, which describes the task; a search chooses keys of "
            f"{', '.join(_SEARCHED)} and hyperparameters of methods"
        )
    return None


def _sections_of(method: MethodConfig) -> dict[str, Any]:
    return {key: to_plain(getattr(method, key)) for key in Sections.model_fields}


def _checked(key: SearchedKey, keys: Sequence[SearchedKey], method: str, data: Mapping[str, Any]) -> SearchedKey:
    """Checks a key's values, or the ends of its range, and finds out whether it takes whole numbers only."""
    # Along with the first values of the other keys, because some need each other: an optimizer and its rate.
    others = [(other.change, other.wanted.checked[0]) for other in keys if other is not key]

    def try_value(value: Any) -> None:
        build_config(data, [*others, (key.change, value)], f"{method} with {key.name}={shown(value)}")

    try:
        for value in key.wanted.checked:
            try_value(value)
    except ConfigError as error:
        raise ConfigError(f"{COMMAND_LINE}: {key.name}={key.wanted.text}: {error}") from None
    if key.wanted.values:
        return key
    low = key.wanted.low
    high = key.wanted.high
    try:
        try_value(low + 0.5)
    except ConfigError:
        return key._replace(whole=isinstance(low, int) and isinstance(high, int))
    return key._replace(wanted=key.wanted._replace(low=float(low), high=float(high)))


def _unknown_key(key: str, values: Wanted, config: Config) -> ConfigError:
    """Returns the error about a key that no method has."""
    names: dict[str, None] = {}
    for method in config.methods:
        sections = _sections_of(method)
        completed_path(path_of(key), values.checked[0], sections, COMMAND_LINE)  # which raises if it is ambiguous
        names |= {str(path[-1]): None for path in key_paths(Sections, sections) if path[0] in _SEARCHED}
        names |= {name: None for recipe in method.recipes for name in recipe.hyperparameters}
    methods = ", ".join(method.name for method in config.methods)
    near = suggestion(key.rpartition(".")[2], names)
    return ConfigError(
        f"{COMMAND_LINE}: {key}={values.text}: none of the methods has this key ({methods}); "
        f"{near or 'fedjax-bal config explain all lists keys, fedjax-bal list methods those of methods'}"
    )
