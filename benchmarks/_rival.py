"""Shared by the rivals' scripts: the command line, the workload, the stopwatch and the result file.

A rival runs in its own virtual environment, so this module needs only numpy. A workload is a file written by
`python benchmarks/export.py`: images, the rows of each client, the cohort of each round, and the model and local
optimizer by name.
"""

import argparse
import fcntl
import json
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Workload(NamedTuple):
    """A federation, its cohorts and its training settings, as stored in the file.

    Attributes:
        images: `uint8[D, H, W, K]`.
        labels: `int32[D]`.
        rows: `int32[R]`, row numbers of all clients, client after client.
        offsets: `int64[N + 1]`; client k has `rows[offsets[k]:offsets[k + 1]]`.
        cohorts: `int32[T, m]`, the clients of each round.
        mean: `float32[K]`, of images divided by 255.
        std: `float32[K]`.
        spec: name, model, params, num_classes, input_shape, batch_size, local_epochs, optimizer.
    """

    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    offsets: np.ndarray
    cohorts: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    spec: dict[str, Any]

    def cohort(self, number: int) -> np.ndarray:
        """Returns the clients of a round; after the file's last round, the rounds repeat."""
        return self.cohorts[number % len(self.cohorts)]

    def client(self, client: int) -> np.ndarray:
        """Returns the row numbers of a client."""
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    def size(self, client: int) -> int:
        """Returns the number of rows of a client."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def pixels(self) -> np.ndarray:
        """Returns all images normalised, `float32[D, H, W, K]`."""
        scale = 1 / (255 * self.std)
        return self.images * scale.astype(np.float32) - (self.mean / self.std).astype(np.float32)


def load(path: str | Path, clients_per_round: int | None = None) -> Workload:
    """Reads a workload; `clients_per_round` truncates its cohorts."""
    with np.load(path, allow_pickle=False) as arrays:
        fields = {name: arrays[name] for name in Workload._fields}
    fields["spec"] = json.loads(str(fields["spec"]))
    fields["cohorts"] = fields["cohorts"][:, :clients_per_round]
    return Workload(**fields)


def parser(description: str | None, precisions: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """Builds the command line that all rivals share; a rival may add options.

    Those that can use a GPU name their precisions, and have three more options.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--workload", type=Path, required=True, help="what `python benchmarks/export.py` wrote")
    made.add_argument("--seconds", type=float, default=8.0, help="train whole rounds until so long has passed")
    made.add_argument("--processes", type=int, default=1, help="worker processes")
    made.add_argument("--clients-per-round", type=int, help="cut each round to its first so many clients")
    made.add_argument("--json", type=Path, required=True, help="where to write the result")
    if precisions:
        made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        made.add_argument("--precision", choices=precisions, default="float32", help="of compute; weights are float32")
        made.add_argument("--turn", type=Path, help="a file: of programs with the same one, one measures at a time")
    return made


def stopwatch(chosen: argparse.Namespace) -> "Stopwatch":
    """Returns the stopwatch that the command line asks for."""
    turn = vars(chosen).get("turn")
    return Stopwatch(chosen.seconds, turn and Turn(turn))


class Turn:
    """A lock file by which programs compile concurrently but measure one after another, once all have compiled."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # waits until no program holds the lock shared

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Stopwatch:
    """Times rounds: the first one separately, because it warms up, then further ones until the time is up.

    Between the two it waits for its turn.
    """

    def __init__(self, seconds: float, turn: Turn | None = None) -> None:
        self.seconds = seconds
        self.turn = turn
        self.round_seconds: list[float] = []
        self.train_loss: list[float] = []
        self._last = time.perf_counter()

    def lap(self, loss: float) -> bool:
        """Records a finished round.

        Args:
            loss: the round's training loss, averaged over steps.

        Returns:
            Whether the time is up.
        """
        if not self.train_loss and self.turn is not None:
            self.turn.__enter__()  # held until the process ends
        now = time.perf_counter()
        if self.train_loss:
            self.round_seconds.append(now - self._last)
        self.train_loss.append(float(loss))
        self._last = now
        return sum(self.round_seconds) >= self.seconds

    def rounds(self) -> Iterator[int]:
        """Yields the numbers of the rounds to train; the caller calls `lap` after each."""
        number = 0
        while not self.round_seconds or sum(self.round_seconds) < self.seconds:
            yield number
            number += 1


def commit_of(script: str) -> dict[str, str]:
    """Returns as its version the commit of a rival that is no package; `script` is its `run.py`."""
    return {"version": Path(script).with_name("source").read_text().split()[1]}


def result(workload: Workload, watch: Stopwatch) -> dict[str, Any]:
    """Computes a run's metrics from the rounds after the first."""
    spent, rounds = sum(watch.round_seconds), len(watch.round_seconds)
    cohorts = [workload.cohort(number) for number in range(1, rounds + 1)]
    return {
        "client_updates_per_s": sum(map(len, cohorts)) / spent,
        "samples_per_s": sum(workload.size(client) for cohort in cohorts for client in cohort) / spent,
        "rounds": rounds,
        "clients_per_round": workload.cohorts.shape[1],
        "round_seconds": watch.round_seconds,
        "train_loss": watch.train_loss,
    }


def write(
    path: Path,
    rival: str,
    workload: Workload,
    watch: Stopwatch,
    *,
    params: int,
    processes: int,
    packages: tuple[str, ...],
    device: str = "cpu",
    **more: Any,
) -> None:
    """Writes a run's result; `packages` are the ones that affect speed, the rival's own first.

    Refuses a network with another number of parameters than the workload's.
    """
    if params != workload.spec["params"]:
        sys.exit(f"{rival}: its network has {params:,} parameters, the workload's {workload.spec['params']:,}")
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}
    named = {"rival": rival, "version": versions[packages[0]], "workload": workload.spec["name"]}
    figures = result(workload, watch)
    machine = {"params": params, "processes": processes, "device": device, "versions": versions}
    path.write_text(json.dumps(named | figures | machine | more, indent=1) + "\n")
    print(f"{rival} {named['workload']}: {figures['client_updates_per_s']:.2f} client updates/s", flush=True)
