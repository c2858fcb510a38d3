"""Trains methods against absence combined with methods against imbalance, and writes the guide's page on both.

    python benchmarks/absence_imbalance.py [FOLDER]

With FOLDER both sweeps of `SWEEPS` train there; the same command resumes them after a kill. results/absence_*.csv keep
their runs, and results/absence_pairs.csv every comparison of a pair with its parts. Then the tables and the figure of
the page are written; without FOLDER, only these.
"""

import argparse
import ast
import csv
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from _common import with_part

from fedjax_bal.metrics import SHARE, Difference, apply_holm, paired_difference
from fedjax_bal.report import plots
from fedjax_bal.report.tables import points, signed

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "fedjax_bal" / "guide" / "absence.md"
PICTURE = PAGE.parent / "pictures" / "absence.svg"

ABSENCE = ("fedavg", "equal_weights", "fedau", "mifa", "fedvarp", "fedawe")
IMBALANCE = ("fedavg", "balanced_softmax", "fedlc", "rebafl", "iwds", "fedetf")
PAIRS = tuple(itertools.product(ABSENCE[1:], IMBALANCE[1:]))
SWEEPS = {"absence_images": "Images", "absence_shuttle": "Shuttle"}
PARTITIONS = {"long_tail": "absence by class", "dirichlet": "Dirichlet"}
PATTERNS = {"clustered": "static", "markov": "Markov", "cyclic": "cyclic", "departure": "departure"}
MEASURES = ("test_accuracy", "balanced_accuracy", "worst_class_accuracy")
LAST = 5
"""The evaluations, from the last one backwards, whose mean is a run's result."""

Draws = Mapping[str, float]
"""A result by draw, which is a seed with its partition."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    for name in SWEEPS if folder else ():
        config = ROOT / "configs" / "protocols" / f"{name}.yaml"
        command = [sys.executable, "-m", "fedjax_bal", "sweep", str(config), "--out", str(folder / name), "--plain"]
        code = subprocess.run(command).returncode
        if code > 1:  # 1: some runs diverged, which the results say
            sys.exit(code)
        collect(folder / name)
    results = {name: read(RESULTS / f"{name}.csv") for name in SWEEPS}
    write_pairs(results)
    PAGE.write_text(page(results), encoding="utf-8")
    PICTURE.write_text(picture(results), encoding="utf-8")


def collect(folder: Path) -> None:
    """Keeps a sweep's runs: where they trained, how they ended, and the means of their last evaluations."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for point in {row["point"] for row in rows}:
        for line in map(json.loads, (folder / "points" / point / "metrics.jsonl").read_text().splitlines()):
            lines.setdefault((point, line["method"], str(line["seed"])), []).append(line)
    with (RESULTS / f"{folder.name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["partition", "pattern", "method", "seed", "status", *MEASURES])
        for row in rows:
            last = lines.get((row["point"], row["method"], row["seed"]), [])[-LAST:]
            means = [f"{fmean(line[measure] for line in last):.5f}" if last else "" for measure in MEASURES]
            where = ast.literal_eval(row["partition"])["scheme"], ast.literal_eval(row["availability"])["name"]
            writer.writerow([*where, row["method"], row["seed"], row["status"], *means])


class Results:
    """The runs of a sweep."""

    def __init__(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._values: dict[tuple[str, ...], dict[str, float]] = {}
        self.failed = 0
        for row in rows:
            if row["status"] != "done":
                self.failed += 1
                continue
            for measure in MEASURES:
                where = row["partition"], row["pattern"], row["method"], measure
                self._values.setdefault(where, {})[row["seed"]] = float(row[measure])

    def draws(self, partition: str, patterns: Sequence[str], method: str, measure: str = "balanced_accuracy") -> Draws:
        """Returns a method's mean over patterns in each draw in which it finished with all of them."""
        each = [self._values.get((partition, pattern, method, measure), {}) for pattern in patterns]
        return {seed: fmean(values[seed] for values in each) for seed in each[0] if all(seed in of for of in each)}


def read(file: Path) -> Results:
    """Reads the runs that `collect` has kept."""
    with file.open(encoding="utf-8", newline="") as opened:
        return Results(csv.DictReader(opened))


def method(absence: str, imbalance: str) -> str:
    """Returns the name of a combination; FedAvg is the method to which nothing is added."""
    return "+".join(name for name in (imbalance, absence) if name != "fedavg") or "fedavg"


class Pair(NamedTuple):
    """What a combination of two methods reaches in a setting, in accuracies.

    Attributes:
        gain: its difference from FedAvg.
        over_better: its difference from the one of its two methods that has the higher mean.
        interaction: its gain minus the gains of its two methods.
    """

    gain: Difference
    over_better: Difference
    interaction: Difference


def compare_pair(of: Callable[[str], Draws], absence: str, imbalance: str) -> Pair:
    """Compares a combination with FedAvg and with its parts, paired over draws."""
    base, pair = of("fedavg"), of(method(absence, imbalance))
    parts = of(absence), of(imbalance)
    plus = lambda left, right: {draw: left[draw] + right[draw] for draw in left if draw in right}
    return Pair(
        paired_difference(pair, base),
        paired_difference(pair, max(parts, key=lambda draws: fmean(draws.values()))),
        paired_difference(plus(pair, base), plus(*parts)),
    )


Setting = tuple[str, str]
"""A sweep and a partition."""


def compare_pairs(
    results: Mapping[str, Results], patterns: Sequence[str]
) -> dict[Setting, dict[tuple[str, str], Pair]]:
    """Compares all pairs in all settings, on the mean over patterns; Holm's correction is for all of them together."""
    places = [(sweep, partition, *pair) for sweep in results for partition in PARTITIONS for pair in PAIRS]
    compared = []
    for sweep, partition, *pair in places:
        compared.append(compare_pair(partial(results[sweep].draws, partition, patterns), *pair))
    corrected = zip(*(apply_holm(column) for column in zip(*compared, strict=True)), strict=True)
    table: dict[Setting, dict[tuple[str, str], Pair]] = {}
    for (sweep, partition, absence, imbalance), differences in zip(places, corrected, strict=True):
        table.setdefault((sweep, partition), {})[absence, imbalance] = Pair(*differences)
    return table


def write_pairs(results: Mapping[str, Results]) -> None:
    """Writes all comparisons of pairs, in points, on the mean over patterns and with each of them."""
    with (RESULTS / "absence_pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        numbers = ("mean", "low", "high", "p_holm", "draws")
        writer.writerow(
            ["sweep", "partition", "pattern", "absence", "imbalance"]
            + [f"{kind}_{number}" for kind in Pair._fields for number in numbers]
        )
        for pattern, patterns in {"all": tuple(PATTERNS), **{name: (name,) for name in PATTERNS}}.items():
            for (sweep, partition), pairs in compare_pairs(results, patterns).items():
                for pair, differences in pairs.items():
                    writer.writerow([sweep, partition, pattern, *pair, *itertools.chain(*map(_numbers, differences))])


def _numbers(of: Difference) -> list[str | int]:
    ends = ["" if end is None else f"{100 * end:.2f}" for end in (of.mean, of.low, of.high)]
    return [*ends, "" if of.p_holm is None else f"{of.p_holm:.2g}", of.pairs]


def page(results: Mapping[str, Results]) -> str:
    """Returns the text of the page, with its tables made from the results."""
    text = PAGE.read_text(encoding="utf-8")
    for sweep, partition in itertools.product(SWEEPS, PARTITIONS):
        text = with_part(text, SCRIPT, f"{sweep}, {partition}", grid(results[sweep], partition))
    pairs = compare_pairs(results, tuple(PATTERNS))
    text = with_part(text, SCRIPT, "pairs", pair_table(pairs))
    text = with_part(text, SCRIPT, "counts", counts(results))
    text = with_part(text, SCRIPT, "corrections", correction_table(results))
    return with_part(text, SCRIPT, "patterns", pattern_table(results))


def grid(results: Results, partition: str) -> str:
    """Formats what every combination reaches: mean over classes, its difference from FedAvg, worst class."""
    names = [method(*pair) for pair in itertools.product(ABSENCE, IMBALANCE)]
    draws = {name: results.draws(partition, tuple(PATTERNS), name) for name in names}
    against = apply_holm([paired_difference(draws[name], draws["fedavg"]) for name in names[1:]])
    differences = dict(zip(names[1:], against, strict=True))
    rows = []
    for absence in ABSENCE:
        cells = []
        for imbalance in IMBALANCE:
            name = method(absence, imbalance)
            worst = fmean(results.draws(partition, tuple(PATTERNS), name, "worst_class_accuracy").values())
            change = f" ({_short(differences[name])})" if name in differences else ""
            cells.append(f"{100 * fmean(draws[name].values()):.1f}{change}, {100 * worst:.0f}")
        rows.append([f"`{absence}`", *cells])
    return _table(["", *(f"`{name}`" for name in IMBALANCE)], rows)


def pair_table(pairs: Mapping[Setting, Mapping[tuple[str, str], Pair]]) -> str:
    """Formats each pair's difference from its better part, and its interaction, in all settings."""
    rows = []
    for pair in PAIRS:
        cells = [f"{_short(of[pair].over_better)}; {_short(of[pair].interaction)}" for of in pairs.values()]
        rows.append([" + ".join(f"`{name}`" for name in pair), *cells])
    return _table(["", *(f"{SWEEPS[sweep]}, {PARTITIONS[partition]}" for sweep, partition in pairs)], rows)


def correction_table(results: Mapping[str, Results]) -> str:
    """Formats what a correction of absence changes against equal weights, with which all four corrections begin."""
    places = [(*setting, absence) for setting in itertools.product(results, PARTITIONS) for absence in ABSENCE[2:]]
    differences = []
    for (sweep, partition, absence), imbalance in itertools.product(places, IMBALANCE):
        of = partial(results[sweep].draws, partition, tuple(PATTERNS))
        differences.append(paired_difference(of(method(absence, imbalance)), of(method("equal_weights", imbalance))))
    corrected = iter(apply_holm(differences))
    rows = [
        [f"{SWEEPS[sweep]}, {PARTITIONS[partition]}", f"`{absence}`", *(_short(next(corrected)) for _ in IMBALANCE)]
        for sweep, partition, absence in places
    ]
    return _table(["", "", *(f"`{name}`" for name in IMBALANCE)], rows)


def counts(results: Mapping[str, Results]) -> str:
    """Formats, for each setting, how many of the pairs differ from their better part and from the sum of both."""
    rows = []
    for (sweep, partition), pairs in compare_pairs(results, tuple(PATTERNS)).items():
        better = [pair.over_better for pair in pairs.values()]
        interactions = [pair.interaction for pair in pairs.values()]
        rows.append(
            [f"{SWEEPS[sweep]}, {PARTITIONS[partition]}"]
            + [str(_significant(better, sign)) for sign in (1, -1)]
            + [str(_significant(interactions, sign)) for sign in (1, -1)]
            + [str(sum(of.low <= 0 <= of.high for of in interactions if of.low is not None and of.high is not None))]
        )
    heads = ["25 pairs", "above the better part", "below it", "more than the sum", "less", "interval includes the sum"]
    return _table(heads, rows)


def pattern_table(results: Mapping[str, Results]) -> str:
    """Formats, for each pattern, FedAvg and the best method of each kind and pair."""
    rows = []
    for sweep, partition, pattern in itertools.product(SWEEPS, PARTITIONS, PATTERNS):
        draws = partial(results[sweep].draws, partition, (pattern,))
        reached = lambda pair, draws=draws: fmean(draws(method(*pair)).values())
        kinds: list[Sequence[tuple[str, str]]] = [[(name, "fedavg") for name in ABSENCE[1:]]]
        kinds += [[("fedavg", name) for name in IMBALANCE[1:]], PAIRS]
        best = [max(kind, key=reached) for kind in kinds]
        shown = [f"`{method(*pair)}` {100 * reached(pair):.1f}" for pair in best]
        base = f"{100 * reached(('fedavg', 'fedavg')):.1f}"
        rows.append([f"{SWEEPS[sweep]}, {PARTITIONS[partition]}", PATTERNS[pattern], base, *shown])
    return _table(["", "absence", "`fedavg`", "best of absence", "best of imbalance", "best pair"], rows)


def _significant(differences: Sequence[Difference], sign: int) -> int:
    return sum(of.significant and sign * (of.mean or 0) > 0 for of in differences)


def _short(of: Difference) -> str:
    return points(of._replace(low=None, high=None), star=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def picture(results: Mapping[str, Results]) -> str:
    """Draws, for each setting, the difference of every combination from FedAvg, and marks pairs that hurt."""
    pairs = compare_pairs(results, tuple(PATTERNS))
    with plots.style():
        figure = plots.Figure(figsize=(plots.WIDE, 7.6), layout="constrained")
        for axes, (sweep, partition) in zip(figure.subplots(2, 2).flat, pairs, strict=True):
            of = partial(results[sweep].draws, partition, tuple(PATTERNS))
            base = of("fedavg")
            gains = [
                [100 * (paired_difference(of(method(row, column)), base).mean or 0) for column in IMBALANCE]
                for row in ABSENCE
            ]
            bound = max(abs(gain) for row in gains for gain in row)
            axes.grid(visible=False)
            axes.pcolormesh(gains, cmap="RdBu", vmin=-bound, vmax=bound, edgecolors="white", linewidth=1)
            axes.invert_yaxis()
            axes.set_title(f"{SWEEPS[sweep]}, {PARTITIONS[partition]}: FedAvg {100 * fmean(base.values()):.1f}%")
            axes.set_xticks(np.arange(len(IMBALANCE)) + 0.5, IMBALANCE, rotation=30, ha="right")
            axes.set_yticks(np.arange(len(ABSENCE)) + 0.5, ABSENCE)
            for (y, row), (x, column) in itertools.product(enumerate(ABSENCE), enumerate(IMBALANCE)):
                pair = pairs[sweep, partition].get((row, column))
                over = pair.over_better if pair else None
                mark = "" if over is None or not over.significant else " ▲" if (over.mean or 0) > 0 else " ▼"
                text = signed(gains[y][x] / 100, SHARE) + mark
                colour = "white" if abs(gains[y][x]) > 0.6 * bound else plots.INK
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour, fontsize=8)
        return plots.to_svg(figure, "Differences from FedAvg of all combinations, in points")


SCRIPT = Path(__file__).name

if __name__ == "__main__":
    main()
