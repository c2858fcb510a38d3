"""What a base brings, and which of it is left out because the user has chosen other data or another partition.

A partition, rows taken out for the server, a target accuracy or a paper's results describe the data of the
configuration that they stand in. Over another data set they would thin it out, or mean nothing, without a word.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_bal.config.configuration import Config, UnresolvedConfig
from fedjax_bal.config.federation_sections import ALL_CLIENTS
from fedjax_bal.config.methods import read_methods
from fedjax_bal.config.problems import KeyPath, dotted_path, received_value
from fedjax_bal.config.resolved import leaves
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, merge_sections, to_plain

_LONG_TAIL: tuple[KeyPath, ...] = tuple(
    ("partition", key) for key in ("imbalance_factor", "imbalance_profile", "imbalance_order")
)
_OF_DATA: tuple[KeyPath, ...] = (
    ("partition",),
    ("auxiliary",),
    ("selection", "clients_per_round"),
    ("training", "early_stopping"),
    *(("evaluation", key) for key in ("target_accuracy", "shots", "validation", "client_test")),
    ("paper",),
)
_BY_CLIENT = ("availability", "delivery", "speed")


class Layers(NamedTuple):
    """A configuration that isn't checked yet, in two layers.

    Attributes:
        base: what a base brings: the file that the key `base` names, or a built-in configuration as a whole.
        stated: what the user's own file states over it.
    """

    base: Mapping[str, Any]
    stated: Mapping[str, Any]

    @property
    def merged(self) -> dict[str, Any]:
        """The stated keys laid over the base; a list is replaced as a whole, that of the methods too."""
        methods = {key: self.stated[key] for key in ("methods",) if key in self.stated}
        others = {key: value for key, value in self.stated.items() if key != "methods"}
        return merge_sections(UnresolvedConfig, self.base, others) | methods  # last, as in the text of a sweep

    @property
    def settled(self) -> dict[str, Any]:
        """The stated keys laid over what they leave of the base."""
        return self.without(self.stale(self.merged)).merged

    def without(self, paths: Iterable[KeyPath]) -> "Layers":
        """The same without some keys of the base and of its entries of methods; what the user states stays."""
        base = dict(self.base)
        for path in paths:
            base = _without(base, path)
            if isinstance(base.get("methods"), list):
                base["methods"] = [_without(own, path) for own in base["methods"]]
        return Layers(base, self.stated)

    def stale(self, chosen: Mapping[str, Any]) -> list[KeyPath]:
        """The keys of the base that make no sense for what is chosen in the whole configuration.

        Rows that the server holds stay if a method needs them.
        """
        if _another("dataset", self.base, chosen):
            files = [(key,) for key in _BY_CLIENT if "file" in _mapping(self.base.get(key))]
            found = [*_OF_DATA, *files]  # a file says something about each of the base's clients
        elif _another("partition", self.base, chosen):
            by_owner = _variant("partition", chosen).model_fields["clients"].default == ALL_CLIENTS
            found = [*_LONG_TAIL, *([("partition", "clients")] if by_owner else []), ("auxiliary",), ("paper",)]
        else:
            return []
        return [path for path in found if path != ("auxiliary",) or not _needs_server_rows(chosen)]


def left_out(base: Mapping[str, Any], paths: Iterable[KeyPath], data: Mapping[str, Any], config: Config) -> list[str]:
    """Lists, as KEY=VALUE, the keys of a base that were left out and that the user would otherwise have got.

    Args:
        base: what the base brings.
        paths: what was left out of it.
        data: the configuration as it was read without these keys: those that are there nevertheless are stated.
        config: the same, checked and complete.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> base = {"partition": {"imbalance_factor": 50, "clients": 30, "seed": 0}}
        >>> left_out(base, [("partition",)], {"partition": {"clients": 20}}, load_config("absent_clients"))
        ['partition.imbalance_factor=50']
    """
    whole, stated = leaves(to_plain(config)), leaves(data)
    dropped = tuple(f"{dotted_path(path)}." for path in paths)
    found = [
        f"{key}={received_value(value)}"
        for key, value in leaves({key: value for key, value in base.items() if key != "paper"}).items()
        if f"{key}.".startswith(dropped) and key not in stated and key in whole and whole[key] != value
    ]
    return found + ["paper"] * ("paper." in dropped and base.get("paper") is not None and "paper" not in data)


def _another(section: str, base: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether another name is chosen than the base's; not if one of the two is unknown, which is refused later."""
    before, now = _variant(section, base), _variant(section, chosen)
    return None not in (before.picked, now.picked) and before.picked != now.picked


def _variant(section: str, data: Mapping[str, Any]) -> type[Section]:
    """The class of a section with the parameters of its choice; without any for an unknown choice."""
    kind: Any = Sections.child(section)
    return kind.chosen(_mapping(data.get(section))) or kind


def _needs_server_rows(data: Mapping[str, Any]) -> bool:
    from fedjax_bal.parts import SERVER_ROWS
    from fedjax_bal.recipes import RECIPES

    entries = data.get("methods")
    sections = {key: value for key, value in data.items() if key in Sections.model_fields}
    methods, _ = read_methods(entries if isinstance(entries, list) else [], sections)
    recipes = (RECIPES[spec.name](**spec.hyperparameters) for method in methods for spec in method.recipes)
    return any(SERVER_ROWS in part.needs for recipe in recipes for part in recipe.parts)


def _without(value: Any, path: KeyPath) -> Any:
    key, *rest = path
    if not isinstance(value, Mapping) or key not in value:
        return value
    if rest:
        return {**value, key: _without(value[key], tuple(rest))}
    return {name: item for name, item in value.items() if name != key}


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
