"""Keeps the results of finished run and sweep folders as two small tables each, from which the papers' pages are made.

    python benchmarks/papers.py FOLDER [FOLDER ...] [--commit COMMIT]

Writes results/papers/NAME.csv with a row for each run, and NAME_curves.csv with at most 50 evaluations of each; NAME is
the configuration's. The device, the versions, the command and its seconds stand in the first table's last columns.
"""

import argparse
import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "results" / "papers"
COLUMNS = (
    *("method", "seed", "rounds", "final_accuracy", "best_accuracy", "last5_accuracy", "balanced_accuracy"),
    *("worst_class_accuracy", "few_shot_accuracy", "chain_kl", "rounds_to_target", "traffic_to_target_bytes"),
    "failure",
)
MOST_POINTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--commit", default="", help="the commit that the folders were made with")
    asked = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    for folder in asked.folders:
        name, points = points_of(folder)
        rows, curves = [], []
        for axes, run_folder in points:
            summary = json.loads((run_folder / "summary.json").read_text())
            about = {"s": summary["wall_s"], "machine": summary["device"], "jax": summary["versions"]["jax"]}
            for run in summary["runs"]:
                rows.append(axes | {key: run.get(key) for key in COLUMNS} | about | {"commit": asked.commit})
            curves += [axes | point for point in curves_of(run_folder / "metrics.jsonl")]
        write(KEPT / f"{name}.csv", rows)
        write(KEPT / f"{name}_curves.csv", curves)
        print(f"{name}: {len(rows)} runs")


def points_of(folder: Path) -> tuple[str, list[tuple[dict[str, Any], Path]]]:
    """The name of an experiment, and its run folders with the values that set them apart in a sweep."""
    if not (folder / "results.csv").exists():
        return json.loads((folder / "summary.json").read_text())["name"], [({}, folder)]
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # The columns before the point's name are the axes, and what the configuration cites of the paper.
    axes = [key for key in list(rows[0])[: list(rows[0]).index("point")] if not key.startswith("paper.")]
    points = {row["point"]: {key: row[key] for key in axes} for row in rows}
    name = json.loads((folder / "points" / next(iter(points)) / "summary.json").read_text())["name"]
    return name, [(values, folder / "points" / point) for point, values in points.items()]


def curves_of(file: Path) -> Iterator[dict[str, Any]]:
    """Test accuracy by round, of each run at most MOST_POINTS evaluations, the last among them."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        record = json.loads(line)
        runs.setdefault((record["method"], record["seed"]), []).append(record)
    for (method, seed), records in runs.items():
        step = -(-len(records) // MOST_POINTS)
        for record in records[::-step][::-1]:
            values = {key: record[key] for key in ("round", "test_accuracy")}
            yield {"method": method, "seed": seed, **values}


def write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A CSV file of rows with the same keys; columns without a value are left out."""
    rows = list(rows)
    keys = [key for key in rows[0] if any(row[key] not in (None, "") for row in rows)]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
