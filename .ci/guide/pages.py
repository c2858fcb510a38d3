"""The guide's pages that are made from the package: README, a card for each method, keys, metrics."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from mkdocs.structure.files import File, Files

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


def _pages() -> Iterator[tuple[str, str]]:
    for path, source in COPIED.items():
        yield path, _with_links_inside(source.read_text(encoding="utf-8"))
    yield "keys.md", _keys()
    yield "metrics.md", _metrics()
    yield from _methods()


def _with_links_inside(text: str) -> str:
    """The text of a file of the source, whose links lead to the guide's pages or to nothing."""
    text = text.replace("](fedjax_bal/guide/", "](").replace("](benchmarks/README.md)", "](benchmarks.md)")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w/]+\.(?:md|svg|png|webp))[^)]+\)", r"\1", text)


def _keys() -> str:
    from fedjax_bal.config import key_references

    rows = []
    for key in key_references():
        of = f" (with {', '.join(key.choices)})" if key.choices else ""
        rows.append(f"| `{key.path}` | {_cell(key.meaning + of)} | {_cell(key.allowed)} | {_cell(key.default)} |")
    about = "`fedjax-bal config explain KEY` says the same; `fedjax-bal config schema` is for editors.\n"
    return "\n".join(
        ["# Keys of a configuration\n", about, "| key | meaning | allowed | default |", "|---|---|---|---|", *rows]
    )


def _metrics() -> str:
    from fedjax_bal.cli.listing import LISTINGS

    rows = [f"| `{name}` | {_cell(text)} |" for name, text in LISTINGS["metrics"]().items()]
    return "\n".join(["# Metrics\n", "| in `metrics.jsonl` and `summary.json` | |", "|---|---|", *rows])


def _methods() -> Iterator[tuple[str, str]]:
    """A page of cards for each family of methods, and their index."""
    from fedjax_bal.cli.listing import grouped

    index = ["# Methods\n", "All of them combine: `recipe: [scaffold, rebafl]`, or `recipes.combine(a, b)`.\n"]
    for number, (family, names) in enumerate(grouped("recipes"), 1):
        yield f"methods/{number}.md", "\n\n".join([f"# {family}", *map(_card, names)])
        index.append(f"- [{family}]({number}.md): {', '.join(f'[{name}]({number}.md#{name})' for name in names)}")
    yield "methods/index.md", "\n".join(index)


def _card(name: str) -> str:
    """What `fedjax-bal list recipes NAME` says, as a section of a page."""
    from fedjax_bal.cli.listing import described_whole

    text, _, bibtex = described_whole("recipes", name).partition("\n\n@")
    text = re.sub(r"(?m)^(Args|Example|References|Raises|Returns):$", r"\n**\1**\n", text)
    text = re.sub(r"(?m)^(Parts and their roles at these defaults):$", r"\n**\1**\n", text)
    text = re.sub(r"(?m)^    (\w+): (.*(?:\n {8,}.*)*)", lambda one: f"- `{one[1]}`: {' '.join(one[2].split())}", text)
    text = re.sub(r"(?m)^  (\w+ \(|none)", r"- \1", text)
    text = re.sub(r"(?m)((?:^    (?:>>>|\.\.\.|[\[\w'(]).*\n?)+)", _code, text)
    entries = indent(f"```bibtex\n@{bibtex}\n```", "    ")
    return f'## {name}\n\n{text}\n\n??? quote "BibTeX"\n\n{entries}'


def _code(found: re.Match[str]) -> str:
    lines = found[1].rstrip("\n").split("\n")
    if not lines[0].startswith("    >>>"):
        return "\n".join(line.strip() for line in lines) + "\n"
    return "\n".join(["```pycon", *(line[4:] for line in lines), "```", ""])


def _cell(text: str) -> str:
    return html.escape(text.replace("|", "\\|").replace("\n", " "), quote=False)
