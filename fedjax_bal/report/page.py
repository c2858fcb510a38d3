"""The pages of a run and of a comparison of runs: HTML files that open without a network and print well."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fedjax_bal.config import Sections, without_defaults
from fedjax_bal.files import check_replaceable, write_atomically
from fedjax_bal.lab import PYTHON, FolderError, RunFolder, training_line, writing
from fedjax_bal.report.comparison import (
    MethodComparison,
    by_client,
    class_balance,
    compare_runs,
    details,
    differences,
    run_states,
)
from fedjax_bal.report.published import PaperComparison, paper_comparison_of_run
from fedjax_bal.report.reading import ReportedRuns, display_name, entries, read_runs, section
from fedjax_bal.report.tables import BOOKTABS, TEMPLATES, Table, encoded, flat, plural, printable, three_digits

# Matplotlib is imported late, with the gallery: importing it takes longer than most commands run.

_MOST_OPEN = 6  # tables of conditions that are shown; further ones are folded
_MOST_LINES = 20
_LONGEST_LINE = 1000
_MOST_DIFFERENCES = 60
_CURVES = ("class-mean", "accuracy", "traffic", "mean-accuracy", "worst-class")
PHOTOS = "pictures"
"""The start of the names of figures that show images: their shades are never inverted."""
_NOT_RECORDED = "not recorded"

Pairs = Sequence[tuple[str, str]]
"""Terms and their descriptions."""


class Picture(NamedTuple):
    """A finished figure.

    Attributes:
        name: the file's name without extension.
        title: its title.
        caption: the text below it.
        document: the SVG document.
        wide: whether it spans both columns of a page.
        narrow: the SVG document for a phone; empty if `document` is shrunk there.
    """

    name: str
    title: str
    caption: str
    document: str
    wide: bool = False
    narrow: str = ""

    @property
    def kind(self) -> str:
        """Its name without a number."""
        return self.name.rstrip("-0123456789")

    @property
    def is_photo(self) -> bool:
        """Whether it shows images, whose shades a dark page must not invert."""
        return self.name.startswith(PHOTOS)

    @property
    def sources(self) -> list[str]:
        """Its documents as `data:` addresses: in an image, identifiers can't collide and scripts can't run."""
        documents = [" ".join(document.split()) for document in (self.document, self.narrow) if document]
        # With these characters as they are, an address is shorter than in base64.
        return [f"data:image/svg+xml,{quote(encoded(document), safe=' /:=;,.-()+*!@$?')}" for document in documents]


class Reproduction(NamedTuple):
    """How to repeat the results: a command, and the text of the configuration file that it needs."""

    command: str
    file: str
    text: str
    plugins: bool = False


class Page(NamedTuple):
    """The content of a page for the template `page.html`; empty items have no section.

    Attributes:
        kind: what the page reports, for a line above the heading.
        heading: the name of the run or sweep.
        facts: the rest of that line.
        comparisons: tables of methods, one per condition.
        statistics: the numbers behind the tables, as rows of a CSV file.
        pictures: figures; curves come first, the others after the tables.
        warnings: reasons why numbers are provisional or hard to compare; empty texts are skipped, here and below.
        first: tables above the sections, such as one of the runs that aren't done.
        verdicts: the result in words.
        paper: the comparison with a paper's results.
        details: further tables.
        settings: the accuracy at every setting of a sweep.
        differing: in which keys the configurations differ.
        setting: the keys that differ from their defaults, and the methods.
        whole_setting: all keys.
        machine: device, versions and speed.
        reproduction: how to repeat the results.
    """

    kind: str
    heading: str
    facts: Sequence[str]
    comparisons: Sequence[Table]
    statistics: Sequence[Mapping[str, Any]]
    pictures: Sequence[Picture]
    warnings: Sequence[str] = ()
    first: Sequence[Table] = ()
    verdicts: Sequence[str] = ()
    paper: PaperComparison = PaperComparison((), "")
    details: Sequence[Table] = ()
    settings: Table | None = None
    differing: Pairs | None = None
    setting: Pairs = ()
    whole_setting: Pairs = ()
    machine: Pairs = ()
    reproduction: Reproduction | None = None

    def html(self) -> bytes:
        """Renders the page as one file that opens without a network connection."""
        curves = [picture for picture in self.pictures if picture.kind in _CURVES]
        others = [picture for picture in self.pictures if picture.kind not in _CURVES]
        text = TEMPLATES.get_template("page.html").render(page=self, curves=curves, others=others, most_open=_MOST_OPEN)
        return encoded(text.lstrip())

    def documents(self) -> dict[str, str]:
        """Returns the page's figures as SVG documents, by name."""
        return {picture.name: picture.document for picture in self.pictures}

    def tables(self) -> dict[str, bytes]:
        """Formats all tables of the page as LaTeX, and the numbers behind them as CSV, by file extension."""
        shown = [*self.first, *self.comparisons, *self.paper.tables, *self.details]
        shown += [self.settings] if self.settings else []
        keys = list(self.statistics[0]) if self.statistics else []
        numbers = Table("Statistics", keys, [list(row.values()) for row in self.statistics])
        return {
            "csv": encoded(numbers.csv()),
            "tex": encoded(BOOKTABS + "\n".join(table.latex() for table in shown)),
        }


def write_run_page(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html`, `plots/*.svg` and `tables.csv` and `.tex` into a run folder; returns the page's path.

    The page depends only on the folder's content: the same folder gives the same bytes. Each file is replaced
    atomically, so that readers never see half a file. If the run is unfinished, the page shows the rounds so far.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report import gallery

    files = RunFolder(Path(folder))
    runs = read_runs([files.path])
    page = page_of_run(runs, gallery.to_pictures(lambda: gallery.run_figures(runs)))
    with writing(files.path, "make the folder writable, and let `plots` be a folder in it"):
        return files.write_page(page.html(), page.documents(), page.tables())


def write_comparison_page(folders: Sequence[Path], file: Path) -> Path:
    """Writes a page that compares 2 to 20 run folders with the same classes; returns the page's path.

    Its tables are written next to it, for `comparison.html` as `comparison-tables.csv` and `.tex`.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the file can't be written.
    """
    from fedjax_bal.report import gallery

    if len(folders) < 2:
        raise FolderError(f"report: received {plural(len(folders), 'folder')}; a comparison takes 2 or more")
    runs = read_runs(folders)
    return write_to(file, page_of_comparison(runs, gallery.to_pictures(lambda: gallery.run_figures(runs))))


def write_to(file: Path, page: Page) -> Path:
    """Writes a page into a file, and its tables next to it; returns the file."""
    with writing(file):
        check_replaceable(file)  # checked before its tables are written
        for ending, content in page.tables().items():
            write_atomically(file.with_name(f"{file.stem}-tables.{ending}"), content)
        write_atomically(file, page.html())
    return file


def page_of_run(runs: ReportedRuns, pictures: Sequence[Picture]) -> Page:
    """Gathers the page of a run."""
    config = runs.record.config
    summary = runs.record.summary
    paper = paper_comparison_of_run(runs)
    compared = compare_runs(runs)
    python = bool(config.get(PYTHON))
    repeat = None if python else (config, summary["command"], runs.record.config_text)
    per_s = ("client_updates_per_s", "samples_per_s")
    updates, samples = (_number(summary[key], "", "excluding compilation") for key in per_s)
    return Page(
        kind="Federated learning report",
        heading=summary["name"],
        facts=[
            "trained from Python" if python else str(section(config, "dataset").get("name", "data set not recorded")),
            plural(len({run["method"] for run in summary["runs"]}), "method"),
            plural(len({run["seed"] for run in summary["runs"]}), "seed"),
        ],
        pictures=pictures,
        statistics=compared.statistics(paper.by_metric()),
        paper=paper,
        **_compared(runs, compared),
        setting=[*_data(summary), *_training(config), *_pairs(_without_defaults(config))],
        whole_setting=_pairs(config),
        machine=[
            *device_and_versions(summary),
            ("client updates per second", updates),
            ("samples per second", samples),
            ("compilation", _number(summary["compile_s"], " s", "once, not in the rates above")),
            ("whole run", _number(summary["wall_s"], " s", "wall clock")),
        ],
        reproduction=repeat and reproduction("run", "config.yaml", *repeat),
    )


def page_of_comparison(runs: ReportedRuns, pictures: Sequence[Picture]) -> Page:
    """Gathers the page of several run folders."""
    compared = compare_runs(runs)
    return Page(
        kind="Comparison",
        heading="Comparison of runs",
        facts=[f"{len(runs.configs)} run folders"],
        pictures=pictures,
        statistics=compared.statistics(),
        **_compared(runs, compared),
        differing=differences(runs.configs)[:_MOST_DIFFERENCES],
    )


def _compared(runs: ReportedRuns, compared: MethodComparison) -> dict[str, Any]:
    """Returns the parts that the pages of one folder and of several have in common."""
    summary = runs.record.summary
    return {
        "warnings": compared.warnings,
        "first": run_states(runs),
        "verdicts": compared.verdicts,
        "comparisons": compared.tables,
        "details": [*class_balance(summary), *details(summary["runs"]), *by_client(runs)],
    }


def setting_of_sheet(sheet: Mapping[str, Any]) -> tuple[Pairs, Pairs]:
    """Returns the keys of a sweep's sheet that differ from their defaults, and all of them."""
    return _pairs(_without_defaults(sheet)), _pairs(sheet)


def device_and_versions(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names the device and the versions of a summary."""
    return [
        ("device", summary.get("device") or _NOT_RECORDED),
        ("versions", flat(summary.get("versions", {})) or _NOT_RECORDED),
    ]


def reproduction(
    command: str, file: str, config: Mapping[str, Any], given: Mapping[str, Any] | None, text: str
) -> Reproduction:
    """Builds the shell command that repeats results.

    Args:
        command: `run` or `sweep`.
        file: the name of the configuration file.
        config: the configuration, whose `plugins` the command needs.
        given: the `command` of a summary: the plug-in files and the data folder; None if not known.
        text: the content of the file.

    Folders may come from other people: every word is quoted, and words that a terminal can't show are dropped.
    """
    given = given or {"plugins": [], "data_dir": None}
    plugins = given["plugins"] or [f"{name}.py" for name in section(config, "plugins")]
    options = [word for name in plugins if name.isprintable() for word in ("--plugin", name)]
    if given["data_dir"] and given["data_dir"].isprintable():
        options += ["--data-dir", given["data_dir"]]
    return Reproduction(shlex.join(["fedjax-bal", command, file, *options]), file, text, bool(plugins))


def _data(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Lists how many rows and clients of the data set the methods use."""
    parts = [part for part in summary["partitions"] if part.get("data")]
    for part in parts[:_MOST_LINES]:
        methods = f" of {', '.join(map(str, part['methods']))}" if len(parts) > 1 else ""
        yield printable(f"data{methods}", _LONGEST_LINE), printable(part["data"], _LONGEST_LINE)


def _training(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    line = training_line(config)  # empty for a configuration that isn't whole
    if line:
        yield "training in short", printable(line, _LONGEST_LINE)


def _without_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    differing = {}
    for key, value in config.items():
        kind = Sections.child(key)
        value = without_defaults(kind, value) if kind else value
        if value not in ({}, None):
            differing[key] = value
    return differing


def _pairs(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [(str(key), flat(value)) for key, value in config.items() if key not in ("name", "methods", "paper")]
    for entry in entries(config, "methods"):
        if isinstance(entry, dict):
            rest = {key: value for key, value in entry.items() if key not in ("name", "label")}
            pairs.append((f"method {printable(display_name(entry))}", flat(rest)))
    return pairs


def _number(value: float | None, unit: str, remark: str) -> str:
    return _NOT_RECORDED if value is None else f"{three_digits(value)}{unit} ({remark})"
