"""Tables of results in the terminal, as wide as it is."""

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedjax_bal.cli.console import say

ACCURACY = "test accuracy in %, ± standard deviation over seeds"
_WIDE = 110
_NARROW = 78


def print_table(text: Any, console: Console, caption: str, title: str = "") -> None:
    """Prints a `fedjax_bal.report.Table`, with cells of two lines if need be, and as lines in a narrow terminal."""
    if console.width < _NARROW:
        say(console, title) if title else None
        _print_lines(text, console)
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.title, grid.title_justify, grid.title_style = escape(title) or None, "left", "bold"
    grid.caption, grid.caption_justify = escape(caption), "left"
    columns = zip(text.headings, *text.rows, strict=True)
    fit = str if sum(2 + max(map(len, column)) for column in columns) <= console.width else _two_lines
    for index, name in enumerate(map(fit, text.headings)):
        grid.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for cells in text.rows:
        grid.add_row(*(escape(fit(cell)) for cell in cells))
    console.print(grid)


def short_name(name: str, console: Console) -> str:
    """A method's name, shortened to what a table has room for."""
    longest = 24 if console.width >= _WIDE else 16
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


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
