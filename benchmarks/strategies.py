"""Times the strategies over models, cohorts and batches: evidence for the rule of `execution.strategy: auto` on CPUs.

    python benchmarks/strategies.py [--cases 64-8-10 784-64-10] [--cohorts 10 100] [--batches 10 50] [--widths 4 16]
                                    [--devices 1] [--method fedavg] [--uneven] [--repeats 7] [--json FILE]

Whole rounds without evaluation, after compilation: six local steps of one batch for every client, or with `--uneven` as
many as lognormal sizes give. Strategies are interleaved dispatch by dispatch, and cells are medians: processor and wall
milliseconds a round. "all" is `vmap` with all clients of a device at a time, a number is `vmap` with that many, and
"auto" is what the rule takes, in parentheses. Pixels are random. Ten minutes by default, most of it compiling.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import numpy as np

STEPS, CLASSES, CLIENTS = 6, 10, 200


class Case(NamedTuple):
    """A network on inputs of a shape, and its clients' optimizer."""

    shape: tuple[int, ...]
    model: str
    options: dict[str, Any] = {}  # noqa: RUF012
    optimizer: dict[str, Any] = {"name": "sgd", "learning_rate": 0.05}  # noqa: RUF012


ADAM = {"name": "adam", "learning_rate": 1e-3}
MOMENTUM = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
CASES = {
    "64-8-10": Case((8, 8, 1), "mlp", {"hidden": (8,)}),
    "64-8-10 adam": Case((8, 8, 1), "mlp", {"hidden": (8,)}, ADAM),
    "60-32-10": Case((10, 6, 1), "mlp", {"hidden": (32,)}),
    "60-64-10": Case((10, 6, 1), "mlp", {"hidden": (64,)}),
    "784-8-10": Case((28, 28, 1), "mlp", {"hidden": (8,)}),
    "60-128-10": Case((10, 6, 1), "mlp", {"hidden": (128,)}),
    "784-16-10": Case((28, 28, 1), "mlp", {"hidden": (16,)}),
    "60-256-10": Case((10, 6, 1), "mlp", {"hidden": (256,)}),
    "60-256-10 adam": Case((10, 6, 1), "mlp", {"hidden": (256,)}, ADAM),
    "784-32-10": Case((28, 28, 1), "mlp", {"hidden": (32,)}),
    "784-64-10": Case((28, 28, 1), "mlp", {"hidden": (64,)}),
    "784-64-10 momentum": Case((28, 28, 1), "mlp", {"hidden": (64,)}, MOMENTUM),
    "784-200-200-10": Case((28, 28, 1), "mlp", {"hidden": (200, 200)}),
    "astraea_cnn": Case((28, 28, 1), "astraea_cnn", {"dropout": 0.0}, ADAM),
    "conv2_lenet": Case((28, 28, 1), "conv2_lenet"),
}


def main() -> None:
    parser = _common.parser(__doc__, repeats=7, file=True)
    parser.add_argument("--cases", nargs="*", choices=CASES, help="only these networks")
    parser.add_argument("--cohorts", nargs="*", type=int, default=[10, 100])
    parser.add_argument("--batches", nargs="*", type=int, default=[10, 50])
    parser.add_argument("--widths", nargs="*", type=int, default=[])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--uneven", action="store_true", help="clients of lognormal sizes")
    asked = parser.parse_args()
    from fedjax_bal.caches import keep_compiled_programs
    from fedjax_bal.jax_setup import split_cpu

    split_cpu(asked.devices)
    keep_compiled_programs()
    records = []
    ways = ["map", "all", *map(str, asked.widths), "auto"]
    print("| network | clients | batch | " + " | ".join(ways) + " |")
    print("|---" * (3 + len(ways)) + "|")
    for name in asked.cases or CASES:
        for cohort in asked.cohorts:
            for batch in asked.batches:
                record = measured(CASES[name], cohort, batch, asked)
                records.append({"network": name, "clients": cohort, "batch": batch, **record})
                cells = [cell(record, way) for way in ways]
                print(f"| {name} | {cohort} | {batch} | " + " | ".join(cells) + " |", flush=True)
    _common.write_figures(asked.json, records)


def cell(record: dict[str, Any], way: str) -> str:
    """Formats the milliseconds of a strategy; empty for more clients at a time than there are."""
    way, chosen = (record["auto"], f" ({record['auto']})") if way == "auto" else (way, "")
    if way not in record["wall_s"]:
        return ""
    return f"{1e3 * record['processor_s'][way]:.2f} {1e3 * record['wall_s'][way]:.2f}{chosen}"


def measured(case: Case, cohort: int, batch: int, asked: Any) -> dict[str, Any]:
    """Measures the strategies of a case; returns processor and wall seconds a round by strategy, and that of "auto"."""
    from fedjax_bal.options import Execution

    federation = federated(case, max(cohort, CLIENTS), batch, asked.uneven)
    build = lambda **layout: simulation_of(case, federation, cohort, batch, asked, Execution(**layout))
    share = -(-cohort // asked.devices)
    runs = {"map": build(strategy="map"), "all": build(strategy="vmap", chunk=share)}
    runs |= {str(width): build(strategy="vmap", chunk=width) for width in asked.widths if width < share}
    automatic = build()
    layout = automatic.setting.layout
    same = [way for way, run in runs.items() if run.setting.layout == layout]
    auto = same[0] if same else str(layout.width)
    return {"auto": auto, **time_interleaved({auto: automatic} | runs, asked.repeats)}


def federated(case: Case, clients: int, batch: int, uneven: bool) -> Any:
    """Builds a federation of clients with one batch each, or with lognormal sizes."""
    from fedjax_bal import data

    rng = np.random.default_rng(0)
    sizes = np.full(clients, batch)
    if uneven:
        sizes = np.maximum(batch, rng.lognormal(np.log(batch * STEPS) - 0.32, 0.8, clients)).astype(int)
    rows = np.split(np.arange(sizes.sum(), dtype=np.int32), np.cumsum(sizes)[:-1])
    images = rng.integers(0, 256, (sizes.sum(), *case.shape), np.uint8)
    return data.federate(images, rng.integers(0, CLASSES, len(images), np.int32), rows, CLASSES)


def simulation_of(case: Case, federation: Any, cohort: int, batch: int, asked: Any, execution: Any) -> Any:
    """Builds a simulation that never evaluates."""
    from fedjax_bal import models, optimizer, recipes
    from fedjax_bal.bench.workloads import HORIZON
    from fedjax_bal.engine.host import build_simulation
    from fedjax_bal.options import Evaluation, LocalTraining, Participation

    return build_simulation(
        recipes.RECIPES[asked.method](),
        models.build(case.model, CLASSES, case.shape, **case.options),
        federation,
        (federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        local=LocalTraining(
            batch_size=batch, epochs=1 if asked.uneven else STEPS, optimizer=optimizer(**case.optimizer)
        ),
        participation=Participation(clients_per_round=cohort),
        evaluation=Evaluation(every=HORIZON),
        execution=execution,
    )


def time_interleaved(runs: dict[str, Any], repeats: int) -> dict[str, dict[str, float]]:
    """Measures median processor and wall seconds a round, after a first dispatch."""
    snapshots = {way: run.advance(0, run.init(0)).snapshot for way, run in runs.items()}
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in runs}
    for _ in range(repeats):
        for way, run in runs.items():
            processor, wall = time.process_time(), time.perf_counter()
            snapshots[way] = run.advance(0, snapshots[way]).snapshot
            spent[way].append((time.process_time() - processor, time.perf_counter() - wall))
    median: Callable[[str, int], float] = lambda way, which: (
        statistics.median(each[which] for each in spent[way]) / runs[way].rounds_per_dispatch
    )
    return {key: {way: median(way, which) for way in runs} for which, key in enumerate(("processor_s", "wall_s"))}


if __name__ == "__main__":
    main()
