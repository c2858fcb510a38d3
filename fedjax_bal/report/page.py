"""The report of a run: one HTML file that says what it found, opens without a network and prints well."""

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_bal.config import Sections, without_defaults
from fedjax_bal.lab import LARGEST, FolderError, RunFolder, RunRecord
from fedjax_bal.report.markup import Page, command, definitions, folded, note
from fedjax_bal.report.published import Beside, beside_of_run, changes_from_paper, paper_tables, published_by_metric
from fedjax_bal.report.tables import comparison, details, failed, remarks, statistics, summarise_group
from fedjax_bal.report.wording import LONGEST_NAME, flat, plural, printable, table_notes, verdict

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_MOST_LINES, _LONGEST_LINE = 20, 1000
_MOST_MISSING = 8


def build(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html`, `plots/*.svg` and `tables.csv` and `.tex` into a run folder; returns the page.

    The page is a function of the folder's content alone: the same folder gives the same bytes. Each file is replaced in
    one step, so that a reader never sees half of one. The run may be unfinished, which the page then says.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    # Imported late: matplotlib takes longer to load than most commands take to run.
    from fedjax_bal.report import gallery

    own = RunFolder(Path(folder))
    run = own.read()
    beside = beside_of_run(run.config, summarise_group(run.summary["runs"]), finished=is_finished(run))
    page = page_of_run(run, gallery.draw(run), beside)
    try:
        return own.write_report(page.html(), page.documents(), page.tables())
    except OSError as error:
        raise FolderError(
            f"{folder}: the report can't be written there ({error.strerror}); "
            "make the folder writable, with a folder `plots` or no such name in it"
        ) from error


def page_of_run(run: RunRecord, pictures: Sequence["Picture"], beside: Beside) -> Page:
    """The page of a run."""
    config = run.config
    summary = run.summary
    runs = summary["runs"]
    name = str(summary.get("name") or config.get("name") or "run")
    summaries = summarise_group(runs)
    finished = is_finished(run)
    dataset = _section(config, "dataset").get("name", "data set not recorded")
    methods, seeds = ({entry[key] for entry in runs} for key in ("method", "seed"))
    unfinished = "" if finished else (
        "This run is not finished, and what follows is provisional: the runs compared may stand at different rounds."
    )  # fmt: skip
    missing = missing_runs(config, runs)
    if missing and not finished:
        more = f"; and {len(missing) - _MOST_MISSING} more" if len(missing) > _MOST_MISSING else ""
        unfinished += f" Still missing: {'; '.join(missing[:_MOST_MISSING])}{more}."
    notes = " ".join(table_notes(summaries, partitions=draws_partitions(config)))
    changes = changes_from_paper(config)
    from_paper = "Differences from the paper's configuration: " + "; ".join(changes) + "." if changes else ""
    setting = (
        "".join(map(note, data_lines(summary)))
        + note(from_paper)
        + note("Settings that differ from their defaults, and the methods.")
        + definitions(_setting(_differing(config)))
        + folded("All settings", definitions(_setting(config)))
    )
    repeat = command(["fedjax-bal", "run", "config.yaml"], config, summary.get("command"))
    return Page(
        tab=f"{name}: federated learning report",
        kicker=" · ".join(
            ["Federated learning report", str(dataset), plural(len(methods), "method"), plural(len(seeds), "seed")]
        ),
        heading=name,
        warnings=[unfinished, failed(runs)],
        answers=[("" if finished else "So far: ") + verdict(summaries)],
        published=paper_tables(beside),
        comparisons=[comparison([summaries], summary.get("target_accuracy"), notes)] if summaries else [],
        statistics=list(statistics(runs, published_by_metric(beside))),
        remarks=remarks(summary) if summaries else ["No run has been evaluated yet."],
        details=details(runs),
        pictures=pictures,
        sections=[
            ("Setting", setting),
            ("Machine and speed", definitions(_machine(summary))),
            ("How to reproduce", f"{repeat}{folded('config.yaml', f'<pre>{escape(run.config_text)}</pre>')}"),
        ],
    )


def missing_runs(config: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names each run of the configuration that is missing in `runs` of a `summary.json`, or has yet to go on."""
    rounds = {(run["method"], run["seed"]): run["rounds"] for run in runs}
    over = {(run["method"], run["seed"]) for run in runs if run.get("stopped_early") is not None or run.get("failure")}
    base = _section(config, "training").get("rounds")
    phrases = []
    for entry in entries(config, "methods"):
        name = display_name(entry)
        expected = _section(entry, "training").get("rounds", base)
        for seed in (seed for seed in entries(config, "seeds") if isinstance(seed, int)):
            done = rounds.get((name, seed), 0)
            if (name, seed) not in rounds:
                phrases.append(f"{name}, seed {seed}")
            elif (name, seed) not in over and done is not None and isinstance(expected, int) and done < expected:
                phrases.append(f"{name}, seed {seed} ({done} of {expected} rounds)")
    return phrases


def is_finished(run: RunRecord) -> bool:
    """Tells whether no run has yet to go on; one that failed doesn't."""
    runs = run.summary["runs"]
    return not missing_runs(run.config, runs) and (run.summary["finished"] or bool(failed(runs)))


def _differing(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    plain = lambda key, value: without_defaults(kind, value) if (kind := Sections.child(key)) else value
    own = {key: plain(key, value) for key, value in config.items()}
    return {key: value for key, value in own.items() if value not in ({}, None)}


def data_lines(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on how many of the data set's rows and clients the methods use."""
    parts = [part for part in summary["partitions"] if part.get("data")]
    named = lambda part: f" of {', '.join(map(str, part['methods']))}" if len(parts) > 1 else ""
    return [printable(f"Data{named(part)}: {part['data']}.", _LONGEST_LINE) for part in parts[:_MOST_LINES]]


def _setting(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if key not in ("name", "methods", "paper"):
            yield str(key), flat(value)
    for entry in entries(config, "methods"):
        if isinstance(entry, dict):
            rest = {key: value for key, value in entry.items() if key != "name"}
            yield f"method {printable(display_name(entry), LONGEST_NAME)}", flat(rest)


def _machine(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    versions = summary.get("versions")
    yield "device", str(summary.get("device") or "not recorded")
    yield "versions", flat(versions) if versions else "not recorded"
    yield "client updates per second", _number(summary.get("client_updates_per_s"), "", "excluding compilation")
    yield "samples per second", _number(summary.get("samples_per_s"), "", "excluding compilation")
    yield "compilation", _number(summary.get("compile_s"), " s", "once, not in the rates above")
    yield "whole run", _number(summary.get("wall_s"), " s", "wall clock")


def _number(value: Any, unit: str, remark: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return "not recorded"
    return f"{value:,.0f}{unit} ({remark})" if abs(value) >= 100 else f"{value:.3g}{unit} ({remark})"


def _section(config: Any, key: str) -> Mapping[str, Any]:
    section = config.get(key) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}


def entries(config: Mapping[str, Any], key: str) -> list[Any]:
    """The entries of a list in a configuration, which may be damaged."""
    found = config.get(key)
    return [entry for entry in found if isinstance(entry, dict | str | int)] if isinstance(found, list) else []


def draws_partitions(config: Mapping[str, Any]) -> bool:
    """Tells whether each seed of a resolved configuration has a partition of its own."""
    return bool(entries(config, "partition_seeds"))


def display_name(entry: Any) -> str:
    """The name of the method that an entry of `methods` stands for."""
    if not isinstance(entry, dict):
        return str(entry)
    if "recipe" not in entry or entry.get("name"):
        return str(entry.get("name"))
    recipe = entry["recipe"]
    return "+".join(display_name(part) for part in recipe) if isinstance(recipe, list) else str(recipe)
