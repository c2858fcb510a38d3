"""Memory, files and pace of 2,000 rounds, which should stay flat, and of a report over 10^6 lines.

    python benchmarks/long_run.py [--rounds 2000] [--lines 1000000]

The run is a small FedAvg and a small SCAFFOLD, evaluated and saved every 20 rounds, in a process whose memory is
sampled. The lines are made up. Writes results/long_run.json; three to five minutes, and 0.6 GB of disk for the lines.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _common
import numpy as np
import yaml

from fedjax_bal.experiments.environment import device_name, versions

CONFIG = """
name: long
dataset: {name: fashion_mnist_small}
partition: {scheme: pathological, clients: 10, classes_per_client: 2, samples_per_client: 40, seed: 0}
model: {name: mlp}
training: {rounds: 2000, local_epochs: 1, batch_size: 20, optimizer: {name: sgd, learning_rate: 0.01}}
selection: {name: uniform, clients_per_round: 3}
evaluation: {every: 20}
execution: {rounds_per_dispatch: 20, checkpoint_every: 20}
methods: [{recipe: fedavg}, {recipe: scaffold}]
seeds: [0]
"""
METHODS, SEEDS, CLASSES = ("first", "second"), range(5), 10


def main() -> None:
    """Measures and prints."""
    parser = _common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="of the run, at least 80")
    parser.add_argument("--lines", type=int, default=1_000_000, help="of the metrics that are reported")
    wanted = parser.parse_args()
    found = {"device": device_name(), "versions": versions()}
    with tempfile.TemporaryDirectory() as name:
        found["run"] = many_rounds(Path(name), wanted.rounds)
        found["report"] = many_lines(Path(name), wanted.lines)
    print(json.dumps(found, indent=1))
    _common.write_figures(Path(__file__).parent / "results" / "long_run.json", found)


def many_rounds(work: Path, rounds: int) -> dict:
    """Memory, files and pace of a run."""
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
        # The first line comes after compiling, and what a program needs grows until it has run a few times.
        marks = number * own + np.array([1, quarter, 2 * quarter, 3 * quarter, own - 1])
        spent = np.diff(np.interp(marks, counts, cpu)) / np.diff(marks) * own / rounds
        found[method] = {
            "rss_mb_by_quarter": np.interp(marks[1:], counts, memory).round().astype(int).tolist(),
            "cpu_ms_a_round_by_quarter": (1e3 * spent).round(2).tolist(),
        }
    return found


def watched(command: list[str], metrics: Path) -> list[tuple[int, float, float]]:
    """Runs a command; lines of metrics, MB of memory and seconds of CPU so far, ten times a second."""
    process = subprocess.Popen([sys.executable, "-m", "fedjax_bal", *command], stdout=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):  # not begun, or just over
            lines = metrics.read_bytes().count(b"\n")
            samples.append((lines, *used(process.pid)))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"the run ended with exit code {process.returncode}")
    return [sample for sample in samples if sample[1] > 0]


def used(process: int) -> tuple[float, float]:
    """MB of memory and seconds of CPU of a process."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def many_lines(work: Path, count: int) -> dict:
    """Time and memory of a report, and the size of its page."""
    folder = work / "synthetic"
    make_up(folder, count)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "fedjax_bal", "report", str(folder)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the report ended with status {status}")
    return {
        "lines": count,
        "bytes_of_metrics": (folder / "metrics.jsonl").stat().st_size,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "most_rss_mb": round(usage.ru_maxrss * 1024 / 1e6),
        "bytes_of_page": (folder / "report.html").stat().st_size,
    }


def make_up(folder: Path, count: int) -> None:
    """Writes a run folder with so many lines of metrics."""
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
    listed = [{"method": method, "seed": seed, **numbers} for method, seed in runs]
    summary = {"name": "synthetic", "finished": True, "class_names": names, "runs": listed}
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {"name": "synthetic", "training": {"rounds": rounds}, "methods": list(METHODS), "seeds": list(SEEDS)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def made_up_line(method: str, seed: int, at: int, accuracy: float) -> dict:
    """One line, with what a run's have."""
    return {
        "method": method, "seed": seed, "round": at, "test_accuracy": accuracy, "balanced_accuracy": accuracy,
        "macro_f1": accuracy, "worst_class_accuracy": accuracy, "per_class_accuracy": [accuracy] * CLASSES,
        "test_loss": 1.0, "train_loss": 1.0, "update_diversity": None, "clients": 3, "dropped": 0,
        "bytes_up": 1_000_000, "bytes_down": 1_000_000, "wall_s": round(0.1 * at, 3),
    }  # fmt: skip


if __name__ == "__main__":
    main()
