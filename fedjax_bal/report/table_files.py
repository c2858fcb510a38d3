"""The report's tables as files: Markdown and LaTeX for texts, and CSV with the numbers behind them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.metrics import METRICS, TEXT, MethodSummary, compare, mean_interval, paired_difference, spread_of_draws
from fedjax_bal.report.details import Details, details
from fedjax_bal.report.markup import encoded
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, Table, printable, table, table_notes
from fedjax_bal.runs import as_csv

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # A bracket at the start of a row would be read as an argument of the line break before it.
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"±": "$\\pm$", MINUS: "$-$", "\N{EN DASH}": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$"}
)
_MARKDOWN = str.maketrans({"|": "&#124;", "<": "&lt;"})
NONE_PUBLISHED: Mapping[tuple[str, str], float] = {}


def table_files(
    groups: Sequence[Sequence[Mapping[str, Any]]],
    target: float | None,
    partitions: bool = False,
    beside: Sequence[Details] = (),
    published: Mapping[tuple[str, str], float] = NONE_PUBLISHED,
) -> dict[str, bytes]:
    """The tables of `runs` of a `summary.json`, by the ending of their file; the runs of a group share their data.

    Markdown and LaTeX have the tables of the page: means, ± standard deviations over seeds, paired differences with
    their intervals. CSV has the statistics of each group. `target` is the share that counts as reached; `partitions`
    tells whether each seed has a partition of its own; `beside` are the tables beside a paper's; `published` as
    `statistics` takes it.
    """
    summaries = [summarise_group(runs) for runs in groups]
    notes = " ".join(table_notes([own for group in summaries for own in group], partitions=partitions))
    comparison = Details(comparison_title(), comparison_table(summaries, target), notes)
    shown = [comparison, *beside, *details([run for runs in groups for run in runs])]
    return as_files(shown, [row for runs in groups for row in statistics(runs, published)])


def as_files(shown: Sequence[Details], rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Tables in Markdown and LaTeX, and `rows` in CSV, by the ending of their file."""
    texts = {
        "csv": as_csv(rows),
        "md": "\n".join(map(_markdown, shown)),
        "tex": "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(_latex, shown)),
    }
    return {ending: encoded(text) for ending, text in texts.items()}


def summarise_group(runs: Sequence[Mapping[str, Any]]) -> list[MethodSummary]:
    """The methods of runs that share their data, set against the first one, under names that fit a table."""
    return [own._replace(method=printable(own.method, LONGEST_NAME)) for own in compare(runs)]


def comparison_title(condition: str = "") -> str:
    """The title of the comparison of methods under one condition."""
    return f"Comparison of methods{': ' * bool(condition)}{printable(condition, LONGEST_NAME)}"


def comparison_table(groups: Sequence[Sequence[MethodSummary]], target: float | None) -> Table:
    """The comparison of methods, each set against the first one of its group."""
    summaries = [summary for group in groups for summary in group]
    return table(summaries, target, baseline=None if len(groups) == 1 else "the first method on the same data")


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


def _markdown(own: Details) -> str:
    rule = ("---", *["---:"] * (len(own.table.headings) - 1))
    rows = [own.table.headings, rule, *own.table.rows]
    # A viewer would load the picture, or offer the link, that a name asks for.
    plain = lambda text: text.translate(_MARKDOWN).replace("](", "]&#40;")
    lines = (f"| {' | '.join(map(plain, row))} |" for row in rows)
    title, note = map(plain, (own.title, own.note))
    return f"### {title}\n\n" + "\n".join(lines) + f"\n\n{note}\n"


def _latex(own: Details) -> str:
    head, *rows = (_latex_row(row) for row in (own.table.headings, *own.table.rows))
    lines = [
        "\\begin{table}",
        f"\\caption{{{f'{own.title}. {own.note}'.rstrip().translate(_LATEX)}}}",
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


def _latex_row(cells: Sequence[str]) -> str:
    row = " & ".join(cell.translate(_LATEX) for cell in cells) + " \\\\"
    return f"{{}}{row}" if row.startswith("*") else row  # or else the line break before it would take the star
