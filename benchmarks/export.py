"""Writes a workload to a file that other programs can read, so that all of them do the same work.

    python benchmarks/export.py W1 w1.npz [--data-dir DIR] [--rounds 50]

The file holds `images` UInt8[D, H, W, K], `labels` Int32[D], `rows` Int32[R] and `offsets` Int64[N + 1] (client i owns
`rows[offsets[i]:offsets[i + 1]]`), `cohorts` Int32[T, M] (the clients of each round), `mean` and `std` Float32[K] of
the pixels scaled to [0, 1], and `spec`, a JSON text with the name, the model and the number of its parameters, the
input and the local training.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from fedjax_bal import models
from fedjax_bal.bench.workloads import WORKLOADS, Workload, model_of, workload_federation
from fedjax_bal.files import replacing
from fedjax_bal.selection import uniform
from fedjax_bal.validate import one_of, whole_number


def export(workload: Workload, file: Path, data_dir: str | None = None, rounds: int = 50, seed: int = 0) -> None:
    """Writes a workload, with `rounds` cohorts, to an npz file; `seed` determines clients and cohorts."""
    whole_number("rounds", rounds)
    federation = workload_federation(workload, data_dir, seed)
    with replacing(file) as stream:
        np.savez(
            stream,
            images=federation.images,
            labels=federation.labels,
            rows=federation.rows,
            offsets=federation.offsets.astype(np.int64),
            cohorts=cohorts(workload, federation.num_clients, rounds, seed),
            mean=federation.mean,
            std=federation.std,
            spec=np.array(json.dumps(spec(workload))),
        )


def spec(workload: Workload) -> dict[str, object]:
    """Returns the workload's settings, without its arrays, ready for JSON."""
    return {
        "name": workload.name,
        "model": workload.model,
        "num_classes": workload.source.num_classes,
        "input_shape": workload.source.input_shape,
        "batch_size": workload.batch_size,
        "local_epochs": workload.local_epochs,
        "optimizer": workload.optimizer,
        "params": models.num_params(model_of(workload)),
    }


def cohorts(workload: Workload, clients: int, rounds: int, seed: int = 0) -> np.ndarray:
    """Draws each round's clients, ascending, `Int32[rounds, clients_per_round]`, as a simulation with this seed."""
    selector = uniform(workload.clients_per_round)
    state, all_clients = selector.init(seed, clients), np.ones(clients, bool)
    chosen = [np.sort(selector.select(state, seed, number, all_clients)[0][:, 0]) for number in range(rounds)]
    return np.stack(chosen).astype(np.int32)


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=", ".join(WORKLOADS))
    parser.add_argument("file", type=Path, help="npz file to write")
    parser.add_argument("--data-dir", help="the folder with the data sets' files; without it pixels are random")
    parser.add_argument("--rounds", type=int, default=50, help="rounds to draw cohorts for (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of clients and cohorts (default 0)")
    parser.add_argument("--clients-per-round", type=int, help="other cohort size")
    asked = parser.parse_args()
    try:
        workload = WORKLOADS[one_of("workload", asked.name, WORKLOADS)]
        if asked.clients_per_round is not None:
            size = whole_number("clients-per-round", asked.clients_per_round)
            workload = workload._replace(clients_per_round=size)
        export(workload, asked.file, asked.data_dir, asked.rounds, asked.seed)
    except (ValueError, OSError) as error:
        print(f"export.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
