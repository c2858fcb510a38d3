"""CITATION.cff says what the package says of itself."""

import tomllib
from pathlib import Path

import pytest
import yaml

from fedjax_bal import __version__

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_it_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["title"] == project["name"]
    assert citation["version"] == __version__
    assert f"version = {{{__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    assert citation["abstract"] == project["description"] + "."
    assert citation["message"]
    assert all(author["name"] for author in citation["authors"])
    assert not {"doi", "identifiers", "date-released"} & citation.keys()  # there is none yet
