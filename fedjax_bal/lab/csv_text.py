"""Tables as CSV text that spreadsheets open safely."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_FORMULA = re.compile(r"'*[=+@\t\r-]")


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """Formats the table as CSV with a header line; None is an empty cell, and lists are written as in YAML.

    A text that a spreadsheet would interpret as a formula gets a leading apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    for row in table:
        formulas = [key for key, value in row.items() if isinstance(value, str) and _FORMULA.match(value)]
        # Negative numbers such as -0.5 stay.
        writer.writerow({**row, **{key: f"'{row[key]}" for key in formulas if isinstance(cell_value(row[key]), str)}})
    return text.getvalue()


def read_csv(text: str) -> list[dict[str, str]]:
    """Reads the rows that `as_csv` has written, without the apostrophes; raises `ValueError` for rows of other length.

    Example:
        >>> read_csv(as_csv([{"method": "=1+1", "accuracy": 0.5, "failure": None}]))
        [{'method': '=1+1', 'accuracy': '0.5', 'failure': ''}]
    """
    heading, *rows = csv.reader(io.StringIO(text), strict=True)
    return [dict(zip(heading, map(_without_apostrophe, row), strict=True)) for row in rows]


def cell_value(text: str) -> Any:
    """Returns the number in a cell; None for an empty one, and for infinity and NaN; the text for any other."""
    if not text:
        return None
    if "_" in text:  # which Python reads as a number's separator, and YAML doesn't
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return (int(text) if text.lstrip("-").isdecimal() else number) if math.isfinite(number) else None


def _without_apostrophe(text: str) -> str:
    return text[1:] if text[:1] == "'" and _FORMULA.match(text[1:]) else text
