"""Long and large runs: 20,000 rounds, a report of 10^6 lines, a sweep of 2,000 points, 10^6 clients with a memory.

    python benchmarks/long_run.py [--only rounds lines points clients]
                                  [--rounds 20000] [--lines 1000000] [--points 2000] [--clients 1000000]

rounds: memory, files and speed of a small FedAvg and a small SCAFFOLD, evaluated and saved every 20 rounds; all should
    stay constant.
lines: seconds and memory of the report of a synthetic run folder.
points: seconds of a sweep's commands, with one round per point and 100 points per program; the first command is killed
    when half of the runs are done.
clients: SCAFFOLD's memory of all clients on disk, uninterrupted and killed half way; both must give the same bits.

Writes results/long_run.json. All of it takes seven minutes and 5 GB of disk.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _common
import numpy as np
import yaml

from fedjax_bal.lab import Cost
from fedjax_bal.lab.environment import device_name, versions

CONFIG = """
name: long
dataset: {name: fashion_mnist_small}
partition: {scheme: pathological, clients: 10, classes_per_client: 2, samples_per_client: 40, seed: 0}
model: {name: mlp}
training: {rounds: 1, local_epochs: 1, batch_size: 20, optimizer: {name: sgd, learning_rate: 0.01}}
selection: {name: uniform, clients_per_round: 3}
evaluation: {every: 20}
execution: {rounds_per_dispatch: 20, checkpoint_every: 20}
methods: [{recipe: fedavg}, {recipe: scaffold}]
seeds: [0]
"""
POINTS = """
name: points
dataset: {name: fashion_mnist_small}
partition: {scheme: pathological, clients: 10, classes_per_client: 2, samples_per_client: 20, seed: 0}
model: {name: mlp}
training: {rounds: 1, local_epochs: 1, batch_size: 20, optimizer: {name: sgd, learning_rate: 0.01}}
selection: {clients_per_round: 3}
methods: [fedavg]
seeds: [0]
sweep:
  - training.optimizer.learning_rate: {from: 0.001, to: 1, steps: 20, scale: log}
  - partition.seed: {from: 1, to: COUNT, steps: COUNT}
"""
CLIENTS = """
name: clients
dataset: {name: npz, path: images.npz}
partition: {scheme: iid, clients: COUNT, seed: 0}
model: {name: mlp, hidden: [8]}
training: {rounds: 400, local_epochs: 6, batch_size: 10, optimizer: {name: sgd, learning_rate: 0.05}}
selection: {clients_per_round: 100}
evaluation: {every: 20}
execution: {checkpoint_every: 20, rounds_per_dispatch: 20, client_memory: disk}
methods: [scaffold]
seeds: [0]
"""
PARTS = ("rounds", "lines", "points", "clients")
METHODS, SEEDS, CLASSES = ("first", "second"), range(5), 10


def main() -> None:
    """Runs the measurements and prints the results."""
    parser = _common.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some of the parts")
    parser.add_argument("--rounds", type=int, default=20_000, help="of the run, at least 80")
    parser.add_argument("--lines", type=int, default=1_000_000, help="of the metrics that are reported")
    parser.add_argument("--points", type=int, default=2000, help="of the sweep, a multiple of 20")
    parser.add_argument("--clients", type=int, default=1_000_000, help="with a memory each")
    wanted = parser.parse_args()
    file = Path(__file__).parent / "results" / "long_run.json"
    found = _common.read_figures(file)
    measures = {"rounds": many_rounds, "lines": many_lines, "points": many_points, "clients": many_clients}
    for part in wanted.only:
        with tempfile.TemporaryDirectory() as name:
            found[part] = measures[part](Path(name), getattr(wanted, part))
        found[part] |= {"commit": _common.commit(), "device": device_name(), "versions": versions()}
        print(json.dumps({part: found[part]}, indent=1), flush=True)
        _common.write_figures(file, found)


def many_rounds(work: Path, rounds: int) -> dict:
    """Measures memory, files and speed of a run."""
    (work / "long.yaml").write_text(CONFIG)
    out = work / "out"
    command = ["run", str(work / "long.yaml"), f"training.rounds={rounds}", "--out", str(out), "--plain"]
    samples = watched(command, out / "metrics.jsonl")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    files = [file for file in out.rglob("*") if file.is_file()]
    found: dict = {"rounds": rounds, "files": len(files), "bytes": sum(file.stat().st_size for file in files)}
    found |= {"bytes_of_metrics": (out / "metrics.jsonl").stat().st_size, "lines": len(lines)}
    counts, memory, cpu = np.array(samples).T
    for number, method in enumerate(("fedavg", "scaffold")):
        own, quarter = len(lines) // 2, len(lines) // 8
        # The first line is written after compilation, and memory grows until the program has run a few times.
        marks = number * own + np.array([1, quarter, 2 * quarter, 3 * quarter, own - 1])
        spent = np.diff(np.interp(marks, counts, cpu)) / np.diff(marks) * own / rounds
        found[method] = {
            "rss_mb_by_quarter": np.interp(marks[1:], counts, memory).round().astype(int).tolist(),
            "cpu_ms_a_round_by_quarter": (1e3 * spent).round(2).tolist(),
        }
    return found


def watched(command: list[str], metrics: Path) -> list[tuple[int, float, float]]:
    """Runs a command; ten times a second, records lines of metrics, MB of memory and seconds of CPU time."""
    process = subprocess.Popen([sys.executable, "-m", "fedjax_bal", *command], stdout=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):  # not started, or just ended
            lines = metrics.read_bytes().count(b"\n")
            samples.append((lines, *used(process.pid)))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"the run ended with exit code {process.returncode}")
    return [sample for sample in samples if sample[1] > 0]


def used(process: int) -> tuple[float, float]:
    """Returns the memory in MB and the CPU seconds of a process."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def many_lines(work: Path, count: int) -> dict:
    """Measures time and memory of a report, and the size of its page."""
    folder = work / "synthetic"
    make_up(folder, count)
    return {
        "lines": count,
        "bytes_of_metrics": (folder / "metrics.jsonl").stat().st_size,
        **cost_of(["report", str(folder)]),
        "bytes_of_page": (folder / "report.html").stat().st_size,
    }


def many_points(work: Path, count: int) -> dict:
    """Measures a sweep that is killed half way, two repetitions of its command, and its page."""
    (work / "points.yaml").write_text(POINTS.replace("COUNT", str(count // 20)))
    out = work / "out"
    train = ["sweep", str(work / "points.yaml"), "--out", str(out), "--together", "100", "--plain"]
    trained = lambda: len(list(out.glob("points/*/summary.json")))
    return {
        "points": count,
        "killed": cost_of(train, lambda: trained() >= count // 2) | {"trained": trained()},
        "resumed": cost_of(train),
        "nothing_left": cost_of(train),
        "page": cost_of(["report", str(out)]),
        "bytes_of_table": (out / "results.csv").stat().st_size,
        "bytes_of_page": (out / "sweep.html").stat().st_size,
    }


def many_clients(work: Path, count: int) -> dict:
    """Measures a run with client memory on disk, and one that is killed half way; compares their final bits."""
    rng = np.random.default_rng(0)
    draw = lambda rows: (rng.integers(0, 256, (rows, 8, 8), np.uint8), rng.integers(0, CLASSES, rows))
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(work / "images.npz", **dict(zip(names, (*draw(count), *draw(1000)), strict=True)))
    text = CLIENTS.replace("COUNT", str(count)).replace("images.npz", str(work / "images.npz"))
    (work / "clients.yaml").write_text(text)
    command = lambda out: ["run", str(work / "clients.yaml"), "--out", str(work / out), "--plain"]
    metrics = work / "killed" / "metrics.jsonl"
    half_way = lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 10
    found = {
        "clients": count,
        "undisturbed": cost_of(command("undisturbed")),
        "killed": cost_of(command("killed"), half_way),
        "resumed": cost_of(command("killed")),
    }
    last = [max((work / out).glob("checkpoints/*/round-*.npz")) for out in ("undisturbed", "killed")]
    return found | {"bytes_of_checkpoint": last[0].stat().st_size, "same_bits": same_arrays(*last)}


def same_arrays(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same bits."""
    with np.load(one) as ours, np.load(other) as theirs:
        arrays = [name for name in ours.files if not name.endswith(".json")]
        return ours.files == theirs.files and all(np.array_equal(ours[name], theirs[name]) for name in arrays)


def cost_of(command: list[str], until: Callable[[], bool] | None = None) -> dict:
    """Runs a command, or kills it when `until` returns True; returns its seconds and its peak memory."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "fedjax_bal", *command], stdout=subprocess.DEVNULL)
    running = lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    while until and running() and not until():
        time.sleep(0.2)
    if until:
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    if status and not until:
        sys.exit(f"{command[0]} ended with status {status}")
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "most_rss_mb": round(usage.ru_maxrss * 1024 / 1e6),
    }


def make_up(folder: Path, count: int) -> None:
    """Writes a run folder with `count` lines of metrics."""
    folder.mkdir(parents=True)
    runs = list(itertools.product(METHODS, SEEDS))
    rounds = count // len(runs)
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as stream:
        for method, seed in runs:
            curve = 0.8 - 0.6 * np.exp(-np.arange(rounds) / rounds * 5)
            noise = np.random.default_rng(seed).normal(0, 0.01, rounds)
            for at, accuracy in enumerate((curve + noise).round(4).tolist(), start=1):
                stream.write(json.dumps(made_up_line(method, seed, at, accuracy)) + "\n")
    names = [f"class {number}" for number in range(CLASSES)]
    numbers = {"rounds": rounds, "final_accuracy": 0.8, "best_accuracy": 0.8, "last5_accuracy": 0.8}
    numbers |= dict.fromkeys(("failure", "broken_clients"))
    listed = [{"method": method, "seed": seed, **numbers} for method, seed in runs]
    summary = dict.fromkeys(("device", "client_updates_per_s", "samples_per_s", "target_accuracy"))
    summary |= {"name": "synthetic", "finished": True, "class_names": names, "runs": listed}
    summary |= {"versions": {}, "command": {"plugins": [], "data_dir": None}, "compile_s": 0.0, "wall_s": 0.0}
    summary |= {"cost": Cost()._asdict(), "partitions": [], "batches": []}
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {"name": "synthetic", "training": {"rounds": rounds}, "methods": list(METHODS), "seeds": list(SEEDS)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def made_up_line(method: str, seed: int, at: int, accuracy: float) -> dict:
    """Builds one line with the metrics of a run."""
    return {
        "method": method, "seed": seed, "round": at, "test_accuracy": accuracy, "balanced_accuracy": accuracy,
        "macro_f1": accuracy, "worst_class_accuracy": accuracy, "per_class_accuracy": [accuracy] * CLASSES,
        "test_loss": 1.0, "train_loss": 1.0, "update_diversity": None, "clients": 3, "dropped": 0,
        "bytes_up": 1_000_000, "bytes_down": 1_000_000, "wall_s": round(0.1 * at, 3),
    }  # fmt: skip


if __name__ == "__main__":
    main()
