"""The report: one HTML file that says what a run found, opens without a network and prints well."""

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedjax_bal.metrics import MethodSummary, compare
from fedjax_bal.report.details import broken, details, ending
from fedjax_bal.report.wording import (
    INTERVAL_IN_WORDS,
    KL_IN_WORDS,
    LONGEST_NAME,
    Table,
    printable,
    shows_divergence,
    table,
    tied,
    verdict,
)
from fedjax_bal.runs import LARGEST, FolderError, RunFolder, RunRecord

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_KINDS = {"final": "final accuracy", "best": "best accuracy", "last5": "mean of last 5"}
SPREAD_IN_WORDS = (
    "“±” is the sample standard deviation over seeds. “Mean of last 5” averages the last five evaluations of a run. "
    "“Best” is the highest accuracy of a run, picked on the test set itself and so flattering. "
)
REPRODUCE = (
    "Run this in an empty folder that holds the configuration below. With the same versions on the same kind of device "
    "every seed gives the same numbers."
)


def build(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html` and `plots/*.svg` into a run folder.

    The page is a function of the folder's content alone: the same folder gives the same bytes. Each file is replaced in
    one step, so that a reader never sees half of one.

    Args:
        folder: a run folder with `config.yaml`, `metrics.jsonl` and `summary.json`; the run may be unfinished, which
            the page then says.

    Returns:
        The path of the page.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.

    >>> build("no/such/folder")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ...
    FolderError: no/such/folder: no such folder; give the folder that a run wrote
    """
    # Imported late: matplotlib takes longer to load than most commands take to run.
    from fedjax_bal.report.gallery import draw

    own = RunFolder(Path(folder))
    run = own.read()
    pictures = draw(run)
    page = _page(run, [(picture.html, picture.title, picture.caption) for picture in pictures])
    try:
        return own.write_report(encoded(page), {picture.name: picture.document for picture in pictures})
    except OSError as error:
        raise FolderError(
            f"{folder}: the report can't be written there ({error.strerror}); "
            "make the folder writable, with a folder `plots` or no such name in it"
        ) from error


def missing_runs(config: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which runs the configuration asks for that are not there, or have not come to their last round.

    Args:
        config: the resolved configuration.
        runs: `runs` of a `summary.json`.

    Returns:
        A phrase for each.

    >>> config = {"methods": [{"recipe": "fedavg"}], "seeds": [0, 1], "training": {"rounds": 9}}
    >>> missing_runs(config, [{"method": "fedavg", "seed": 0, "rounds": 4}])
    ['fedavg, seed 0 (4 of 9 rounds)', 'fedavg, seed 1']
    """
    rounds = {(run["method"], run["seed"]): run["rounds"] for run in runs}
    early = {(run["method"], run["seed"]) for run in runs if run.get("stopped_early") is not None}
    base = _section(config, "training").get("rounds")
    phrases = []
    for entry in _list(config, "methods"):
        name = display_name(entry)
        expected = _section(entry, "training").get("rounds", base)
        for seed in (seed for seed in _list(config, "seeds") if isinstance(seed, int)):
            done = rounds.get((name, seed), 0)
            if (name, seed) not in rounds:
                phrases.append(f"{name}, seed {seed}")
            elif (name, seed) not in early and done is not None and isinstance(expected, int) and done < expected:
                phrases.append(f"{name}, seed {seed} ({done} of {expected} rounds)")
    return phrases


def _page(run: RunRecord, pictures: list[tuple[str, str, str]]) -> str:
    name = str(run.summary.get("name") or run.config.get("name") or "run")
    summaries = [s._replace(method=printable(s.method, LONGEST_NAME)) for s in compare(run.summary["runs"])]
    missing = missing_runs(run.config, run.summary["runs"])
    unfinished = bool(missing) or not run.summary["finished"]
    parts = [
        f"<p class=kicker>{escape(_kicker(run))}</p>",
        f"<h1>{escape(name)}</h1>",
        _unfinished(missing) if unfinished else "",
        f"<p class=verdict>{escape(_answer(summaries, unfinished))}</p>",
        "<h2>Comparison</h2>",
        methods_table([summaries], run.summary.get("target_accuracy")),
        _details(run.summary["runs"]),
        _beside_the_paper(run.config, summaries),
        "<h2>Figures</h2>" if pictures else "",
        _thinned(run) if pictures else "",
        "<div class=figures>" if pictures else "",
        *(figure_html(*picture) for picture in pictures),
        "</div>" if pictures else "",
        "<h2>Setting</h2>",
        definitions(_setting(run.config)),
        "<h2>Machine and speed</h2>",
        definitions(_machine(run.summary)),
        "<h2>How to reproduce</h2>",
        f"<p>{escape(REPRODUCE)}</p><pre>fedjax-bal run config.yaml</pre>",
        f"<details><summary>config.yaml</summary><pre>{escape(run.config_text)}</pre></details>",
    ]
    return document(f"{name}: federated learning report", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: for the browser's tab.
        parts: of its body, HTML; empty ones are left out.

    Returns:
        The page.
    """
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{stylesheet()}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>\n{body}\n</main></body>\n</html>\n'


def encoded(page: str) -> bytes:
    r"""A page as UTF-8, with a sign in place of what is no text.

    JSON and names of folders can hold halves of characters.

    >>> encoded("a\udcff").decode()
    'a\ufffd'
    """
    return page.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _answer(summaries: Sequence[MethodSummary], unfinished: bool) -> str:
    text = ("So far: " if unfinished else "") + verdict(summaries)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def _kicker(run: RunRecord) -> str:
    dataset = _section(run.config, "dataset").get("name", "data set not recorded")
    seeds = len({entry["seed"] for entry in run.summary["runs"]})
    methods = len({entry["method"] for entry in run.summary["runs"]})
    return f"Federated learning report · {dataset} · {_plural(methods, 'method')} · {_plural(seeds, 'seed')}"


def _unfinished(missing: list[str]) -> str:
    named = "; ".join(missing[:8]) + (f"; and {len(missing) - 8} more" if len(missing) > 8 else "")
    text = "This run is not finished, and what follows is provisional: the runs compared may stand at different rounds."
    still = f" Still missing: {named}." if missing else ""
    return f'<p class=unfinished role="status">{escape(text + still)}</p>'


def _thinned(run: RunRecord) -> str:
    if not run.left_out:
        return ""
    kept, all_lines = f"{len(run.lines):,}", f"{len(run.lines) + run.left_out:,}"
    return (
        f"<p class=note>Of the {all_lines} lines of metrics.jsonl the figures show {kept}, of evenly spaced rounds and "
        "the last one of each run.</p>"
    )


def methods_table(groups: Sequence[Sequence[MethodSummary]], target: float | None) -> str:
    """The table of methods, with its notes.

    Args:
        groups: from `compare`, one for all methods that share their data; each is set against its own first method.
        target: the share that counts as reached, if any.

    Returns:
        HTML, without the column of differences where no two methods share their data.
    """
    summaries = [summary for group in groups for summary in group]
    if not summaries:
        return "<p>No run has been evaluated yet.</p>"
    text = table(summaries, target, baseline=None if len(groups) == 1 else "the first method on the same data")
    if len(groups) == len(summaries) > 1:
        text = _without_column(text, 2)
    alone = lambda group: len(group) == 1 < len(groups)
    marked = [mark and not alone(group) for group in groups for mark in _best(group)]
    kl = f"<p class=note>{escape(KL_IN_WORDS)}</p>" if shows_divergence(summaries) else ""
    note = SPREAD_IN_WORDS + (INTERVAL_IN_WORDS if any(_has_interval(s) for s in summaries) else "")
    return f"{grid('Comparison of methods', text, marked)}{kl}<p class=note>{escape(note.strip())}</p>"


def _best(summaries: Sequence[MethodSummary]) -> list[bool]:
    """Which methods have the highest mean final accuracy; none where all have the same."""
    finals = [] if tied(summaries) else [s.final.mean for s in summaries if s.final.mean is not None]
    best = max(finals, default=None)
    return [best is not None and summary.final.mean == best for summary in summaries]


def _without_column(text: Table, place: int) -> Table:
    cut = lambda cells: (*cells[:place], *cells[place + 1 :])
    return Table(cut(text.headings), [cut(row) for row in text.rows])


def grid(label: str, text: Table, marked: Sequence[bool] = ()) -> str:
    """A table as HTML, the marked rows set off."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in text.headings)
    rows = []
    for place, (first, *cells) in enumerate(text.rows):
        mark = " class=best" if place < len(marked) and marked[place] else ""
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        # A long name breaks after `_` or `+` rather than within a word.
        name = escape(first).replace("_", "_<wbr>").replace("+", "+<wbr>")
        rows.append(f'<tr{mark}><th scope="row">{name}</th>{data}</tr>')
    return (
        f'<div class=scroll role="region" aria-label="{escape(label)}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _details(runs: Sequence[Mapping[str, Any]]) -> str:
    remarks = [text for text in (ending(runs), broken(runs)) if text]
    sections = [
        f"<h3>{escape(part.title)}</h3>{grid(part.title, part.table)}<p class=note>{escape(part.note)}</p>"
        for part in details(runs)
    ]
    return "".join([*(f"<p class=note>{escape(text)}</p>" for text in remarks), *sections])


def _beside_the_paper(config: Mapping[str, Any], summaries: Sequence[MethodSummary]) -> str:
    """What the paper reports for these methods, where the configuration says so."""
    paper = _section(config, "paper")
    wanted, which = _section(paper, "accuracy"), str(paper.get("which", "final"))
    ours = lambda summary: {"best": summary.best, "last5": summary.last5}.get(which, summary.final).mean
    pairs = [(summary.method, ours(summary), _accuracy(wanted.get(summary.method))) for summary in summaries]
    rows = [
        (method, f"{100 * here:.1f}", f"{100 * there:.1f}", f"{100 * (here - there):+.1f}")
        for method, here, there in pairs
        if here is not None and there is not None
    ]
    if not rows:
        return ""
    text = Table(("method", f"{_KINDS.get(which, which)} here, %", "paper, %", "difference"), rows)
    source = printable(str(paper.get("source") or "not named"), 300)
    return f"<h3>Beside the paper</h3>{grid('Beside the paper', text)}<p class=note>{escape(source)}</p>"


def _accuracy(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value <= 1 else None


def _has_interval(summary: MethodSummary) -> bool:
    return summary.difference is not None and summary.difference.low is not None


def figure_html(html: str, title: str, caption: str) -> str:
    """A figure with its caption."""
    return f"<figure>{html}<figcaption><b>{escape(title)}.</b> {escape(caption)}</figcaption></figure>"


def _setting(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if key not in ("name", "methods", "paper"):
            yield str(key), _flat(value)
    for entry in _list(config, "methods"):
        if isinstance(entry, dict):
            rest = {key: value for key, value in entry.items() if key != "name"}
            yield f"method {printable(display_name(entry), LONGEST_NAME)}", _flat(rest)


def _machine(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    versions = summary.get("versions")
    yield "device", str(summary.get("device") or "not recorded")
    yield "versions", _flat(versions) if versions else "not recorded"
    yield "client updates per second", _number(summary.get("client_updates_per_s"), "", "compilation apart")
    yield "samples per second", _number(summary.get("samples_per_s"), "", "compilation apart")
    yield "compilation", _number(summary.get("compile_s"), " s", "once, not in the rates above")
    yield "whole run", _number(summary.get("wall_s"), " s", "wall clock")


def _number(value: Any, unit: str, remark: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return "not recorded"
    return f"{value:,.0f}{unit} ({remark})" if abs(value) >= 100 else f"{value:.3g}{unit} ({remark})"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Pairs of a term and what is to say about it."""
    return "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs) + "</dl>"


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_pair(key, entry) for key, entry in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_flat(entry) for entry in value) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _pair(key: Any, value: Any) -> str:
    if key in ("name", "scheme", "recipe") and isinstance(value, str):
        return value
    return f"{key} ({_flat(value)})" if isinstance(value, dict) else f"{key} {_flat(value)}"


def _section(config: Any, key: str) -> Mapping[str, Any]:
    section = config.get(key) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}


def _list(config: Mapping[str, Any], key: str) -> list[Any]:
    entries = config.get(key)
    return [entry for entry in entries if isinstance(entry, dict | str | int)] if isinstance(entries, list) else []


def display_name(entry: Any) -> str:
    """What a method is called that an entry of the list of methods stands for."""
    if not isinstance(entry, dict):
        return str(entry)
    if "recipe" not in entry or entry.get("name"):
        return str(entry.get("name"))
    recipe = entry["recipe"]
    return "+".join(display_name(part) for part in recipe) if isinstance(recipe, list) else str(recipe)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def stylesheet() -> str:
    """The style of every page."""
    return files("fedjax_bal.report").joinpath("page.css").read_text(encoding="utf-8")
