"""The page model that all reports share, and its HTML."""

import base64
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import zip_longest
from typing import Any, NamedTuple

from fedjax_bal.lab import as_csv
from fedjax_bal.report.latex import page_tables
from fedjax_bal.report.tables import Details, encoded

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MOST_OPEN = 6  # tables of conditions that are shown; further ones are folded
_CURVES = ("accuracy", "traffic", "mean-accuracy", "worst-class")
_PHOTOS = "pictures"  # the start of names of figures whose shades are never inverted


class Picture(NamedTuple):
    """A finished figure.

    Attributes:
        name: the file's name without extension.
        title: its title.
        caption: the text below it.
        document: the SVG document.
        wide: whether it spans both columns of a page.
    """

    name: str
    title: str
    caption: str
    document: str
    wide: bool = False


class Page(NamedTuple):
    """The parts of a page, in page order.

    Attributes:
        tab: the title of the browser tab.
        kicker: a line above the heading.
        heading: the name of the run or sweep.
        warnings: reasons why numbers are provisional or hard to compare; empty texts are skipped, here and below.
        answers: the result in words.
        paper: a sentence about a paper's results.
        published: tables of a paper's results.
        pictures: figures; curves come first, the others after the tables.
        comparisons: tables of methods, one per condition.
        statistics: the numbers behind the tables, as rows of a CSV file.
        remarks: sentences below the tables.
        details: further tables.
        settings: tables after the pictures.
        sections: headings with the HTML below them.
    """

    tab: str
    kicker: str
    heading: str
    warnings: Sequence[str]
    answers: Sequence[str]
    comparisons: Sequence[Details]
    statistics: Sequence[Mapping[str, Any]]
    pictures: Sequence[Picture]
    sections: Sequence[tuple[str, str]]
    paper: str = ""
    published: Sequence[Details] = ()
    remarks: Sequence[str] = ()
    details: Sequence[Details] = ()
    settings: Sequence[Details] = ()

    def documents(self) -> dict[str, str]:
        """The page's figures as SVG documents, by name."""
        return {picture.name: picture.document for picture in self.pictures}

    def tables(self) -> dict[str, bytes]:
        """All tables of the page as LaTeX, and the numbers behind them as CSV, by file extension."""
        shown = [*self.comparisons, *self.published, *self.details, *self.settings]
        return {"csv": encoded(as_csv(self.statistics)), "tex": encoded(page_tables(shown))}

    def html(self) -> bytes:
        """Renders the page as one file that opens without a network connection."""
        warnings = _paragraphs(self.warnings)
        answers = [answer.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for answer in self.answers]
        curves = [picture for picture in self.pictures if picture.name.rstrip("-0123456789") in _CURVES]
        comparisons = [_table(each, "h3" if len(self.comparisons) > 1 else "") for each in self.comparisons]
        for place in range(_MOST_OPEN, len(comparisons)):
            comparisons[place] = folded(self.comparisons[place].title, comparisons[place])
        compared = [*comparisons, _paragraphs(self.remarks, "note"), *(_table(each, "h3") for each in self.details)]
        others = [picture for picture in self.pictures if picture not in curves]
        sections = [
            *((each.title, _table(each, "")) for each in self.published),
            ("Curves", _figures(curves)),
            ("Comparison", "\n".join(filter(None, compared))),
            ("Figures", _figures(others)),
            *((each.title, _table(each, "")) for each in self.settings),
            *self.sections,
        ]
        sections = [(title, content) for title, content in sections if content]
        links = (f'<a href="#{_identifier(title)}">{escape(title)}</a>' for title, _ in sections)
        body = [
            f"<p class=kicker>{escape(self.kicker)}</p>",
            f"<h1>{escape(self.heading)}</h1>",
            f'<div class=unfinished role="status">{warnings}</div>' if warnings else "",
            _paragraphs(answers, "verdict"),
            _paragraphs([self.paper]),
            f"<nav>{' '.join(links)}</nav>",
            *(f'<h2 id="{_identifier(title)}">{escape(title)}</h2>\n{content}' for title, content in sections),
        ]
        style = files("fedjax_bal.report").joinpath("page.css").read_text(encoding="utf-8")
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<title>{escape(self.tab)}</title><style>{style}</style>"
        )
        text = "\n".join(filter(None, body))
        return encoded(
            f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>\n{text}\n</main></body>\n</html>\n'
        )


def reproduction(
    command: str, file: str, config: Mapping[str, Any], given: Mapping[str, Any] | None, text: str
) -> tuple[str, str]:
    """Builds the section on reproduction: a shell command and the configuration that it needs.

    Args:
        command: `run` or `sweep`.
        file: the name of the configuration file.
        config: the configuration, whose `plugins` the command needs.
        given: the `command` of a summary: the plug-in files and the data folder; None if not known.
        text: the content of the file.

    Folders may come from other people: every word is quoted, and words that a terminal can't show are dropped.
    """
    plugins = config.get("plugins")
    plugins = [f"{name}.py" for name in plugins] if isinstance(plugins, Mapping) else []
    given = given or {"plugins": [], "data_dir": None}
    plugins = given["plugins"] or plugins
    options = [word for name in plugins if name.isprintable() for word in ("--plugin", name)]
    data = given["data_dir"]
    if data and data.isprintable():
        options += ["--data-dir", data]
    used = {"plugins": any(path.startswith("plugins/") for path in plugins), "files": " files/" in text}
    folders = [name for name in used if used[name]]
    copies = "".join(f" and a copy of the folder {name}" for name in folders)
    advice = (
        f"Run this in an empty folder that holds the configuration below{copies}. With the same versions on the same "
        "kind of device every seed gives the same numbers."
    )
    if plugins:
        advice += " The command needs its plug-ins, files of Python code: read them before you run it."
    line = shlex.join(["fedjax-bal", command, file, *options])
    shown = f"<p>{escape(advice)}</p><pre>{escape(line)}</pre>"
    return "How to reproduce", shown + folded(file, f"<pre>{escape(text)}</pre>")


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Formats a list of terms with their texts; empty if there are none."""
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
    return f"<dl>{listed}</dl>" if listed else ""


def note(text: str) -> str:
    """Formats a remark in small print; empty for an empty text."""
    return _paragraphs([text], "note")


def folded(title: str, content: str) -> str:
    """Formats a part of the page that opens with a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _paragraphs(texts: Iterable[str], kind: str = "") -> str:
    return "".join(f"<p{f' class={kind}' * bool(kind)}>{escape(text)}</p>" for text in texts if text)


def _table(shown: Details, heading: str) -> str:
    """Formats a table and its note, with marked rows highlighted; with a title if `heading` is set."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in shown.table.headings)
    rows = []
    for place, (first, *cells) in enumerate(shown.table.rows):
        mark = " class=best" if shown.marked and shown.marked[place] else ""
        # Long names may break after `_` or `+`, but not within a word.
        name = escape(first).replace("_", "_<wbr>").replace("+", "+<wbr>")
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr{mark}><th scope="row">{name}</th>{data}</tr>')
    title = escape(shown.title)
    return (
        (f"<{heading}>{title}</{heading}>" if heading else "")
        + f'<div class=scroll role="region" aria-label="{title}" tabindex="0">'
        + f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{note(shown.note)}"
    )


def _figures(pictures: Sequence[Picture]) -> str:
    """Formats figures with captions; empty if there are no figures.

    Each figure is a separate image, so identifiers of different figures can't collide and scripts can't run.
    """
    shown = []
    second = False  # whether the left column of the row is taken
    for picture, following in zip_longest(pictures, pictures[1:]):
        first = not picture.wide and not second
        second = first and following is not None and not following.wide
        # In a row without a neighbour, the caption takes the other column.
        kind = " class=wide" if picture.wide else " class=alone" if first and not second else ""
        photo = " class=photo" if picture.name.startswith(_PHOTOS) else ""
        title = escape(picture.title)
        document = base64.b64encode(encoded(picture.document)).decode()
        shown.append(
            f'<figure{kind}><div class=scroll role="region" aria-label="{title}" tabindex="0">'
            f'<img{photo} alt="{title}" src="data:image/svg+xml;base64,{document}"></div>'
            f"<figcaption><b>{title}.</b> {escape(picture.caption)}</figcaption></figure>"
        )
    return "\n".join(["<div class=figures>", *shown, "</div>"]) if shown else ""


def _identifier(title: str) -> str:
    return title.lower().replace(" ", "-")
