"""Growth of cost with the number of clients, cohort size and devices; and the padding that packing saves.

    python benchmarks/scaling.py [--only clients|ratio|cohorts|devices|packing|rounds] [--passes 3] [--largest 1000000]
                                 [--methods fedavg,scaffold,rebafl] [--client-memory auto|device|host] [--json FILE]

Every size runs in its own process, so its peak of resident memory isn't another's; sizes are interleaved in several
passes, of which the median counts. Pixels are random. The tables are in Markdown.

clients: 10^2 to 10^6 clients of 10 images (8x8), cohorts of 100, six local epochs of one batch: as many steps as in W3,
    on a network of 610 parameters, which SCAFFOLD stores for every client: FedAvg, SCAFFOLD and ReBaFL. Planning is in
    processor time, and overlaps with the devices' work; "half absent" plans with half of the clients available and a
    tenth of the updates lost.
    Memory is the process's peak resident memory. Afterwards a checkpoint of the run is written.
ratio: FedAvg's rounds with 10^3 and with 10^6 clients, interleaved in one process.
cohorts: 1 to 4096 of 10^4 such clients.
devices: W1 and W3 on one and two XLA devices of the same processor.
packing: padded steps in cohorts of W4 and W4b, with clients on lanes, which continue with their next client, or in
    buckets, which wait for their longest client; `(the rule)` marks the choice of the engine's rule.
rounds: `make_round` and `simulate` under both strategies against FedAvg by hand, a `lax.scan` over rounds of vmapped or
    mapped SGD clients: cohorts of 100 of 1000 clients, six local epochs of one batch, on one device, interleaved in
    one process. By hand all clients have equal sizes, and nothing is checked, planned or reported but the loss.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import _common
import numpy as np

from fedjax_bal.types import size_in_bytes

ROWS, SIDE, CLASSES = 10, 8, 10
COHORT, EPOCHS = 100, 6
SIZES = (10**2, 10**3, 10**4, 10**5, 10**6)
COHORTS = (1, 4, 16, 64, 256, 1024, 4096)
METHODS = ("fedavg", "scaffold", "rebafl")
HIDDEN = (8,)
SMALL_NETWORKS = ((64, 8), (60, 32))
DEVICES = (1, 2)
WORKLOADS = ("W1", "W3")
PACKED, ROUNDS_OF_PACKING = ("W4", "W4b"), 50

Record = dict[str, Any]


def main() -> None:
    sections = {"clients": clients, "ratio": ratio, "cohorts": cohorts, "devices": devices, "packing": packing}
    sections["rounds"] = rounds
    parser = _common.parser(__doc__, file=True)
    parser.add_argument("--only", choices=sections, help="run one section")
    parser.add_argument("--passes", type=int, default=3, help="how often each size is measured (default 3)")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="the most clients (default 1000000)")
    parser.add_argument("--methods", default=",".join(METHODS), help="of the clients' section (default all three)")
    parser.add_argument(
        "--client-memory", default="auto", help="of the clients' section: auto, device or host (default auto)"
    )
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "ARGUMENTS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(WORKERS[asked.worker[0]](**json.loads(asked.worker[1]))))
        return
    found = {}
    for name, section in sections.items():
        if asked.only in (None, name):
            found[name] = section(asked)
    _common.write_figures(asked.json, found)


def clients(asked: argparse.Namespace) -> list[Record]:
    sizes = [size for size in SIZES if size <= asked.largest]
    wanted = [
        {"method": method, "clients": size, "client_memory": asked.client_memory}
        for method in asked.methods.split(",")
        for size in sizes
    ]
    records = in_turns("clients", wanted, asked.passes)
    print("\n## Clients\n")
    names = (
        "updates/s",
        "per processor s",
        "round ms",
        "processor ms",
        "planning ms",
        "half absent ms",
        "client memory",
        "peak memory",
        "checkpoint",
        "saving s",
    )
    print_table(("method", "clients", *names), map(cells_of_clients, records))
    return records


def cells_of_clients(found: Record) -> tuple[str, ...]:
    """Formats a row of the table of methods and numbers of clients."""
    from fedjax_bal.bench.command import size

    return (
        found["method"],
        f"{found['clients']:,}",
        *(f"{COHORT / found[name]:,.0f}" for name in ("round_s", "round_processor_s")),
        *(f"{1e3 * found[name]:.2f}" for name in ("round_s", "round_processor_s", "plan_s", "plan_half_s")),
        *(size(found[name]) for name in ("client_memory_bytes", "peak_bytes", "checkpoint_bytes")),
        f"{found['save_s']:.2f}",
    )


def ratio(asked: argparse.Namespace) -> list[Record]:
    wanted = [{"few": SIZES[1], "many": asked.largest, "devices": devices} for devices in DEVICES]
    records = in_turns("ratio", wanted, asked.passes)
    print(f"\n## A round with {asked.largest:,} clients against one with {SIZES[1]:,}, in turns in one process\n")
    print_table(
        ("XLA devices", "many, ms", "few, ms", "ratio"),
        ((r["devices"], f"{1e3 * r['many_s']:.2f}", f"{1e3 * r['few_s']:.2f}", f"{r['ratio']:.2f}") for r in records),
    )
    return records


def cohorts(asked: argparse.Namespace) -> list[Record]:
    records = in_turns("cohort", [{"cohort": size} for size in COHORTS], asked.passes)
    print("\n## Cohorts\n")
    print_table(
        ("cohort", "round ms", "client updates/s"),
        ((r["cohort"], f"{1e3 * r['round_s']:.2f}", f"{r['cohort'] / r['round_s']:.0f}") for r in records),
    )
    return records


def devices(asked: argparse.Namespace) -> list[Record]:
    wanted = [{"workload": name, "devices": count} for name in WORKLOADS for count in DEVICES]
    records = in_turns("devices", wanted, asked.passes)
    print("\n## Devices\n")
    print_table(
        ("workload", "XLA devices", "client updates/s", "share of peak"),
        (
            (r["workload"], r["devices"], f"{r['client_updates_per_s']:.1f}", f"{r['matmul_peak_share']:.0%}")
            for r in records
        ),
    )
    return records


def packing(asked: argparse.Namespace) -> list[Record]:
    del asked
    records = []
    for name in PACKED:
        fitting, rounds = (cohort_steps(name, seed) for seed in (1, 0))
        useful = sum(int(steps.sum()) for steps in rounds)
        for way, buckets in (("lanes", False), ("buckets", True)):
            for width, chosen in widths(fitting, buckets):
                waste = 1 - useful / sum(packed(steps, width, buckets) for steps in rounds)
                records.append({"workload": name, "packing": way, "width": width, "chosen": chosen, "waste": waste})
    print("\n## Packing\n")
    print_table(
        ("workload", "packing", "clients at a time", "padded steps"),
        (
            (r["workload"], r["packing"], f"{r['width']}{' (the rule)' if r['chosen'] else ''}", f"{r['waste']:.1%}")
            for r in records
        ),
    )
    return records


def widths(cohorts: list[np.ndarray], buckets: bool) -> list[tuple[int, bool]]:
    """Lists several numbers of concurrent clients up to the whole cohort, and which one the engine's rule chooses."""
    from fedjax_bal.engine.host.strategy import choose_width

    chosen = choose_width(cohorts, len(cohorts[0]), buckets=buckets)
    tried = {width for width in (4, 8, 16, 32, 64, 128) if width < len(cohorts[0])}
    return [(width, width == chosen) for width in sorted(tried | {chosen, len(cohorts[0])})]


def rounds(asked: argparse.Namespace) -> list[Record]:
    wanted = [{"inputs": inputs, "hidden": hidden} for inputs, hidden in SMALL_NETWORKS]
    records = in_turns("rounds", wanted, asked.passes)
    print("\n## Rounds of small networks, ms, wall and processor\n")
    ways = [key.removesuffix("_s") for key in records[0] if key.endswith("_s") and "processor" not in key]
    print_table(
        ("network", *ways),
        (
            (
                f"{r['inputs']}-{r['hidden']}-{CLASSES}",
                *(f"{1e3 * r[f'{way}_s']:.2f}, {1e3 * r[f'{way}_processor_s']:.2f}" for way in ways),
            )
            for r in records
        ),
    )
    return records


def packed(steps: np.ndarray, width: int, buckets: bool) -> int:
    """Counts the steps computed for a cohort on one device, including padding."""
    from fedjax_bal.engine.host.strategy import lanes_computed

    return lanes_computed(steps, width, 1, buckets=buckets)


def cohort_steps(name: str, seed: int) -> list[np.ndarray]:
    """Returns the number of steps of each client in each round of a workload, in runs with this seed."""
    from export import cohorts as chosen

    from fedjax_bal.bench.workloads import WORKLOADS, material

    workload = WORKLOADS[name]
    sizes = np.array([len(rows) for rows in material(workload).rows_per_client])
    steps = -(-sizes // workload.batch_size) * workload.local_epochs
    return [steps[cohort] for cohort in chosen(workload, len(sizes), ROUNDS_OF_PACKING, seed)]


def in_turns(kind: str, wanted: list[Record], passes: int) -> list[Record]:
    """Runs each measurement in its own process, several times and interleaved; returns medians of all numbers."""
    found: list[list[Record]] = [[] for _ in wanted]
    for turn in range(passes):
        for arguments, records in zip(wanted, found, strict=True):
            print(f"{kind} {arguments}, pass {turn + 1} of {passes}", file=sys.stderr, flush=True)
            records.append(in_a_process(kind, arguments))
            print(f"  {records[-1]}", file=sys.stderr, flush=True)
    return [arguments | median(records) for arguments, records in zip(wanted, found, strict=True)]


def in_a_process(kind: str, arguments: Record) -> Record:
    command = [sys.executable, __file__, "--worker", kind, json.dumps(arguments)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(answer.splitlines()[-1])


def median(records: list[Record]) -> Record:
    return {key: statistics.median(record[key] for record in records) for key in records[0]}


def print_table(headings: Iterable[Any], rows: Iterable[Iterable[Any]]) -> None:
    for cells in (headings, ["---"] * len(list(headings)), *rows):
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measure_clients(method: str, clients: int, client_memory: str) -> Record:
    """Measures holding `clients` clients, training cohorts of them with a method, and saving the run."""
    from fedjax_bal.bench.measure import forget_peak

    federation, federate_s = federated(clients)
    forget_peak()
    return cost_of(simulation_on(federation, COHORT, 10, method, client_memory)) | {"federate_s": federate_s}


def cost_of(simulation: Any) -> Record:
    """Measures memory and the cost of a round, of planning a round, and of saving the run."""
    from fedjax_bal.bench.measure import resident_peak
    from fedjax_bal.selection import bernoulli

    snapshot, found = seconds_a_round(simulation)
    found["compile_s"] = simulation.compile_s
    away = {"availability": bernoulli(0.5), "delivery": bernoulli(0.9)}
    simulation.participation = dataclasses.replace(simulation.participation, **away)
    found["plan_half_s"] = seconds_to_plan(simulation, snapshot)
    found["client_memory_bytes"] = size_in_bytes(snapshot.state.memory)
    return found | {"peak_bytes": resident_peak()} | saved(simulation, snapshot)


def saved(simulation: Any, snapshot: Any) -> Record:
    """Returns the size of a run's checkpoint, the seconds for writing it, and the peak memory during writing."""
    from fedjax_bal.bench.measure import forget_peak, resident_peak
    from fedjax_bal.engine.host import fetch, rows_to_save
    from fedjax_bal.lab import checkpoint
    from fedjax_bal.lab.run import RunState

    forget_peak()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        memory = rows_to_save(snapshot.state.memory, snapshot.asked)
        packed = snapshot._replace(state=snapshot.state._replace(memory=memory))
        run = RunState(packed, np.zeros(1), np.zeros(1), np.zeros(1))
        file = checkpoint.save(Path(folder), snapshot.round, fetch(run))
        return {
            "save_s": time.perf_counter() - began,
            "checkpoint_bytes": file.stat().st_size,
            "saving_peak_bytes": resident_peak(),
            "rounds_saved": snapshot.round,
        }


def measure_ratio(few: int, many: int, devices: int, repeats: int = 25) -> Record:
    """Measures rounds with few and with many clients, interleaved in one process."""
    from fedjax_bal.jax_setup import split_cpu

    split_cpu(devices)
    runs = [simulation_on(federated(clients)[0], COHORT, 10) for clients in (few, many)]
    snapshot = [run.advance(0, run.init(0)).snapshot for run in runs]
    took: list[list[float]] = [[], []]
    for _ in range(repeats):
        for which, run in enumerate(runs):
            began = time.perf_counter()
            snapshot[which] = run.advance(0, snapshot[which]).snapshot
            took[which].append((time.perf_counter() - began) / run.rounds_per_dispatch)
    few_s, many_s = map(statistics.median, took)
    return {"few_s": few_s, "many_s": many_s, "ratio": many_s / few_s}


def measure_cohort(cohort: int) -> Record:
    """Measures rounds of ten thousand clients with the given cohort size."""
    federation, _ = federated(10**4)
    return seconds_a_round(simulation_on(federation, cohort, max(1, 1000 // cohort)))[1]


def measure_devices(workload: str, devices: int) -> Record:
    """Measures a workload on the given number of devices."""
    from fedjax_bal.jax_setup import split_cpu

    split_cpu(devices)
    from fedjax_bal.bench.command import BenchOptions, bench

    (record,) = bench(BenchOptions(workloads=[workload], seconds=5.0, devices=devices))
    kept = ("client_updates_per_s", "samples_per_s", "matmul_peak_flops_per_s", "matmul_peak_share", "compile_s")
    return {key: record[key] for key in kept}


def measure_rounds(inputs: int, hidden: int, repeats: int = 9, per_call: int = 10) -> Record:
    """Measures rounds by hand, in `make_round` and in `simulate`, interleaved."""
    import jax

    from fedjax_bal import data, make_round, models, recipes
    from fedjax_bal.engine.host.front_door import build_simulation
    from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation

    rng = np.random.default_rng(0)
    clients = 1000
    images = rng.standard_normal((clients * ROWS, inputs, 1, 1)).astype(np.float32)
    labels = rng.integers(0, CLASSES, clients * ROWS, np.int32)
    federation = data.federate(images, labels, [*np.arange(clients * ROWS).reshape(clients, ROWS)], CLASSES)
    model = models.build("mlp", CLASSES, (inputs, 1, 1), hidden=[hidden])
    local = LocalTraining(batch_size=ROWS, epochs=EPOCHS)
    cohort = Participation(clients_per_round=COHORT)

    def in_make_round(strategy: Any) -> Callable[[], Any]:
        given = {"local": local, "participation": cohort, "execution": Execution(strategy=strategy)}
        round_fn = make_round(recipes.fedavg(), model, federation, **given)

        @jax.jit
        def train(round_fn: Any, key: Any, state: Any, plans: Any) -> Any:
            advance = lambda state, plan: round_fn.step(round_fn.hyperparameters, key, state, plan)
            return jax.lax.scan(advance, state, plans)

        key = jax.random.key(0)
        state = round_fn.init(key)
        plans = round_fn.plans(0, per_call)
        return lambda: jax.block_until_ready(train(round_fn, key, state, plans))

    def in_simulate(strategy: Any) -> Callable[[], Any]:
        simulation = build_simulation(
            recipes.fedavg(),
            model,
            federation,
            (images[:1], labels[:1]),
            rounds=10**6,
            local=local,
            participation=cohort,
            evaluation=Evaluation(every=10**6),
            execution=Execution(strategy=strategy, rounds_per_dispatch=per_call, devices=1),
        )
        snapshot = [simulation.init(0)]

        def advance() -> None:
            snapshot[0] = simulation.advance(0, snapshot[0]).snapshot

        return advance

    ways = {f"by hand, {each}": rounds_by_hand(each, images, labels, hidden, per_call) for each in ("vmap", "map")}
    for strategy in ("vmap", "map"):
        ways[f"make_round, {strategy}"] = in_make_round(strategy)
        ways[f"simulate, {strategy}"] = in_simulate(strategy)
    for run in ways.values():
        run()
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, run in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            took[way].append((time.perf_counter() - wall, time.process_time() - processor))
    found = {}
    for way, each in took.items():
        found[f"{way}_s"], found[f"{way}_processor_s"] = (
            statistics.median(times) / per_call for times in zip(*each, strict=True)
        )
    return found


def rounds_by_hand(strategy: str, images: np.ndarray, labels: np.ndarray, hidden: int, count: int) -> Callable[[], Any]:
    """Returns a function that trains `count` rounds of FedAvg, written in plain JAX for clients of equal sizes."""
    import jax
    import jax.numpy as jnp
    import optax

    clients = len(labels) // ROWS
    pixels = jnp.asarray(images.reshape(len(images), -1))
    targets = jnp.asarray(labels)

    def loss(params: Any, rows: Any, pixels: Any, targets: Any) -> Any:
        first, second = params
        logits = jax.nn.relu(pixels[rows] @ first[0] + first[1]) @ second[0] + second[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets[rows]).mean()

    @jax.jit
    def train(params: Any, key: Any, pixels: Any, targets: Any) -> Any:
        def train_client(params: Any, client: Any, order: Any) -> Any:
            def step(params: Any, rows: Any) -> Any:
                value, grads = jax.value_and_grad(loss)(params, rows, pixels, targets)
                return jax.tree.map(lambda leaf, grad: leaf - 0.05 * grad, params, grads), value

            return jax.lax.scan(step, params, client * ROWS + order)

        def one_round(params: Any, key: Any) -> Any:
            choice, shuffle = jax.random.split(key)
            cohort = jax.random.choice(choice, clients, (COHORT,), replace=False)
            orders = jnp.argsort(jax.random.bits(shuffle, (COHORT, EPOCHS, ROWS)))
            if strategy == "vmap":
                ends, losses = jax.vmap(train_client, (None, 0, 0))(params, cohort, orders)
                return jax.tree.map(lambda leaf: leaf.mean(0), ends), losses.mean()

            def add(total: Any, client: Any) -> Any:
                end, losses = train_client(params, *client)
                return jax.tree.map(lambda total, leaf: total + leaf / COHORT, total, end), losses

            zeros = jax.tree.map(jnp.zeros_like, params)
            params, losses = jax.lax.scan(add, zeros, (cohort, orders))
            return params, losses.mean()

        return jax.lax.scan(one_round, params, jax.random.split(key, count))

    sides = (pixels.shape[1], hidden, CLASSES)
    draw = np.random.default_rng(0).standard_normal
    params = [
        (jnp.asarray(draw((rows, columns)) / rows**0.5, jnp.float32), jnp.zeros(columns))
        for rows, columns in itertools.pairwise(sides)
    ]
    return lambda: jax.block_until_ready(train(params, jax.random.key(1), pixels, targets))


WORKERS: dict[str, Callable[..., Record]] = {
    "clients": measure_clients,
    "cohort": measure_cohort,
    "devices": measure_devices,
    "ratio": measure_ratio,
    "rounds": measure_rounds,
}


def federated(clients: int) -> tuple[Any, float]:
    """Builds a federation of equal clients; also returns the seconds this took."""
    from fedjax_bal import data

    rng = np.random.default_rng(0)
    total = clients * ROWS
    images = rng.integers(0, 256, (total, SIDE, SIDE, 1), np.uint8)
    labels = rng.integers(0, CLASSES, total, np.int32)
    rows = np.arange(total, dtype=np.int32).reshape(clients, ROWS)
    began = time.perf_counter()
    federation = data.federate(images, labels, rows, CLASSES)  # type: ignore[arg-type]
    return federation, time.perf_counter() - began


def simulation_on(
    federation: Any, cohort: int, rounds: int, method: str = "fedavg", client_memory: Any = "auto"
) -> Any:
    """Builds a simulation that never evaluates."""
    from fedjax_bal import models, recipes
    from fedjax_bal.bench.workloads import HORIZON
    from fedjax_bal.engine.host.front_door import build_simulation
    from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation

    return build_simulation(
        getattr(recipes, method)(),
        models.build("mlp", CLASSES, (SIDE, SIDE, 1), hidden=HIDDEN),
        federation,
        (federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        local=LocalTraining(batch_size=ROWS, epochs=EPOCHS),
        participation=Participation(clients_per_round=cohort),
        evaluation=Evaluation(every=HORIZON),
        execution=Execution(rounds_per_dispatch=rounds, client_memory=client_memory),
    )


def seconds_a_round(simulation: Any, repeats: int = 9) -> tuple[Any, Record]:
    """Returns a snapshot, and the median seconds of a round and of planning one, over warm dispatches."""
    snapshot, took = simulation.advance(0, simulation.init(0)).snapshot, []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        snapshot = simulation.advance(0, snapshot).snapshot
        took.append((time.perf_counter() - wall, time.process_time() - processor))
    round_s, processor_s = (
        statistics.median(each) / simulation.rounds_per_dispatch for each in zip(*took, strict=True)
    )
    plan_s = seconds_to_plan(simulation, snapshot, repeats)
    return snapshot, {"round_s": round_s, "round_processor_s": processor_s, "plan_s": plan_s}


def seconds_to_plan(simulation: Any, snapshot: Any, repeats: int = 9) -> float:
    """Returns the median processor seconds for planning a round."""
    took = []
    for _ in range(repeats):
        began = time.process_time()
        simulation.planner.plan_dispatch(simulation.setting.layout, 0, snapshot.round, snapshot.selector)
        took.append(time.process_time() - began)
    return statistics.median(took) / simulation.rounds_per_dispatch


if __name__ == "__main__":
    main()
