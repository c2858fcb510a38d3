"""The same rounds on one or two processes, each with one or two CPU devices: differences of results, time per round.

    python benchmarks/distributed.py [--rounds 40] [--recipes all|NAME,NAME...] [--json FILE]

FedAvg, SCAFFOLD (whose memory of 1000 clients is split over the devices) and FL-CIR (which selects clients by the
previous round's results) on W3's federation with random pixels; processes connect over loopback. The final states are
compared, including parameters and client memories. With `--recipes`: every recipe, or those named, on eight tiny
clients instead, 4 rounds with absences; then only the differences are reported. Without it, writes
results/distributed.json.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _common
import jax
import numpy as np

from fedjax_bal import models, recipes
from fedjax_bal.bench.workloads import WORKLOADS, material
from fedjax_bal.cli.distributed import ProcessPlace, joined_processes
from fedjax_bal.data import federate
from fedjax_bal.engine.host.front_door import build_simulation
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.lab.environment import device_name, versions
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli
from fedjax_bal.testing import toy

LAYOUTS = ((1, 1), (1, 2), (2, 1), (2, 2))
HOST, RESULTS = "127.0.0.1", Path(__file__).parent / "results"
METHODS = ("fedavg", "scaffold", "flcir")
FITTING = {"fakes": 2, "iterations": 2, "generator_batch": 3, "latent": 2, "warm_up": 1, "interval": 2}
SMALLER: dict[str, dict[str, Any]] = {"astraea": {"size": 2}, "cbfl": FITTING}
WITHOUT_STATISTICS = ("ditto", "dp")
WITH_LARGER_IMAGES = ("cbfl", "crop_flip", "fedbn")
"""Recipes that don't fit the tiny clients' network, because they need pixels or normalisation layers."""

Record = dict[str, Any]


def main() -> None:
    """Runs the measurements and prints the results."""
    parser = _common.parser(__doc__, file=True)
    parser.add_argument("--rounds", type=int, default=40, help="of each method (default 40)")
    parser.add_argument("--recipes", help="all, or some: only differences, on tiny clients")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(**asked.worker)
        return
    names = METHODS
    if asked.recipes:
        names = tuple(recipes.RECIPES) if asked.recipes == "all" else tuple(asked.recipes.split(","))
    found = compare(names, tiny=bool(asked.recipes), rounds=asked.rounds)
    print_table(found)
    file = asked.json or (None if asked.recipes else RESULTS / "distributed.json")
    about = {"device": device_name(), "versions": versions(), "rounds": asked.rounds, "results": found}
    _common.write_figures(file, about)


def compare(names: tuple[str, ...], *, tiny: bool, rounds: int) -> list[Record]:
    """Runs every method on every layout; returns one record per method and layout."""
    with tempfile.TemporaryDirectory() as folder:
        records: list[Record] = []
        for processes, devices in ((1, 1), (2, 2)) if tiny else LAYOUTS:
            out = Path(folder) / f"{processes}x{devices}"
            out.mkdir()
            start(out, processes, devices, names=names, tiny=tiny, rounds=rounds)
            for name in names:
                own = json.loads((out / f"{name}.json").read_text())
                apart = difference(out / f"{name}.npz", Path(folder) / "1x1" / f"{name}.npz")
                records.append({"method": name, "processes": processes, "devices": devices, "difference": apart, **own})
                print(json.dumps(records[-1]), flush=True)
    return records


def start(out: Path, processes: int, devices: int, **job: Any) -> None:
    """Runs the processes of a layout until they end."""
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
    running = []
    for index in range(processes):
        worker = {"place": [address, index, processes], "devices": devices, "out": str(out), **job}
        words = [sys.executable, __file__, "--worker", json.dumps(worker)]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit(f"{processes} x {devices}: the processes ended with {codes}")


def work(place: list[Any], devices: int, out: str, names: list[str], rounds: int, *, tiny: bool) -> None:
    """Runs one process's share of all methods; the first process writes the results."""
    jax.config.update("jax_num_cpu_devices", devices)
    here = ProcessPlace(*place)
    with joined_processes(here if here.count > 1 else None, versions, devices):
        for name in names:
            make = tiny_clients if tiny else many_clients
            simulation = make(name, devices * here.count, rounds)
            arrays, seconds = finish(simulation)
            if here.index == 0:
                np.savez(Path(out) / f"{name}.npz", *arrays)
                (Path(out) / f"{name}.json").write_text(json.dumps({"round_ms": 1e3 * seconds}))


def finish(simulation: Simulation) -> tuple[list[np.ndarray], float]:
    """Returns the final state, and the median seconds per round, excluding the first dispatch."""
    snapshot, times = simulation.init(0), []
    simulation.compile()
    while snapshot.round < simulation.rounds:
        before, began = snapshot.round, time.perf_counter()
        snapshot = simulation.advance(0, snapshot).snapshot
        times.append((time.perf_counter() - began) / (snapshot.round - before))
    return jax.tree.leaves(fetch(snapshot.state)), statistics.median(times[1:] or times)


def many_clients(name: str, devices: int, rounds: int) -> Simulation:
    """Builds a method on W3's federation, with as many images held out as FL-CIR needs."""
    made = material(WORKLOADS["W3"])
    spare = np.concatenate([np.flatnonzero(made.labels == label)[:4] for label in range(10)])
    rows = [np.setdiff1d(own, spare) for own in made.rows_per_client]
    federation = federate(made.images, made.labels, rows, 10, {"balanced": spare})
    model = models.build("mlp", 10, made.images.shape[1:])
    return build_simulation(
        recipes.RECIPES[name](),
        model,
        federation,
        (made.images[:1000], made.labels[:1000]),
        rounds=rounds,
        local=LocalTraining(batch_size=10, optimizer=optimizer("sgd", 0.05)),
        participation=Participation(clients_per_round=100),
        execution=Execution(strategy="map", devices=devices, rounds_per_dispatch=1),
    )


def tiny_clients(name: str, devices: int, rounds: int) -> Simulation:
    """Builds a recipe on eight tiny clients, of which some are absent and some don't deliver."""
    del rounds
    recipe = recipes.RECIPES[name](**SMALLER.get(name, {}))
    model, federation, test = toy.network(), toy.federation(), toy.test_set()
    if name in WITHOUT_STATISTICS:
        model = models.build("mlp", toy.CLASSES, model.input_shape)
    if name in WITH_LARGER_IMAGES:
        model = models.build("tiny_bn", toy.CLASSES, (8, 8, 1))
        federation, test = enlarged(federation), (np.repeat(np.repeat(test[0], 8, 1), 2, 2), test[1])
    return build_simulation(
        recipe,
        model,
        federation,
        test,
        rounds=4,
        local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.1)),
        participation=Participation(clients_per_round=4, availability=bernoulli(0.8), delivery=bernoulli(0.7)),
        # One of the recipes makes some clients diverge.
        execution=Execution(strategy="map", devices=devices, rounds_per_dispatch=1, broken_clients="exclude"),
    )


def enlarged(federation: Any) -> Any:
    """Resizes the federation's images to 8x8 pixels."""
    return federation._replace(images=np.repeat(np.repeat(federation.images, 8, 1), 2, 2))


def difference(file: Path, other: Path) -> float:
    """Returns the largest difference between two states, relative to the largest value of a leaf, or to 1."""
    with np.load(file) as one, np.load(other) as two:
        pairs: Iterator[Any] = ((one[name].astype(float), two[name].astype(float)) for name in one.files)
        return max(float(np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0))) for a, b in pairs)


def print_table(found: list[Record]) -> None:
    """Prints the results as Markdown."""
    print("\n| | processes x devices | ms a round | largest difference |\n|---|---|---|---|")
    for own in found:
        where = f"{own['processes']} x {own['devices']}"
        print(f"| {own['method']} | {where} | {own['round_ms']:.1f} | {own['difference']:.1e} |")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    main()
