"""What is disturbed: a run and a sweep that take a few seconds, and what there is to compare of them."""

import csv
import functools
import hashlib
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.lab import FolderError, RunFolder, checkpoint

SABOTEUR = Path(__file__).with_name("saboteur.py")
# A method with a memory of its clients and one whose selector learns; a checkpoint after each round.
CONFIG = """
name: disturbed
dataset: {name: fashion_mnist_small}
partition: {scheme: pathological, clients: 10, classes_per_client: 2, samples_per_client: 20, seed: 0}
model: {name: mlp}
training: {rounds: 6, local_epochs: 1, batch_size: 20, optimizer: {name: sgd, learning_rate: 0.05}}
selection: {name: uniform, clients_per_round: 3}
availability: {name: bernoulli, p: 0.7}
delivery: {name: bernoulli, p: 0.8}
evaluation: {every: 2, target_accuracy: 0.3}
execution: {rounds_per_dispatch: 1, checkpoint_every: 1, devices: 1}
methods:
  - {recipe: scaffold, name: control variates}
  - {recipe: fedavg, name: chosen, selection: {name: power_of_choice, candidates: 6}}
seeds: [0]
"""
PLUGIN = '''
import jax.numpy as jnp
import fedjax_bal
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe

@part
class SmallLogits(Loss):
    weight: float = 0.1

    def loss(self, outputs, batch, params, ctx):
        return self.weight * jnp.where(batch.real, (outputs.logits**2).mean(-1), 0).mean()

@fedjax_bal.register("recipe", "small_logits")
def small_logits(weight: float = 0.1) -> Recipe:
    """FedAvg with small logits."""
    return Recipe("small_logits", (SmallLogits(weight),))
'''
SWEEP = """
name: disturbed-sweep
base: config.yaml
sweep: [{training.optimizer.learning_rate: [0.05, 0.2]}]
"""
TIMES = ("compile_s", "client_updates_per_s", "samples_per_s", "program", "runs_together", "device_bytes")


KINDS = {
    "run": "a run",
    "sweep": "a sweep whose runs train together",
    "own": "a run with a method of a plug-in, on two devices",
    "longer": "a run that more rounds are asked of half way",
}


class Case(NamedTuple):
    """A command, and the folder that it works in.

    Attributes:
        kind: one of `KINDS`.
        file: its configuration.
        out: its folder.
        changes: to the configuration.
        shorter: changes with which it begins, before more is asked for.
    """

    kind: str
    file: Path
    out: Path
    changes: tuple[str, ...] = ()
    shorter: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Of the command line."""
        command = ["sweep"] if self.kind == "sweep" else ["run"]
        plugin = ["--plugin", str(self.file.with_name("plugin.py"))] if self.kind == "own" else []
        return [*command, str(self.file), *self.changes, *plugin, "--out", str(self.out), "--plain"]

    @property
    def stages(self) -> list["Case"]:
        """The case as it begins, if that is shorter, and as it is."""
        begun = self._replace(changes=(*self.changes, *self.shorter))
        return [begun, self] if self.shorter else [self]

    def beside(self, name: str) -> "Case":
        """The same in another folder."""
        return self._replace(out=self.out.with_name(name))


class Session(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code, negative for a signal.
        said: standard output and error.
        seconds: how long it took.
    """

    code: int
    said: str
    seconds: float


def case(kind: str, folder: Path, *changes: str) -> Case:
    """A case whose files are in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "plugin.py").write_text(PLUGIN)
    if kind == "own":
        changes = ("methods=[scaffold, small_logits]", "execution.devices=2", *changes)
    file = folder / ("sweep.yaml" if kind == "sweep" else "config.yaml")
    return Case(kind, file, folder / "undisturbed", changes, ("training.rounds=3",) if kind == "longer" else ())


def session(wanted: Case, fault: dict | None = None, kill_after: float | None = None) -> Session:
    """Runs the command in a process of its own.

    Args:
        wanted: the case.
        fault: what the saboteur is to do; None for the command as it is.
        kill_after: seconds until SIGKILL from outside; None for never.

    Returns:
        How it ended.
    """
    by = ["-m", "fedjax_bal"] if fault is None else [str(SABOTEUR), json.dumps({"below": str(wanted.out), **fault})]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *by, *wanted.arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = process.communicate(timeout=kill_after)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0]
    return Session(process.returncode, said, time.perf_counter() - began)


def results(out: Path) -> dict[str, object]:
    """All that must be equal: metrics without wall times, every bit of the newest checkpoints, tables without times."""
    found: dict[str, object] = {}
    for file in sorted(out.rglob("metrics.jsonl")):
        lines = map(json.loads, file.read_text().splitlines())
        found[str(file.relative_to(out))] = [{**line, "wall_s": None} for line in lines]
    for file in sorted(out.rglob("summary.json")):
        found[str(file.relative_to(out))] = json.loads(file.read_text())["runs"]
    for folder in sorted(out.rglob("checkpoints/*")):
        found[str(folder.relative_to(out))] = bits(max(folder.glob("round-*.npz")))
    for file in sorted(out.glob("results.csv")):
        with open(file, newline="") as table:
            rows = list(csv.DictReader(table))
        found[str(file.relative_to(out))] = [{key: row[key] for key in row if key not in TIMES} for row in rows]
    return found


def bits(file: Path) -> dict[str, str]:
    """The name of a checkpoint and the sum of each of its arrays; they are what its manifest says they are."""
    with zipfile.ZipFile(file) as archive:
        sums = json.loads(archive.read("manifest.json"))["sha256"]
        held = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    held.pop("manifest.json")
    if held != sums:
        raise ValueError(f"{file}: damaged")
    return {"file": file.name, **held}


def torn(wanted: Case) -> list[str]:
    """Files that a kill has left damaged; not that a session hasn't ended, even if all of its runs have."""
    found = []
    for config in wanted.out.rglob("config.yaml"):
        folder = RunFolder(config.parent)
        readers = [folder.read_configuration, folder.read_execution, folder.read_metrics, folder.read_summary]
        files = folder.path.glob("checkpoints/*/round-*.npz")
        for read in (*readers, *(functools.partial(checkpoint.read, file) for file in files)):
            try:
                read()
            except (FolderError, ValueError) as error:
                found.append(str(error))
    return found
