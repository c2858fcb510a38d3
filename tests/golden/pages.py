"""The pages of a run, of a sweep and of a comparison: headings, tables, titles of figures."""

import contextlib
import json
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import small_run
from golden import texts
from typer.testing import CliRunner

from fedjax_bal.cli.app import app

FILE = "pages.txt"
HEAD = """Headings, tables and captions of the page of a run, of a sweep and of a comparison, and what the folders hold.
What the machine is and takes is left out. Numbers are compared to 3%: a test image may change sides by rounding."""
TOLERANCE = 0.03
CHANGES = ("training.rounds=3", "evaluation.every=1")
SWEEP = """
name: mine
base: small.yaml
training: {rounds: 3}
methods: [{recipe: fedavg}]
sweep:
  - training.optimizer.learning_rate: [0.01, 0.05]
"""
_SHOWN = {"h1": "# ", "h2": "## ", "h3": "### ", "tr": "", "figcaption": "figure: ", "summary": "", "dt": ""}
_MACHINE = "## Machine and speed"


def record() -> texts.Record:
    """What the pages hold now."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("small.yaml").write_text(small_run.TEXT)
        Path("sweep.yaml").write_text(SWEEP)
        _command("run", "small.yaml", *CHANGES, "--out", "one", "--plain")
        _command("run", "small.yaml", *CHANGES, "methods=[{recipe: balanced_softmax}]", "--out", "two", "--plain")
        _command("sweep", "sweep.yaml", "--out", "swept", "--plain")
        found = {"folder of a run": _files(Path("one")), "folder of a sweep": _files(Path("swept"))}
        _command("report", "one", "two")
        lines = Path("one/metrics.jsonl").read_text().splitlines()
        summary = json.loads(Path("one/summary.json").read_text())
        return found | {
            "keys of metrics.jsonl": list(json.loads(lines[0])),
            "keys of summary.json": list(summary),
            "keys of a run in summary.json": list(summary["runs"][0]),
            "columns of results.csv": Path("swept/results.csv").read_text().splitlines()[0].split(","),
            "page of a run": _page(Path("one/report.html")),
            "page of a comparison": _page(Path("one/comparison.html")),
            "page of a sweep": _page(Path("swept/sweep.html")),
        }


def _command(*arguments: str) -> None:
    """Runs a command, which must end well."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output


def alike(old: str, new: str) -> bool:
    """How lines of pages are compared."""
    return texts.numbers_alike(old, new, TOLERANCE)


def _files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _page(file: Path) -> list[str]:
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    plain = (" ".join(line.replace("\N{MINUS SIGN}", "-").split()) for line in reader.lines)
    return [re.sub(r"(?<=\d)(?=[\],])|(?<=\[)(?=[-+\d])", " ", line) for line in plain]


class _Reader(HTMLParser):
    """Collects what is to be recorded: a line for each heading, row of a table, caption and term."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._open, self._inside = "", 0
        self._heading = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside += tag in ("svg", "style", "script")
        if tag in _SHOWN:
            self._open = tag
            self.lines.append(_SHOWN[tag])
        elif tag in ("th", "td") and self.lines[-1]:
            self.lines[-1] += " | "
        elif tag == "dd" and self._heading != _MACHINE:
            self._open = tag
            self.lines[-1] += ": "

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag in ("svg", "style", "script")
        if tag == self._open:
            self._heading = self.lines[-1] if tag == "h2" else self._heading
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open and not self._inside:
            self.lines[-1] += data
