"""The guide's pages that are made from the package: README, a card for each method, keys, metrics."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cards import card
from markup import cell, table, with_formulas
from mkdocs.structure.files import File, Files

from fedjax_bal.cli.listing import grouped
from fedjax_bal.config import key_references
from fedjax_bal.metrics import METRICS

ROOT = Path(__file__).parents[2]
COPIED = {
    "index.md": ROOT / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}


def on_files(files: Files, config: object) -> Files:
    """Adds the pages that are made to those that are files."""
    for path, text in _pages():
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
    about = "`fedjax-bal config explain KEY` says the same; `fedjax-bal config schema` is for editors."
    rows = []
    for key in key_references():
        of = f" (with {', '.join(key.choices)})" if key.choices else ""
        rows.append((f"`{key.path}`", *map(cell, (key.meaning + of, key.allowed, key.default))))
    return f"# Keys of a configuration\n\n{about}\n\n{table(('key', 'meaning', 'allowed', 'default'), rows)}"


def _metrics() -> str:
    """All metrics: meaning and unit, in which files, and the table of the report that shows them."""
    rows = []
    for metric in METRICS.values():
        files = ["`metrics.jsonl`"] * (metric.of_round is not None) + ["`summary.json`"] * (metric.of_run is not None)
        shown = f"{metric.column.table.title}: {metric.column.heading}" if metric.column else ""
        rows.append((f"`{metric.name}`", metric.meaning, metric.unit.symbol, ", ".join(files), shown))
    return table(("metric", "meaning", "unit", "in", "table and column of the report"), rows)


def _methods() -> Iterator[tuple[str, str]]:
    """A page of cards for each family of methods, and their index."""
    index = ["# Methods\n", "All of them combine: `recipe: [scaffold, rebafl]`, or `recipes.combine(a, b)`.\n"]
    for number, (family, names) in enumerate(grouped("recipes"), 1):
        yield f"methods/{number}.md", "\n\n".join([f"# {family}", *map(card, names)])
        index.append(f"- [{family}]({number}.md): {', '.join(f'[{name}]({number}.md#{name})' for name in names)}")
    yield "methods/index.md", "\n".join(index)
