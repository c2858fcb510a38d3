"""BibTeX of recipes: well formed, complete, each paper once."""

import re

import pytest

from fedjax_bal.cli.listing import listing
from fedjax_bal.methods.citations import papers
from fedjax_bal.methods.combine import METHODS
from fedjax_bal.recipes import RECIPES, Recipe, citation, combine, short_citation

PLACES = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished"}
NEEDED = {kind: {"author", "title", place, "year"} for kind, place in PLACES.items()}


def entries(text):
    """The entries of a BibTeX text: kind, key and fields; braces are counted by hand."""
    found = []
    for block in text.split("\n\n"):
        kind, key = re.fullmatch(r"@(\w+)\{(\w+),", block.splitlines()[0]).groups()
        assert block.splitlines()[-1] == "}"
        fields = {}
        for line in block.splitlines()[1:-1]:
            name, value = re.fullmatch(r"  (\w+) *= \{(.*)\},", line).groups()
            depth = 0
            for letter in value:
                depth += {"{": 1, "}": -1}.get(letter, 0)
                assert depth >= 0, line
            assert depth == 0, line
            assert name not in fields
            fields[name] = value
        found.append((kind, key, fields))
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_complete_entries_with_fedavg_first(name):
    found = entries(citation(Recipe(name)))
    assert METHODS[name].papers
    assert [key for _, key, _ in found] == list(dict.fromkeys(["mcmahan2017fedavg", *METHODS[name].papers]))
    for kind, _, fields in found:
        assert NEEDED[kind] <= set(fields)
        assert all("," in author for author in fields["author"].split(" and "))


def test_a_paper_without_an_entry_is_named(monkeypatch):
    monkeypatch.setitem(METHODS, "fedavg", METHODS["fedavg"]._replace(papers=("nobody2030",)))
    with pytest.raises(LookupError, match="fedavg names the paper nobody2030"):
        short_citation("fedavg")


def test_every_paper_is_of_a_recipe():
    assert {key for method in METHODS.values() for key in method.papers} == set(papers())


def test_a_combination_cites_each_paper_once_in_its_order():
    recipe = combine(RECIPES["scaffold"](), RECIPES["fedprox"](), RECIPES["fedavg"]())
    keys = [key for _, key, _ in entries(citation(recipe))]
    assert keys == ["mcmahan2017fedavg", "karimireddy2020scaffold", "li2020fedprox"]
    twice = [key for _, key, _ in entries(citation(Recipe("rebafl+fedavg_ft+fedadam+fedyogi")))]
    assert twice == ["mcmahan2017fedavg", "xu2023rebafl", "reddi2021adaptive"]


def test_keys_carry_first_author_and_year():
    for key, paper in papers().items():
        ((_, found, fields),) = entries(paper.bibtex)
        family = fields["author"].partition(",")[0]
        assert key == found and key.startswith(family.lower() + fields["year"])
        assert paper.short.startswith(family) and paper.short.endswith(fields["year"])


def test_a_recipe_without_a_paper_is_named_after_the_entries_of_the_others():
    *known, comment = citation(combine(RECIPES["scaffold"](), Recipe("mine"))).split("\n\n")
    assert "\n\n".join(known) == citation(RECIPES["scaffold"]())
    assert comment.startswith("% mine: ") and "@" not in comment


def test_an_unknown_name_is_refused_with_a_hint():
    with pytest.raises(ValueError, match=r"received 'fedporx'.*did you mean 'fedprox'"):
        citation(Recipe("fedporx"))
    with pytest.raises(ValueError, match=r"received 'zzz' in 'zzz\+mine'"):
        citation(Recipe("zzz+mine"))
    assert short_citation("zzz") == ""


def test_the_list_of_recipes_has_line_parameters_and_paper():
    shown = listing("recipes")
    assert list(shown) == list(RECIPES)
    assert shown["scaffold"].splitlines()[-1] == "from Karimireddy et al., ICML 2020"
    assert "epsilon=0.01, mu=0.1, scale=1.0, prototypes=local_override, carry=false" in shown["rebafl"].splitlines()[1]
    assert not any("takes" in line for line in shown["fedavg"].splitlines())
