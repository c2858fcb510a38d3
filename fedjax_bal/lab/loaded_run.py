"""Loads the folders of runs and sweeps: metrics, trained models and their predictions, tables of results."""

import functools
import importlib
import os
import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

from fedjax_bal.config import Config, config_digest, run_digest
from fedjax_bal.data import are_tokens, columns_by_name, is_frame, to_array
from fedjax_bal.engine.device import at_precision, in_batches
from fedjax_bal.engine.host import Snapshot, check_vocabulary, fetch
from fedjax_bal.jax_setup import package_settings
from fedjax_bal.lab.environment import versions
from fedjax_bal.lab.errors import FolderError
from fedjax_bal.lab.exports import Inputs, inputs_of, logits_of, write_export
from fedjax_bal.lab.folder import RunFolder, run_name
from fedjax_bal.lab.model_files import MODEL_FORMATS
from fedjax_bal.lab.records import ClientResults, RunId
from fedjax_bal.lab.run import Run, load_variables, runs_of
from fedjax_bal.lab.setup import Setup, SharedInputs, network, set_up, to_read
from fedjax_bal.lab.splits import name_inputs
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.parts import changes_for_evaluation
from fedjax_bal.types import Array, Model, Variables
from fedjax_bal.validate import check_unmasked, is_number, one_of


def load_run(
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = warnings.warn,
) -> "LoadedRun | Any":  # a union with LoadedSweep would make type checkers refuse `load_run(...).predict`
    """Loads the folder of a run or of a sweep.

    Metrics, models and predictions come from the folder alone. Models and predictions need the modules of its plug-ins
    imported; the folder `plugins` has copies. Only two kinds of models need the data that the run was trained on: those
    of methods that change the model for its evaluation (`ccvr`, `fedbabu` with fine-tuning, ...), and those of a run
    that was killed in its first session, before `summary.json`. Nothing is trained or unpickled, and every byte of a
    checkpoint is checked.

    Args:
        folder: a folder that `fedjax-bal run` or `fedjax-bal sweep` wrote, or a point of a sweep.
        data_dir: the folder with the data set's files, as `--data-dir`, for the models that need them.
        note: called with a message if a checkpoint is damaged and the previous one is used.

    Returns:
        The `LoadedRun`, whose models are loaded on first use; for a sweep a `LoadedSweep`, with its table and points.

    Raises:
        ValueError: the folder is neither a run's nor a sweep's, or its configuration can't be read.
            Missing plug-ins and invalid sections are reported when a model is used.

    Example:
        After `fedjax-bal run training.rounds=1 "model={name: mlp}" "methods=[{recipe: fedavg}]" "seeds=[0]"`, here:

        >>> import tempfile
        >>> from typer.testing import CliRunner
        >>> from fedjax_bal import data
        >>> from fedjax_bal.cli.app import app
        >>> folder = f"{tempfile.mkdtemp()}/quick"
        >>> changes = ["training.rounds=1", "model={name: mlp}", "methods=[{recipe: fedavg}]", "seeds=[0]"]
        >>> CliRunner().invoke(app, ["run", *changes, "--plain", "--out", folder]).exit_code
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
        return LoadedSweep(SweepFolder(path), data_dir, note)
    return LoadedRun(RunFolder(path), data_dir, note)


class TrainedModel(NamedTuple):
    """The model at the end of a run.

    Attributes:
        method: the method's number.
        seed: the seed.
        round: number of rounds of training.
        model: the network, with the method's additions.
        variables: the global model as evaluated on the test set, as NumPy arrays.
        inputs: the inputs that it was trained on.
    """

    method: int
    seed: int
    round: int
    model: Model
    variables: Variables
    inputs: Inputs


class LoadedRun:
    """The metrics and models of a run folder. By default, models are those of the first method and first seed.

    Attributes:
        path: the folder.
        methods: the names of the methods.
        seeds: the seeds.
    """

    def __init__(self, folder: RunFolder, data_dir: str | os.PathLike[str] | None, note: Callable[[str], None]) -> None:
        self.path = folder.path
        self._folder = folder
        self._data_dir = data_dir
        self._note = note
        self._labels, self.seeds = folder.read_runs()
        self.methods = tuple(self._labels)
        self._networks: dict[int, tuple[Model, Inputs]] = {}

    def __repr__(self) -> str:
        """Summarises the run: the last evaluated round, and each method's last accuracy, the mean over its seeds."""
        try:
            lines = self._folder.read_metrics()
        except FolderError:  # a damaged file is reported by `metrics`
            lines = []
        last = {(line["method"], line["seed"]): line["test_accuracy"] for line in lines}
        of_methods = [[value for (name, _), value in last.items() if name == method] for method in self.methods]
        shown = {
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "rounds": max((line["round"] for line in lines), default=0),
            "test_accuracy": [round(float(np.mean(values)), 4) if values else None for values in of_methods],
        }
        return f"LoadedRun({_in_brief({'name': self.path.name, **shown})})"

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
                missing), texts, and lists such as `per_class_accuracy` as objects. `label` is the method's name in
                reports.
        """
        lines = self._folder.read_metrics()
        columns = as_columns(
            [{"method": line["method"], "label": self._labels[line["method"]], **line} for line in lines]
        )
        return _as_frame(columns)

    def clients(self) -> Any:
        """Returns the content of `clients.csv`, one row per method, seed and client, in the order of the clients.

        Returns:
            A pandas `DataFrame` if pandas is installed, otherwise a dict of columns as NumPy arrays: `method`, `seed`,
                `client` (its name or, without names, its number as text), `training_rows`, `test_rows`, `accuracy`,
                `balanced_accuracy` and `fine_tuned_accuracy` (nan if unknown), and `new`.

        Raises:
            ValueError: no session has finished, or no client has test rows.
        """
        results = self._folder.read_clients()
        if not results:
            raise FolderError(
                f"{self._folder.path}: has no clients.csv: a session writes it at its end if clients have test rows "
                "(evaluation.client_test, or the natural partition of data whose test rows have users)"
            )
        counts = [len(run.names) for run in results]
        columns = {
            "method": np.repeat([run.method for run in results], counts),
            "seed": np.repeat([run.seed for run in results], counts),
            "client": np.array([name for run in results for name in run.names]),
            **{name: np.concatenate([getattr(run, name) for run in results]) for name in ClientResults._fields[3:]},
        }
        return _as_frame(columns)

    @functools.cached_property
    def class_names(self) -> tuple[str, ...]:
        """C names of the classes, in the order of the predicted numbers."""
        return tuple(self._folder.read_summary().get("class_names") or self._setup.dataset.class_names)

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """F names of the first method's inputs, columns or categories (`sex=F`), in order; None for other inputs."""
        known = self._network(0)
        return (inputs_of(self._setup.simulations[0].federation) if known is None else known[1]).names

    @property
    def model(self) -> Model:
        """The network, including the first method's additions."""
        known = self._network(0)
        return self._setup.simulations[0].setting.model if known is None else known[0]

    def variables(self, method: str | None = None, seed: int | None = None) -> Variables:
        """Returns the global model of the last saved round, as evaluated on the test set, as NumPy arrays.

        Args:
            method: the method's name; None if the run has only one.
            seed: the seed; the first one by default.

        Raises:
            ValueError: an unknown method or seed, no method among several, no checkpoint; or, for a model that needs
                the data, other data.
        """
        return self.trained(method, seed).variables

    @package_settings()
    def predict(
        self,
        inputs: Any,
        method: str | None = None,
        seed: int | None = None,
        *,
        names: bool = False,
        probabilities: bool = False,
    ) -> np.ndarray:
        """Predicts the classes of new rows or images.

        Args:
            inputs: for a run on a table, a data frame or a mapping of names to columns: the columns of `input_names`
                are taken by name (`sex` for the category `sex=F`), in any order and with the types that
                `data.from_pandas` takes, and others are ignored. Or an array `[B, ...]` like the training inputs, not
                normalised, with columns in the order of `input_names`; floats in place of bytes are on the scale
                [0, 1].
            method: the method's name; None if the run has only one.
            seed: the seed; the first one by default.
            names: return the names of the classes in place of their numbers.
            probabilities: return a probability for each class instead.

        Returns:
            `Int[B]`, indices into `class_names`; with `names` an array of `B` texts; with `probabilities` the softmax
                of the logits, `Float32[B, C]`, whose columns are in the order of `class_names`.

        Raises:
            ValueError: a column is missing or not numeric, a category wasn't trained, a frame is given to a run without
                input names, an array has another shape, type or scale, token ids exceed the vocabulary, or an error of
                `variables`.
        """
        trained = self.trained(method, seed)
        return predict(trained, inputs, self.class_names, names=names, probabilities=probabilities)

    def export(
        self, method: str | None = None, seed: int | None = None, kind: str | None = None, out: Path | None = None
    ) -> Path:
        """Exports a model for programs without this package; returns the file, by default in the folder's `exports`.

        The formats are those of `fedjax_bal.export_model`; the JSON text `about` also names the run.

        Args:
            method: the method's name; None if the run has only one.
            seed: the seed; the first one by default.
            kind: the format: npz, safetensors, orbax or stablehlo; by default from the extension of `out`, or npz.
            out: the file, or the folder for Orbax.

        Raises:
            ValueError: an unknown format or extension, or an error of `variables`.
        """
        if kind is not None or out is None:
            kind = one_of("format", kind or "npz", MODEL_FORMATS)
        trained = self.trained(method, seed)
        name = run_name(self.methods[trained.method], trained.seed)
        file = out or self._folder.export_file(f"{name}.{kind}")
        return write_export(file, kind, trained.model, trained.variables, trained.inputs, self._about(trained))

    @package_settings()
    def trained(self, method: str | None = None, seed: int | None = None) -> TrainedModel:
        """Returns the newest model of a run; raises the same errors as `variables`."""
        method, seed = chosen_run(method, seed, self.methods, self.seeds)
        index = self.methods.index(method)
        known = self._network(index)
        if known is None or changes_for_evaluation(self.config.methods[index].recipe.parts):
            return self._rebuilt(index, seed)
        model, inputs = known
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        saved = load_variables(self._folder, self.config, index, seed, shapes, self._note)
        if saved is None:
            raise self._untrained(self.methods[index], seed)
        rounds, variables = saved
        return TrainedModel(index, seed, rounds, model, variables, inputs)

    def _rebuilt(self, index: int, seed: int) -> TrainedModel:
        """Returns a model that the method changes for evaluation; this needs the data and the whole state."""
        runs = {run.id: run for run in runs_of(self.config, self._setup, self._folder, self._note)}
        run = runs[RunId(self.methods[index], seed)]
        saved = run.load_checkpoint()
        if saved is None:
            raise self._untrained(*run.id)
        return trained_model(index, run, saved.snapshot)

    def _untrained(self, method: str, seed: int) -> FolderError:
        return FolderError(f"{self._folder.path}: has no checkpoint of {method}, seed {seed}; train it first")

    def _network(self, index: int) -> tuple[Model, Inputs] | None:
        """Returns a method's network and its inputs from the folder alone; None without a summary."""
        if index not in self._networks:
            method = to_read(self.config).methods[index]
            partition = self._folder.read_partition(method.name)
            if partition is None:
                return None
            model = network(method.model, len(partition["samples"]), partition["input_shape"])
            for part in method.recipe.parts:
                model = part.bind(model)
            mean, std = (np.asarray(numbers, np.float32) for numbers in (partition["mean"], partition["std"]))
            names = tuple(partition["input_names"]) if "input_names" in partition else None
            inputs = Inputs(partition["input_dtype"], mean, std, names)
            self._networks[index] = at_precision(model, method.execution.options.precision), inputs
        return self._networks[index]

    @functools.cached_property
    def _setup(self) -> Setup:
        return set_up(to_read(self.config), SharedInputs(self._data_dir, devices=1))

    def _about(self, trained: TrainedModel) -> dict[str, Any]:
        method = self.config.methods[trained.method]
        identity = {"method": method.name, "seed": trained.seed, "round": trained.round}
        lines = (line for line in self._folder.read_metrics() if identity.items() <= line.items())
        summary = self._folder.read_summary()
        cut = {key: value for key, value in method.dataset.parameters.items() if key in ("side", "channels")}
        return {
            "run": self.config.name,
            **identity,
            "test_accuracy": next((line["test_accuracy"] for line in lines), None),
            "dataset": method.dataset.name,
            **({"dataset_options": cut} if cut else {}),  # what the reader did to images
            "precision": method.execution.options.precision,
            "class_names": list(self.class_names),
            "config_sha256": config_digest(self.config),
            "run_sha256": run_digest(self.config),
            "versions": summary.get("versions") or versions(),
        }


class LoadedSweep:
    """The table of a sweep's folder, and its points: `sweep[0]` is the first one's `LoadedRun`, `sweep[label]` another.

    Attributes:
        path: the folder.
        name: the sweep's name.
        axes: the swept keys.
    """

    def __init__(
        self, folder: SweepFolder, data_dir: str | os.PathLike[str] | None, note: Callable[[str], None]
    ) -> None:
        self.path = folder.path
        self._folder = folder
        self._data_dir = data_dir
        self._note = note
        sheet, _ = folder.read_sheet()
        self.name = str(sheet.get("name") or folder.path.name)
        self.axes = tuple(str(key) for axis in sheet["sweep"] for key in axis)

    def __repr__(self) -> str:
        """Summarises the sweep."""
        try:
            rows = self._rows
        except FolderError:  # reported by `frame`
            rows = []
        shown = {
            "axes": list(self.axes),
            "points": len({row["point"] for row in rows}),
            "methods": list(dict.fromkeys(row["method"] for row in rows)),
            "runs": len(rows),
            "done": sum(row["status"] == "done" for row in rows),
        }
        return f"LoadedSweep({_in_brief({'name': self.name, **shown})})"

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[LoadedRun]:
        return (self[label] for label in self._labels)

    def __getitem__(self, point: int | str) -> LoadedRun:
        label = one_of("point", point, self._labels) if isinstance(point, str) else self._labels[point]
        return LoadedRun(self._folder.point(label), self._data_dir, self._note)

    @functools.cached_property
    def points(self) -> tuple[LoadedRun, ...]:
        """The runs of all points that began, in the order of the table; `sweep[0]` loads a single one."""
        return tuple(self)

    def frame(self) -> Any:
        """Returns the table of results, `results.csv`, one row per run.

        Returns:
            A pandas `DataFrame` if pandas is installed, otherwise a dict of columns as NumPy arrays: the swept keys
                (`axes`; a list or mapping is a text, as in YAML), `point` (its label), `method`, `seed`, `status` and
                the run's results, nan if missing.

        Raises:
            ValueError: the table isn't written yet, or is damaged.
        """
        return _as_frame(as_columns(self._rows))

    @functools.cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return self._folder.read_results(self.axes)

    @functools.cached_property
    def _labels(self) -> tuple[str, ...]:
        labels = dict.fromkeys(row["point"] for row in self._rows)
        return tuple(label for label in labels if self._folder.point(label).exists())


def _in_brief(values: Mapping[str, Any]) -> str:
    """Formats names and values for a `repr`, and shortens long lists."""
    brief = reprlib.Repr()
    brief.maxlist = 5
    brief.maxother = brief.maxstring = 60
    return ", ".join(f"{name}={brief.repr(value)}" for name, value in values.items())


def trained_model(method: int, run: Run, snapshot: Snapshot) -> TrainedModel:
    """Returns a run's model as it is evaluated after a snapshot's last round; `method` is the method's number."""
    variables = snapshot.state.variables
    if changes_for_evaluation(run.simulation.setting.parts):
        variables = fetch(run.simulation.tested_model(run.id.seed, snapshot))
    inputs = inputs_of(run.simulation.federation)
    return TrainedModel(method, run.id.seed, int(snapshot.round), run.simulation.setting.model, variables, inputs)


def chosen_run(method: str | None, seed: int | None, methods: Sequence[str], seeds: Sequence[int]) -> RunId:
    """Returns the run that is asked for: without a seed the first one; a method must be given if there are several."""
    if method is None and len(methods) > 1:
        raise ValueError(f"method: received None, but there are several: give one of {', '.join(methods)}")
    if seed is not None and seed not in seeds:
        raise ValueError(f"seed: received {seed!r}; allowed: {', '.join(map(str, seeds))}")
    chosen = methods[0] if method is None else one_of("method", method, methods)
    return RunId(chosen, seeds[0] if seed is None else seed)


def predict(
    trained: TrainedModel, inputs: Any, class_names: Sequence[str], *, names: bool, probabilities: bool
) -> np.ndarray:
    """Predicts the classes of new rows or images, see `LoadedRun.predict`."""
    if names and probabilities:
        raise ValueError("names: received True together with probabilities=True; set only one of them")
    model = trained.model
    rows = _checked_rows(inputs, trained)
    chunks = in_batches(rows, np.zeros(len(rows), np.int32), name="").images
    logits = _chunk_by_chunk(model, trained.variables, chunks, trained.inputs.mean, trained.inputs.std)
    logits = np.asarray(logits, np.float32).reshape(-1, model.num_classes)[: len(rows)]
    undefined = np.isnan(logits).any(-1)
    if undefined.any():  # the largest of them would be class 0's
        row = np.argmax(undefined)
        raise ValueError(f"inputs[{row}]: the model computes NaN, as it does for a token id without an embedding")
    if probabilities:
        return softmax(logits, axis=-1)
    classes = logits.argmax(-1)
    return np.array(class_names)[classes] if names else classes


def _checked_rows(inputs: Any, trained: TrainedModel) -> np.ndarray:
    """Returns new inputs as an array; raises `ValueError` for those that the model wasn't trained on."""
    model = trained.model
    stored = np.empty(0, trained.inputs.dtype)
    tokens = are_tokens(stored)
    wanted = f"[B, {', '.join(map(str, model.input_shape))}] of {stored.dtype}{'' if tokens else ' or floats'}"
    if trained.inputs.names is not None:
        wanted = (
            f"a data frame with the run's inputs, {name_inputs(trained.inputs.names)}, or an array in this order, "
            f"{wanted}"
        )
    if is_frame(inputs):
        if trained.inputs.names is None:
            raise ValueError(
                f"inputs: received a {type(inputs).__name__}, but the run's inputs have no names: must be an array, "
                f"{wanted}"
            )
        rows = columns_by_name("inputs", inputs, trained.inputs.names)
    else:
        check_unmasked("inputs", inputs)
        rows = to_array(inputs)
    same_kind = rows.dtype.kind == stored.dtype.kind and are_tokens(rows) == tokens
    fits = rows.shape[1:] == tuple(model.input_shape) and len(rows)
    if not fits or not (same_kind or (rows.dtype.kind == "f" and not tokens)):
        remedy = ""
        if trained.inputs.names is not None and rows.ndim == 1:
            remedy = "; a single row is frame.iloc[[0]], or a list of one row"
        elif rows.shape == tuple(model.input_shape):
            remedy = "; a single input is inputs[None]"
        raise ValueError(f"inputs: received {list(rows.shape)} of {rows.dtype}, must be {wanted}{remedy}")
    if stored.dtype == np.uint8 and rows.dtype.kind == "f" and not ((rows >= 0) & (rows <= 1)).all():
        raise ValueError(
            f"inputs: received floats from {rows.min():g} to {rows.max():g}, must lie in [0, 1]: the model was trained "
            "on bytes; divide them by 255, or give uint8"
        )
    check_vocabulary("inputs", rows, model)
    return rows


def _as_frame(columns: dict[str, np.ndarray]) -> Any:
    """Returns columns as a pandas `DataFrame` if pandas is installed."""
    try:
        return importlib.import_module("pandas").DataFrame(columns)
    except ImportError:
        return columns


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
def _chunk_by_chunk(model: Model, variables: Variables, chunks: Array, mean: Array, std: Array) -> Array:
    """Computes the logits one chunk at a time, with evaluation's chunk size, because rounding depends on it."""
    return jax.lax.map(lambda images: logits_of(model, variables, images, mean, std), chunks)
