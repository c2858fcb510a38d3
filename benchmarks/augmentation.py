"""Cost of augmented copies: pixels stored among the images, or computed whenever a copy is drawn.

    python benchmarks/augmentation.py --data-dir DIR [--rounds 10] [--repeats 3] [--json FILE]

FedAvg with Astraea's augmentation (alpha 0.67) on letter-like Fashion-MNIST, 100 clients, 20 per round, one epoch of
batches of 20 with Adam, Astraea's network. Interleaved rounds, medians; and the time and memory of building the
federation. Two minutes.
"""

import statistics
import time
from typing import Any

import _common
import numpy as np

from fedjax_bal import data, models, optimizer
from fedjax_bal.data import extra_bytes
from fedjax_bal.engine.host.front_door import build_simulation
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.parts import Augmentation
from fedjax_bal.recipes import fedavg
from fedjax_bal.types import Dataset, Federation

WAYS = {"no copies": None, "copies kept": True, "copies made when drawn": False}

Record = dict[str, Any]


def main() -> None:
    parser = _common.parser(__doc__, repeats=3, file=True)
    parser.add_argument("--data-dir", required=True, help="the folder with Fashion-MNIST's files")
    parser.add_argument("--rounds", type=int, default=10, help="rounds a measurement (default 10)")
    asked = parser.parse_args()
    dataset = data.load("fashion_mnist", asked.data_dir)
    runners = {name: Runner(dataset, store, asked.rounds) for name, store in WAYS.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(asked.repeats):
        for name, runner in runners.items():
            times[name].append(runner.seconds())
    records = [runner.record(name, times[name]) for name, runner in runners.items()]
    print("| | rows | extra MB | augmenting, s | round, ms | step, ms |\n|---|---|---|---|---|---|")
    for record in records:
        cells = (record["extra_bytes"] / 1e6, record["augment_s"], 1e3 * record["round_s"], 1e3 * record["step_s"])
        print(f"| {record['way']} | {record['rows']:,} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |")
    _common.write_figures(asked.json, records)


class Runner:
    """One variant, compiled and ready to be timed."""

    def __init__(self, dataset: Dataset, store: bool | None, rounds: int) -> None:
        self.rounds, began = rounds, time.perf_counter()
        self.federation = federation_of(dataset, store)
        self.augment_s = time.perf_counter() - began
        model = models.build("astraea_cnn", 10, (28, 28, 1))
        self.simulation = build_simulation(
            fedavg(),
            model,
            self.federation,
            (dataset.test_images[:20], dataset.test_labels[:20]),
            rounds=10**6,
            local=LocalTraining(batch_size=20, optimizer=optimizer("adam", 0.001)),
            participation=Participation(clients_per_round=20),
            evaluation=Evaluation(every=rounds),
            execution=Execution(rounds_per_dispatch=rounds),
        )
        self.snapshot, self.steps = self.simulation.init(0), []
        self.seconds()
        self.steps.clear()

    def seconds(self) -> float:
        """Returns the duration of the next dispatch."""
        began = time.perf_counter()
        advance = self.simulation.advance(0, self.snapshot)
        took = time.perf_counter() - began
        self.snapshot = advance.snapshot
        self.steps.append(took / advance.work.useful)
        return took

    def record(self, way: str, times: list[float]) -> Record:
        """Builds this variant's record from the seconds of its dispatches."""
        return {
            "way": way,
            "rows": len(self.federation.rows),
            "extra_bytes": extra_bytes(self.federation),
            "augment_s": self.augment_s,
            "round_s": statistics.median(times) / self.rounds,
            "step_s": statistics.median(self.steps),
        }


def federation_of(dataset: Dataset, store: bool | None) -> Federation:
    """Builds letter-like Fashion-MNIST; with copies unless `store` is None."""
    rows = data.partition.astraea(np.random.default_rng(0), dataset.train_labels, 100, "LTRF2")
    plain = data.federate(dataset, rows)
    return plain if store is None else Augmentation(store=store).prepare_federation(plain)


if __name__ == "__main__":
    main()
