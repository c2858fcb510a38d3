"""Time saved by stacking runs: 5 seeds x 4 learning rates in one program, in 20 separate runs, and one single run.

    python benchmarks/sweep.py [--devices N] [--separate 20]

Every command is a separate process. The sweep, the single run and the first separate run start with an empty cache of
compiled programs; the other separate runs find the program in the cache, as a user's would. Writes results/sweep.json.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common

from fedjax_bal.lab.environment import device_name, versions

CONFIG = Path(__file__).parents[1] / "configs" / "sweeps" / "learning_rate.yaml"
BASE = CONFIG.parents[1] / "absent_clients.yaml"
"""The base configuration of the sweep."""

RATES, SEEDS = (0.003, 0.01, 0.03, 0.1), (0, 1, 2, 3, 4)


def timed(arguments: list[str], home: Path) -> float:
    """Measures the seconds of a command."""
    began = time.perf_counter()
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    subprocess.run(
        [sys.executable, "-m", "fedjax_bal", *arguments], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def single(rate: float, seed: int, work: Path, devices: str, home: Path) -> float:
    """Measures the seconds of one run."""
    changes = ["training.rounds=20", "methods=[{recipe: fedavg}]", f"seeds=[{seed}]"]
    changes.append(f"training.optimizer.learning_rate={rate}")
    place = ["--out", str(work / f"{rate}-{seed}"), "--devices", devices, "--plain"]
    return timed(["run", str(BASE), *changes, *place], home)


def main() -> None:
    """Runs the measurements and prints the results."""
    parser = _common.parser(__doc__)
    parser.add_argument("--devices", default="1")
    parser.add_argument("--separate", type=int, default=20, help="how many of the 20 separate runs; the rest is scaled")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pairs = [(rate, seed) for rate in RATES for seed in SEEDS][: wanted.separate]
        alone = single(*pairs[0], work / "one", wanted.devices, work / "home-one")
        place = ["--out", str(work / "sweep"), "--devices", wanted.devices, "--plain"]
        together = timed(["sweep", str(CONFIG), *place], work / "home-sweep")
        each = [single(*pair, work / "many", wanted.devices, work / "home-many") for pair in pairs]
    separate = sum(each) * 20 / len(each)
    found = {
        "device": device_name(), "versions": versions(), "devices": wanted.devices,
        "one_run_s": round(alone, 1), "sweep_of_20_s": round(together, 1), "20_runs_s": round(separate, 1),
        "separate_runs_measured": len(each), "20_runs_over_sweep": round(separate / together, 2),
        "sweep_over_one_run": round(together / alone, 2),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    _common.write_figures(Path(__file__).parent / "results" / "sweep.json", found)


if __name__ == "__main__":
    main()
