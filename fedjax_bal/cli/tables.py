"""Tables of results in the terminal, as wide as it is."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_bal.cli.console import harmless, say

ACCURACY = "test accuracy in %, ± standard deviation over seeds"
_WIDE = 110


def print_table(text: Any, console: Console, caption: str, title: str = "") -> None:
    """Prints a `fedjax_bal.report.Table`, with cells of several lines if need be; as lines where that has no room."""
    text = text._replace(rows=[tuple(map(harmless, cells)) for cells in text.rows])  # before widths are measured
    shown = next((own for own in (text, _folded(text)) if _width(own) <= console.width), None)
    if shown is None:
        say(console, title) if title else None
        _print_lines(text, console)
        say(console, caption) if caption else None
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.title, grid.title_justify, grid.title_style = Text(title) if title else None, "left", "bold"
    grid.caption, grid.caption_justify = Text(caption), "left"
    for index, name in enumerate(shown.headings):
        grid.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    for cells in shown.rows:
        grid.add_row(*map(Text, cells))
    console.print(grid)


def _width(text: Any) -> int:
    """The width of a table with its padding."""
    columns = zip(text.headings, *text.rows, strict=True)
    return sum(2 + max(len(line) for cell in column for line in cell.split("\n")) for column in columns)


def _folded(text: Any) -> Any:
    """A table with the text after a number below it, and headings broken at commas."""
    heads = tuple(_two_lines(name).replace(", ", ",\n") for name in text.headings)
    return text._replace(headings=heads, rows=[tuple(map(_two_lines, cells)) for cells in text.rows])


def with_short_names(rows: Sequence[Any], console: Console) -> list[Any]:
    """Rows whose methods' names are shortened to what a table has room for, unless no short form tells them apart."""
    longest, names = 24 if console.width >= _WIDE else 16, [row.method for row in rows]
    half = longest // 2
    forms = (lambda name: f"{name[: longest - 1]}…", lambda name: f"{name[: half - 1]}…{name[-half:]}", str)
    ways = ([name if len(name) <= longest else form(name) for name in names] for form in forms)
    found = next(way for way in ways if len(set(way)) == len(set(names)))
    return [row._replace(method=name) for row, name in zip(rows, found, strict=True)]


def _print_lines(text: Any, console: Console) -> None:
    for method, *cells in text.rows:
        say(console, method)
        for heading, cell in zip(text.headings[1:], cells, strict=True):
            say(console, f"  {heading}: {cell}")


def _two_lines(cell: str) -> str:
    """Puts the text after a number below it."""
    for mark in ("±", "[", "("):
        cell = cell.replace(f" {mark}", f"\n{mark}")
    return cell.replace(" seeds)", ")").replace("vs ", "vs\n").replace("not reached", "not\nreached")
