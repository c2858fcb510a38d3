"""What to cite: the papers behind a recipe, as BibTeX."""

import difflib
import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from fedjax_bal.recipes import Recipe

_FIELD = re.compile(r"^  (\w+) *= \{(.*)\},\n", re.MULTILINE)
_OWN = re.compile(r"^  (?:venue|recipes) .*\n", re.MULTILINE)


class Paper(NamedTuple):
    """A paper.

    Attributes:
        bibtex: its entry.
        short: authors, venue and year in one line.
        recipes: the names of the recipes that come from it.
    """

    bibtex: str
    short: str
    recipes: tuple[str, ...]


@functools.cache
def papers() -> Mapping[str, Paper]:
    """All papers by the keys of their entries, in the order of the file; an entry is a block with a field a line."""
    blocks = resources.files("fedjax_bal.recipes").joinpath("papers.bib").read_text("utf-8").split("\n\n")[1:]
    return {block[block.index("{") + 1 : block.index(",")]: _paper(block.strip()) for block in blocks}


def _paper(entry: str) -> Paper:
    fields = dict(_FIELD.findall(entry))
    families = [author.partition(",")[0] for author in fields["author"].split(" and ")]
    named = f"{families[0]} et al." if len(families) > 2 else " and ".join(families)
    short = f"{named}, {fields['venue']} {fields['year']}"
    return Paper(_OWN.sub("", entry), short, tuple(fields["recipes"].split(", ")))


def _behind(name: str) -> list[str]:
    """The keys of a recipe's papers."""
    return [key for key, paper in papers().items() if name in paper.recipes]


def citation(recipe: "Recipe") -> str:
    """The BibTeX entries of the papers behind a recipe.

    FedAvg's comes first, since every recipe changes it, then those of the combined recipes in their order, each once.

    Args:
        recipe: one of the package's recipes, or a combination of several, found by its name.

    Returns:
        The entries, with an empty line between two.

    Raises:
        ValueError: a name that isn't made of the package's recipes.

    Example:
        >>> from fedjax_bal.recipes import balanced_softmax, combine, scaffold
        >>> print(*(line for line in citation(combine(scaffold(), balanced_softmax())).splitlines() if "@" in line))
        @inproceedings{mcmahan2017fedavg, @inproceedings{karimireddy2020scaffold, @inproceedings{ren2020balanced,
    """
    keys: dict[str, None] = {}
    for name in ("fedavg", *recipe.name.split("+")):
        keys |= dict.fromkeys(_behind(name) or _refuse(recipe.name, name))
    return "\n\n".join(papers()[key].bibtex for key in keys)


def short_citation(name: str) -> str:
    """Authors, venue and year of a recipe's papers, in a line; empty where the recipe isn't the package's.

    Example:
        >>> short_citation("iwds")
        'Tang et al., FTL-IJCAI 2021; Cui et al., CVPR 2019'
    """
    return "; ".join(papers()[key].short for key in _behind(name))


def _refuse(whole: str, name: str) -> NoReturn:
    known = sorted({recipe for paper in papers().values() for recipe in paper.recipes})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    inside = "" if name == whole else f" in {whole!r}"
    raise ValueError(
        f"recipe name: received {name!r}{inside}, must be one of {', '.join(known)}, or several joined with "
        f"'+'{hint} The papers of a recipe of your own aren't known here: ask for those of the recipes beside it"
    )
