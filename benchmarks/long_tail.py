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

from fedjax_bal.metrics import MethodSummary, SeededDraw, compare, paired_difference
from fedjax_bal.report.tables import points

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "fedjax_bal" / "guide" / "long_tail.md"
BY_CLASS = "per_class_accuracy"
Runs = Sequence[dict[str, Any]]
Cell = Callable[[MethodSummary, Runs, Runs], str]
"""A column: of a method's summary, its runs, and the first method's runs."""


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
            "seed": SeededDraw(int(row["partition.seed"]), int(row["seed"])),
            BY_CLASS: [float(value) for value in row.get(BY_CLASS, "").split()],
            **{key: float(row[key]) if row[key] else None for key in NUMBERS},
        }
        for row in rows
        if where.items() <= row.items()
    ]


def table(of_runs: Runs, columns: dict[str, Cell]) -> str:
    """Formats the comparison of the methods, the best mean of the last five rounds first."""
    methods = compare(of_runs)
    of = lambda method: [run for run in of_runs if run["method"] == method.method]
    lines = [columns, ["---"] * len(columns)]
    for method in sorted(methods, key=lambda method: -(method.last5.mean or 0)):
        lines.append([cell(method, of(method), of(methods[0])) for cell in columns.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def mean(key: str) -> Cell:
    """Makes a column of the mean over runs of an accuracy, in percent."""
    return lambda method, own, first: f"{100 * fmean(run[key] for run in own):.1f}"


def last5(method: MethodSummary, own: Runs, first: Runs) -> str:
    """Formats the last five rounds' accuracy, with its standard deviation over partitions."""
    assert method.last5.mean is not None and method.last5.std is not None
    return f"{100 * method.last5.mean:.1f} ± {100 * method.last5.std:.1f}"


def against(key: str) -> Cell:
    """Makes a column of an accuracy's difference from the first method, empty for itself; a zero has no sign."""

    def cell(method: MethodSummary, own: Runs, first: Runs) -> str:
        if own == first:
            return ""
        ours, theirs = ({run["seed"]: run[key] for run in side} for side in (own, first))
        return re.sub(r"[+\N{MINUS SIGN}]0\.0", "0.0", points(paired_difference(ours, theirs)))

    return cell


def to_target(method: MethodSummary, own: Runs, first: Runs) -> str:
    """Formats the mean number of rounds to the target, and how many runs reached it if not all did."""
    if method.rounds_to_target is None:
        return "-"
    return f"{method.rounds_to_target:.0f}" + f" ({method.reached} of {method.seeds})" * (method.reached < method.seeds)


def by_class(method: MethodSummary, own: Runs, first: Runs) -> str:
    """Formats the accuracy in each class in percent, in the order of the classes."""
    return " ".join(f"{100 * fmean(values):.0f}" for values in zip(*(run[BY_CLASS] for run in own), strict=True))


NUMBERS = (
    *("final_accuracy", "best_accuracy", "last5_accuracy", "rounds_to_target", "traffic_bytes"),
    *("balanced_accuracy", "worst_class_accuracy", "few_shot_accuracy"),
)
"""The columns that are read."""
COMMON: dict[str, Cell] = {
    "method": lambda method, own, first: f"`{method.method}`",
    "last five rounds": last5,
    "against FedAvg, points": against("last5_accuracy"),
}
DRAWN: dict[str, Cell] = {
    **COMMON,
    "worst class": mean("worst_class_accuracy"),
    "few-shot": mean("few_shot_accuracy"),
    "rounds to 60%": to_target,
}
NATURAL: dict[str, Cell] = {
    **COMMON,
    "balanced": mean("balanced_accuracy"),
    "balanced, against FedAvg": against("balanced_accuracy"),
    "few-shot": mean("few_shot_accuracy"),
    "by class": by_class,
    "rounds to 95%": to_target,
}
TABLES: dict[str, tuple[str, dict[str, str], dict[str, Cell]]] = {
    "long_tail": ("long_tail.csv", {}, DRAWN),
    "natural, dirichlet": ("natural_long_tail.csv", {"partition": "{'scheme': 'dirichlet', 'alpha': 0.1}"}, NATURAL),
    "natural, iid": ("natural_long_tail.csv", {"partition": "{'scheme': 'iid'}"}, NATURAL),
}
"""The tables of the page: file, the rows by values of columns, and columns."""

if __name__ == "__main__":
    main()
