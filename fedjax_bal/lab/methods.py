"""A comparison of methods that are given as Python objects: how it is described, kept in a folder, and trained.

A folder can't hold the objects. Its `config.yaml` describes them, so that the same call resumes and another is refused:
options as text, data and weights by a digest, networks and optimizers by a digest of what jax traces.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal import models
from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.config import dump_yaml, leaves
from fedjax_bal.engine.device import VALIDATION
from fedjax_bal.engine.host import Simulation, build_simulation
from fedjax_bal.jax_setup import start_jax
from fedjax_bal.lab import summary
from fedjax_bal.lab.compare import Comparison, MemoryFolder, train_comparison
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, reading, writing
from fedjax_bal.lab.folder import PYTHON, RunFolder
from fedjax_bal.lab.loop import Callback, DispatchStats, RunBatch
from fedjax_bal.lab.outline import method_names
from fedjax_bal.lab.output_folder import SUMS
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.records import RunId, RunRecord
from fedjax_bal.lab.run import Run
from fedjax_bal.lab.setup import SharedInputs, cautions, hash_arrays
from fedjax_bal.lab.splits import RowsUsed, prefix_errors
from fedjax_bal.metrics import EarlyStopping
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import SELECTORS, Choice
from fedjax_bal.status import StatusLine, duration
from fedjax_bal.target import target_platform
from fedjax_bal.types import Federation, Model, Variables

_CHECKPOINT_EVERY = 10  # rounds, as in configurations
_LONGEST = 500  # characters of a described value
_DIGESTS = {
    "sha256": "other inputs, labels, partition, test rows, names or initial weights",
    "code": "another network, initial weights, an optimizer, a part or a selector of yours, or another version of jax",
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of `fedjax_bal.compare` with its own settings; settings that are None are those of the comparison.

    Attributes:
        recipe: the method, from `fedjax_bal.recipes`.
        local: how its clients train.
        participation: which of its clients train.
        server_optimizer: its server's optimizer.

    Example:
        >>> from fedjax_bal import optimizer, recipes
        >>> method = Method(recipes.scaffold(), local=LocalTraining(optimizer=optimizer("sgd", 0.01)))
        >>> method.recipe.name, method.local.optimizer.learning_rate, method.participation
        ('scaffold', 0.01, None)
    """

    recipe: Recipe
    local: LocalTraining | None = None
    participation: Participation | None = None
    server_optimizer: AnyOptimizer | None = None


class PythonFolder(RunFolder):
    """The folder of a comparison of Python objects; its configuration is the mapping that describes them."""

    holds = "comparison"

    def compared(self, asked: Any) -> Any:
        """Compares config.yaml with the description of a comparison."""
        if self.exists():
            recorded, _ = self.read_sheet()
            with reading(self.path / self.marker, CHOOSE_ANOTHER):
                differing = _differences(recorded, asked)
            if differing:
                raise self._foreign(differing)
        return asked

    def _locked(self, asked: Any) -> contextlib.AbstractContextManager[None]:
        return self._lock()

    def begin(self, config: Any, *, fresh: bool) -> None:
        """Writes config.yaml, which assigns the folder to this comparison, after all other checks."""
        with writing(self.path):
            self._remove(SUMS)
            self._write(self.marker, dump_yaml(config).encode())


def _differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Lists in what an earlier comparison differs; more rounds, more seeds and further methods continue it."""
    if not recorded.get(PYTHON):
        return ["it was trained from a configuration: continue it with `fedjax-bal run`"]
    ours, theirs = (
        leaves({**sheet, "methods": {entry["name"]: entry for entry in sheet["methods"]}, "name": None})
        for sheet in (recorded, asked)
    )
    known = tuple(f"methods.{entry['name']}." for entry in recorded["methods"])
    differing = []
    for key in dict.fromkeys([*ours, *theirs]):
        here: Any = ours.get(key)
        now: Any = theirs.get(key)
        if key == "training.rounds":
            continues = here <= now
        elif key == "seeds":
            continues = here == now[: len(here)]
        else:
            continues = here == now or (key.startswith("methods.") and not key.startswith(known))
        if not continues:
            digest = _DIGESTS.get(key.rpartition(".")[2])
            differing.append(f"{key}: {digest}" if digest else f"{key}: {here} here, {now} asked for")
    return differing


class TrainingStatus(Callback):
    """Shows on a status line which methods are trained, and how much of the comparison is left."""

    def __init__(self, status: StatusLine, runs: Sequence[Run]) -> None:
        self.status = status
        self.left = sum(run.simulation.rounds for run in runs)  # rounds of all runs
        self.trained = 0
        self.seconds = 0.0

    def recorded(self, run: Run, clients_per_s: float) -> None:
        """Subtracts the rounds of earlier sessions."""
        if not clients_per_s:
            self.left -= run.round

    def started(self, batch: RunBatch) -> None:
        """Shows that a program is being compiled."""
        self.before = batch.runs[0].round
        self.status.show(f"{_title(batch)}: compiling")

    def stepped(self, batch: RunBatch, step: DispatchStats) -> None:
        """Shows the round, and the time that is left, without compilation."""
        rounds = len(batch.runs) * (step.round - self.before)
        self.before = step.round
        self.trained += rounds
        self.seconds += step.seconds
        self.left -= rounds
        left = duration(self.seconds / self.trained * self.left)
        self.status.show(f"{_title(batch)}: round {step.round} of {batch.rounds}; {left} left in all")


def _title(batch: RunBatch) -> str:
    seeds = [run.id.seed for run in batch.runs]
    return f"{method_names(batch)}{f', seed {seeds[0]}' if len(seeds) == 1 else f' x {len(seeds)} seeds'}"


def train_methods(
    methods: Mapping[str, Method],
    model: Model,
    federation: Federation,
    test: Any,
    *,
    seeds: Sequence[int],
    rounds: int,
    local: LocalTraining,
    participation: Participation,
    evaluation: Evaluation,
    execution: Execution,
    server_optimizer: AnyOptimizer | None,
    variables: Variables | None,
    early_stopping: EarlyStopping,
    target_accuracy: float | None,
    out: str | os.PathLike[str] | None,
    status: StatusLine,
) -> tuple[Comparison, RunRecord]:
    """Trains the runs of methods and seeds that a folder lacks; the arguments are those of `compare`, checked.

    Returns:
        The comparison, and what reports show of it.
    """

    def note(text: str) -> None:
        status.clear()
        warnings.warn(text, stacklevel=2)

    start_jax()
    keep_compiled_programs()
    status.show("setting up")
    models.check_is_model(model)
    if variables is not None:
        model = models.with_weights(model, variables)
    shared = SharedInputs()
    whole = federation
    simulations: dict[str, Simulation] = {}
    for name, method in methods.items():
        with prefix_errors(f"methods: {name}"):
            simulation = simulations[name] = build_simulation(
                method.recipe,
                model,
                federation,
                test,
                rounds=rounds,
                local=method.local or local,
                participation=method.participation or participation,
                evaluation=evaluation,
                execution=execution,
                server_optimizer=method.server_optimizer or server_optimizer,
                enlarge=shared.enlarged,
                saves=True,
            )
        # The following methods share what the first one has placed on the devices.
        placed, test = simulation.on_device
        if simulation.federation.images is federation.images:
            federation = federation._replace(images=placed.images, labels=placed.labels)
    for text in dict.fromkeys(cautions(simulations)):
        note(text)
    if early_stopping.patience is not None and VALIDATION not in federation.auxiliary:
        raise ValueError("early_stopping: received a federation without an auxiliary set 'validation': carve one")

    data = _data_digest(whole, test, variables)
    exact = out is not None
    described = {
        "local": _options("local", local, exact),
        "participation": _options("participation", participation, exact),
        "evaluation": _options("evaluation", evaluation, exact),
        "execution": _options("execution", execution, exact),
        "server_optimizer": _described("server_optimizer", server_optimizer, exact=False),
        "early_stopping": _options("early_stopping", early_stopping, exact),
        "target_accuracy": target_accuracy,
    }
    sheet: dict[str, Any] = {
        "name": "comparison" if out is None else Path(out).absolute().name,
        PYTHON: True,
        "data": {"sha256": data.tobytes().hex()},
        "model": {"name": model.name, "input_shape": list(model.input_shape), "classes": model.num_classes},
        "training": {"rounds": rounds},
        **{key: value for key, value in described.items() if value not in (None, {})},
        "methods": [_entry(name, method, simulations[name], exact) for name, method in methods.items()],
        "seeds": list(seeds),
    }
    settings = {key: value for key, value in sheet.items() if key not in ("name", "training", "methods", "seeds")}
    folder = MemoryFolder() if out is None else PythonFolder(Path(out))
    runs = [
        Run(
            id=RunId(name, seed),
            simulation=simulations[name],
            identity=_sha256(json.dumps([settings, entry, seed])),
            fingerprint=data,
            folder=folder,
            note=note,
            stopping=early_stopping,
            checkpoint_every=rounds if out is None else _CHECKPOINT_EVERY,
            target=target_accuracy,
            of_first_seed=seed == seeds[0],
        )
        for seed in seeds
        for name, entry in zip(methods, sheet["methods"], strict=True)
    ]

    def describe() -> dict[str, Any]:
        empty = int((whole.sizes == 0).sum())
        text = f"{len(np.unique(whole.rows)):,} rows, {whole.num_clients:,} clients"
        used = RowsUsed(text, whole.num_clients, empty, input_names=whole.input_names)
        every = list(simulations.values())
        return {
            "name": sheet["name"],
            "command": None,
            "target_accuracy": target_accuracy,
            "class_names": list(whole.class_names or map(str, range(whole.num_classes))),
            "partitions": summary.partitions_of(list(methods), every, [data] * len(every), [[used]] * len(every)),
            "batches": summary.summarise_batches(list(methods), every),
        }

    callbacks = [TrainingStatus(status, runs), PostTraining()]
    # One at a time, CPUs compile less, and give the bits of `simulate` and of the command line.
    several = any(simulation.setting.layout.strategy == "vmap" for simulation in simulations.values())
    stacked = several and (target_platform() != "cpu" or execution.strategy == "vmap")
    if isinstance(folder, MemoryFolder):
        comparison = Comparison(runs, folder, note, describe)
        train_comparison(comparison, callbacks, stacked=stacked)
        return comparison, folder.read(sheet)
    with folder.claimed(sheet):
        comparison = Comparison(runs, folder, note, describe)
        comparison.resume(sheet)
        for simulation in simulations.values():
            simulation.scratch = folder.path
        train_comparison(comparison, callbacks, stacked=stacked)
        return comparison, folder.read()


def _data_digest(federation: Federation, test: Any, variables: Variables | None) -> np.ndarray:
    """Returns the SHA-256, `UInt8[32]`, of all that is trained and tested on, and of the initial weights if given."""
    digest = hashlib.sha256(repr(federation.names).encode())
    hash_arrays(digest, jax.tree.leaves((federation.without_names(), test, variables)))
    return np.frombuffer(digest.digest(), np.uint8)


def _entry(name: str, method: Method, simulation: Simulation, exact: bool) -> dict[str, Any]:
    """Describes a method: its parts, its own settings and, where it must be `exact`, the digest of its code."""
    recipe = method.recipe
    parts = [_described(f"methods: {name}: parts", part, exact=exact) for part in recipe.parts]
    options = {"local": method.local, "participation": method.participation}
    known = {key: _options(f"methods: {name}: {key}", value, exact) for key, value in options.items() if value}
    own = {
        "server_optimizer": _described(name, method.server_optimizer or recipe.server_optimizer, exact=False),
        "drawing": recipe.drawing,
        "selector": _described(f"methods: {name}: selector", recipe.selector, exact=exact),
        "carried": recipe.carried,
        **known,
        "code": _code_digest(simulation, recipe) if exact else None,
    }
    return {"name": name, "recipe": recipe.name, "parts": parts} | {key: value for key, value in own.items() if value}


def _options(key: str, options: Any, exact: bool) -> dict[str, Any]:
    """Describes the fields of options that differ from their defaults."""
    fresh = type(options)()
    # Optimizers belong to the digest of the code, so optax's, which is made of functions, needn't be told by its text.
    return {
        field.name: _described(f"{key}.{field.name}", value, exact=exact and "optimizer" not in field.name)
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != getattr(fresh, field.name)
    }


def _described(key: str, value: Any, *, exact: bool) -> Any:
    """Describes a value as YAML can hold it; `exact` refuses one that two different objects may have in common."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        text = " ".join(repr(value).split())
    if exact and _ADDRESS.search(text):
        raise ValueError(
            f"{key}: received {text:.100}, a function, which a folder can't compare with that of a later call: "
            "give it by name, such as selection.Choice('uniform'), or leave out= out"
        )
    text = _ADDRESS.sub("", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... sha256 {_sha256(text).tobytes().hex()}"


def _code_digest(simulation: Simulation, recipe: Recipe) -> str:
    """Returns the SHA-256 of what jax traces of the network, its initial weights and the optimizers, and of own code.

    Own code is the source of parts, and of selectors that are given by name.
    """
    setting = simulation.setting
    model = setting.model
    variables = jax.eval_shape(model.init, jax.random.key(0))
    inputs = jnp.zeros((2, *model.input_shape), model.input_dtype)
    texts = [_traced(functools.partial(model.apply, train=True), variables, inputs, key=jax.random.key(0))]
    texts.append(_traced(model.init, jax.random.key(0)))
    for optimizer in (setting.local.optimizer, setting.server):
        texts.append(_traced(functools.partial(_updates, optimizer), variables.params, 0, 0))
    choices = [each for each in (recipe.selector, simulation.participation.selector) if isinstance(each, Choice)]
    for code in (*map(type, setting.parts), *(SELECTORS[choice.name] for choice in choices)):
        if not getattr(code, "__module__", "").startswith("fedjax_bal."):
            with contextlib.suppress(OSError, TypeError):  # a class without a file
                texts.append(inspect.getsource(code))
    return _sha256("\n".join(texts)).tobytes().hex()


def _updates(optimizer: Any, params: Any, round: Any, step: Any) -> Any:
    transform = optimizer.transform(round, step)
    return transform.update(params, transform.init(params), params)


def _traced(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    traced = jax.make_jaxpr(function)(*arguments, **options)
    digest = hashlib.sha256()
    hash_arrays(digest, traced.consts)
    return _ADDRESS.sub("", f"{traced.jaxpr} {digest.hexdigest()}")


def _sha256(text: str) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
