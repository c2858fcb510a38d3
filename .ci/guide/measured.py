"""Measured results for the methods' cards: compared with papers, and cost and accuracy on the long tail."""

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedjax_bal.config import Config, builtin_configs, load_config, read_command
from fedjax_bal.lab import load_sweep
from fedjax_bal.metrics import Difference, paired_difference
from fedjax_bal.plugins import load_plugins

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_LONG_TAIL = "protocols/long_tail"
_PLUGINS = tuple(f"fedjax_bal.contrib.{name}" for name in ("dcgan", "late_control_variates", "privacy"))
Row = Mapping[str, Any]


class BesidePaper(NamedTuple):
    """A method's accuracy here and in a paper, both in percent, in one setting of a configuration."""

    recipe: str
    config: str
    setting: str
    which: str
    source: str
    paper: float
    here: float
    runs: int


class LongTailed(NamedTuple):
    """Speed relative to FedAvg's, mean accuracy of the last five evaluations in percent, and its difference."""

    pace: float
    accuracy: float
    difference: Difference


@cache
def beside_papers() -> tuple[BesidePaper, ...]:
    """Returns all measured accuracies for which a configuration has the paper's."""
    load_plugins(_PLUGINS)
    measured = {name: rows for name, rows in _measured() if "paper" in read_command(name).stated}
    return tuple(pair for name, rows in measured.items() for pair in _beside(name, rows))


@cache
def on_long_tail() -> tuple[str, dict[str, LongTailed]]:
    """Returns the machine of the long-tail runs, from the configuration's header, and the results by method."""
    header = builtin_configs()[_LONG_TAIL].read_text(encoding="utf-8").partition("\n# Machine ")[2]
    rows = _table(_RESULTS / "long_tail.csv")
    of = lambda method, key: fmean(float(row[key]) for row in rows if row["method"] == method)
    pace = of("fedavg", "client_updates_per_s")
    last5: dict[str, dict[str, float]] = {}
    for row in rows:
        last5.setdefault(row["method"], {})[row["seed"]] = float(row["last5_accuracy"])
    return header.partition("\n")[0].strip(), {
        method: LongTailed(
            of(method, "client_updates_per_s") / pace,
            100 * of(method, "last5_accuracy"),
            paired_difference(own, last5["fedavg"]),
        )
        for method, own in last5.items()
    }


def _measured() -> Iterator[tuple[str, list[Row]]]:
    """Yields the rows of finished runs, by the name of their configuration."""
    known = builtin_configs()
    by_stem = {Path(name).name: name for name in known if name.startswith("protocols/")}
    by_stem |= {name.removeprefix("papers/").replace("/", "_"): name for name in known if name.startswith("papers/")}
    for file in sorted((*_RESULTS.glob("*.csv"), *_RESULTS.glob("papers/*.csv"))):
        if file.stem in by_stem:
            yield by_stem[file.stem], _table(file)


def _table(file: Path) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as opened:
        return [row for row in csv.DictReader(opened) if row.get("status", "done") == "done"]


def _beside(name: str, rows: list[Row]) -> Iterator[BesidePaper]:
    file = builtin_configs()[name]
    points = load_sweep(file).configs if read_command(file).is_sweep else {"": load_config(name)}
    for setting, config in points.items():
        for method in config.methods:
            place = setting, method.name
            own = [row for row in rows if (row.get("point", ""), row["method"]) == place and _is_whole(row, config)]
            paper = config.paper and config.paper.accuracy.get(method.name)
            which = config.paper.which if config.paper else "final"
            here = [100 * float(row[key]) for row in own if row.get(key := f"{which}_accuracy")]
            if paper and here:
                about = method.recipes[0].name, name, setting, which, config.paper.source
                yield BesidePaper(*about, 100 * paper, fmean(here), len(here))


def _is_whole(row: Row, config: Config) -> bool:
    """Whether a run has all rounds of its configuration."""
    return int(row["rounds"]) >= config.training.rounds
