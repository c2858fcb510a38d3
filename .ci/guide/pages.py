"""The guide's generated pages: README, method cards, configuration keys and metrics."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from markup import cell, inline, table, with_formulas
from method_cards import method_card
from mkdocs.structure.files import File, Files

from fedjax_bal.cli.listing import grouped
from fedjax_bal.config.reference import KeyReference, key_references
from fedjax_bal.metrics import METRICS

ROOT = Path(__file__).parents[2]
COPIED = {
    "index.md": ROOT / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}
NAMES = ".md-typeset td:first-child code { white-space: nowrap }"  # names are hard to read when broken over two lines


def on_files(files: Files, config: object) -> Files:
    """Adds the generated pages to the guide's files."""
    for path, text in (*_pages(), ("names.css", NAMES)):
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Inserts the table of metrics into its page."""
    return markdown.replace("<!-- metrics -->", _metrics()) if "<!-- metrics -->" in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Renders formulas."""
    return with_formulas(html)


def _pages() -> Iterator[tuple[str, str]]:
    for path, source in COPIED.items():
        yield path, _with_links_inside(source.read_text(encoding="utf-8"))
    yield "keys.md", _keys()
    yield from _methods()


def _with_links_inside(text: str) -> str:
    """Returns the text of a source file, with links redirected to the guide's pages or removed."""
    text = text.replace("](fedjax_bal/guide/", "](").replace("](benchmarks/README.md)", "](benchmarks.md)")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w/]+\.(?:md|svg|png|webp))[^)]+\)", r"\1", text)


def _keys() -> str:
    """Builds the page of all keys, with a table for each section."""
    lines = [
        "# Keys of a configuration\n",
        "Every key of a configuration with its meaning, allowed values and default. `fedjax-bal config explain KEY` "
        "prints the same; `fedjax-bal config schema` is for editors.",
    ]
    for section, keys in groupby(key_references(), lambda key: key.path.partition(".")[0]):
        lines += [f"\n## {section}\n", table(("key", "meaning", "allowed", "default"), map(_key, keys))]
    return "\n".join(lines)


def _key(key: KeyReference) -> tuple[str, ...]:
    of = f" (with {', '.join(key.choices)})" if key.choices else ""
    return f"`{key.path}`{of}", inline(key.meaning), cell(key.allowed), cell(key.default)


def _metrics() -> str:
    """Builds the table of all metrics: of rounds or of runs, meaning, unit, and place in a report."""
    rows = []
    for metric in METRICS.values():
        of = ", ".join(["round"] * (metric.of_round is not None) + ["run"] * (metric.of_run is not None))
        unit = f" In {metric.unit.symbol}." if metric.unit.symbol and metric.unit.factor == 1 else ""
        shown = f" Report: {metric.column.table.title}, *{metric.column.heading}*." if metric.column else ""
        rows.append((f"`{metric.name}`", of, f"{metric.meaning}{unit}{shown}"))
    return table(("metric", "of each", "meaning"), rows)


def _methods() -> Iterator[tuple[str, str]]:
    """Yields a page for each method, whose address stays, and their index by family."""
    index = [
        "# Methods\n",
        "A card for each method: its parts with their equations, options, needs, measured results and papers. Methods "
        "combine: `recipe: [scaffold, rebafl]`, or `recipes.combine(a, b)`.\n",
    ]
    for family, names in grouped("recipes"):
        for name in names:
            yield f"methods/{name}.md", method_card(name)
        index.append(f"- {family}: {', '.join(f'[{name}]({name}.md)' for name in names)}")
    yield "methods/index.md", "\n".join(index)
