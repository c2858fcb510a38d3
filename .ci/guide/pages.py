"""The guide's further pages: README, claims of the papers, method cards, configuration keys and metrics."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from markup import cell, inline, table, with_formulas
from method_cards import method_card
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from fedjax_bal.cli.listing import recipes_by_family
from fedjax_bal.config.reference import KeyReference, key_references
from fedjax_bal.metrics import METRICS

ROOT = Path(__file__).parents[2]
COPIED = {
    "index.md": ROOT / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}
PAPERS = ROOT / "benchmarks" / "papers_pages"
STYLE = """
.md-typeset td code { white-space: nowrap } /* names are hard to read when broken over two lines */
.keys td:nth-child(2), .keys td:nth-child(3) { min-width: 12rem }
.md-nav__item--active > .md-nav__container > a { color: var(--md-typeset-a-color) }
.md-typeset p:has(> img[src$="purpose.svg"]) { overflow-x: auto }
.md-typeset img[src$="purpose.svg"] { min-width: 36rem } /* its text is too small on a phone; it scrolls */
"""
WIDE = ("index.md", "keys.md", "roles.md")  # pages with wide tables, which take the place of a table of contents


def on_files(files: Files, config: object) -> Files:
    """Adds the generated pages to the guide's files."""
    for path, text in (*_pages(), ("style.css", STYLE)):
        files.append(File.generated(config, path, content=text))
    return files


def on_nav(nav: Navigation, files: Files, **_: Any) -> None:
    """Shows the section of methods around each method's card, which the navigation doesn't list."""
    index = files.src_uris["methods/index.md"].page
    for path, file in files.src_uris.items():
        if path.startswith("methods/") and file.page is not index:
            file.page.parent = index.parent


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Inserts the table of metrics into its page, widens some pages, and redirects links to the papers' pages."""
    markdown = markdown.replace("](../../benchmarks/papers_pages/", "](papers/")
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    return markdown.replace("<!-- metrics -->", _metrics()) if "<!-- metrics -->" in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Renders formulas."""
    return with_formulas(html)


def _pages() -> Iterator[tuple[str, str]]:
    for path, source in COPIED.items():
        yield path, _with_links_inside(source.read_text(encoding="utf-8"))
    for source in sorted(PAPERS.iterdir()):
        yield f"papers/{source.name}", source.read_text(encoding="utf-8").replace("](../../fedjax_bal/guide/", "](../")
    yield "keys.md", _keys()
    yield from _methods()


def _with_links_inside(text: str) -> str:
    """Returns the text of a source file, with links redirected to the guide's pages or removed."""
    text = text.replace("](fedjax_bal/guide/", "](").replace("](benchmarks/README.md)", "](benchmarks.md)")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w/]+\.(?:md|svg|png|webp))[^)]+\)", r"\1", text)


def _keys() -> str:
    """Builds the page of all keys, with a table for each section."""
    sections = {
        section: list(keys) for section, keys in groupby(key_references(), lambda key: key.path.partition(".")[0])
    }
    lines = [
        "# Keys of a configuration\n",
        "Every key of a configuration with its meaning, allowed values and default. `fedjax-bal config explain KEY` "
        "prints the same; `fedjax-bal config schema` is for editors.\n",
        "Sections: " + ", ".join(f"[{section}](#{section})" for section in sections) + ".",
    ]
    for section, keys in sections.items():
        rows = table(("key", "meaning", "allowed", "default"), map(_key, keys))
        lines += [f"\n## {section}\n", f'<div class="keys" markdown>\n\n{rows}\n\n</div>']
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
    for family, texts in recipes_by_family().items():
        index.append(f"\n**{family}**\n")
        for name, text in texts.items():
            yield f"methods/{name}.md", method_card(name)
            index.append(f"- [{name}]({name}.md): {text.splitlines()[0]}")
    yield "methods/index.md", "\n".join(index)
