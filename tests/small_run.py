"""A comparison that takes a second or two: a linear-sized network, ten clients, real images."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from fedjax_bal.config import Config, load_config, with_convolution
from fedjax_bal.lab import RunFolder, SharedInputs, chosen_form
from fedjax_bal.lab.compare import run_comparison
from fedjax_bal.lab.trackers import Trackers

TEXT = """
name: small
dataset: {name: fashion_mnist_small}
partition: {scheme: pathological, clients: 10, classes_per_client: 2, samples_per_client: 40, seed: 0}
model: {name: mlp}
training: {rounds: 7, local_epochs: 1, batch_size: 20, optimizer: {name: sgd, learning_rate: 0.05}}
selection: {name: uniform, clients_per_round: 3}
availability: {name: bernoulli, p: 0.5}
delivery: {name: bernoulli, p: 0.8}
evaluation: {every: 2, target_accuracy: 0.3}
execution: {strategy: auto, rounds_per_dispatch: 2, checkpoint_every: 2}
methods:
  - {recipe: fedavg}
  - {recipe: scaffold, name: control variates}
seeds: [0, 1]
"""
ONE = ("methods=[{recipe: fedavg}]", "seeds=[0]", "training.rounds=4")
"""Changes that leave a single run, of two dispatches."""


class Quiet:
    """A display that remembers notes and shows nothing."""

    def __init__(self):
        self.notes, self.steps, self.accuracies = [], [], []

    def start(self, units, noun, headline):
        """Nothing to show."""

    def compiling(self, run):
        """Nothing to show."""

    def advance(self, run, done, clients_per_s, accuracy=None):
        """Keeps where the runs stand, each a method and a seed."""
        self.steps.append((*run, done))
        self.accuracies.append(accuracy)

    def stopped_early(self, run):
        """Keeps which runs end early."""
        self.steps.append((*run, "ended"))

    def failed(self, run):
        """Keeps which runs fail."""
        self.steps.append((*run, "failed"))

    def note(self, text):
        """Keeps the remark."""
        self.notes.append(text)

    def stop(self):
        """Nothing to stop."""


def config(tmp_path: Path, *overrides: str) -> Config:
    """The small comparison's configuration."""
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)
    loaded = load_config(file, overrides)
    return with_convolution(loaded, chosen_form(loaded))


def run(
    path: Path, wanted: Config, *, should_stop=lambda: False, trackers=None, callbacks=(), devices=None, **options
) -> Quiet:
    """One session in a folder; raises what `run_comparison` raises."""
    display, folder = Quiet(), RunFolder(path)
    inputs = SharedInputs(None, devices, None if options.get("fresh") else folder.read_devices())
    tracking = Trackers(trackers or {}, wanted.name, display.note)
    with folder.claimed(wanted) as form, contextlib.closing(tracking):
        wanted = with_convolution(wanted, form)
        callbacks = [tracking, *callbacks]
        run_comparison(wanted, folder, inputs, display, should_stop, callbacks=callbacks, **options)
    return display


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Gives the folder of a finished run of the small comparison with some changes: `trained(*small_run.ONE)`.

    Each is trained once a session, whichever of pytest-xdist's workers asks first, so that a test only reads it, and
    changes a copy: `shutil.copytree(trained(), tmp_path / "run")`. The configuration lies beside it, as `small.yaml`.
    A directory of tests has the fixture where its `conftest.py` imports it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of all workers

    def train(*changes: str) -> Path:
        place = base / "trained" / hashlib.sha256(repr(changes).encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(place / "lock"):
            if not (place / "run").exists():
                run(place / "training", config(place, *changes))
                (place / "training").rename(place / "run")
        return place / "run"

    return train


def stop_after(dispatches: int) -> Callable[[], bool]:
    """Asks to stop after so many dispatches."""
    left = iter(range(dispatches, 0, -1))
    return lambda: next(left, 0) <= 1


def metrics(path: Path) -> list[dict]:
    """The lines of a folder's metrics, without wall times."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "wall_s"} for line in lines]
