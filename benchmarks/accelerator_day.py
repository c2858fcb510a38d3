"""Measures what only a GPU or TPU can, in one command that can be killed and restarted.

    python benchmarks/accelerator_day.py --data-dir DIR [--budget SECONDS] [--only STEP|JOB] [--out FOLDER]
    python benchmarks/accelerator_day.py --tiny                           (everything in tiny sizes, on a CPU)

golden: final states of ten recipes against those recorded on a CPU, with clients one by one and in three lanes.
papers: the papers' runs that decide most for the least time on a GPU.
speed: client updates per second of W1 to W7 and of the rivals of `run_all.py --suite gpu`, precision by precision.
clients: rounds with 10^2 to 10^6 clients, with FedAvg and with SCAFFOLD.
tables: the papers' tables that would take a CPU weeks, each with one seed.

Jobs of `golden` and `speed` run `--abreast` at a time; jobs that measure speed wait until all have compiled, then
measure one after another.

A step consists of jobs; a job is a process with a time limit. Its result goes to FOLDER/JOB.json, its output to
FOLDER/JOB.log, and all results to FOLDER/table.md. A job with a result isn't repeated unless its file is deleted, even
if it failed or exceeded its limit. A paper's run that was stopped resumes from its last checkpoint in the next call.
When the budget is spent, the call ends, and the next call repeats the interrupted job. Fails if a job failed.
"""

import argparse
import itertools
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import _common
import _rival
import jax
import run_all

from fedjax_bal.bench.command import BenchOptions, cases
from fedjax_bal.bench.measure import matmul_peak, measure
from fedjax_bal.files import write_atomically
from fedjax_bal.lab import device_name, versions

ROOT = Path(__file__).parents[1]
GOLDEN = ("fedavg", "scaffold", "cbfl", "rebafl", "astraea", "iwds", "flcir", "fedbn", "fedadam", "moon")
PAPERS = (
    ("papers/flcir/figure3_cifar10", "rounds=1000"),
    ("papers/flcir/figure4_cifar10", "rounds=1000"),
    ("papers/flcir/cifar10", "rounds=1000", "methods=[greedy,cucb]", "seeds=10"),
    ("papers/cbfl/c10_resnet20_a0.1", "methods=[fedavg,cbfl]", "seeds=1"),
    ("papers/rebafl/table1_c10_m20", "partition_seeds=[2022,1,2]"),
    ("papers/rebafl/table1_c10_m50", "partition_seeds=[2022,1,2]"),
)
TABLES = ("papers/cbfl/table1_c10", "papers/iwds/figure4_c10", "protocols/fedloge_cifar10")
TINY_PAPERS = (("quickstart", "rounds=2", "methods=[fedavg]"), ("sweeps/learning_rate", "rounds=1"))
PLUGIN = "fedjax_bal.contrib.late_control_variates"
"""Registers methods that some of the papers' configurations name."""

RATE = "{client_updates_per_s:,.1f} client updates/s"
SHOWN = {
    "golden": "equal to rounding: largest relative difference {map:.1e}, in lanes {lanes:.1e}; tolerance {tolerance:g}",
    "speed": RATE + ", {matmul_peak_share:.0%} of the matmul peak, {clients_at_a_time} clients at a time, "
    "peak {peak_memory_bytes:,} bytes, compiled in {compile_s:.0f} s",
    "rival": RATE,
    "clients": "in the job's file",
    "papers": "in runs/",
}
"""Formats of results in the table."""

Record = dict[str, Any]


class Job(NamedTuple):
    """Commands that run one after another and produce a single result.

    Attributes:
        answer: the file with the result.
        shown: the result's format, a key of SHOWN.
        limit: time limit for all commands, in seconds.
        lacks: why the job can't run on this machine; empty if it can.
        resumes: whether the job resumes after an interruption.
    """

    step: str
    name: str
    commands: list[list[str]]
    answer: Path
    shown: str
    limit: float = 300.0
    lacks: str = ""
    resumes: bool = False


def main() -> None:
    asked = parse()
    if asked.worker:
        kind, arguments = asked.worker
        asked.answer.write_text(json.dumps(WORKERS[kind](**json.loads(arguments))))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; the same command continues"))
    ends = time.monotonic() + asked.budget
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        asked.folder = Path(folder)
        jobs = planned(asked)
        chosen = [job for job in jobs if asked.only in (None, job.step, job.name)]
        if not chosen:
            sys.exit(f"--only: received {asked.only}; choose from {', '.join(STEPS)}, or a job's name in table.md")
        try:
            work(chosen, asked, ends, machine(asked))
        finally:
            write_atomically(asked.out / "table.md", table(jobs, asked.out).encode())
            print(f"\n{table(jobs, asked.out)}\nwritten to {asked.out}")
    failed = [job.name for job in chosen if status_of(job, asked.out) in ("failed", "overran")]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def parse() -> argparse.Namespace:
    parser = _common.parser(__doc__)
    parser.add_argument("--data-dir", dest="cifar10", metavar="DIR", type=os.path.abspath, help="CIFAR-10's folder")
    parser.add_argument("--budget", metavar="SECONDS", type=float, default=math.inf, help="of this call")
    parser.add_argument("--only", metavar="STEP|JOB", help="a step, or a single job")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="one for each kind of machine")
    abreast = max(1, (os.cpu_count() or 1) // 2)
    parser.add_argument("--abreast", type=int, default=abreast, help="programs that compile at the same time")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, also on a CPU")
    parser.add_argument("--commit", help="the commit, where the files came without git")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "ARGUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    # Tiny results must not be mistaken for real ones. Absolute path, because jobs run in another folder.
    default = Path(tempfile.gettempdir(), "tiny_day") if asked.tiny else ROOT / "benchmarks/results/accelerator_day"
    asked.out = (asked.out or default).absolute()
    # For run_all's commands. Random pixels suffice, because the images' content doesn't affect speed.
    asked.data_dir = None
    asked.stopped = asked.finished = False
    asked.seconds = 0.2 if asked.tiny else 5.0
    asked.fewer_clients = {"W3": 5, "W6": 5} if asked.tiny else {}
    return asked


def machine(asked: argparse.Namespace) -> Record:
    """Describes machine, commit and versions, in a subprocess: jax would reserve most of a GPU's memory in this one."""
    problem = run_all.run(worker(asked, "device", "device"), 300)
    if problem:
        sys.exit(f"jax doesn't start: {problem}")
    found = run_all.machine() | json.loads((asked.folder / "device").read_text())
    if found["platform"] == "cpu" and not asked.tiny:
        sys.exit("jax sees no accelerator; install its plug-in (for GPUs the extra `gpu`), or try this with --tiny")
    return found | {"commit": asked.commit or found["commit"]}


def planned(asked: argparse.Namespace) -> list[Job]:
    return [job for step in STEPS.values() for job in step(asked)]


def golden(asked: argparse.Namespace) -> Iterator[Job]:
    for case in GOLDEN[: 2 if asked.tiny else None]:
        yield measured(asked, "golden", f"golden-{case}", case=case)


def papers(asked: argparse.Namespace) -> Iterator[Job]:
    for config, *changes in TINY_PAPERS if asked.tiny else PAPERS:
        yield paper(asked, "papers", config, *changes)


def tables(asked: argparse.Namespace) -> Iterator[Job]:
    for config in () if asked.tiny else TABLES:
        yield paper(asked, "tables", config, "seeds=1")


def paper(asked: argparse.Namespace, step: str, config: str, *changes: str) -> Job:
    name = config.replace("/", "-")
    command = [sys.executable, "-m", "fedjax_bal", "run", str(ROOT / "configs" / f"{config}.yaml"), *changes]
    command += ["--plugin", PLUGIN, "--plain", "--out", str(asked.out / "runs" / name)]
    command += ["--data-dir", asked.cifar10] if asked.cifar10 else []
    lacks = "" if asked.cifar10 or asked.tiny else "needs --data-dir, with the binary version of CIFAR-10"
    return Job(step, name, [command], asked.folder / name, "papers", 14_400, lacks, resumes=True)


def speed(asked: argparse.Namespace) -> Iterator[Job]:
    # CPUs have no TensorFloat-32. The budget may end after the first precision.
    for precision in ("float32", "bfloat16") if asked.tiny else run_all.ALL_PRECISIONS:
        for workload in asked.fewer_clients if asked.tiny else run_all.WORKLOADS["gpu"]:
            for contestant in run_all.contestants("gpu", workload, 0):
                if precision in contestant.precisions:
                    yield (rival if contestant.environment else ours)(asked, workload, contestant, precision)


def ours(asked: argparse.Namespace, workload: str, contestant: run_all.Contestant, precision: str) -> Job:
    options = {"overrides": [f"execution.precision={precision}", *contestant.options], "seconds": asked.seconds}
    options |= {"workload": workload, "clients_per_round": asked.fewer_clients.get(workload)}
    name = f"speed-{workload}-{contestant.name.replace(', ', '-')}-{precision}"
    return measured(asked, "speed", name, turn=str(asked.folder / "turn"), **options)


def rival(asked: argparse.Namespace, workload: str, contestant: run_all.Contestant, precision: str) -> Job:
    name = f"speed-{workload}-{contestant.name.replace(', ', '-').replace(' ', '')}-{precision}"
    file, answer = asked.folder / f"{workload}.npz", asked.folder / name
    more = "--precision", precision, "--turn", str(asked.folder / "turn")
    on = contestant._replace(options=(*contestant.options, *more)) if asked.tiny else run_all.on_gpu(contestant, *more)
    export = ["sh", "-c", 'test -e "$0" || exec "$@"', str(file), *run_all.export(asked, workload, file)]
    commands = [export, run_all.command(asked, on, workload, file, answer)]
    lacks = "" if run_all.python_of(contestant) else f"benchmarks/peers/setup.sh {contestant.environment} installs it"
    return Job("speed", name, commands, answer, "rival", lacks=lacks)


def clients(asked: argparse.Namespace) -> Iterator[Job]:
    words = ["--only", "clients", "--passes", "1", *(["--largest", "100"] if asked.tiny else [])]
    for method in ("fedavg", "scaffold"):
        name = f"clients-{method}"
        command = [sys.executable, str(ROOT / "benchmarks" / "scaling.py"), *words, "--methods", method]
        command += ["--json", str(asked.folder / name)]
        yield Job("clients", name, [command], asked.folder / name, "clients")


ABREAST = ("golden", "speed")
STEPS = {"golden": golden, "papers": papers, "speed": speed, "clients": clients, "tables": tables}


def measured(asked: argparse.Namespace, step: str, name: str, **arguments: Any) -> Job:
    """Returns a job that calls the step's function in WORKERS."""
    return Job(step, name, [worker(asked, name, step, **arguments)], asked.folder / name, step)


def worker(asked: argparse.Namespace, name: str, kind: str, **arguments: Any) -> list[str]:
    """Returns the command that calls one of WORKERS and writes its answer to the file `name`."""
    return [sys.executable, __file__, "--worker", kind, json.dumps(arguments), "--answer", str(asked.folder / name)]


def work(jobs: Iterable[Job], asked: argparse.Namespace, ends: float, about: Record) -> None:
    """Runs the jobs that have no final result yet, until the budget is spent."""
    for step, own in itertools.groupby(jobs, lambda job: job.step):
        rest, abreast = [job for job in own if not is_final(job, asked.out)], asked.abreast if step in ABREAST else 1
        while rest:
            together, rest = rest[:abreast], rest[abreast:]
            with ThreadPoolExecutor(abreast) as pool:
                begun = [pool.submit(finish, job, asked, ends, about) for job in together]
                try:
                    finished = [one.result() for one in begun]
                except BaseException:
                    asked.stopped = True  # jobs that are killed now have no result
                    for process in list(run_all.RUNNING):
                        run_all.end(process)
                    raise
            if not all(finished):
                print("the budget is spent; the same command continues")
                return


def is_final(job: Job, out: Path) -> bool:
    return status_of(job, out) not in (None, "stopped", "skipped")


def status_of(job: Job, out: Path) -> str | None:
    file = out / f"{job.name}.json"
    return json.loads(file.read_text())["status"] if file.exists() else None


def finish(job: Job, asked: argparse.Namespace, ends: float, about: Record) -> bool:
    """Runs a job; returns False if the budget ended first."""
    left = ends - time.monotonic()
    record = attempt(job, asked, min(job.limit, left)) if left > 0 else None
    # A job that was limited by what other jobs left of the budget starts over in the next call.
    interrupted = record and record["status"] == "overran" and left < job.limit and asked.finished
    if record is None or interrupted or asked.stopped:
        return False
    asked.finished = True
    text = json.dumps({"job": job.name, **about, **record}, indent=1)
    write_atomically(asked.out / f"{job.name}.json", text.encode())
    print(f"{job.name}: {said(job, record)} ({record['seconds']:.0f} s)", flush=True)
    return True


def attempt(job: Job, asked: argparse.Namespace, limit: float) -> Record:
    """Runs a job; returns its status, its seconds, and its result or its problem."""
    if job.lacks:
        return {"status": "skipped", "seconds": 0.0, "problem": job.lacks}
    job.answer.unlink(missing_ok=True)
    start, problem = time.monotonic(), None
    # A job that was killed may have left half a file in PyTorch's cache of compiled programs: each call has its own.
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(job.answer.parent / "inductor")}
    # Concurrent processes allocate a GPU's memory as they need it, not three quarters of it each.
    environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if job.step in ABREAST else {}
    for command in job.commands:
        left, log = max(0.0, limit - (time.monotonic() - start)), asked.out / f"{job.name}.log"
        problem = problem or run_all.run(command, left, environment=environment, log=log)
    seconds = time.monotonic() - start
    if problem is None:
        result = json.loads(job.answer.read_text()) if job.answer.exists() else {}
        return {"status": "done", "seconds": seconds, "result": result[0] if isinstance(result, list) else result}
    status = "failed" if seconds < limit else "stopped" if job.resumes else "overran"
    return {"status": status, "seconds": seconds, "problem": problem}


def table(jobs: Iterable[Job], out: Path) -> str:
    """Formats a row for each job that has a file."""
    lines = ["| job | result | s | machine, commit, date |", "|---|---|---|---|"]
    for job in jobs:
        file = out / f"{job.name}.json"
        if file.exists():
            record = json.loads(file.read_text())
            where = f"{record['device']}, jax {record['jax']}, {record['commit']}, {record['date']}"
            lines.append(f"| {job.name} | {said(job, record)} | {record['seconds']:.0f} | {where} |")
    return "\n".join(lines) + "\n"


def said(job: Job, record: Record) -> str:
    if record["status"] == "done":
        return SHOWN[job.shown].format(**record["result"])
    return f"{record['status']}: {record['problem']}".replace("|", "/")


def measure_device() -> Record:
    return {"device": device_name(), "platform": jax.default_backend(), **versions()}


def measure_golden(case: str) -> Record:
    sys.path.insert(0, str(ROOT / "tests"))
    from golden import states

    tolerance, differences = states.CASES[case].tolerance, states.differences(case)
    if max(differences.values()) > tolerance:
        sys.exit(f"NOT EQUAL: relative differences {differences}; tolerance {tolerance:g}")
    return {"tolerance": tolerance, **differences}


def measure_speed(turn: str, **options: Any) -> Record:
    [case] = cases(BenchOptions(workloads=[options.pop("workload")], synthetic=True, **options))
    return measure(case, matmul_peak, options["seconds"], turn=_rival.Turn(Path(turn)))


WORKERS: dict[str, Callable[..., Record]] = {
    "device": measure_device,
    "golden": measure_golden,
    "speed": measure_speed,
}

if __name__ == "__main__":
    main()
