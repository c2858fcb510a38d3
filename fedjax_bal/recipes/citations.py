"""What to cite: the papers behind a recipe, as BibTeX."""

import difflib
from typing import TYPE_CHECKING

from fedjax_bal.recipes.papers import BEHIND, PAPERS

if TYPE_CHECKING:
    from fedjax_bal.recipes import Recipe


def citation(recipe: "Recipe") -> str:
    """The BibTeX entries of the papers behind a recipe.

    FedAvg's comes first, since every recipe changes it, then those of the combined recipes in their order, each once.

    Args:
        recipe: one of the package's recipes, or a combination of several; what counts is its name.

    Returns:
        The entries, with an empty line between two.

    Raises:
        ValueError: a name that isn't made of the package's recipes.

    Example:
        >>> from fedjax_bal.recipes import balanced_softmax, combine, scaffold
        >>> for line in citation(combine(scaffold(), balanced_softmax())).splitlines():
        ...     if line.startswith(("@", "  title")):
        ...         print(line)
        @inproceedings{mcmahan2017fedavg,
          title     = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
        @inproceedings{karimireddy2020scaffold,
          title     = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
        @inproceedings{ren2020balanced,
          title     = {Balanced Meta-Softmax for Long-Tailed Visual Recognition},
    """
    keys: dict[str, None] = {}
    for name in ("fedavg", *recipe.name.split("+")):
        if name not in BEHIND:
            raise ValueError(_unknown(recipe.name, name))
        keys |= dict.fromkeys(BEHIND[name])
    return "\n\n".join(PAPERS[key].bibtex(key) for key in keys)


def short_citation(name: str) -> str:
    """The papers of one recipe in a line.

    Args:
        name: the recipe's name.

    Returns:
        Authors, venue and year of each; empty where the recipe isn't the package's.

    Example:
        >>> short_citation("iwds")
        'Tang et al., FTL-IJCAI 2021; Cui et al., CVPR 2019'
    """
    return "; ".join(PAPERS[key].short for key in BEHIND.get(name, ()))


def _unknown(whole: str, name: str) -> str:
    close = difflib.get_close_matches(name, BEHIND, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    inside = "" if name == whole else f" in {whole!r}"
    return (
        f"recipe name: received {name!r}{inside}, must be one of {', '.join(sorted(BEHIND))}, or several joined with "
        f"'+'{hint} The papers of a recipe of your own aren't known here: ask for those of the recipes beside it"
    )
