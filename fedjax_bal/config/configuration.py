"""A whole configuration: its sections, the methods to compare, and the seeds."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import MinLen
from pydantic import Field

from fedjax_bal.annotations import DISTINCT, Probability, Readable, Seed, ShortForm, TextThat, documented
from fedjax_bal.config.schema import Sections
from fedjax_bal.config.sections import Section, merge_sections, to_plain

if TYPE_CHECKING:
    from fedjax_bal.recipes import Recipe

FOLDER_NAME = TextThat(
    "a name of letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100 characters",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch,
)
METHOD_NAME = TextThat(
    "printable text of 1 to 60 characters", lambda text: text.isprintable() and 0 < len(text.strip()) == len(text) <= 60
)

MOST_SEEDS = 1000
"""The largest number of seeds that may be given in place of a list of them."""

_SOURCE = TextThat("printable text of 1 to 300 characters", lambda text: text.isprintable() and 0 < len(text) <= 300)
_COUNT = ShortForm(f"a count from 1 to {MOST_SEEDS} (3 for [0, 1, 2])")
_Seeds = Annotated[tuple[Seed, ...], MinLen(1), DISTINCT, _COUNT]
_Value = Annotated[Any, Readable("a value of the key", lambda value: value)]
_Entry = Annotated[Any, Readable("a recipe's name or a mapping with the key recipe", lambda entry: entry)]


class RecipeChoice(Section):
    """A recipe by name.

    Attributes:
        name: one of `fedjax_bal.recipes.RECIPES`.
        hyperparameters: all of them, so that the recipe is `RECIPES[name](**hyperparameters)`.
    """

    name: str
    hyperparameters: dict[str, Any]


def combined(recipes: Iterable[RecipeChoice]) -> "Recipe":
    """The recipes in one; raises `ValueError` if they can't be combined."""
    from fedjax_bal.recipes import RECIPES, combine

    return combine(*(RECIPES[spec.name](**spec.hyperparameters) for spec in recipes))


class MethodEntry(Section):
    """One entry of the list of methods.

    Attributes:
        name: its name in reports.
        recipes: combined in order.
        overrides: its changes to the sections.
    """

    registry: ClassVar[str] = "recipes.RECIPES"
    choice: ClassVar[str | None] = "recipe"
    listed: ClassVar[bool] = True

    name: str
    recipes: tuple[RecipeChoice, ...]
    overrides: dict[str, Any]

    @classmethod
    def common(cls) -> frozenset[str]:
        """The keys of an entry that are independent of its recipe."""
        return frozenset({"name", *Sections.model_fields})

    @classmethod
    def child(cls, key: str) -> type[Section] | None:
        """The section that an entry overrides under a key."""
        return Sections.child(key)


class MethodConfig(Sections):
    """The configuration of one method: the sections with its overrides in place, and its recipes."""

    name: str
    recipes: tuple[RecipeChoice, ...]

    @property
    def recipe(self) -> "Recipe":
        """The recipes combined."""
        return combined(self.recipes)


class ReportedResults(Section):
    """A paper's results, which the report sets beside this run's.

    Attributes:
        source: the paper and table, and where its setting differs.
        accuracy: test accuracy in (0, 1] by the method's name in this configuration.
        which: `final`, `best` over all rounds, or `last5`, the mean of the last five evaluations.
        setting: the paper's values of keys that this configuration changes, by their dotted paths. Changes on the
            command line, and in a file based on the paper's, are noted here.
    """

    source: Annotated[str, _SOURCE]
    accuracy: Annotated[dict[str, Probability], MinLen(1)]
    which: Literal["final", "best", "last5"] = "final"
    setting: dict[str, _Value] = Field(default_factory=dict)


class UnresolvedConfig(Sections):
    """A configuration as read, its methods not checked yet."""

    name: Annotated[str, FOLDER_NAME]
    methods: Annotated[tuple[_Entry, ...], MinLen(1)]
    seeds: _Seeds = (0,)
    partition_seeds: _Seeds | None = None
    paper: ReportedResults | None = None

    @classmethod
    def child(cls, key: str) -> type[Section] | None:
        """The section under a key; that of the list of methods is the one of its entries."""
        return MethodEntry if key == "methods" else super().child(key)

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The meaning of each key, with those that the complete configuration documents."""
        return super().meanings() | documented(Config)


class Config(UnresolvedConfig):
    """A complete, checked configuration.

    Attributes:
        name: of the run folder; without it, that of the file.
        methods: the methods that are compared; an entry is a recipe's name, or a mapping with the key recipe, the
            recipe's hyperparameters, and changes to the sections.
        seeds: distinct; every method runs once with each.
        partition_seeds: for each of `seeds` the seed of a partition of its own, so that intervals over seeds cover the
            draw of the partition too; None for one partition, that of `partition.seed`.
        paper: a paper's results in this setting; None for none.
        plugins: the plug-ins that it uses, with the digests of their sources.
    """

    methods: tuple[MethodEntry, ...]
    plugins: dict[str, str] = Field(default_factory=dict)

    def for_method(self, index: int) -> MethodConfig:
        """The configuration of one method.

        Args:
            index: its position in `methods`.

        Returns:
            The sections with the method's overrides in place, and its recipes.

        Raises:
            IndexError: there is no such method.

        Example:
            >>> from fedjax_bal.config import load_config
            >>> load_config(None).for_method(3).training.optimizer.parameters["momentum"]
            0.0
        """
        method = self.methods[index]
        base = {key: to_plain(getattr(self, key)) for key in Sections.model_fields}
        sections = Sections.model_validate(merge_sections(Sections, base, method.overrides))
        return MethodConfig(name=method.name, recipes=method.recipes, **dict(sections))

    def with_partition_of(self, seed: int, method: MethodConfig) -> MethodConfig:
        """The configuration of a method with the partition that one of the seeds runs on.

        Example:
            >>> from fedjax_bal.config import load_config
            >>> config = load_config(None, ["seeds=[0, 1]", "partition_seeds=[5, 6]"])
            >>> config.with_partition_of(1, config.for_method(0)).partition.seed
            6
        """
        if self.partition_seeds is None:
            return method
        partition = method.partition.model_copy(update={"seed": self.partition_seeds[self.seeds.index(seed)]})
        return method.model_copy(update={"partition": partition})
