"""Compares fedjax-bal with its rivals on the same federations, in interleaved passes.

    python benchmarks/run_all.py --suite cpu --data-dir DIR      (about half an hour on two cores; --short: ten minutes)
    python benchmarks/run_all.py --suite gpu                     (on one GPU, in float32, rivals that can use it)

Every run is a separate process, in which only rounds after the first count. fedjax-bal, the two fastest known rivals of
a workload and the PyTorch loop run in every pass, the others only in the first; on a GPU all run in every pass. A rival
runs in its own environment, which `benchmarks/peers/setup.sh NAME` creates; missing rivals are skipped and named.
Writes all runs and their summary as JSON, and prints a table.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import _common
import _results

HERE = Path(__file__).parent
WORKLOADS = {
    "cpu": ("W1", "W2", "W3", "W4", "W4b", "W5"),
    "gpu": ("W1", "W2", "W3", "W4", "W5", "W6", "W7"),
}
RUNNING: set[subprocess.Popen] = set()
"""Commands that are running now."""
FEWER_CLIENTS = {"W5": 4}
"""Clients per round for workloads whose full cohort takes a rival minutes on a CPU; the same for all contestants."""


class Contestant(NamedTuple):
    """A simulator or loop: a module in an environment."""

    name: str
    environment: str = ""  # its folder under `peers/`; empty for fedjax-bal itself
    module: str = ""
    options: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()  # unsupported workloads
    precisions: tuple[str, ...] = ("float32", "tensorfloat32")  # on a GPU


IMPORTED = {"flbench": "src", "pfllib": "flcore"}
"""Modules of rivals that aren't called as their environments."""
ALL_PRECISIONS = ("float32", "tensorfloat32", "bfloat16")


def several(one: Contestant, unit: str, count: int) -> Contestant:
    """Returns a contestant with several processes or threads."""
    options = (*one.options, "--processes", str(count))
    return one._replace(name=f"{one.name}, {count} {unit}" if count > 1 else one.name, options=options)


OURS = Contestant(_results.OURS, precisions=ALL_PRECISIONS)
# A form of convolution that no device has measured yet; W3 has no convolution.
IMPLICIT = OURS._replace(
    name="fedjax-bal, implicit", options=("model.convolution=implicit",), lacks=("W3", "W4", "W6", "W7")
)
LOOP = Contestant("torch_loop", "torch", "torch_loop", precisions=ALL_PRECISIONS)
COMPILED_LOOP = LOOP._replace(name="torch_loop, compiled", options=("--compile",))
VMAP = Contestant("torch_vmap", "torch", "torch_vmap", lacks=("W5",))
COMPILED_VMAPS = (
    VMAP._replace(name="torch_vmap, compiled", options=("--compile", "default")),
    VMAP._replace(name="torch_vmap, CUDA graphs", options=("--compile", "reduce-overhead")),
)
ONE_PFL = Contestant("pfl", "pfl", "peers.pfl.run")
ONE_BLAZEFL = Contestant("blazefl", "blazefl", "peers.blazefl.run")
FLBENCH = Contestant("flbench", "flbench", "peers.flbench.run")
PFLLIB = Contestant("pfllib", "pfllib", "peers.pfllib.run", lacks=("W4", "W4b", "W5"))

GPU = (
    IMPLICIT,
    LOOP,
    COMPILED_LOOP,
    VMAP,
    *COMPILED_VMAPS,
    *(several(ONE_PFL, "processes", count) for count in range(1, 6)),
    *(several(ONE_BLAZEFL, "threads", count) for count in (1, 4, 8)),
    *(several(FLBENCH, "workers", count) for count in (1, 4)),
    PFLLIB,
)
"""The rivals on a GPU. pfl's authors advise 1 to 5 processes on it."""

LOOPS = (LOOP, several(LOOP, "processes", 2))
PFL = several(ONE_PFL, "processes", 2)
BLAZEFL = several(ONE_BLAZEFL, "threads", 2)
FEDJAX = Contestant("fedjax", "fedjax", "peers.fedjax.run", lacks=("W5",))
VMAPS = (several(VMAP, "processes", 2), VMAP)
OTHERS = (
    Contestant("fedlab", "fedlab", "peers.fedlab.run"),
    Contestant("fluke", "fluke", "peers.fluke.run"),
    Contestant("flower, 2 processes", "flower", "peers.flower.run", ("--processes", "2")),
)
FASTEST = {
    "W1": (PFL, BLAZEFL),
    "W2": (PFL, BLAZEFL),
    "W3": (VMAPS[0], FEDJAX),
    "W4": (FEDJAX, VMAPS[0]),
    "W4b": (FEDJAX, VMAPS[0]),
    "W5": (PFL,),
}
ALL = (PFL, FEDJAX, *VMAPS, BLAZEFL, *OTHERS)


def main() -> None:
    asked = parse()
    workloads = [name for name in WORKLOADS[asked.suite] if name in asked.workloads]
    note_missing(asked, workloads)
    runs: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in workloads:
                for record in compete(asked, name, Path(folder)):
                    runs.append(record)
                    save(asked, runs)
    except KeyboardInterrupt:
        print("\nstopped; what ran so far:", file=sys.stderr)
    if runs:
        report = save(asked, runs)
        print(f"\n{heading(report)}\n\n{_results.markdown(report['summary'])}\n\nwritten to {asked.out}")


def parse() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--suite", choices=("cpu", "gpu"), default="cpu")
    made.add_argument("--workloads", help=f"of {','.join(WORKLOADS['cpu'])}, on a GPU also W6 and W7 (default all)")
    made.add_argument("--passes", type=int, default=3, help="interleaved passes (default 3)")
    made.add_argument("--short", action="store_true", help="one pass, of those that would run in every pass")
    made.add_argument("--seconds", type=float, default=5.0, help="of steady state for each run (default 5)")
    made.add_argument("--limit", type=float, default=240.0, help="seconds after which a run is given up (default 240)")
    made.add_argument("--data-dir", help="the folder with the data sets' files (default: random pixels)")
    made.add_argument("--out", type=Path, help="the JSON file (default benchmarks/results/SUITE.json)")
    asked = made.parse_args()
    known = WORKLOADS[asked.suite]
    asked.workloads = asked.workloads.split(",") if asked.workloads else known
    unknown = [name for name in asked.workloads if name not in known]
    if unknown:
        made.error(f"--workloads: received {','.join(unknown)}; choose from {','.join(known)}")
    if asked.passes < 1:
        made.error(f"--passes: received {asked.passes}; it must be at least 1")
    if asked.data_dir is not None and not Path(asked.data_dir).is_dir():
        made.error(f"--data-dir: received {asked.data_dir}, which is no folder; it must hold the data sets' files")
    asked.data_dir = asked.data_dir and os.path.abspath(asked.data_dir)
    asked.passes = 1 if asked.short else asked.passes
    asked.fewer_clients = FEWER_CLIENTS if asked.suite == "cpu" else {}
    asked.out = asked.out or HERE / "results" / f"{asked.suite}.json"
    return asked


def contestants(suite: str, workload: str, number: int, *, short: bool = False) -> list[Contestant]:
    """Lists the contestants of a pass; the order rotates between passes, so that each follows different ones."""
    if suite == "gpu":
        chosen = [OURS, *GPU]
    else:
        chosen = [OURS, *FASTEST[workload], *LOOPS]
        chosen += [other for other in ALL if other not in chosen and number == 0 and not short]
    chosen = [one for one in chosen if workload not in one.lacks]
    first = number % len(chosen)
    return chosen[first:] + chosen[:first]


def python_of(contestant: Contestant) -> str | None:
    """Returns the Python interpreter that has the contestant; None if there is none."""
    if not contestant.environment:
        return sys.executable
    own = HERE / "peers" / contestant.environment / ".venv" / "bin" / "python"
    if own.exists():
        return str(own)
    # A rival that is installed here needs no environment.
    imported = IMPORTED.get(contestant.environment, contestant.environment)
    return sys.executable if importlib.util.find_spec(imported) else None


def note_missing(asked: argparse.Namespace, workloads: list[str]) -> None:
    """Prints which contestants are missing, and the command that installs them."""
    wanted = [one for name in workloads for one in contestants(asked.suite, name, 0, short=asked.short)]
    missing = dict.fromkeys(one for one in wanted if python_of(one) is None)
    names = " ".join(dict.fromkeys(one.environment for one in missing if one.environment))
    if names:
        print(f"left out, for want of an environment: {names}; to have them: benchmarks/peers/setup.sh {names}\n")


def compete(asked: argparse.Namespace, workload: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the runs of all passes of a workload."""
    file = folder / f"{workload}.npz"
    problem = run(export(asked, workload, file), asked.limit)
    if problem:
        print(f"{workload}: can't be exported: {problem}", file=sys.stderr)
        return
    for number in range(asked.passes):
        for contestant in contestants(asked.suite, workload, number, short=asked.short):
            if python_of(contestant) is not None:
                contestant = on_gpu(contestant) if asked.suite == "gpu" else contestant
                yield attempt(asked, contestant, workload, number, file)
    file.unlink()


def on_gpu(contestant: Contestant, *options: str) -> Contestant:
    """Returns a rival on a GPU, with further options; fedjax-bal takes a GPU by itself."""
    if not contestant.environment:
        return contestant
    return contestant._replace(options=(*contestant.options, "--device", "cuda", *options))


def export(asked: argparse.Namespace, workload: str, file: Path) -> list[str]:
    """Returns the command that writes a workload for rivals."""
    words = [sys.executable, str(HERE / "export.py"), workload, str(file), *cohort(asked, workload)]
    return [*words, "--data-dir", asked.data_dir] if asked.data_dir else words


def cohort(asked: argparse.Namespace, workload: str) -> list[str]:
    """Returns the option for fewer clients per round than the workload's; empty if there is none."""
    fewer = asked.fewer_clients.get(workload)
    return ["--clients-per-round", str(fewer)] if fewer else []


def attempt(
    asked: argparse.Namespace, contestant: Contestant, workload: str, number: int, file: Path
) -> dict[str, Any]:
    """Performs one run; returns its result or its problem."""
    answer = file.with_name("answer.json")
    answer.unlink(missing_ok=True)
    words = command(asked, contestant, workload, file, answer)
    start = time.perf_counter()
    problem = run(words, asked.limit)
    spent = time.perf_counter() - start
    record: dict[str, Any] = {"workload": workload, "contestant": contestant.name, "pass": number + 1, "wall_s": spent}
    if problem is None:
        found = json.loads(answer.read_text())
        record["result"] = found[0] if isinstance(found, list) else found
        said = f"{_results.figure(record['result']['client_updates_per_s'])} client updates/s"
    else:
        record["error"] = said = problem
    print(f"{workload} pass {number + 1} {contestant.name}: {said} ({spent:.0f} s)", flush=True)
    return record


def command(asked: argparse.Namespace, contestant: Contestant, workload: str, file: Path, answer: Path) -> list[str]:
    """Returns the command of a run."""
    python, common = python_of(contestant) or "", ["--seconds", str(asked.seconds), "--json", str(answer)]
    if contestant.environment:
        return [python, "-m", contestant.module, "--workload", str(file), *contestant.options, *common]
    common += cohort(asked, workload)
    data = ["--data-dir", asked.data_dir] if asked.data_dir else ["--synthetic"]
    return [python, "-m", "fedjax_bal", "bench", *contestant.options, "--workload", workload, *data, *common]


def run(
    words: list[str],
    limit: float,
    folder: Path = HERE,
    environment: Mapping[str, str] = os.environ,
    log: Path | None = None,
) -> str | None:
    """Runs a command and its subprocesses, with output into `log` if given; returns the problem, or None."""
    # In a new session, so that all subprocesses can be ended; the kernel ends it if this process is killed.
    words = ["setpriv", "--pdeathsig", "KILL", *words] if shutil.which("setpriv") else words
    with log.open("w+") if log else tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        RUNNING.add(process)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"given up after {round(limit, 1):g} s"
        finally:
            end(process)
            RUNNING.discard(process)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    return None if code == 0 else (lines[-1][:200] if lines else f"exit code {code}")


def end(process: subprocess.Popen) -> None:
    """Ends a command and the subprocesses that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def save(asked: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes all runs and their summary; returns the written report."""
    report = machine() | {"suite": asked.suite, "passes": asked.passes, "seconds": asked.seconds}
    report |= {"data": "real" if asked.data_dir else "random pixels", "summary": _results.summarise(runs), "runs": runs}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    _common.write_figures(asked.out, report)
    return report


def machine() -> dict[str, Any]:
    """Describes the machine, the date, the commit and the version of Python."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return {
        "machine": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "commit": _common.commit() or None,
        "python": platform.python_version(),
    }


def heading(report: dict[str, Any]) -> str:
    """Formats the line above the table."""
    results = [run["result"] for run in report["runs"] if "result" in run]
    packages = {name: version for result in results for name, version in result["versions"].items()}
    versions = ", ".join(f"{name} {packages[name]}" for name in sorted(packages.keys() - {"python", "numpy"}))
    return (
        f"{report['machine']}, {report['cores']} cores; {report['date']}, commit {report['commit']}; {report['data']}; "
        f"{report['seconds']:g} s a run; {versions}"
    )


if __name__ == "__main__":
    main()
