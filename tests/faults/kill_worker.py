"""A sweep through Ray of which workers are killed while they train, against one that nobody disturbs.

    python tests/faults/kill_worker.py [FILE] [--kills 1] [--together 10] [KEY=VALUE ...]

Both are real commands. A worker that trains is killed with SIGKILL once its sweep has new lines of metrics; afterwards
tables, lines of metrics and newest checkpoints are compared, bit for bit. `--together` gives both the same groups,
and both have one device for each.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.cases import results

CONFIG = Path(__file__).parents[2] / "configs" / "sweeps" / "learning_rate.yaml"


def command(wanted: argparse.Namespace, out: Path, *more: str) -> list[str]:
    """The command of a sweep."""
    options = ["--out", str(out), "--together", str(wanted.together), "--devices", "1", "--plain", *more]
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
    return [pid for pid, name in names.items() if name.startswith("ray::Worker.train") and below(pid)]


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
        there, here = (results(Path(name) / place) for place in ("ray", "local"))
        rows = there["results.csv"]
        found = {
            "workers_killed": kills,
            "exit_code": code,
            "rows": len(rows),
            "done": sum(row["status"] == "done" for row in rows),
            "different": sorted(file for file in {*there, *here} if there.get(file) != here.get(file)),
            "ray_s": round(clocks[1] - clocks[0], 1),
            "local_s": round(clocks[2] - clocks[1], 1),
        }
    print(json.dumps(found, indent=1))
    return 0 if kills == wanted.kills and not found["different"] else 1


if __name__ == "__main__":
    sys.exit(main())
