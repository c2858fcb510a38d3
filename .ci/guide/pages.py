"""The guide's pages that are made from the package: README, a card for each method, keys, metrics."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from markup import cell, inline, table, with_formulas
from method_cards import method_card
from mkdocs.structure.files import File, Files

from fedjax_bal.cli.listing import grouped
from fedjax_bal.config import KeyReference, key_references
from fedjax_bal.metrics import METRICS

ROOT = Path(__file__).parents[2]
COPIED = {
    "index.md": ROOT / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}
NAMES = ".md-typeset td:first-child code { white-space: nowrap }"  # a name is hard to read in two lines


def on_files(files: Files, config: object) -> Files:
    """Adds the pages that are made to those that are files."""
    for path, text in (*_pages(), ("names.css", NAMES)):
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the table of metrics in its place."""
    return markdown.replace("<!-- metrics -->", _metrics()) if "<!-- metrics -->" in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Shows formulas."""
    return with_formulas(html)


def _pages() -> Iterator[tuple[str, str]]:
    for path, source in COPIED.items():
        yield path, _with_links_inside(source.read_text(encoding="utf-8"))
    yield "keys.md", _keys()
    yield from _methods()


def _with_links_inside(text: str) -> str:
    """The text of a file of the source, whose links lead to the guide's pages or to nothing."""
    text = text.replace("](fedjax_bal/guide/", "](").replace("](benchmarks/README.md)", "](benchmarks.md)")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w/]+\.(?:md|svg|png|webp))[^)]+\)", r"\1", text)


def _keys() -> str:
    """All keys, a part of the page for each section."""
    lines = [
        "# Keys of a configuration\n",
        "Every key of a configuration with its meaning, allowed values and default. `fedjax-bal config explain KEY` "
        "prints the same; `fedjax-bal config schema` is for editors.",
    ]
    for section, keys in groupby(key_references(), lambda key: key.path.partition(".")[0]):
        lines += [f"\n## {section}\n", *map(_key, keys)]
    return "\n".join(lines)


def _key(key: KeyReference) -> str:
    of = f", with {', '.join(key.choices)}" if key.choices else ""
    default = f"; default {cell(key.default)}" if key.default else ""
    meaning = f": {inline(key.meaning)}" if key.meaning else ""
    return f"- `{key.path}`{of}{meaning} ({cell(key.allowed)}{default})"


def _metrics() -> str:
    """All metrics: whether of rounds or of runs, meaning and unit, and where a report shows them."""
    rows = []
    for metric in METRICS.values():
        of = ", ".join(["round"] * (metric.of_round is not None) + ["run"] * (metric.of_run is not None))
        unit = f" In {metric.unit.symbol}." if metric.unit.symbol and metric.unit.factor == 1 else ""
        shown = f" Report: {metric.column.table.title}, *{metric.column.heading}*." if metric.column else ""
        rows.append((f"`{metric.name}`", of, f"{metric.meaning}{unit}{shown}"))
    return table(("metric", "of each", "meaning"), rows)


def _methods() -> Iterator[tuple[str, str]]:
    """A page of cards for each family of methods, and their index."""
    index = [
        "# Methods\n",
        "A card for each method: its parts with their equations, options, needs, measured results and papers. Methods "
        "combine: `recipe: [scaffold, rebafl]`, or `recipes.combine(a, b)`.\n",
    ]
    for number, (family, names) in enumerate(grouped("recipes"), 1):
        yield f"methods/{number}.md", "\n\n".join([f"# {family}", *map(method_card, names)])
        index.append(f"- [{family}]({number}.md): {', '.join(f'[{name}]({number}.md#{name})' for name in names)}")
    yield "methods/index.md", "\n".join(index)
