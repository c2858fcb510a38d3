"""Tables in LaTeX: those of a page, and one of chosen metrics for a paper. They need the package booktabs."""

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.config import nearest_choices
from fedjax_bal.metrics import METRICS, NOTHING, SHARE, TEXT, Metric, evaluations, paired_difference, spread_of_draws
from fedjax_bal.report.labels import split_math
from fedjax_bal.report.tables import Details
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, averaged_heading, printable

_NEEDS = "% Needs \\usepackage{booktabs}."
_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # A bracket at the start of a row would be taken as an argument of the preceding line break.
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"±": "$\\pm$", MINUS: "$-$", "\N{EN DASH}": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$"}
)

Runs = Sequence[Mapping[str, Any]]


def escaped(text: str) -> str:
    """Returns a text as LaTeX that prints it."""
    return text.translate(_SPECIAL)


def page_tables(shown: Sequence[Details]) -> str:
    """Formats the tables of a page; their notes are comments above them, for a caption or the text."""
    tables = []
    for each in shown:
        notes = [f"% {line}" for line in textwrap.wrap(escaped(each.note), 118)]
        head = [list(map(escaped, each.table.headings))]
        rows = [list(map(escaped, row)) for row in each.table.rows]
        tables += [*notes, _table(head, rows, escaped(f"{each.title}."), each.title)]
    return "\n".join([_NEEDS, *tables])


def find_metrics(names: Sequence[str]) -> list[Metric]:
    """Finds metrics of whole runs; `_accuracy` and `_bytes` may be left out of a name.

    Raises:
        ValueError: a name is unknown.

    Example:
        >>> [metric.name for metric in find_metrics(["final", "rounds_to_target"])]
        ['final_accuracy', 'rounds_to_target']
    """
    of_run = {name: metric for name, metric in METRICS.items() if metric.of_run and metric.unit is not TEXT}
    short = {re.sub("_(accuracy|bytes)$", "", name): metric for name, metric in of_run.items()}
    for name in names:
        if name not in {*of_run, *short}:
            raise ValueError(f"--table: received {name!r:.80}; {nearest_choices(name, short, kind='metrics')}")
    return [of_run.get(name) or short[name] for name in names]


def paper_table(
    conditions: Sequence[tuple[str, Sequence[Runs]]],
    metrics: Sequence[Metric],
    *,
    bold: bool,
    name: str,
    subject: str = "",
    remark: str = "",
) -> str:
    r"""Formats a table with a row for each method and, under each condition, a column for each metric.

    Args:
        conditions: the name of each condition (empty for a single one), and its runs in groups that share their data.
        metrics: the columns.
        bold: prints in bold, in each column and group, the best mean, and underlines those that don't clearly differ
            from it.
        name: the results' name, for `\label`.
        subject: the start of the caption; `name` if empty.
        remark: the end of the caption.
    """
    methods = list(dict.fromkeys(run["method"] for _, groups in conditions for runs in groups for run in runs))
    columns = []
    for _, groups in conditions:
        for metric in metrics:
            columns.append({})
            for runs in groups:
                columns[-1] |= _cells(runs, metric, bold=bold)
    rows = [[_name(method), *(column.get(method, escaped(NOTHING)) for column in columns)] for method in methods]

    every = [run for _, groups in conditions for runs in groups for run in runs]
    headings = [_heading(metric, every) for metric in metrics]
    head = [["Method", *headings * len(conditions)]]
    rules = ""
    subject = escaped(subject or printable(name, LONGEST_NAME))
    if len(conditions) > 1:
        names = [_name(condition) for condition, _ in conditions]
        if len(metrics) == 1:
            head = [["Method", *names]]
            subject += f", {headings[0]}"
        else:
            head = [["", *(f"\\multicolumn{{{len(metrics)}}}{{c}}{{{condition}}}" for condition in names)], *head]
            ends = range(1 + len(metrics), 2 + len(columns), len(metrics))
            rules = "".join(f"\\cmidrule(lr){{{end - len(metrics) + 1}-{end}}}" for end in ends)

    counts = Counter(
        (place, run["method"]) for place, (_, groups) in enumerate(conditions) for runs in groups for run in runs
    )
    least = min(counts.values())
    most = max(counts.values())
    seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    sentences = [f"{subject}: " + (f"mean $\\pm$ standard deviation over {seeds}." if most > 1 else "one seed.")]
    if bold:
        among = " on the same data" * any(len(groups) > 1 for _, groups in conditions)
        also = "; underlined: not clearly different from it (the paired 95\\% interval includes 0)" * (most > 1)
        sentences.append(f"Bold: the best mean{among}{also}.")
    caption = " ".join([*sentences, escaped(remark)]).strip()
    return f"{_NEEDS}\n{_table(head, rows, caption, name, rules)}"


def _name(text: str) -> str:
    pieces = split_math(printable(text, LONGEST_NAME))
    return "".join(piece if place % 2 else escaped(piece) for place, piece in enumerate(pieces))


def _heading(metric: Metric, runs: Runs) -> str:
    heading = metric.column.heading if metric.column else metric.name.replace("_", " ").capitalize()
    if metric.name == "last5_accuracy":
        heading = averaged_heading(evaluations(runs)).capitalize()
    return escaped(f"{heading} ({metric.unit.symbol})" if metric.unit.symbol else heading)


def _cells(runs: Runs, metric: Metric, *, bold: bool) -> dict[str, str]:
    """Formats a metric of each method of runs that share their data."""
    by_seed: dict[str, dict[Any, float]] = {run["method"]: {} for run in runs}
    for run in runs:
        if run.get(metric.name) is not None:
            by_seed[run["method"]][run["seed"]] = run[metric.name]
    best, close = _best_and_close(by_seed, highest=metric.unit is SHARE) if bold else (set(), set())
    cells = {}
    for method, values in by_seed.items():
        asked = sum(run["method"] == method for run in runs)
        part = f" ({len(values)} of {asked})" * (0 < len(values) < asked)
        cell = escaped(metric.unit.show(spread_of_draws(values)) + part)
        mark = "\\textbf" if method in best else "\\underline" if method in close else ""
        cells[method] = f"{mark}{{{cell}}}" if mark else cell
    return cells


def _best_and_close(by_seed: Mapping[str, Mapping[Any, float]], *, highest: bool) -> tuple[set[str], set[str]]:
    """Returns the methods with the best mean, and the others whose paired difference from it may be 0.

    A method that lacks runs, such as those that reach the target, isn't comparable with the others.
    """
    most = max(map(len, by_seed.values()))
    known = {method: values for method, values in by_seed.items() if len(values) == most > 0}
    means = {method: spread_of_draws(values).mean or 0.0 for method, values in known.items()}
    top = (max if highest else min)(means.values(), default=None)
    best = {method for method, mean in means.items() if mean == top}
    leads = {method: paired_difference(known[min(best)], known[method]) for method in known if method not in best}
    close = {
        method
        for method, lead in leads.items()
        if lead.low is not None and lead.high is not None and lead.low <= 0 <= lead.high
    }
    return best, close


def _table(
    head: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], caption: str, name: str, rules: str = ""
) -> str:
    """Formats a table from escaped cells; `name` becomes its label, `rules` follow the first line of the head."""
    # The preceding line break would take a star as its own.
    lines = [f"{'{}' * line.startswith('*')}{line} \\\\" for line in map(" & ".join, [*head, *rows])]
    lines[0] += rules
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return "\n".join([
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{label}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(head[-1]) - 1)}}}",
        "\\toprule",
        *lines[: len(head)],
        "\\midrule",
        *lines[len(head) :],
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}\n",
    ])  # fmt: skip
