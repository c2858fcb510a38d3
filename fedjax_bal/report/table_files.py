"""The report's tables as files: Markdown and LaTeX for texts, and CSV with the numbers behind them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.metrics import METRICS, TEXT, compare, mean_interval, paired_difference, spread
from fedjax_bal.report.details import Details, details
from fedjax_bal.report.markup import encoded
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, printable, table, table_notes
from fedjax_bal.runs import as_csv

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # A bracket at the start of a row would be read as an argument of the line break before it.
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"±": "$\\pm$", MINUS: "$-$", "\N{EN DASH}": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$"}
)


def table_files(runs: Sequence[Mapping[str, Any]], target: float | None, partitions: bool = False) -> dict[str, bytes]:
    """The tables of `runs` of a `summary.json`, by the ending of their file.

    Markdown and LaTeX have the tables of the page: means, ± standard deviations over seeds, paired differences with
    their intervals. CSV has a row for each method and each metric of the summary: n, mean, standard deviation, 95%
    interval of the mean, and the paired difference from the first method with its interval. `target` is the share that
    counts as reached; `partitions` tells whether each seed has a partition of its own.
    """
    summaries = [own._replace(method=printable(own.method, LONGEST_NAME)) for own in compare(runs)]
    notes = " ".join(table_notes(summaries, partitions=partitions))
    comparison = Details("Comparison of methods", table(summaries, target), notes)
    shown = [comparison, *details(runs)]
    texts = {
        "csv": as_csv(list(_numbers(runs))),
        "md": "\n".join(map(_markdown, shown)),
        "tex": "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(_latex, shown)),
    }
    return {ending: encoded(text) for ending, text in texts.items()}


def _numbers(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    methods = list(dict.fromkeys(run["method"] for run in runs))
    for name in (metric.name for metric in METRICS.values() if metric.of_run and metric.unit is not TEXT):
        known = [run for run in runs if run.get(name) is not None]
        by_seed = {own: {run["seed"]: run[name] for run in known if run["method"] == own} for own in methods}
        for method in methods if known else ():
            mean = spread(list(by_seed[method].values()))
            row: dict[str, Any] = {"method": method, "metric": name, "n": mean.seeds, "mean": mean.mean}
            row |= {"deviation": mean.std} | dict(zip(("low", "high"), mean_interval(mean), strict=True))
            keys = ("difference", "difference_low", "difference_high", "pairs")
            apart = (None,) * 4 if method == methods[0] else paired_difference(by_seed[method], by_seed[methods[0]])
            yield row | dict(zip(keys, apart, strict=True))


def _markdown(own: Details) -> str:
    rule = ("---", *["---:"] * (len(own.table.headings) - 1))
    rows = [own.table.headings, rule, *own.table.rows]
    lines = (f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
    return f"### {own.title}\n\n" + "\n".join(lines) + f"\n\n{own.note}\n"


def _latex(own: Details) -> str:
    head, *rows = (
        " & ".join(cell.translate(_LATEX) for cell in row) + " \\\\" for row in (own.table.headings, *own.table.rows)
    )
    lines = [
        "\\begin{table}",
        f"\\caption{{{own.title}. {own.note.translate(_LATEX)}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(own.table.headings) - 1)}}}",
        "\\toprule",
        head,
        "\\midrule",
        *rows,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}\n",
    ]
    return "\n".join(lines)
