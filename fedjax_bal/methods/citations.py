"""Citations: the papers behind a recipe, as BibTeX."""

import functools
import inspect
import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple, NoReturn

from fedjax_bal.methods.combine import METHODS, Recipe, combine
from fedjax_bal.validate import suggestion

_FIELD = re.compile(r"^ *(\w+) *= *\{(.*)\},?$", re.MULTILINE)
_VENUE = re.compile(r"^  venue .*\n", re.MULTILINE)


class Paper(NamedTuple):
    """A paper.

    Attributes:
        bibtex: its BibTeX entry.
        short: authors, venue and year in one line.
    """

    bibtex: str
    short: str


@functools.cache
def papers() -> Mapping[str, Paper]:
    """Reads all papers, by key, in the order of the file; an entry is a block with one field per line."""
    return _read(resources.files("fedjax_bal.methods").joinpath("papers.bib").read_text("utf-8").partition("\n\n")[2])


PLUGIN_PAPERS: dict[str, Mapping[str, Paper]] = {}
"""The papers behind plug-ins' recipes: a mapping by key for each recipe's name."""


def cite(recipe: str, bibtex: str) -> None:
    """Registers the papers behind a user's recipe; raises `ValueError` for text that can't be parsed."""
    try:
        PLUGIN_PAPERS[recipe] = _read(bibtex)
    except (AttributeError, KeyError, StopIteration, ValueError):
        raise ValueError(
            f"citation: received {bibtex!r:.80}, must be BibTeX, entries with a blank line between two, each with "
            "author, year, and booktitle or journal, a field a line in braces"
        ) from None


def _read(bibtex: str) -> dict[str, Paper]:
    """Parses papers by key; an entry is a block with one field per line."""
    found = {}
    for entry in map(str.strip, inspect.cleandoc(bibtex).split("\n\n")):
        fields = dict(_FIELD.findall(entry))
        families = [author.partition(",")[0] for author in fields["author"].split(" and ")]
        named = f"{families[0]} et al." if len(families) > 2 else " and ".join(families)
        venue = next(fields[name] for name in ("venue", "booktitle", "journal") if name in fields)
        key = entry[entry.index("{") + 1 : entry.index(",")]
        found[key] = Paper(_VENUE.sub("", entry), f"{named}, {venue} {fields['year']}")
    return found


def _behind(name: str) -> dict[str, Paper]:
    """Returns a recipe's papers by key."""
    keys = METHODS[name].papers if name in METHODS else ()
    for key in keys:
        if key not in papers():
            raise LookupError(f"{name} names the paper {key}, which methods/papers.bib lacks")
    return {key: papers()[key] for key in keys} | {**PLUGIN_PAPERS.get(name, {})}


def citation(recipe: Recipe) -> str:
    """Returns the BibTeX entries of the papers behind a recipe.

    FedAvg's entry comes first, because every recipe builds on it, followed by those of the combined recipes in order,
    without repetition. Those without a known paper, such as your own, are named in a comment at the end.

    Args:
        recipe: a recipe or a combination of several; only its name is used.

    Returns:
        The entries, separated by empty lines.

    Raises:
        ValueError: none of the combined recipes has a known paper.

    Example:
        >>> from fedjax_bal.recipes import balanced_softmax, combine, scaffold
        >>> print(*(line for line in citation(combine(scaffold(), balanced_softmax())).splitlines() if "@" in line))
        @inproceedings{mcmahan2017fedavg, @inproceedings{karimireddy2020scaffold, @inproceedings{ren2020balanced,
    """
    recipe = combine(recipe)  # rejects what isn't a recipe
    names = recipe.name.split("+")
    unknown = [name for name in names if not _behind(name)]
    if len(unknown) == len(names):
        _refuse(recipe.name, unknown[0])
    found: dict[str, Paper] = {}
    for name in ("fedavg", *names):
        found |= _behind(name)
    comments = [f"% {name}: no paper is known; register(..., citation=...) names one" for name in unknown]
    return "\n\n".join([*(paper.bibtex for paper in found.values()), *comments])


def short_citation(name: str) -> str:
    """Returns authors, venue and year of a recipe's papers in one line; empty if none is known.

    Example:
        >>> short_citation("iwds")
        'Tang et al., FTL-IJCAI 2021; Cui et al., CVPR 2019'
    """
    return "; ".join(paper.short for paper in _behind(name).values())


def _refuse(whole: str, name: str) -> NoReturn:
    known = sorted(METHODS)
    near = suggestion(name, known)
    hint = f"; {near}" if near else "."
    inside = "" if name == whole else f" in {whole!r}"
    raise ValueError(
        f"recipe name: received {name!r}{inside}, must be one of {', '.join(known)}, or several joined with "
        f"'+'{hint} Those of your own recipe come with `register(..., citation=...)`"
    )
