"""A table of a report, as text for a terminal, as HTML, CSV and LaTeX; and the numbers and names in its cells."""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from rich.cells import cell_len, chop_cells

from fedjax_bal.lab import as_csv
from fedjax_bal.metrics import NOTHING, SHARE, Difference, Unit

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("fedjax_bal.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
MINUS = "\N{MINUS SIGN}"
LONGEST_NAME = 80
BOOKTABS = "% Needs \\usepackage{booktabs}.\n"
_WIDEST_NOTE = 100  # characters
_NARROWEST_NAMES = 16
_NARROWEST_LIST = 40
# As in Pandoc: "from $5 to $10" has no formula.
_FORMULA = re.compile(r"(\$(?![\s$])[^$]*(?<![\s\\])\$(?!\d))")
_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # A bracket at the start of a row would be taken as an argument of the preceding line break.
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"±": "$\\pm$", MINUS: "$-$", "\N{EN DASH}": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$"}
)


class Table(NamedTuple):
    """A table.

    Attributes:
        title: its title.
        headings: a heading for each column.
        rows: the cells; texts, and for `csv` also numbers.
        note: what readers need to know about the numbers.
        best: the indices of highlighted rows.
        short: headings for a terminal in place of longer ones; None leaves out the column there.
        optional: headings of columns that a narrow terminal leaves out, starting with the first.
        remarks: sentences on columns for a terminal, by heading; shown with the column.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    best: Collection[int] = ()
    short: Mapping[str, str | None] = MappingProxyType({})
    optional: Sequence[str] = ()
    remarks: Mapping[str, str] = MappingProxyType({})

    def text(self, width: int) -> str:
        """Formats the table for a terminal.

        Without enough room for a row on one line, optional columns are left out; then cells take two lines; then names
        are broken; at last the table becomes a list of all cells.
        """
        headings = [self.short.get(heading) or heading for heading in self.headings]
        kept = [place for place, heading in enumerate(self.headings) if self.short.get(heading, heading) is not None]
        optional = [place for heading in self.optional for place in kept if self.headings[place] == heading]
        choices = [[place for place in kept if place not in optional[:count]] for count in range(len(optional) + 1)]
        for form, shown in [(form, places) for form in (str, _in_two_lines) for places in choices]:
            rows = [[form(row[place]) for place in shown] for row in (headings, *self.rows)]
            lines = _aligned(rows, width)
            if lines is not None:
                break
        else:
            others = sum(2 + max(map(_width, column)) for column in list(zip(*rows, strict=True))[1:])
            room = max(width - others, _NARROWEST_NAMES)
            lines = _aligned([["\n".join(chop_cells(name, room)), *cells] for name, *cells in rows], width)
        if lines is None:
            shown = kept
            lines = []
            entry = textwrap.TextWrapper(max(width, _NARROWEST_LIST), initial_indent="  ", subsequent_indent="    ")
            for row in self.rows:
                lines.append(row[kept[0]])
                for place in kept[1:]:
                    lines += entry.wrap(f"{headings[place]}: {row[place]}")
        left_out = [headings[place] for place in kept if place not in shown]
        said = [self.note, *(self.remarks.get(self.headings[place], "") for place in shown)]
        said += [f"No room for {', '.join(left_out)}; the page has them."] if left_out else []
        note = textwrap.wrap(" ".join(filter(None, said)), min(width, _WIDEST_NOTE))
        return "\n".join([*([self.title] if self.title else []), *lines, *note])

    def html(self, heading: str = "") -> Markup:
        """Formats the table for a page, under its title if `heading` names an element such as `h3`."""
        return Markup(TEMPLATES.get_template("table.html").render(table=self, heading=heading))

    def csv(self) -> str:
        """Formats the cells as CSV."""
        return as_csv([dict(zip(self.headings, row, strict=True)) for row in self.rows])

    def latex(self, caption: str = "", above: Sequence[str] = ()) -> str:
        """Formats the table for a paper, with the package booktabs; cells that are `Latex` are used as they are.

        Args:
            caption: the caption; the title if empty, with the note as a comment above the table.
            above: for each column a name; columns with the same one have it above their headings.
        """
        lines = [" & ".join(map(to_latex, row)) for row in (self.headings, *self.rows)]
        # The line break before it would take a star as its own.
        head, *body = (f"{'{}' * line.startswith('*')}{line} \\\\" for line in lines)
        if above:
            cells = []
            rules = ""
            column = 1
            for name, group in groupby(above):
                count = len(list(group))
                cells.append(f"\\multicolumn{{{count}}}{{c}}{{{to_latex(name)}}}" if name else "")
                rules += f"\\cmidrule(lr){{{column}-{column + count - 1}}}" if name else ""
                column += count
            head = f"{' & '.join(cells)} \\\\{rules}\n{head}"
        label = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        notes = [] if caption else [f"% {line}" for line in textwrap.wrap(to_latex(self.note), 118)]
        return "\n".join([
            *notes,
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{to_latex(caption or f'{self.title}.')}}}",
            f"\\label{{tab:{label}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}\n",
        ])  # fmt: skip


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str] | None:
    """Aligns rows of cells in columns, with a rule below the first row; None if they are wider than `width`."""
    sizes = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    total = sum(sizes) + 2 * (len(sizes) - 1)
    if total > width:
        return None
    lines = []
    for row in rows:
        for name, *cells in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
            padded = [" " * (size - cell_len(cell)) + cell for size, cell in zip(sizes[1:], cells, strict=True)]
            lines.append("  ".join([name + " " * (sizes[0] - cell_len(name)), *padded]).rstrip())
        if row is rows[0]:
            lines.append("─" * total)
    return lines


def _width(cell: str) -> int:
    return max(map(cell_len, cell.split("\n")))


def _in_two_lines(cell: str) -> str:
    """Breaks a cell between a number and its deviation, interval or remark, and a heading at a comma."""
    if len(cell) > LONGEST_NAME:  # a sentence, which fits only into a list
        return cell
    for mark in ("±", "[", "("):
        cell = cell.replace(f" {mark}", f"\n{mark}")
    return cell.replace(", ", ",\n") if cell[:1].isalpha() else cell


class Latex(str):
    """A text that is LaTeX already."""


def to_latex(text: str) -> Latex:
    """Returns LaTeX that prints a text; the formulas in it, `$...$`, stay formulas."""
    if isinstance(text, Latex):
        return text
    pieces = split_math(text)
    return Latex("".join(piece if place % 2 else piece.translate(_SPECIAL) for place, piece in enumerate(pieces)))


def split_math(text: str) -> list[str]:
    r"""Splits a name into text and formulas, `$...$` with the dollars, in turn, starting and ending with text.

    All of it is text if matplotlib can't set one of the formulas, of which it knows a part of LaTeX's.

    >>> split_math(r"Smooth, $\beta=0.9$, from $5 to $10")
    ['Smooth, ', '$\\beta=0.9$', ', from $5 to $10']
    """
    pieces = split_formulas(text)
    return [text] if any(map(formula_fault, pieces[1::2])) else pieces


def split_formulas(text: str) -> list[str]:
    """Splits a name as `split_math`, with the formulas that matplotlib can't set."""
    return _FORMULA.split(text)


@lru_cache
def formula_fault(formula: str) -> str:
    """Describes why matplotlib can't set a formula; empty if it can."""
    from matplotlib.mathtext import MathTextParser  # importing matplotlib takes longer than most commands run

    try:
        MathTextParser("path").parse(formula)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def encoded(text: str) -> bytes:
    """Encodes a text as UTF-8; surrogates, which JSON and folder names can contain, are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def printable(text: str, limit: int = LONGEST_NAME) -> str:
    """Formats a name on one line, without control characters, shortened to `limit` characters."""
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def plural(count: int, noun: str) -> str:
    """Formats a number with its noun: 1 seed, 2 seeds."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_some(texts: Sequence[str], most: int, separator: str = "; ") -> str:
    """Joins the first `most` texts, and counts the others."""
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])


def flat(value: Any) -> str:
    """Formats a configuration's value on one line, without the brackets of mappings."""
    if isinstance(value, dict):
        texts = []
        for key, entry in value.items():
            chooses = key in ("name", "scheme", "recipe") and isinstance(entry, str)
            nested = f"({flat(entry)})" if isinstance(entry, dict) else flat(entry)
            texts.append(entry if chooses else f"{key} {nested}")
        return ", ".join(texts)
    if isinstance(value, list):
        return "[" + ", ".join(map(flat, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def signed(value: float, unit: Unit = SHARE) -> str:
    """Formats a difference with its sign, in a unit: those of fractions in percentage points."""
    text = f"{unit.factor * value:+{unit.digits}}"
    return text.replace("-", MINUS if text.strip("-0.") else "+")


def points(value: Difference | None, unit: Unit = SHARE, *, star: bool = False) -> str:
    """Formats a difference in a unit, with its interval if known; a dash for None (the baseline).

    If `star`, one follows the differences that are significant after Holm's correction.
    """
    if value is None or value.mean is None:
        return NOTHING
    text = signed(value.mean, unit) + "*" * (star and value.significant)
    if value.low is None or value.high is None:
        return text
    return f"{text} [{signed(value.low, unit)}, {signed(value.high, unit)}]"


def p_value(value: Difference | None) -> str:
    """Formats a difference's p-value after Holm's correction; a dash without one."""
    p = value and value.p_holm
    return NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def megabytes(traffic_bytes: float | None) -> str:
    """Formats bytes in MB of 10^6 bytes; a dash for None."""
    return NOTHING if traffic_bytes is None else three_digits(traffic_bytes / 1e6)


def three_digits(value: float) -> str:
    """Formats a number to three digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
