"""The report: one HTML file that says what a run found, opens without a network and prints well."""

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_bal.config import Sections, without_defaults
from fedjax_bal.metrics import MethodSummary
from fedjax_bal.report.details import Details, broken, details, ending, failed
from fedjax_bal.report.markup import command, definitions, document, encoded, figures, folded, grid, note
from fedjax_bal.report.published import (
    Beside,
    beside_of_run,
    changes_from_paper,
    paper_tables,
    published_by_metric,
)
from fedjax_bal.report.table_files import comparison_table, comparison_title, summarise_group, table_files
from fedjax_bal.report.wording import LONGEST_NAME, flat, leader, plural, printable, table_notes, verdict
from fedjax_bal.runs import LARGEST, FolderError, RunFolder, RunRecord

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_FIRST = ("accuracy", "traffic", "mean-accuracy", "worst-class")
_MOST_LINES, _LONGEST_LINE = 20, 1000


def build(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html`, `plots/*.svg` and `tables.csv`, `.md` and `.tex` into a run folder; returns the page.

    The page is a function of the folder's content alone: the same folder gives the same bytes. Each file is replaced in
    one step, so that a reader never sees half of one. The run may be unfinished, which the page then says.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    # Imported late: matplotlib takes longer to load than most commands take to run.
    from fedjax_bal.report.gallery import draw

    own = RunFolder(Path(folder))
    run = own.read()
    pictures = draw(run)
    beside = beside_of_run(run.config, summarise_group(run.summary["runs"]), finished=is_finished(run))
    page = _page(run, pictures, beside)
    arguments = run.summary.get("target_accuracy"), draws_partitions(run.config)
    tables = table_files([run.summary["runs"]], *arguments, paper_tables(beside), published_by_metric(beside))
    try:
        documents = {picture.name: picture.document for picture in pictures}
        return own.write_report(encoded(page), documents, tables)
    except OSError as error:
        raise FolderError(
            f"{folder}: the report can't be written there ({error.strerror}); "
            "make the folder writable, with a folder `plots` or no such name in it"
        ) from error


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
    return not missing_runs(run.config, runs) and (run.summary["finished"] or failed(runs) is not None)


def _page(run: RunRecord, pictures: Sequence["Picture"], beside: Beside) -> str:
    name = str(run.summary.get("name") or run.config.get("name") or "run")
    summaries = summarise_group(run.summary["runs"])
    missing = missing_runs(run.config, run.summary["runs"])
    unfinished, failures = not is_finished(run), failed(run.summary["runs"])
    curves, others = curves_first(pictures)
    notes = table_notes(summaries, partitions=draws_partitions(run.config))
    parts = [
        f"<p class=kicker>{escape(_kicker(run))}</p>",
        f"<h1>{escape(name)}</h1>",
        _unfinished(missing) if unfinished else "",
        f'<p class=unfinished role="status">{escape(failures)}</p>' if failures else "",
        f"<p class=verdict>{escape(_answer(summaries, unfinished))}</p>",
        tables_with_notes(paper_tables(beside), level=2),
        figures("Curves", curves, _thinned(run)),
        "<h2>Comparison</h2>",
        methods_table([summaries], run.summary.get("target_accuracy"), notes),
        _details(run.summary["runs"]),
        figures("Figures", others),
        "<h2>Setting</h2>",
        "".join(map(note, data_lines(run.summary))),
        _settings(run.config),
        "<h2>Machine and speed</h2>",
        definitions(_machine(run.summary)),
        "<h2>How to reproduce</h2>",
        command(["fedjax-bal", "run", "config.yaml"], run.config, run.summary.get("command")),
        folded("config.yaml", f"<pre>{escape(run.config_text)}</pre>"),
    ]
    return document(f"{name}: federated learning report", parts)


def curves_first(pictures: Sequence["Picture"]) -> tuple[list["Picture"], list["Picture"]]:
    """The pictures with which a page begins, and the others."""
    first = [own for own in pictures if own.name.rstrip("-0123456789") in _FIRST]
    return first, [own for own in pictures if own.name.rstrip("-0123456789") not in _FIRST]


def _answer(summaries: Sequence[MethodSummary], unfinished: bool) -> str:
    text = ("So far: " if unfinished else "") + verdict(summaries)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def _kicker(run: RunRecord) -> str:
    dataset = _section(run.config, "dataset").get("name", "data set not recorded")
    seeds = len({entry["seed"] for entry in run.summary["runs"]})
    methods = len({entry["method"] for entry in run.summary["runs"]})
    return f"Federated learning report · {dataset} · {plural(methods, 'method')} · {plural(seeds, 'seed')}"


def _unfinished(missing: list[str]) -> str:
    named = "; ".join(missing[:8]) + (f"; and {len(missing) - 8} more" if len(missing) > 8 else "")
    text = "This run is not finished, and what follows is provisional: the runs compared may stand at different rounds."
    still = f" Still missing: {named}." if missing else ""
    return f'<p class=unfinished role="status">{escape(text + still)}</p>'


def _thinned(run: RunRecord) -> str:
    if not run.left_out:
        return ""
    kept, all_lines = f"{len(run.lines):,}", f"{len(run.lines) + run.left_out:,}"
    return note(
        f"Of the {all_lines} lines of metrics.jsonl the figures show {kept}, of evenly spaced rounds and the last one "
        "of each run."
    )


def methods_table(
    groups: Sequence[Sequence[MethodSummary]], target: float | None, notes: Sequence[str], condition: str = ""
) -> str:
    """The table of methods above its notes, as HTML.

    Each group of `compare`'s summaries shares its data, and is set against its own first method; where all are alone,
    the column of differences is left out. `target` is the share that counts as reached, `condition` what sets the table
    apart from others of the page.
    """
    if not any(groups):
        return "<p>No run has been evaluated yet.</p>"
    alone = lambda group: len(group) == 1 < len(groups)
    leaders = [None if alone(group) else leader(group) for group in groups]
    marked = [own is best for group, best in zip(groups, leaders, strict=True) for own in group]
    return grid(comparison_title(condition), comparison_table(groups, target), marked) + "".join(map(note, notes))


def _details(runs: Sequence[Mapping[str, Any]]) -> str:
    remarks = [note(text) for text in (ending(runs), broken(runs)) if text]
    return "".join(remarks) + tables_with_notes(details(runs))


def tables_with_notes(shown: Iterable[Details], level: int = 3) -> str:
    """Further tables of a page, each below its title, a heading of that level."""
    title = lambda own: f"<h{level}>{escape(own.title)}</h{level}>"
    return "".join(f"{title(own)}{grid(own.title, own.table)}{note(own.note)}" for own in shown)


def _settings(config: Mapping[str, Any]) -> str:
    """The settings that differ from the defaults, then all settings in a folded list."""
    plain = lambda key, value: without_defaults(kind, value) if (kind := Sections.child(key)) else value
    own = {key: plain(key, value) for key, value in config.items()}
    differing = {key: value for key, value in own.items() if value not in ({}, None)}
    changes = changes_from_paper(config)
    return (
        (note("Differences from the paper's configuration: " + "; ".join(changes) + ".") if changes else "")
        + note("Settings that differ from their defaults, and the methods.")
        + definitions(_setting(differing))
        + folded("All settings", definitions(_setting(config)))
    )


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
