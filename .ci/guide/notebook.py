"""Builds the guide's notebook from sections of its pages: `python .ci/guide/notebook.py` writes it."""

import doctest
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "fedjax_bal" / "guide"
NOTEBOOK = PAGES / "own_method.ipynb"
_TITLE = "# A comparison in Python, and your own method in five minutes\n\nTaken from the guide."
_SECTIONS = (("library", "A comparison in Python"), ("roles", "Your own method in five minutes"))
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")


def notebook() -> str:
    """Returns the content of the notebook's file."""
    sections = [cell for page, heading in _SECTIONS for cell in _cells(_section(page, heading))]
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate([_text(_TITLE), _install(), *sections])]
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": python, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _install() -> dict[str, Any]:
    """Builds a cell that installs the package if it is missing, from its repository if pyproject.toml names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    url = project.get("urls", {}).get("Repository")
    source = f"git+{url}" if url else "."
    where = "its repository" if url else "a clone of its repository, the folder in which this notebook runs"
    condition = 'import importlib.util\n\nif importlib.util.find_spec("fedjax_bal") is None:'
    return _code(f"{condition}  # installs it from {where}\n    %pip install --quiet {source}")


def _section(page: str, heading: str) -> str:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    start = text.index(f"## {heading}\n")
    end = text.find("\n## ", start)
    return text[start:] if end < 0 else text[start:end]


def _cells(text: str) -> Iterator[dict[str, Any]]:
    """Yields alternating cells of text and of code."""
    for number, piece in enumerate(_CODE.split(text)):
        yield from map(_code, _sources(piece)) if number % 2 else [_text(piece)] * bool(_PICTURE.sub("", piece).strip())


def _sources(code: str) -> list[str]:
    """Extracts a block's code, without prompts and results; an example that shows a result ends its cell.

    A block that begins with a file's name, `# FILE`, is written into this file.
    """
    if file := re.match(r"# (\S+\.py)\n", code):
        return [f"%%writefile {file[1]}\n{code[file.end() :]}"]
    examples = doctest.DocTestParser().get_examples(code)
    apart = lambda source: "\n" * (source.count("\n") > 1) + source
    ends = "".join(apart(example.source) + "\0" * bool(example.want) for example in examples)
    return list(filter(str.strip, ends.split("\0"))) if examples else [code]


def _text(text: str) -> dict[str, Any]:
    """Builds a Markdown cell; links into the guide, which wouldn't work here, become plain words.

    Pictures are left out: the code above them draws them.
    """
    text = _PICTURE.sub("", text)
    words = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text.strip())
    return {"cell_type": "markdown", "metadata": {}, "source": words.splitlines(keepends=True)}


def _code(code: str) -> dict[str, Any]:
    lines = code.strip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
