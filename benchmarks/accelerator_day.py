"""Runs all first measurements on a machine with a GPU or TPU, in one command that can be killed and restarted.

    python benchmarks/accelerator_day.py --data-dir DIR [--budget SECONDS] [--only STEP|JOB] [--out FOLDER]
    python benchmarks/accelerator_day.py --tiny                           (everything in tiny sizes, on a CPU)

golden: final states of ten recipes against those recorded on a CPU, with clients one by one and in three lanes.
speed: client updates per second of W1 to W5, by precision and layout, and of the PyTorch loop, eager and compiled.
    "vmap" trains as many clients concurrently as the engine chooses, "lanes" a quarter of the cohort, "map" one.
long: 1,500 rounds of W1: seconds, and accuracy and memory by quarter.
clients: rounds of W1 with 10^2 to 10^6 clients, which share its images, with FedAvg and with SCAFFOLD.
papers: tables that would take a CPU weeks, each with one seed, then each with three.

Jobs of the first two steps run `--abreast` at a time; jobs that measure speed wait until all have compiled, then
measure one after another.

A step consists of jobs; a job is a process with a time limit. Its result goes to FOLDER/JOB.json, its output to
FOLDER/JOB.log, and all results to FOLDER/table.md. A job with a result isn't repeated unless its file is deleted, even
if it failed or exceeded its limit. A paper's run that was stopped resumes from its last checkpoint in the next call.
When the budget is spent, the call ends, and the next call repeats the interrupted job.
"""

import argparse
import dataclasses
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
import numpy as np
import run_all
import scaling

from fedjax_bal import data
from fedjax_bal.bench.command import BenchOptions, cases
from fedjax_bal.bench.measure import forget_peak, matmul_peak, measure, memory_peak, resident_peak
from fedjax_bal.bench.workloads import WORKLOADS, simulation_of, spans, workload_federation
from fedjax_bal.engine.device import in_batches
from fedjax_bal.files import write_atomically
from fedjax_bal.lab import device_name, versions
from fedjax_bal.options import Execution

ROOT = Path(__file__).parents[1]
GOLDEN = ("fedavg", "scaffold", "cbfl", "rebafl", "astraea", "iwds", "flcir", "fedbn", "fedadam", "moon")
PAPERS = (
    ("sweep", "papers/cbfl/table1_c10"),
    ("sweep", "papers/iwds/figure4_c10"),
    ("run", "papers/flcir/cifar10"),
    ("sweep", "protocols/fedloge_cifar10"),
)
TINY_PAPERS = (("run", "quickstart", "rounds=2", "methods=[fedavg]"), ("sweep", "sweeps/learning_rate", "rounds=1"))

RATE = "{client_updates_per_s:,.1f} client updates/s"
SHOWN = {
    "golden": "{verdict}: largest relative difference {map:.1e}, in lanes {lanes:.1e}; tolerance {tolerance:g}",
    "speed": RATE + ", {matmul_peak_share:.0%} of the matmul peak, {clients_at_a_time} clients at a time, "
    "peak {peak_memory_bytes:,} bytes, compiled in {compile_s:.0f} s",
    "torch": RATE,
    "long": "{rounds} rounds in {train_s:.1f} s; by quarter: accuracy {accuracy}, peak bytes {peak_bytes}",
    "clients": RATE + ", planning {plan_s:.5f} s, {client_memory_bytes:,} bytes of client memory, peak {memory_peak:,}",
    "papers": "in runs/",
}
"""Formats of results in the table, by step."""

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
    asked.fewer_clients = {"W3": 5} if asked.tiny else {}
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


def speed(asked: argparse.Namespace) -> Iterator[Job]:
    workloads = ("W3",) if asked.tiny else ("W1", "W2", "W3", "W4", "W5")
    precisions = ("float32", "bfloat16") if asked.tiny else ("float32", "tensorfloat32", "bfloat16")
    # The default layout and its rivals come first, because the budget may end here.
    for precision in precisions:
        for workload in workloads:
            yield ours(asked, workload, "vmap", precision)
            yield from (torch_loop(asked, workload, loop, precision) for loop in run_all.CUDA_LOOPS)
    for layout in ("lanes", "map"):
        for precision in precisions:
            yield from (ours(asked, workload, layout, precision) for workload in workloads)


def ours(asked: argparse.Namespace, workload: str, layout: str, precision: str) -> Job:
    fewer = asked.fewer_clients.get(workload)
    quarter = -(-(fewer or WORKLOADS[workload].clients_per_round) // 4)
    options = {"vmap": ["strategy=vmap"], "lanes": ["strategy=vmap", f"chunk={quarter}"], "map": ["strategy=map"]}
    words = [f"execution.{option}" for option in (*options[layout], f"precision={precision}")]
    arguments = {"workload": workload, "overrides": words, "clients_per_round": fewer, "seconds": asked.seconds}
    turn = str(asked.folder / "turn")
    return measured(asked, "speed", f"speed-{workload}-{layout}-{precision}", turn=turn, **arguments)


def torch_loop(asked: argparse.Namespace, workload: str, loop: run_all.Contestant, precision: str) -> Job:
    name = f"speed-{workload}-{loop.name.replace(', ', '-')}-{precision}"
    file, answer = asked.folder / f"{name}.npz", asked.folder / name
    device = ("--device", "cpu") if asked.tiny else ()
    options = (*loop.options, *device, "--precision", precision, "--turn", str(asked.folder / "turn"))
    loop = loop._replace(options=options)
    commands = [run_all.export(asked, workload, file), run_all.command(asked, loop, workload, file, answer)]
    lacks = "" if run_all.python_of(loop) else "PyTorch isn't installed: benchmarks/peers/setup.sh torch"
    return Job("speed", name, commands, answer, "torch", lacks=lacks)


def long(asked: argparse.Namespace) -> Iterator[Job]:
    sizes = {"rounds": 8, "clients_per_round": 2} if asked.tiny else {"rounds": 1500, "clients_per_round": None}
    yield measured(asked, "long", "long-W1", data_dir=asked.cifar10, **sizes)._replace(limit=500)


def clients(asked: argparse.Namespace) -> Iterator[Job]:
    for method in ("fedavg", "scaffold"):
        for count in scaling.SIZES[: 1 if asked.tiny else None]:
            sizes = {"clients": count, "clients_per_round": 2 if asked.tiny else None}
            yield measured(asked, "clients", f"clients-{method}-{count}", method=method, **sizes)


def papers(asked: argparse.Namespace) -> Iterator[Job]:
    lacks = "" if asked.cifar10 or asked.tiny else "needs --data-dir, with the binary version of CIFAR-10"
    data_dir = ["--data-dir", asked.cifar10] if asked.cifar10 else []
    for seeds in (1, 3):
        for verb, config, *changes in TINY_PAPERS if asked.tiny else PAPERS:
            name = config.replace("/", "-")
            words = [verb, str(ROOT / "configs" / f"{config}.yaml"), *changes, f"seeds={seeds}", *data_dir]
            command = [sys.executable, "-m", "fedjax_bal", *words, "--out", str(asked.out / "runs" / name), "--plain"]
            name = f"{name}-seeds{seeds}"
            yield Job("papers", name, [command], asked.folder / name, "papers", 14_400, lacks, resumes=True)


ABREAST = ("golden", "speed")
STEPS = {"golden": golden, "speed": speed, "long": long, "clients": clients, "papers": papers}


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
    file = out / f"{job.name}.json"
    return file.exists() and json.loads(file.read_text())["status"] not in ("stopped", "skipped")


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
    # Concurrent processes allocate a GPU's memory as they need it, not three quarters of it each.
    environment = os.environ | ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if job.step in ABREAST else {})
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
    verdict = "equal to rounding" if max(differences.values()) <= tolerance else "NOT EQUAL"
    return {"verdict": verdict, "tolerance": tolerance, **differences}


def measure_speed(turn: str, **options: Any) -> Record:
    [case] = cases(BenchOptions(workloads=[options.pop("workload")], synthetic=True, **options))
    return measure(case, matmul_peak, options["seconds"], turn=_rival.Turn(Path(turn)))


def measure_long(data_dir: str | None, rounds: int, clients_per_round: int | None) -> Record:
    """Trains W1 for `rounds` rounds; returns accuracy and peak memory since the start after each quarter."""
    federation = workload_federation(WORKLOADS["W1"], data_dir)
    dataset = data.load("cifar10", data_dir) if data_dir else None
    test = (dataset.test_images, dataset.test_labels) if dataset else (federation.images[:100], federation.labels[:100])
    execution = Execution(rounds_per_dispatch=max(1, rounds // 60))
    simulation = simulation_of(WORKLOADS["W1"], federation, clients_per_round, execution)
    evaluation = dataclasses.replace(simulation.setting.evaluation, every=rounds // 4)
    setting = dataclasses.replace(simulation.setting, evaluation=evaluation)
    simulation = dataclasses.replace(simulation, setting=setting, test=in_batches(*test), rounds=rounds)
    found: Record = {"compile_s": simulation.compile(), "accuracy": [], "peak_bytes": [], "resident_bytes": []}
    snapshot, began = simulation.init(0), time.perf_counter()
    while snapshot.round < rounds:
        dispatched = simulation.advance(0, snapshot)
        snapshot = dispatched.snapshot
        for line in dispatched.records:
            found["accuracy"].append(round(line["test_accuracy"], 4))
            found["peak_bytes"].append(memory_peak().size)
            found["resident_bytes"].append(resident_peak())
    return found | {"rounds": snapshot.round, "train_s": time.perf_counter() - began}


def measure_clients(method: str, clients: int, clients_per_round: int | None) -> Record:
    workload = WORKLOADS["W1"]
    workload = workload._replace(deal=lambda rng, labels: spans(rng.permutation(len(labels)), np.full(clients, 50)))
    federation = workload_federation(workload)
    forget_peak()
    simulation = simulation_of(workload, federation, clients_per_round, method=method)
    cost = scaling.cost_of(simulation)
    rate = (clients_per_round or workload.clients_per_round) / cost["round_s"]
    return cost | {"client_updates_per_s": rate, "memory_peak": memory_peak().size}


WORKERS: dict[str, Callable[..., Record]] = {
    "device": measure_device,
    "golden": measure_golden,
    "speed": measure_speed,
    "long": measure_long,
    "clients": measure_clients,
}

if __name__ == "__main__":
    main()
