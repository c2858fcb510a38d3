"""Loads run folders: metrics, trained models and their predictions."""

import functools
import importlib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.config import Config, config_digest, run_digest
from fedjax_bal.data import are_tokens, normalised
from fedjax_bal.engine.device import in_batches
from fedjax_bal.engine.host import Simulation, fetch
from fedjax_bal.jax_setup import package_settings
from fedjax_bal.lab.environment import versions
from fedjax_bal.lab.folder import RunFolder, SweepFolder
from fedjax_bal.lab.model_files import MODEL_FORMATS, write_model
from fedjax_bal.lab.output_files import FolderError
from fedjax_bal.lab.recorder import load_newest
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import Comparison, set_up_to_read
from fedjax_bal.types import Array, Model, Variables
from fedjax_bal.validate import is_number, one_of

_INPUT = (
    "Float32 [batch, height, width, channels]: bytes are divided by 255 (numbers that aren't bytes are taken as they "
    "are), then mean is subtracted and the difference divided by std, channel by channel"
)


def load_run(
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = warnings.warn,
) -> "LoadedRun":
    """Loads a run folder.

    Metrics come from the folder alone. Models and predictions need the data that the run was trained on, and the
    modules of its plug-ins imported (the folder `plugins` has copies): the simulation is rebuilt from `config.yaml`.
    Nothing is trained or unpickled, and every byte of a checkpoint is checked.

    Args:
        folder: a folder that `fedjax-bal run` wrote, or a point of a sweep.
        data_dir: the folder with the data set's files, as `--data-dir`.
        note: called with a message for damaged metric lines of an unfinished session, which are skipped, and for a
            damaged checkpoint, which the previous one replaces.

    Returns:
        The run; models are loaded on first use.

    Raises:
        ValueError: the folder isn't a run's, or its configuration can't be read or differs from what the run wrote.
            An absent plug-in is named when a model is used.

    Example:
        After `fedjax-bal run training.rounds=1 "model={name: mlp}" "methods=[{recipe: fedavg}]" "seeds=[0]"`, here:

        >>> import tempfile
        >>> from typer.testing import CliRunner
        >>> from fedjax_bal import cli, data
        >>> folder = f"{tempfile.mkdtemp()}/quick"
        >>> changes = ["training.rounds=1", "model={name: mlp}", "methods=[{recipe: fedavg}]", "seeds=[0]"]
        >>> CliRunner().invoke(cli.app.app, ["run", *changes, "--plain", "--out", folder]).exit_code
        0
        >>> run, dataset = load_run(folder), data.load("fashion_mnist_small")
        >>> metrics = run.metrics()
        >>> accuracy = metrics["test_accuracy"][(metrics["method"] == "fedavg") & (metrics["round"] == 1)]
        >>> predicted = run.predict(dataset.test_images, "fedavg", seed=0)
        >>> bool(np.isclose((predicted == dataset.test_labels).mean(), accuracy).all())
        True

        `simulate(..., variables=run.variables("fedavg", seed=0))` continues training from these variables.
    """
    path = Path(folder)
    if SweepFolder(path).exists():
        raise FolderError(f"{path}: is a sweep's folder; give that of one of its points, in {path / 'points'}")
    return LoadedRun(RunFolder(path), data_dir, note)


class TrainedModel(NamedTuple):
    """The model at the end of a run.

    Attributes:
        method: the method's number.
        seed: the seed.
        round: number of rounds of training.
        simulation: the method's simulation.
        variables: the global model as evaluated on the test set, as NumPy arrays.
    """

    method: int
    seed: int
    round: int
    simulation: Simulation
    variables: Variables


class LoadedRun:
    """The metrics and models of a run folder. By default, models are those of the first method and first seed.

    Attributes:
        methods: the names of the methods.
        seeds: the seeds.
    """

    def __init__(self, folder: RunFolder, data_dir: str | os.PathLike[str] | None, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._data_dir = data_dir
        self._note = note
        if folder.missing_plugins():
            self.methods, self.seeds = folder.read_runs()
        else:
            self.methods = tuple(method.name for method in self.config.methods)
            self.seeds = tuple(self.config.seeds)

    @functools.cached_property
    def config(self) -> Config:
        """The configuration.

        Raises:
            ValueError: a plug-in that it names isn't loaded.
        """
        return self._folder.read_configuration()

    def metrics(self) -> Any:
        """Returns the metrics of all evaluated rounds, one row per method, seed and round.

        Returns:
            A pandas `DataFrame` if pandas is installed, otherwise a dict of columns as NumPy arrays: numbers (nan if
                missing), texts, and lists such as `per_class_accuracy` as objects.
        """
        columns = as_columns(self._folder.read_metrics(self._note))
        try:
            return importlib.import_module("pandas").DataFrame(columns)
        except ImportError:
            return columns

    @property
    def model(self) -> Model:
        """The network, including the first method's additions."""
        return self._comparison.simulations[0].setting.model

    def variables(self, method: str | None = None, seed: int | None = None) -> Variables:
        """Returns the global model of the last saved round, as evaluated on the test set, as NumPy arrays.

        Raises:
            ValueError: an unknown method or seed, no checkpoint, or data other than the training data.
        """
        return self.trained(method, seed).variables

    @package_settings()
    def predict(self, images: Any, method: str | None = None, seed: int | None = None) -> np.ndarray:
        """Predicts the classes of images, as indices into the data set's `class_names`.

        Args:
            images: `[B, ...]` like the training images, not normalised; or floats on the same scale, [0, 1] for bytes.
            method: the method's name.
            seed: the seed.

        Returns:
            `Int[B]`.

        Raises:
            ValueError: images of another shape or type, or an error of `variables`.
        """
        images = np.asarray(images)
        trained = self.trained(method, seed)
        model = trained.simulation.setting.model
        federation = trained.simulation.federation
        stored = federation.images
        same_kind = images.dtype.kind == stored.dtype.kind and are_tokens(images) == are_tokens(stored)
        fits = images.shape[1:] == tuple(model.input_shape) and len(images)
        if not fits or not (same_kind or images.dtype.kind == "f"):
            wanted = f"[B, {', '.join(map(str, model.input_shape))}] of {federation.images.dtype} or floats"
            raise ValueError(f"images: received {list(images.shape)} of {images.dtype}, must be {wanted}")
        chunks = in_batches(images, np.zeros(len(images), np.int32), name="").images
        logits = _logits(model, trained.variables, chunks, federation.mean, federation.std)
        return np.asarray(logits).reshape(-1, model.num_classes)[: len(images)].argmax(-1)

    def export(
        self, method: str | None = None, seed: int | None = None, kind: str | None = None, out: Path | None = None
    ) -> Path:
        """Exports a model for programs without this package; returns the file, by default in the folder's `exports`.

        The file has one array per array of the model, named like `params/head/dense/kernel`, and a JSON text `about`
        (safetensors: in the metadata; Orbax: an item) with input shape, mean and standard deviation, class names, the
        run, and checksums that `fedjax-bal verify` compares.

        Args:
            method: the method's name.
            seed: the seed.
            kind: the format: npz, safetensors or orbax; by default from the extension of `out`, or npz.
            out: the file, or the folder for Orbax.

        Raises:
            ValueError: an unknown format or extension, or an error of `variables`.
        """
        asked = "format" if kind or out is None else f"the extension of {out} (or give a format)"
        kind = one_of(asked, kind or (out and out.suffix[1:]) or "npz", MODEL_FORMATS)
        trained = self.trained(method, seed)
        paths = jax.tree_util.tree_flatten_with_path(trained.variables)[0]
        tensors = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.methods[trained.method])
        file = out or self._folder.export_file(f"{name}-seed-{trained.seed}.{kind}")
        write_model(kind, file, tensors, self._about(trained))
        return file

    @package_settings()
    def trained(self, method: str | None = None, seed: int | None = None) -> TrainedModel:
        """Returns the newest model of a run; raises the same errors as `variables`."""
        index = 0 if method is None else self.methods.index(one_of("method", method, self.methods))
        seed = self.seeds[0] if seed is None else seed
        if seed not in self.seeds:
            raise ValueError(f"seed: received {seed!r}; allowed: {', '.join(map(str, self.seeds))}")
        saved = load_newest(self._folder, self._comparison, RunId(index, seed), self._note)
        if saved is None:
            raise FolderError(
                f"{self._folder.path}: has no checkpoint of {self.methods[index]}, seed {seed}: train it first"
            )
        simulation = self._comparison.simulation(RunId(index, seed))
        variables = fetch(simulation.tested_model(seed, saved.snapshot))
        return TrainedModel(index, seed, saved.snapshot.round, simulation, variables)

    @functools.cached_property
    def _comparison(self) -> Comparison:
        return set_up_to_read(self.config, self._data_dir, devices=1)

    def _about(self, trained: TrainedModel) -> dict[str, Any]:
        model = trained.simulation.setting.model
        federation = trained.simulation.federation
        identity = {"method": self.methods[trained.method], "seed": trained.seed, "round": trained.round}
        lines = (line for line in self._folder.read_metrics() if identity.items() <= line.items())
        return {
            "run": self.config.name,
            **identity,
            "test_accuracy": next((line["test_accuracy"] for line in lines), None),
            "dataset": self._comparison.methods[trained.method].dataset.name,
            "precision": trained.simulation.setting.execution.precision,
            "model": model.name,
            "model_options": dict(model.options),
            "input": _INPUT,
            "input_shape": list(model.input_shape),
            "mean": np.asarray(federation.mean).tolist(),
            "std": np.asarray(federation.std).tolist(),
            "class_names": list(self._comparison.dataset.class_names),
            "config_sha256": config_digest(self.config),
            "run_sha256": run_digest(self.config),
            "versions": self._folder.read_summary().get("versions") or versions(),
        }


def as_columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Transposes lines of metrics into columns, one for each key that occurs.

    Example:
        >>> as_columns([{"round": 1, "loss": 0.5}, {"round": 2, "loss": None, "shares": [0.1, 0.9]}])
        {'round': array([1, 2]), 'loss': array([0.5, nan]), 'shares': array([None, list([0.1, 0.9])], dtype=object)}
    """
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: _column([line.get(name) for line in lines]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    if all(isinstance(value, str) for value in values):
        return np.array(values)
    if all(value is None or is_number(value) for value in values):
        return np.array([np.nan if value is None else value for value in values])
    return np.fromiter(values, object, len(values))


@functools.partial(jax.jit, static_argnames="model")
def _logits(model: Model, variables: Variables, chunks: Array, mean: Array, std: Array) -> Array:
    """Computes the logits one chunk at a time, with evaluation's chunk size, because rounding depends on it."""
    one = lambda images: model.apply(variables, normalised(images, mean, std), train=False)[0].logits
    return jax.lax.map(one, chunks)
