"""A sweep through Ray of which workers are killed while they train, against one that nobody disturbs.

    python tests/sweep/kill_worker.py [FILE] [--kills 1] [--together 10] [KEY=VALUE ...]

Both are real commands. A worker that trains is killed with SIGKILL once its sweep has new lines of metrics; afterwards
tables, lines of metrics and newest checkpoints are compared, bit for bit. `--together` gives both the same groups.
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CONFIG = Path(__file__).parents[2] / "configs" / "sweeps" / "learning_rate.yaml"
TIMES = ("compile_s", "client_updates_per_s", "samples_per_s", "device_bytes", "runs_together")


def command(wanted: argparse.Namespace, out: Path, *more: str) -> list[str]:
    """The command of a sweep."""
    options = ["--out", str(out), "--together", str(wanted.together), "--plain", *more]
    return [sys.executable, "-m", "fedjax_bal", "sweep", wanted.file, *wanted.changes, *options]


def training(root: int) -> list[int]:
    """The processes below a process that are Ray's workers, and train."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue
    below = lambda pid: pid == root or (pid in parents and below(parents[pid]))
    return [pid for pid, name in names.items() if name.startswith("ray::Worker.advance") and below(pid)]


def lines(out: Path) -> int:
    """Lines of metrics so far."""
    return sum(file.read_bytes().count(b"\n") for file in out.glob("points/*/metrics.jsonl"))


def disturbed(wanted: argparse.Namespace, out: Path) -> tuple[int, int]:
    """Carries the sweep through, and kills workers on the way: how many, and the exit code."""
    random.seed(wanted.seed)
    process, kills, before = subprocess.Popen(command(wanted, out, "--engine", "ray")), 0, 0
    while process.poll() is None:
        time.sleep(0.02)
        pids = training(process.pid) if kills < wanted.kills and lines(out) >= before + wanted.after else []
        if pids:
            victim = random.choice(pids)
            os.kill(victim, signal.SIGKILL)
            kills, before = kills + 1, lines(out)
            print(f"--- killed worker {victim} after {before} lines of metrics", flush=True)
    return kills, process.returncode


def table(out: Path) -> list[dict]:
    """The rows of a sweep's table, without what they cost."""
    with open(out / "results.csv") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def metrics(out: Path) -> dict[str, list[dict]]:
    """The lines of each point, run after run, without wall times."""
    found = {}
    for file in sorted(out.glob("points/*/metrics.jsonl")):
        read = [json.loads(line) for line in file.read_text().splitlines()]
        own = [{key: value for key, value in line.items() if key not in ("wall_s", "checksum")} for line in read]
        found[file.parent.name] = own
    return found


def states(out: Path) -> dict[str, dict[str, bytes]]:
    """The arrays of each run's newest checkpoint."""
    newest = [max(folder.glob("round-*.npz")) for folder in sorted(out.glob("points/*/checkpoints/*"))]
    read = lambda file: {name: np.load(file)[name] for name in np.load(file).files if name != "manifest.json"}
    return {
        str(file.relative_to(out)): {name: np.asarray(array).tobytes() for name, array in read(file).items()}
        for file in newest
    }


def main() -> int:
    """Runs both and compares; 0 where nothing differs and somebody was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(CONFIG))
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--after", type=int, default=30, help="lines of metrics before each kill")
    parser.add_argument("--together", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        clocks = [time.perf_counter()]
        kills, code = disturbed(wanted, Path(name) / "ray")
        clocks.append(time.perf_counter())
        subprocess.run(command(wanted, Path(name) / "local"), check=False)
        clocks.append(time.perf_counter())
        pair = Path(name) / "ray", Path(name) / "local"
        rows = table(pair[0])
        found = {
            "workers_killed": kills,
            "exit_code": code,
            "rows": len(rows),
            "done": sum(row["status"] == "done" for row in rows),
            "table_equal": rows == table(pair[1]),
            "metrics_equal": metrics(pair[0]) == metrics(pair[1]),
            "final_states_equal": states(pair[0]) == states(pair[1]),
            "ray_s": round(clocks[1] - clocks[0], 1),
            "local_s": round(clocks[2] - clocks[1], 1),
        }
    print(json.dumps(found, indent=1))
    return 0 if kills == wanted.kills and all(found[key] for key in found if key.endswith("_equal")) else 1


if __name__ == "__main__":
    sys.exit(main())
