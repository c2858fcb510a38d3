"""Compares two commits, interleaved so that drift affects both, and names metrics that got worse by more than 5%.

    python benchmarks/guard.py OLD [NEW] [--workloads W1,W2,W3,W4,W5] [--passes 3] [--seconds 3] [--json FILE]
    python benchmarks/guard.py OLD [NEW] --config FILE [KEY=VALUE ...] [--data-dir DIR] ...

NEW is the working tree unless a commit is given. With `--config` the methods of a configuration replace the workloads,
which train with FedAvg. Client updates per second and compile seconds are medians over all passes of
`fedjax-bal bench`, with random pixels for workloads; each pass is a separate process. If both commits have
`benchmarks/aot.py` and its extra is installed, the launches of a local step on the accelerator `--target` are counted,
too. The exit code is 1 if a metric got worse. Run it alone on the machine: compile times vary by several
per cent between runs.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import _common
from _results import figure
from run_all import run

HOME = Path(__file__).parents[1]
TOLERATED = 0.95
MORE_IS_BETTER = {"client_updates_per_s": True, "compile_s": False, "launches": False}


class Measured(NamedTuple):
    """One metric of a workload, for the old or the new commit."""

    side: str
    workload: str
    name: str
    value: float


class Change(NamedTuple):
    """A metric of both commits; the ratio is above 1 if the new commit is better."""

    workload: str
    name: str
    old: float
    new: float
    ratio: float

    @property
    def worse(self) -> bool:
        """Whether the metric got worse by more than its tolerance."""
        return self.ratio < TOLERATED


def main() -> None:
    asked = parse()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        trees = {"old": stack.enter_context(checked_out(asked.old, folder / "old")), "new": HOME}
        if asked.new:
            trees["new"] = stack.enter_context(checked_out(asked.new, folder / "new"))
        changes = compare(measured(asked, trees, folder / "figures.json"))
    _common.write_figures(asked.json, [change._asdict() | {"worse": change.worse} for change in changes])
    print("\n".join(table(changes)))
    sys.exit(
        "\n".join(f"{one.workload}: {one.name} got worse: {one.ratio:.2f}" for one in changes if one.worse) or None
    )


def parse() -> argparse.Namespace:
    parser = _common.parser(__doc__, file=True)
    parser.add_argument("old", help="the commit to compare with")
    parser.add_argument("new", nargs="?", help="default: the working tree")
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5")
    parser.add_argument("--config", nargs="+", default=[], metavar=("FILE", "KEY=VALUE"), help="its methods instead")
    parser.add_argument("--data-dir", metavar="DIR", type=os.path.abspath, help="the configuration's data")
    parser.add_argument("--passes", type=int, default=3, help="how often each is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steady state for each run (default 3)")
    parser.add_argument("--target", default="h200", help="the accelerator whose launches are counted (default h200)")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds after which a run is given up (default 600)"
    )
    return parser.parse_args()


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Checks out a commit into a temporary folder."""
    git = ["git", "-C", str(HOME), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def measured(asked: argparse.Namespace, trees: dict[str, Path], file: Path) -> Iterator[Measured]:
    """Yields all metrics, with the commits interleaved; consecutive passes start with different commits."""
    cases = {name: ["--workload", name, "--synthetic"] for name in asked.workloads.split(",")}
    if asked.config:
        data = ["--data-dir", asked.data_dir] if asked.data_dir else []
        cases = {asked.config[0]: [*asked.config, *data]}
    for case, options in cases.items():
        for turn in range(asked.passes):
            for side in sorted(trees, reverse=turn % 2 == 0):
                words = ["-m", "fedjax_bal", "bench", *options, "--seconds", str(asked.seconds), "--json"]
                problem = answer(trees[side], words, file, asked.limit)
                if problem:
                    sys.exit(f"{case}, {side}: {problem}")
                for record in json.loads(file.read_text()):
                    name = record["workload"]
                    rate = figure(record["client_updates_per_s"])
                    print(f"{name} pass {turn + 1} {side}: {rate} updates/s", flush=True)
                    for shown in ("client_updates_per_s", "compile_s"):
                        yield Measured(side, name, shown, record[shown])
        if not asked.config:
            yield from launches(asked, trees, case, file)


def launches(asked: argparse.Namespace, trees: dict[str, Path], workload: str, file: Path) -> Iterator[Measured]:
    """Yields the launches of a local step for both commits; if one can't be counted, prints so and yields none."""
    found = []
    for side, tree in trees.items():
        words = ["benchmarks/aot.py", "--target", asked.target, "--workload", workload, "--save"]
        has_tool = (tree / words[0]).exists()
        problem = answer(tree, words, file, asked.limit) if has_tool else "it has no benchmarks/aot.py"
        if problem:
            print(f"{workload} launches: skipped, {side}: {problem}", flush=True)
            return
        (figures,) = json.loads(file.read_text()).values()
        found.append(Measured(side, workload, "launches", figures["loops"][figures["step"]]["launches"]))
    yield from found


def answer(tree: Path, words: list[str], file: Path, limit: float) -> str | None:
    """Runs a command in a commit's tree, with the answer file as the last argument; returns the problem, or None."""
    file.unlink(missing_ok=True)
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    return run([sys.executable, *words, str(file)], limit, tree, os.environ | {"PYTHONPATH": path})


def compare(figures: Iterable[Measured]) -> list[Change]:
    """Computes the medians of both commits."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in figures:
        values.setdefault((one.workload, one.name), {"old": [], "new": []})[one.side].append(one.value)
    changes = []
    for (workload, name), sides in values.items():
        old, new = (statistics.median(sides[side]) for side in ("old", "new"))
        changes.append(Change(workload, name, old, new, new / old if MORE_IS_BETTER[name] else old / new))
    return changes


def table(changes: list[Change]) -> list[str]:
    """Formats the comparison as a Markdown table."""
    lines = ["| workload | figure | old | new | ratio, above 1 is better | |", "|---|---|---|---|---|---|"]
    for one in changes:
        verdict = "**worse**" if one.worse else ""
        numbers = f"{figure(one.old)} | {figure(one.new)} | {one.ratio:.2f}"
        lines.append(f"| {one.workload} | {one.name} | {numbers} | {verdict} |")
    return lines


if __name__ == "__main__":
    main()
