"""From a configuration to simulations that are ready to run."""

import dataclasses
import hashlib
import json
import zlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.config import Config, MethodConfig
from fedjax_bal.config.schema import Auxiliary, Selection
from fedjax_bal.engine.evaluation import TestSet, chunked, padded
from fedjax_bal.engine.layout import Layout, device_count
from fedjax_bal.engine.placement import divide, replicate
from fedjax_bal.engine.simulation import Simulation
from fedjax_bal.experiment.leaks import check_attack
from fedjax_bal.optimizers import Optimizer, optimizer
from fedjax_bal.parts import Enlarge
from fedjax_bal.parts.auxiliary import BALANCED
from fedjax_bal.selection import AVAILABILITY, DELIVERY, Choice
from fedjax_bal.simulation import build, enlarged
from fedjax_bal.types import Dataset, Federation, Model


class SetupError(ValueError):
    """A configuration whose values are fine one by one, but can't be carried out; the message says where and why."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All methods of a configuration, ready to run.

    Attributes:
        config: the configuration.
        methods: each method's own configuration.
        simulations: each method's simulation.
        dataset: the first method's data set.
        fingerprints: for each method the SHA-256 of its images, labels, partition and auxiliary rows, `UInt8[32]`.
    """

    config: Config
    methods: tuple[MethodConfig, ...]
    simulations: tuple[Simulation, ...]
    dataset: Dataset
    fingerprints: tuple[np.ndarray, ...]


class _Workshop:
    """Builds what methods share only once."""

    def __init__(self, data_dir: str | None, devices: str | int | None) -> None:
        self.data_dir, self.devices = data_dir, devices
        self.made: dict[str, Any] = {}
        self.larger: dict[tuple[Any, ...], Federation] = {}

    def once(self, kind: str, make: Any, *sections: Any) -> Any:
        key = json.dumps([kind, *(section.model_dump(mode="json") for section in sections)], sort_keys=True)
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def layout(self, config: MethodConfig) -> Layout:
        wanted = config.execution.devices if self.devices is None else self.devices
        return Layout(devices=device_count(wanted))

    def dataset(self, config: MethodConfig) -> Dataset:
        return self.once(
            "dataset",
            lambda: data.load(config.dataset.name, self.data_dir, **config.dataset.parameters),
            config.dataset,
        )

    def test_set(self, config: MethodConfig) -> TestSet:
        # On the devices once, whatever the number of methods that are evaluated on it.
        dataset, layout = self.dataset(config), self.layout(config)
        place = lambda: divide(padded(chunked(dataset.test_images, dataset.test_labels), layout.devices), layout)
        return self.once(f"test on {layout.devices}", place, config.dataset)

    def federation(self, config: MethodConfig) -> Federation:
        devices = self.layout(config).devices
        sections = (config.dataset, config.partition, config.auxiliary)
        return self.once(f"federation on {devices}", lambda: self._federate(config), *sections)

    def enlarged(self, federation: Federation, recipe: recipes.Recipe) -> Federation:
        parts = [repr(part) for part in recipe.parts if isinstance(part, Enlarge)]
        key = (id(federation), *parts)
        if key not in self.larger:
            self.larger[key] = enlarged(federation, recipe)
        return self.larger[key]

    def fingerprint(self, config: MethodConfig) -> np.ndarray:
        sections = (config.dataset, config.partition, config.auxiliary)
        return self.once("fingerprint", lambda: self._digest(config), *sections)

    def model(self, config: MethodConfig) -> Model:
        return self.once("model", lambda: self._build_model(config), config.model, config.dataset)

    def _federate(self, config: MethodConfig) -> Federation:
        dataset, wanted = self.dataset(config), config.partition
        with _explained("auxiliary"):
            pool = _pool(dataset, config.auxiliary, wanted.seed)
        split, rng = data.partition.SCHEMES[wanted.scheme], np.random.default_rng(wanted.seed)
        given = data.partition.from_dataset(split, dataset, pool.rest)
        with _explained("partition"):
            own = split(rng, pool.labels[pool.rest], wanted.clients, **given, **wanted.parameters)
        rows = [pool.rest[numbers] for numbers in own]
        mean, std = data.normalisation(config.dataset.name, dataset.train_images)
        classes = len(dataset.class_names)
        federation = data.federate(pool.images, pool.labels, rows, classes, pool.auxiliary, mean=mean, std=std)
        # Images go to the devices once, whatever the number of methods that train on them.
        images, labels = replicate((federation.images, federation.labels), self.layout(config))
        return federation._replace(images=images, labels=labels)

    def _digest(self, config: MethodConfig) -> np.ndarray:
        dataset, federation = self.dataset(config), self.federation(config)
        digest = hashlib.sha256()
        for array in (*dataset[:4], federation.rows, federation.offsets, *federation.auxiliary.values()):
            digest.update(np.ascontiguousarray(array).data)
        return np.frombuffer(digest.digest(), np.uint8)

    def _build_model(self, config: MethodConfig) -> Model:
        dataset = self.dataset(config)
        with _explained("model"):
            return models.build(
                config.model.name,
                len(dataset.class_names),
                dataset.train_images.shape[1:],
                convolution=config.model.convolution,
            )


class _Pool(NamedTuple):
    """The images of a federation; `rest` are the row numbers that clients may get, `auxiliary` those of the server."""

    images: np.ndarray
    labels: np.ndarray
    rest: np.ndarray
    auxiliary: dict[str, np.ndarray]


def _pool(dataset: Dataset, wanted: Auxiliary, seed: int) -> _Pool:
    images, labels = dataset.train_images, dataset.train_labels
    everything = np.arange(len(labels))
    if not wanted.per_class:
        return _Pool(images, labels, everything, {})
    if wanted.source == "train":
        # A generator of its own, so that the partition is drawn from the same numbers with and without.
        rng = np.random.default_rng([seed, zlib.crc32(b"auxiliary")])
        taken, rest = data.carve(rng, labels, wanted.per_class)
        return _Pool(images, labels, rest, {BALANCED: taken})
    taken = _first_of_each_class(dataset.test_labels, len(dataset.class_names), wanted.per_class)
    images, labels = np.concatenate([images, dataset.test_images[taken]]), [labels, dataset.test_labels[taken]]
    return _Pool(images, np.concatenate(labels), everything, {BALANCED: len(everything) + np.arange(len(taken))})


def _first_of_each_class(labels: np.ndarray, classes: int, per_class: int) -> np.ndarray:
    """Row numbers, class after class; `[classes * per_class]`."""
    own = [np.flatnonzero(labels == label)[:per_class] for label in range(classes)]
    sizes = [len(rows) for rows in own]
    if min(sizes) < per_class:
        scarce = sizes.index(min(sizes))
        raise ValueError(
            f"per_class: received {per_class}, but the test set has only {sizes[scarce]} images of class {scarce}; "
            "take at most as many"
        )
    return np.concatenate(own)


class _explained:  # noqa: N801 - reads as a verb
    """Puts the section's name in front of a message."""

    def __init__(self, section: str) -> None:
        self.section = section

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError) and not isinstance(error, SetupError):
            raise SetupError(f"{self.section}: {error}") from error


def set_up(config: Config, data_dir: str | None = None, devices: str | int | None = None) -> Comparison:
    """Loads data, partitions it and builds a simulation for every method.

    Args:
        config: the configuration.
        data_dir: the folder with the data set's files, where it isn't embedded.
        devices: how many devices share the work, whatever the configuration says; None leaves it to that.

    Returns:
        The comparison; nothing is compiled yet.

    Raises:
        ValueError: data that can't be read, a partition that doesn't exist, or a recipe that doesn't fit its setting.
    """
    workshop = _Workshop(data_dir, devices)
    methods = tuple(config.for_method(index) for index in range(len(config.methods)))
    simulations = tuple(_simulation(workshop, index, method) for index, method in enumerate(methods))
    for method, simulation in zip(methods, simulations, strict=True):
        if method.evaluation.privacy:
            _check_attack(method.name, simulation)
    fingerprints = tuple(workshop.fingerprint(method) for method in methods)
    return Comparison(config, methods, simulations, workshop.dataset(methods[0]), fingerprints)


def _simulation(workshop: _Workshop, index: int, config: MethodConfig) -> Simulation:
    training, execution, chosen = config.training, config.execution, _chosen(config.selection)
    federation, model = workshop.federation(config), workshop.model(config)
    with _explained(f"selection (of {config.name})"):
        (chosen or Choice()).build(config.selection.clients_per_round, federation)
    with _explained(f"methods.{index} ({config.name})"):
        recipe = recipes.combine(*(recipes.RECIPES[spec.name](**spec.hyperparameters) for spec in config.recipes))
        return build(
            recipe,
            model,
            federation,
            workshop.test_set(config),
            rounds=training.rounds,
            local_epochs=training.local_epochs,
            batch_size=training.batch_size,
            drop_last=training.drop_last,
            batches_per_epoch=training.batches_per_epoch,
            batch_statistics=training.batch_statistics,
            lone_rows=training.lone_rows,
            local_optimizer=optimizer(**training.optimizer.keywords),
            server_optimizer=_unless_default(optimizer(**training.server_optimizer.keywords)),
            selector=chosen,
            clients_per_round=config.selection.clients_per_round,
            availability=AVAILABILITY[config.availability.name](**config.availability.parameters),
            delivery=DELIVERY[config.delivery.name](**config.delivery.parameters),
            evaluate_every=config.evaluation.every,
            update_diversity=config.evaluation.update_diversity,
            local_accuracy=config.evaluation.local_accuracy,
            local_test_images=config.evaluation.local_test_images,
            traffic=config.evaluation.traffic,
            rounds_per_dispatch=execution.rounds_per_dispatch,
            strategy=execution.strategy,
            devices=workshop.layout(config).devices,
            chunk=execution.chunk,
            client_memory=execution.client_memory,
            precision=execution.precision,
            enlarge=workshop.enlarged,
        )


def _chosen(wanted: Selection) -> Choice | None:
    """None for the default, which every recipe may replace by its own."""
    choice = Choice(wanted.name, tuple(sorted(wanted.parameters.items())))
    return None if choice == Choice() else choice


def _unless_default(server: Optimizer) -> Optimizer | None:
    """None for plain averaging, which every recipe may replace by its own."""
    return None if server == optimizer("sgd", 1.0) else server


def _check_attack(name: str, simulation: Simulation) -> None:
    """Refuses what can't be attacked before it is trained."""
    try:
        check_attack(simulation)
    except ValueError as error:
        raise SetupError(f"evaluation.privacy: {name}: {error}; or set it to false") from error
