"""The guide's pictures: each stands in a page, and those that are drawn from the code are up to date."""

import importlib
import re
from pathlib import Path

import pytest

from fedjax_bal.data import partition

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "fedjax_bal" / "guide"
PICTURES = GUIDE / "pictures"
PAPERS = ROOT / "benchmarks" / "papers_pages"
SMALL, ALL = 60_000, 400_000
REMEDY = "python .ci/guide/pictures.py partitions purpose round"


@pytest.fixture
def drawing(monkeypatch):
    """Imports a module of the guide's build."""
    monkeypatch.syspath_prepend(ROOT / ".ci" / "guide")
    return importlib.import_module


def test_every_picture_is_small_and_stands_in_a_page():
    shown = {
        (page.parent / image).resolve()
        for page in (ROOT / "README.md", *GUIDE.glob("*.md"))
        for image in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    sizes = {picture: picture.stat().st_size for picture in PICTURES.iterdir()}
    assert shown == set(sizes)
    assert max(sizes.values()) < SMALL and sum(sizes.values()) < ALL
    for picture in PAPERS.glob("*.svg"):
        assert f"]({picture.name})" in picture.with_suffix(".md").read_text() and picture.stat().st_size < SMALL


@pytest.mark.parametrize("name", [*partition.SCHEMES, "imbalance_factor"])
def test_the_gallery_has_an_up_to_date_picture_of_each_scheme(name, drawing):
    gallery = drawing("gallery")
    assert name in gallery.names()
    file = PICTURES / f"partition_{name}.svg"
    assert file.exists() and file.read_text() == gallery.picture(name), REMEDY


def test_the_gallery_says_what_the_list_of_schemes_says(drawing):
    gallery = drawing("gallery")
    assert gallery.PAGE.read_text() == gallery.page(), REMEDY


def test_a_scheme_that_needs_options_needs_an_example(drawing, monkeypatch):
    gallery = drawing("gallery")
    monkeypatch.delitem(gallery.EXAMPLES, "dirichlet")
    with pytest.raises(ValueError, match=r"dirichlet: give its picture options in EXAMPLES of .*'alpha'"):
        gallery.picture("dirichlet")


def test_the_picture_of_a_round_has_every_role(drawing, monkeypatch):
    one_round = drawing("one_round")
    assert (PICTURES / "round.svg").read_text() == one_round.picture(), REMEDY
    monkeypatch.setattr(one_round, "PROGRAM", one_round.PROGRAM[1:])
    with pytest.raises(ValueError, match="Weigh: each role"):
        one_round.picture()


def test_the_picture_of_the_purpose_is_of_the_results(drawing):
    assert (PICTURES / "purpose.svg").read_text() == drawing("purpose").picture(), REMEDY


def test_an_unknown_picture_is_a_message(drawing):
    with pytest.raises(SystemExit, match="sround: there are purpose, partitions, round, report"):
        drawing("pictures").main(["sround"])
