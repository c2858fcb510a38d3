"""Stores the results of finished runs and sweeps of configs/papers, and regenerates everything derived from them.

    python benchmarks/papers.py [FOLDER ...] [--commit COMMIT] [--note NOTE]

Each folder adds its runs to results/papers/NAME.csv, a row for each, and to NAME_curves.csv, with at most 50
evaluations of each; stored runs of the same methods, seeds and partitions are replaced. NAME is the configuration's
name, with the suffix `_N_rounds` if the runs have fewer rounds than the configuration. Then the pages of the papers,
the guide's overview of them, and Expect, Time and Machine in the headers of the configurations are written from these
tables and from papers.yaml, and the claims by state are printed. Without a folder, only this last step is done.
"""

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import _paper_headers
import _paper_pages
import numpy as np
from _claims import CURVES, DRAW, KEPT, experiment_of, rounds_of, run_of, stored

from fedjax_bal.config import Config, builtin_configs, config_leaves, load_config
from fedjax_bal.config.identity import paper_setting
from fedjax_bal.lab import RunFolder, load_sweep
from fedjax_bal.metrics import MOST_AVERAGED
from fedjax_bal.plugins import load_plugins

COLUMNS = (
    *("method", "seed", "rounds", "final_accuracy", "best_accuracy", "last5_accuracy", "balanced_accuracy"),
    *("worst_class_accuracy", "few_shot_accuracy", "chain_kl", "cohort_kl", "rounds_to_target", "traffic_bytes"),
    *("traffic_to_target_bytes", "failure"),
)
MOST_POINTS = 50
PLUGINS = tuple(f"fedjax_bal.contrib.{name}" for name in ("dcgan", "late_control_variates", "privacy"))
"""What some of the configurations need."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--commit", default="", help="the commit that the folders were made with")
    parser.add_argument("--note", default="", help="what the time depends on, such as: beside other work")
    asked = parser.parse_args()
    load_plugins(PLUGINS)
    for text in collect(asked.folders, {"commit": asked.commit, "note": asked.note}):
        print(text)
    for file in (*_paper_pages.write(), *_paper_headers.write()):
        print(file)
    print(_paper_pages.state_table())


def collect(folders: Iterable[Path], about: dict[str, str]) -> list[str]:
    """Writes the two tables of each experiment in the folders; returns a line of text about each experiment.

    `about` holds further columns.
    """
    tables: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for folder in folders:
        stem, rows, curves = tables_of(folder)
        known = tables.setdefault(stem, ([], []))
        known[0].extend(row | about for row in rows)
        known[1].extend(curves)
    for stem, (rows, curves) in tables.items():
        runs = set(map(run_of, rows))
        for file, own in ((KEPT / f"{stem}.csv", rows), (KEPT / f"{stem}{CURVES}", curves)):
            write(file, [*(row for row in stored(file) if run_of(row) not in runs), *own])
    return [f"{stem}: {len(rows)} runs" for stem, (rows, _) in tables.items()]


def tables_of(folder: Path) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the name of a run's or sweep's tables, its results with a row per run, and its curves."""
    name, points = points_of(folder)
    rows, curves = [], []
    for axes, run_folder in points:
        summary = json.loads((run_folder / "summary.json").read_text())
        lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        config = load_config(run_folder / "config.yaml")
        machine = {"s": training_seconds(lines), "machine": summary["device"], "jax": summary["versions"]["jax"]}
        target = {"target": summary["target_accuracy"], "changes": changes_of(name, axes, config)}
        partitions = config.partition_seeds or [config.partition.seed] * len(config.seeds)
        draws = dict(zip(config.seeds, partitions, strict=True))
        worst = worst_classes(lines)
        for run in summary["runs"]:
            draw = {DRAW: draws[run["seed"]]}
            own = {key: run.get(key) for key in COLUMNS}
            own["last5_worst_class"] = worst.get((run["method"], run["seed"]))
            own["rank_correlation"] = (run.get("composition") or {}).get("rank_correlation")
            found = RunFolder(run_folder).read_findings("privacy", run["method"], run["seed"])
            if near := found and found.numbers.get("nearest"):
                own["nearest_image"] = near["generated"]["least"] / near["test"]["least"]
            rows.append(axes | draw | own | target | machine)
        curves += [axes | {DRAW: draws[point["seed"]]} | point for point in curves_of(lines)]
    rounds = max(row["rounds"] for row in rows)
    stem = name if rounds >= rounds_of(experiment_of(name)) else f"{name}_{rounds}_rounds"
    return stem, rows, curves


def points_of(folder: Path) -> tuple[str, list[tuple[dict[str, Any], Path]]]:
    """Returns an experiment's name, and its run folders with the values that distinguish them in a sweep."""
    if not (folder / "results.csv").exists():
        return json.loads((folder / "summary.json").read_text())["name"], [({}, folder)]
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Columns before the point's name are the axes, and the results cited from the paper.
    axes = [key for key in list(rows[0])[: list(rows[0]).index("point") + 1] if not key.startswith("paper.")]
    points = {row["point"]: {key: row[key] for key in axes} for row in rows}
    name = json.loads((folder / "points" / next(iter(points)) / "summary.json").read_text())["name"]
    return name, [(values, folder / "points" / point) for point, values in points.items()]


def worst_classes(lines: Iterable[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """Computes the mean of the last five evaluations' accuracies in the worst class, by method and seed."""
    runs: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        if line.get("worst_class_accuracy") is not None:
            runs.setdefault((line["method"], line["seed"]), []).append(line["worst_class_accuracy"])
    return {run: float(np.mean(values[-MOST_AVERAGED:])) for run, values in runs.items()}


def changes_of(name: str, axes: dict[str, Any], ran: Config) -> str:
    """Describes a run's changes of its experiment, except rounds and draws, which the tables show anyway."""
    file = builtin_configs()[experiment_of(name)]
    whole = load_sweep(file).configs[axes["point"]] if axes else load_config(file)
    kept = {method.name for method in ran.methods}
    asked = Config.model_copy(whole, update={"methods": tuple(own for own in whole.methods if own.name in kept)})
    # The machine determines the form of a convolution, and where a file is.
    shown = {"training.rounds", "seeds", DRAW, "model.convolution", "dataset.path"}
    changed = paper_setting(asked, ran).keys() - shown
    values = config_leaves(ran)
    return " ".join(f"{key}={values[key]}" for key in sorted(changed) if key in values)


def training_seconds(lines: Iterable[dict[str, Any]]) -> float:
    """Computes the training seconds of a folder's runs from the lines of its metrics.jsonl.

    summary.json has only the last session's seconds. A round counts with the median of five neighbouring dispatches: a
    run may have been paused, and later rounds may take longer, such as those with generated images. Rounds of one
    dispatch have the same time; runs that train as one stack share it equally.
    """
    ends: dict[tuple[str, int], dict[float, int]] = {}
    for line in lines:
        ends.setdefault((line["method"], line["seed"]), {0.0: 0})[line["wall_s"]] = line["round"]
    seconds = 0.0
    for dispatches in ends.values():
        rounds = np.diff(list(dispatches.values()))
        paces = np.diff(list(dispatches)) / rounds
        firsts = np.clip(np.arange(len(paces)) - 2, 0, max(len(paces) - 5, 0))
        seconds += float(np.dot(rounds, [np.median(paces[first : first + 5]) for first in firsts]))
    return round(seconds, 3)


def curves_of(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields accuracies and diversity by round, at most MOST_POINTS evaluations per run, including the last."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in lines:
        runs.setdefault((record["method"], record["seed"]), []).append(record)
    metrics = ("test_accuracy", "local_test_accuracy", "local_accuracy", "update_diversity")
    for (method, seed), records in runs.items():
        step = -(-len(records) // MOST_POINTS)
        for record in records[::-step][::-1]:
            values = {key: record[key] for key in ("round", *metrics) if record.get(key) is not None}
            yield {"method": method, "seed": seed, **values}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as a CSV file; columns without values are left out."""
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row if row[key] not in (None, ""))
    order = [key for key in dict.fromkeys(key for row in rows for key in row) if key in keys]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, order, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
