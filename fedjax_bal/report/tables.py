"""The report's tables: texts for the page and LaTeX, and CSV with the numbers behind them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.lab import as_csv
from fedjax_bal.metrics import (
    METRICS,
    REPORT_TABLES,
    TEXT,
    MethodSummary,
    compare,
    divergences,
    mean_interval,
    paired_difference,
    spread,
    spread_of_draws,
)
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, Table, leader, megabytes, printable, table

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # A bracket at the start of a row would be read as an argument of the line break before it.
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"±": "$\\pm$", MINUS: "$-$", "\N{EN DASH}": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$"}
)
NONE_PUBLISHED: Mapping[tuple[str, str], float] = {}
_MOST_NAMED = 12  # runs of which failures, or broken clients, are named
_LONGEST_TEXT = 400


class Details(NamedTuple):
    """A table of the report: its heading, its rows, what its numbers are, and for each row whether it is set off."""

    title: str
    table: Table
    note: str
    marked: Sequence[bool] = ()


def summarise_group(runs: Sequence[Mapping[str, Any]]) -> list[MethodSummary]:
    """The methods of runs that share their data, set against the first one, under names that fit a table."""
    return [own._replace(method=printable(own.method, LONGEST_NAME)) for own in compare(runs)]


def comparison(
    groups: Sequence[Sequence[MethodSummary]], target: float | None, note: str, condition: str = ""
) -> Details:
    """The comparison of methods, with the best one of each group set off.

    Each group of `compare`'s summaries shares its data, and is set against its own first method; where all are alone,
    the column of differences is left out. `target` is the share that counts as reached, `condition` what sets the table
    apart from others of the page.
    """
    baseline = None if len(groups) == 1 else "the first method on the same data"
    leaders = [None if len(group) == 1 < len(groups) else leader(group) for group in groups]
    marked = [own is best for group, best in zip(groups, leaders, strict=True) for own in group]
    title = f"Comparison of methods{': ' * bool(condition)}{printable(condition, LONGEST_NAME)}"
    whole = table([summary for group in groups for summary in group], target, baseline=baseline)
    return Details(title, whole, note, marked)


def details(runs: Sequence[Mapping[str, Any]]) -> list[Details]:
    """The further tables for which `runs` of a `summary.json` have numbers; columns without any are left out."""
    found = []
    for shown in REPORT_TABLES:
        of_table = [(own, own.column) for own in METRICS.values() if own.column and own.column.table is shown]
        known = [pair for pair in of_table if any(run.get(pair[0].name) is not None for run in runs)]
        # A single optional column, such as one group of classes, says nothing by itself.
        several = sum(column.optional for _, column in known) > 1
        columns = [(metric, column) for metric, column in known if several or not column.optional]
        if not columns:
            continue
        rows = []
        for method in dict.fromkeys(run["method"] for run in runs):
            own = [run for run in runs if run["method"] == method]
            cells = (metric.unit.show(spread([run.get(metric.name) for run in own])) for metric, _ in columns)
            rows.append((printable(method, LONGEST_NAME), *cells))
        heads = (", ".join(filter(None, (column.heading, metric.unit.symbol))) for metric, column in columns)
        notes = dict.fromkeys([shown.note, *(column.note for _, column in columns)])
        found.append(Details(shown.title, Table(("Method", *heads), rows), " ".join(filter(None, notes))))
    return found


def failed(runs: Sequence[Mapping[str, Any]]) -> str:
    """Names the runs that failed, with the reasons; empty where none did."""
    named = [f"{_named(run)} ({printable(run['failure'], _LONGEST_TEXT)})" for run in runs if run.get("failure")]
    return f"Runs that failed, and so have no final accuracy: {_first_of(named)}." if named else ""


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on early stops, broken clients, and how even the classes are that methods train on."""
    runs = summary["runs"]
    found = []
    early = [
        f"{_named(run)} after round {run['stopped_early']}" for run in runs if run.get("stopped_early") is not None
    ]
    if early:
        found.append(
            f"Stopped early, because the metric on validation images no longer got better: {_first_of(early)}. Final "
            "accuracies are those of these rounds; that of the best round by validation is further below."
        )
    broken = [
        f"{_named(run)}: {run['excluded'] or 0:g} left out, "
        f"{run['clipped'] or 0:g} scaled down ({printable(run['broken_clients'], _LONGEST_TEXT)})"
        for run in runs
        if run.get("broken_clients")
    ]
    if broken:
        found.append(f"Broken clients. {_first_of(broken)}.")
    for part in summary["partitions"]:
        copies = part.get("augmentation")
        if copies and sum(copies["before"]):
            kls = " to ".join(f"{divergences(np.array([copies[key]])).item():.2f}" for key in ("before", "after"))
            more = f"{100 * copies['extra_rows'] / sum(copies['before']):.1f}%"
            found.append(
                f"Augmentation of {_methods(part)}: {copies['extra_rows']:,} copies, which would take "
                f"{megabytes(copies['extra_bytes'])} MB to store, {more} more than the originals; the divergence of "
                f"all clients' classes from equal shares goes from {kls} nats."
            )
    for part in summary.get("batches", []):
        found.append(
            f"Mini-batches of {_methods(part)}, which the method fills up: the mean divergence of a client's "
            f"classes from equal shares goes from {part['kl_before']:.2f} to {part['kl_after']:.2f} nats."
        )
    for method in dict.fromkeys(run["method"] for run in runs):
        known = [run["composition"] for run in runs if run["method"] == method and run.get("composition")]
        ranks = spread([each.get("rank_correlation") for each in known])
        if ranks.mean is not None:
            deviation = "" if ranks.std is None else f" ± {ranks.std:.2f}"
            found.append(
                f"Class composition of clients as {printable(method, LONGEST_NAME)} estimates it: its rank correlation "
                f"with the true one is {ranks.mean:.2f}{deviation}, mean over clients and seeds (1 is the right order "
                "of the classes, 0 is chance).".replace(" -", f" {MINUS}")
            )
    return found


def _named(run: Mapping[str, Any]) -> str:
    return f"{printable(run['method'], LONGEST_NAME)}, seed {run['seed']}"


def _methods(part: Mapping[str, Any]) -> str:
    return ", ".join(printable(str(method), LONGEST_NAME) for method in part["methods"])


def _first_of(named: Sequence[str]) -> str:
    rest = f"; and {len(named) - _MOST_NAMED} more runs" if len(named) > _MOST_NAMED else ""
    return "; ".join(named[:_MOST_NAMED]) + rest


def statistics(
    runs: Sequence[Mapping[str, Any]], published: Mapping[tuple[str, str], float] = NONE_PUBLISHED
) -> Iterator[dict[str, Any]]:
    """The numbers of runs that share their data: a row for each method and each metric that any run has.

    It has n, mean, standard deviation, 95% interval of the mean, the paired difference from the first method with its
    interval, and the number in `published`, by method and metric, with the difference from it. The seed of a run may be
    a `SeededDraw`.
    """
    methods = list(dict.fromkeys(run["method"] for run in runs))
    for name in (metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT):
        known = [run for run in runs if run.get(name) is not None]
        by_seed = {own: {run["seed"]: run[name] for run in known if run["method"] == own} for own in methods}
        for method in methods if known else ():
            mean = spread_of_draws(by_seed[method])
            row: dict[str, Any] = {"method": method, "metric": name, "n": mean.seeds, "mean": mean.mean}
            row |= {"deviation": mean.std} | dict(zip(("low", "high"), mean_interval(mean), strict=True))
            keys = ("difference", "difference_low", "difference_high", "pairs")
            apart = (None,) * 4 if method == methods[0] else paired_difference(by_seed[method], by_seed[methods[0]])
            theirs = published.get((method, name))
            far = None if theirs is None or mean.mean is None else mean.mean - theirs
            yield row | dict(zip(keys, apart, strict=True)) | {"published": theirs, "from_published": far}


def table_files(shown: Sequence[Details], rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Tables in LaTeX, and `rows` in CSV, by the ending of their file."""
    texts = {"csv": as_csv(rows), "tex": "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(_latex, shown))}
    return {ending: encoded(text) for ending, text in texts.items()}


def encoded(text: str) -> bytes:
    """A text as UTF-8; halves of characters, which JSON and names of folders can hold, are replaced by a sign."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _latex(own: Details) -> str:
    rows = []
    for cells in (own.table.headings, *own.table.rows):
        row = " & ".join(cell.translate(_LATEX) for cell in cells) + " \\\\"
        rows.append(f"{{}}{row}" if row.startswith("*") else row)  # the line break before it would take the star
    head, *body = rows
    caption = f"{own.title}. {own.note}".rstrip().translate(_LATEX)
    return "\n".join(
        [
            f"\\begin{{table}}\n\\caption{{{caption}}}\n\\begin{{tabular}}{{l{'r' * (len(own.table.headings) - 1)}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule\n\\end{tabular}\n\\end{table}\n",
        ]
    )
