"""Writes the pages of the site, the guide's and generated ones, and the generator's configuration into a folder.

The generated pages are a page for each method, the API reference, the keys of a configuration, and the metrics.
"""

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from measured import BesidePaper, beside_papers, on_long_tail

from fedjax_bal import parts, recipes
from fedjax_bal.cli.listing import guide_contents, recipes_by_family
from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.config.explain import KeyReference, key_references
from fedjax_bal.metrics import METRICS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "fedjax_bal" / "guide"
PAPERS = ROOT / "benchmarks" / "papers_pages"
SITE = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "benchmarks" / "README.md": "benchmarks.md",
    Path(__file__).with_name("style.css"): "style.css",
    **{file: f"papers/{file.name}" for file in sorted(PAPERS.iterdir())},
    **{file: str(file.relative_to(GUIDE)) for file in sorted(GUIDE.rglob("*.*")) if file.suffix != ".ipynb"},
}
"""Where the repository's files are on the site."""

WIDE = ("keys.md", "papers.md", "roles.md")
"""Pages with wide tables, which take the place of a table of contents."""

API = (
    *("fedjax_bal", "fedjax_bal.balance", "fedjax_bal.data", "fedjax_bal.data.partition", "fedjax_bal.models"),
    *("fedjax_bal.parts", "fedjax_bal.recipes", "fedjax_bal.selection", "fedjax_bal.optim", "fedjax_bal.types"),
    *("fedjax_bal.testing", "fedjax_bal.analyses", "fedjax_bal.contrib.privacy", "fedjax_bal.lab.trackers"),
)
_WHICH = {"final": "last round", "best": "best round", "last5": "last five rounds"}
_MODULES = {name: getattr(recipes, name).__module__ for name in recipes.RECIPES}


def main(folder: Path) -> None:
    """Writes the configuration into a folder, and the pages into its subfolder `guide_pages`."""
    pages = folder / "guide_pages"
    shutil.rmtree(pages, ignore_errors=True)
    for source, path in SITE.items():
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, pages / path)
    for path, text in _pages():
        (pages / path).parent.mkdir(exist_ok=True)
        hidden = "---\nhide: [toc]\n---\n\n" if path in WIDE else ""
        (pages / path).write_text(hidden + text, encoding="utf-8")
    settings = Path(__file__).with_name("zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace("nav = []", f"nav = {_toml(_navigation())}").replace("ROOT", str(ROOT))
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each page."""
    for source, path in SITE.items():
        if source.suffix == ".md":
            yield path, _with_links(source).replace("<!-- metrics -->", _metrics())
    yield "keys.md", _keys()
    yield "methods/index.md", _method_index()
    for module in dict.fromkeys(_MODULES.values()):
        yield _method_path(module), _method_page(module)
    for module in API:
        yield f"api/{module}.md", _api_page(module)


def _navigation() -> list[Any]:
    """Lists the pages by section: those of the guide, with generated ones, then methods and the API."""
    sections = {section: [f"{name}.md" for name in pages] for section, pages in guide_contents().items()}
    sections["Reference"].append("keys.md")
    sections["Results"] += [f"papers/{file.name}" for file in sorted(PAPERS.glob("*.md"))] + ["benchmarks.md"]
    return [
        {"Start": "index.md"},
        {"Guide": "contents.md"},
        *({section: pages} for section, pages in sections.items()),
        {"Methods": ["methods/index.md", *dict.fromkeys(map(_method_path, _MODULES.values()))]},
        {"API": [{module: f"api/{module}.md"} for module in API]},
        {"Contributing": "contributing.md"},
    ]


def _toml(value: Any) -> str:
    """Formats nested lists and dictionaries of strings as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _with_links(source: Path) -> str:
    """Returns the text of a page, adapted to the site.

    Links to the repository's files lead to the site, or become plain words. In tables deviations and intervals stay on
    one line.
    """

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found.groups("")
        file = (source.parent / target).resolve()
        if file in SITE:
            return f"[{words}]({os.path.relpath(SITE[file], Path(SITE[source]).parent)}{anchor})"
        return words if file.exists() else found[0]

    text = re.sub(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)", link, source.read_text(encoding="utf-8"))
    return re.sub(r"^\|.* ± .*", _unbroken, text, flags=re.MULTILINE)


def _unbroken(row: re.Match[str]) -> str:
    return re.sub(r"(?<=\d,) (?=[+\u2212-])| (?=±)|(?<=±) ", "&nbsp;", row[0])


def _keys() -> str:
    """Builds the page of all keys, with a table for each section."""
    sections = {
        section: list(keys) for section, keys in groupby(key_references(), lambda key: key.path.partition(".")[0])
    }
    lines = [
        "# Keys of a configuration\n",
        "Every key of a configuration with its meaning, allowed values and default. `fedjax-bal config explain KEY` "
        "prints the same; `fedjax-bal config schema` is for editors.",
    ]
    for section, keys in sections.items():
        lines += [f"\n## {section}\n", _table(("key", "meaning", "allowed", "default"), map(_key, keys))]
    return "\n".join(lines)


def _key(key: KeyReference) -> tuple[str, ...]:
    choices = f" (with {', '.join(key.choices)})" if key.choices else ""
    return f"`{key.path}`{choices}", key.meaning, _escaped(key.allowed), _escaped(key.default)


def _metrics() -> str:
    """Builds the table of all metrics: of rounds or of runs, meaning, unit, and place in a report."""
    rows = []
    for metric in METRICS.values():
        of = ", ".join(["round"] * (metric.of_round is not None) + ["run"] * (metric.of_run is not None))
        unit = f" In {metric.unit.symbol}." if metric.unit.symbol and metric.unit.factor == 1 else ""
        shown = f" Report: {metric.column.table.title}, *{metric.column.heading}*." if metric.column else ""
        rows.append((f"`{metric.name}`", of, f"{metric.meaning}{unit}{shown}"))
    return _table(("metric", "of each", "meaning"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table of Markdown cells."""
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    lines = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Escapes plain text for a cell."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", html.escape(text, quote=False))


def _method_path(module: str) -> str:
    return f"methods/{module.rpartition('.')[2]}.md"


def _method_index() -> str:
    """Builds the index of all methods by family."""
    lines = [
        "# Methods\n",
        "Each page shows the methods of one source file: papers, options, the parts they consist of with their "
        "equations, and measured results. Methods combine: `recipe: [scaffold, rebafl]`, or `recipes.combine(a, b)`.",
    ]
    for family, texts in recipes_by_family().items():
        lines.append(f"\n**{family}**\n")
        lines += [f"- [`{name}`][fedjax_bal.recipes.{name}]: {text.splitlines()[0]}" for name, text in texts.items()]
    return "\n".join(lines)


def _method_page(module: str) -> str:
    """Builds the page of a method's module: its recipes, and the parts that it defines.

    The heading of a single recipe is the page's own.
    """
    names = [name for name, place in _MODULES.items() if place == module]
    title, level = ", ".join(names), 1 if len(names) == 1 else 2
    blocks = [f"---\ntitle: {title}\n---"] if level == 1 else [f"# {title}"]
    for name in names:
        blocks += [f"::: fedjax_bal.recipes.{name}\n    options: {{heading_level: {level}}}", *_facts(name)]
    for name in parts.__all__:
        if _module(parts, name) == module:
            blocks.append(f"::: fedjax_bal.parts.{name}\n    options: {{members: false}}")
    return "\n\n".join(blocks)


def _facts(name: str) -> Iterator[str]:
    """Yields a recipe's source, parts, needs, command, results and papers."""
    recipe = recipes.RECIPES[name]()
    yield f"**From**: {recipes.short_citation(name)}"
    classes = dict.fromkeys(type(part) for part in recipe.parts)
    if classes:
        yield "**Parts**: " + ", ".join(f"[`{own.__name__}`][{own.__module__}.{own.__name__}]" for own in classes)
    if needs := parts.names_of_needs(recipe.parts):
        yield f"**Needs**: {', '.join(needs)}"
    methods = f"methods=[{', '.join(dict.fromkeys(('fedavg', name)))}]"
    try:
        load_config(None, [methods])
    except ConfigError:
        pass  # it doesn't run in the quickstart's setting
    else:
        yield f"```bash\nfedjax-bal run seeds=1 '{methods}'\n```"
    if own := [_beside(pair) for pair in beside_papers() if pair.recipe == name]:
        yield "\n".join(["**Published and measured accuracy**\n", *own])
    machine, figures = on_long_tail()
    if name in figures:
        own = figures[name]
        yield (
            f"**On [our long tail](../long_tail.md)**: {own.pace:.2f} times FedAvg's client updates a second; mean "
            f"accuracy of the last five rounds {own.accuracy:.1f}%, "
            f"FedAvg's {figures['fedavg'].accuracy:.1f}% ({machine})."
        )
    bibtex = recipes.citation(recipe).replace("\n", "\n    ")
    yield f'??? quote "BibTeX"\n    ```bibtex\n    {bibtex}\n    ```'


def _beside(pair: BesidePaper) -> str:
    runs = "one run" if pair.runs == 1 else f"mean of {pair.runs} runs"
    return (
        f"- {pair.source}: {pair.paper:.1f}%, here {pair.here:.1f}% ({_WHICH[pair.which]}; {runs} of `{pair.config}`"
        f"{pair.setting and f', {pair.setting}'})"
    )


def _api_page(module: str) -> str:
    """Builds the page of a public module; methods and their parts have pages of their own."""
    options: dict[str, Any] = {"show_root_heading": False, "show_root_toc_entry": False}
    if public := {"fedjax_bal.parts": parts, "fedjax_bal.recipes": recipes}.get(module):
        options["merge_init_into_class"] = False  # roles have no constructor
        options["members"] = [name for name in public.__all__ if _module(public, name) not in _MODULES.values()]
    return f"# {module}\n\n::: {module}\n    options: {json.dumps(options)}\n"


def _module(public: ModuleType, name: str) -> str:
    """Returns the name of the module that defines an object; constants have none."""
    return getattr(getattr(public, name), "__module__", "")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
