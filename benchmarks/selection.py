"""Host time for forming mediators and balanced cohorts, and its growth with the number of clients.

    python benchmarks/selection.py [--repeats 3] [--largest 100000] [--json FILE]

mediators: Astraea's groups of 10 clients, 47 classes, client sizes lognormal (sigma 1.2), class shares Dirichlet(1).
class_balancing_set: FL-CIR's cohort of 100 by compositions of 10 classes, Dirichlet(0.3).

Times are medians, of wall-clock and of processor time (which excludes other programs); NumPy runs on one core. growth
is the exponent p in time ~ clients^p relative to the previous size, of processor time. A minute on one core.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import _common
import numpy as np

from fedjax_bal.selection import class_balancing_set, mediators

SIZES = {"mediators": (100, 1000, 3000, 10_000), "class_balancing_set": (1000, 10_000, 100_000)}
GROUP, LETTERS = 10, 47
COHORT, CLASSES = 100, 10

Record = dict[str, Any]


def main() -> None:
    parser = _common.parser(__doc__, repeats=3, file=True)
    parser.add_argument("--largest", type=int, default=100_000, help="the most clients (default 100000)")
    asked = parser.parse_args()
    records = []
    for name, sizes in SIZES.items():
        records += grown([measure(name, size, asked.repeats) for size in sizes if size <= asked.largest])
    print("| function | clients | wall s | processor s | growth |\n|---|---|---|---|---|")
    for record in records:
        growth = "" if record["growth"] is None else f"{record['growth']:.2f}"
        times = f"{record['wall_s']:.3f} | {record['processor_s']:.3f}"
        print(f"| {record['function']} | {record['clients']:,} | {times} | {growth} |")
    _common.write_figures(asked.json, {"numpy": np.__version__, "records": records})


def measure(name: str, clients: int, repeats: int) -> Record:
    """Measures the median times of one function at one size."""
    work = WORKS[name](np.random.default_rng(0), clients)
    pairs = [timed(work) for _ in range(repeats)]
    wall, processor = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"function": name, "clients": clients, "wall_s": wall, "processor_s": processor}


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Measures wall-clock and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def grown(records: list[Record]) -> list[Record]:
    """Adds to each record the growth exponent relative to the previous size; None for the first."""
    pairs = zip([None, *records], records, strict=False)
    return [{**record, "growth": None if before is None else exponent(before, record)} for before, record in pairs]


def exponent(before: Record, record: Record) -> float:
    """Computes the exponent of the number of clients with which processor time grew."""
    return math.log(record["processor_s"] / before["processor_s"]) / math.log(record["clients"] / before["clients"])


def grouping(rng: np.random.Generator, clients: int) -> Callable[[], Any]:
    shares = rng.dirichlet(np.ones(LETTERS), clients)
    sizes = 10 + rng.lognormal(5.0, 1.2, clients).astype(int)
    counts = rng.multinomial(sizes, shares)
    return lambda: mediators(counts, GROUP)


def balancing(rng: np.random.Generator, clients: int) -> Callable[[], Any]:
    compositions, scores = rng.dirichlet(np.full(CLASSES, 0.3), clients), rng.random(clients)
    return lambda: class_balancing_set(compositions, scores, COHORT)


WORKS = {"mediators": grouping, "class_balancing_set": balancing}


if __name__ == "__main__":
    main()
