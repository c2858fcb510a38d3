"""Stores the results of the long-tailed sweeps, and writes the tables of the guide's page on long tails from them.

    python benchmarks/long_tail.py [FOLDER ...]

Each folder, a finished sweep of configs/protocols/long_tail.yaml or natural_long_tail.yaml, replaces results/NAME.csv,
with the accuracy in each class after the last round. Then the tables are written. Without a folder, only this last step
is done.
"""

import argparse
import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from _common import with_part

from fedjax_bal.metrics import SHARE, MethodSummary, apply_holm, compare, paired_difference
from fedjax_bal.report.tables import points

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "fedjax_bal" / "guide" / "long_tail.md"
BY_CLASS = "per_class_accuracy"
Runs = Sequence[dict[str, Any]]
Column = Callable[[Sequence[MethodSummary], Sequence[Runs]], list[str]]
"""The cells of a column, from the methods' summaries and each method's runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    for folder in parser.parse_args().folders:
        collect(folder)
    PAGE.write_text(page(), encoding="utf-8")


def collect(folder: Path) -> None:
    """Copies a sweep's table, and adds the accuracy in each class, which the table of a sweep leaves out."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_class = {}
    for point in {row["point"] for row in rows}:
        for line in map(json.loads, (folder / "points" / point / "metrics.jsonl").read_text().splitlines()):
            by_class[point, line["method"], str(line["seed"])] = line[BY_CLASS]  # the last line of a run stays
    with (RESULTS / f"{folder.name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], BY_CLASS], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            accuracies = by_class.get((row["point"], row["method"], row["seed"]), ())
            writer.writerow(row | {BY_CLASS: " ".join(f"{value:.4g}" for value in accuracies)})


def page() -> str:
    """Returns the text of the page, with its tables made from the results."""
    text = PAGE.read_text(encoding="utf-8")
    for name, (file, where, columns) in TABLES.items():
        text = with_part(text, "long_tail.py", name, table(runs(RESULTS / file, where), columns))
    return text


def runs(file: Path, where: dict[str, str]) -> list[dict[str, Any]]:
    """Reads the finished runs of a table in which some columns have given values, as `compare` takes them."""
    with file.open(encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if row["status"] == "done"]
    return [
        {
            "method": row["method"],
            "seed": int(row["seed"]),  # and of its partition
            BY_CLASS: [float(value) for value in row.get(BY_CLASS, "").split()],
            **{key: float(row[key]) if row[key] else None for key in NUMBERS},
        }
        for row in rows
        if where.items() <= row.items()
    ]


def table(of_runs: Runs, columns: dict[str, Column]) -> str:
    """Formats the comparison of the methods, the best one first: by its mean over classes on an imbalanced test set."""
    methods = compare(of_runs)
    runs_of = [[run for run in of_runs if run["method"] == method.method] for method in methods]
    cells = zip(*(column(methods, runs_of) for column in columns.values()), strict=True)
    ordered = sorted(zip(methods, cells, strict=True), key=lambda row: -(row[0].headline.mean or 0))
    lines = [columns, ["---"] * len(columns), *(line for _, line in ordered)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def mean(key: str) -> Column:
    """Makes a column of the mean over runs of an accuracy, in percent."""
    return lambda methods, runs_of: [f"{100 * fmean(run[key] for run in own):.1f}" for own in runs_of]


def against(key: str) -> Column:
    """Makes a column of an accuracy's difference from the first method, empty for itself; a zero has no sign.

    A star marks the differences that are significant at 5% after Holm's correction for the column.
    """

    def column(methods: Sequence[MethodSummary], runs_of: Sequence[Runs]) -> list[str]:
        first, *others = ({run["seed"]: run[key] for run in own} for own in runs_of)
        differences = apply_holm([paired_difference(values, first) for values in others])
        cells = (points(difference, star=True) for difference in differences)
        return ["", *(re.sub(r"[+\N{MINUS SIGN}]0\.0", "0.0", cell) for cell in cells)]

    return column


def to_target(methods: Sequence[MethodSummary], runs_of: Sequence[Runs]) -> list[str]:
    """Formats the mean number of rounds to the target, and how many runs reached it if not all did."""
    cells = []
    for method in methods:
        some = f" ({method.reached} of {method.seeds})" * (method.reached < method.seeds)
        cells.append("-" if method.rounds_to_target is None else f"{method.rounds_to_target:.0f}{some}")
    return cells


def by_class(methods: Sequence[MethodSummary], runs_of: Sequence[Runs]) -> list[str]:
    """Formats the accuracy in each class in percent, in the order of the classes."""
    of_classes = (zip(*(run[BY_CLASS] for run in own), strict=True) for own in runs_of)
    return [" ".join(f"{100 * fmean(values):.0f}" for values in by_class) for by_class in of_classes]


NUMBERS = (
    *("final_accuracy", "best_accuracy", "last5_accuracy", "rounds_to_target", "traffic_bytes"),
    *("balanced_accuracy", "worst_class_accuracy", "few_shot_accuracy"),
)
"""The columns that are read."""
COMMON: dict[str, Column] = {
    "method": lambda methods, runs_of: [f"`{method.method}`" for method in methods],
    "last five rounds": lambda methods, runs_of: [SHARE.show(method.last5) for method in methods],
    "against FedAvg, points": against("last5_accuracy"),
}
DRAWN: dict[str, Column] = {
    **COMMON,
    "worst class": mean("worst_class_accuracy"),
    "few-shot": mean("few_shot_accuracy"),
    "rounds to 60%": to_target,
}
NATURAL: dict[str, Column] = {
    **COMMON,
    "balanced": mean("balanced_accuracy"),
    "balanced, against FedAvg": against("balanced_accuracy"),
    "few-shot": mean("few_shot_accuracy"),
    "by class": by_class,
    "rounds to 95%": to_target,
}
TABLES: dict[str, tuple[str, dict[str, str], dict[str, Column]]] = {
    "long_tail": ("long_tail.csv", {}, DRAWN),
    "natural, dirichlet": ("natural_long_tail.csv", {"partition": "{'scheme': 'dirichlet', 'alpha': 0.1}"}, NATURAL),
    "natural, iid": ("natural_long_tail.csv", {"partition": "{'scheme': 'iid'}"}, NATURAL),
}
"""The tables of the page: file, the rows by values of columns, and columns."""

if __name__ == "__main__":
    main()
