"""Builds simulations from a configuration."""

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.config import AuxiliarySection, Config, MethodConfig, SelectionSection
from fedjax_bal.engine.device import VALIDATION, Layout, TestSet, chunked, padded
from fedjax_bal.engine.host import FineTuner, Simulation, build, device_count, divide, replicate
from fedjax_bal.experiments.client_splits import split_clients, without_validation
from fedjax_bal.experiments.leaks import check_attack
from fedjax_bal.optim import Optimizer, optimizer
from fedjax_bal.options import Participation
from fedjax_bal.parts import BALANCED
from fedjax_bal.selection import AVAILABILITY, DELIVERY, SPEEDS, Choice
from fedjax_bal.types import Dataset, Federation, Model

_CLOCK: Mapping[str, Mapping[str, Any]] = {"availability": AVAILABILITY, "delivery": DELIVERY, "speed": SPEEDS}


class SetupError(ValueError):
    """A configuration whose values are valid one by one, but not together; the message says where and why."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All methods of a configuration, ready to run.

    Attributes:
        config: the configuration.
        methods: each method's own configuration.
        simulations: each method's simulation.
        dataset: the first method's data set.
        fingerprints: for each method the SHA-256 of its images, labels, partition and auxiliary rows, and of the files
            of its availability, delivery and speeds, `UInt8[32]`.
    """

    config: Config
    methods: tuple[MethodConfig, ...]
    simulations: tuple[Simulation, ...]
    dataset: Dataset
    fingerprints: tuple[np.ndarray, ...]


class SharedInputs:
    """Data sets, federations and models, each built only once for all methods that use it.

    Args:
        data_dir: the folder with the data set's files, unless that is embedded.
        devices: number of devices that share the work, whatever the configurations say; None leaves it to them.
    """

    def __init__(self, data_dir: str | None, devices: str | int | None) -> None:
        self.data_dir, self.devices = data_dir, devices
        self.made: dict[str, Any] = {}
        self.larger: dict[tuple[Any, ...], Federation] = {}

    def once(self, kind: str, make: Any, *sections: Any) -> Any:
        """The value of `make`, computed only once for the same kind and sections of a configuration."""
        key = json.dumps([kind, *(section.model_dump(mode="json") for section in sections)], sort_keys=True)
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def layout(self, config: MethodConfig) -> Layout:
        """Which devices share the work."""
        wanted = config.execution.options.devices if self.devices is None else self.devices
        return Layout(devices=device_count(wanted))

    def dataset(self, config: MethodConfig) -> Dataset:
        """The data set."""
        wanted = config.dataset
        return self.once("dataset", lambda: data.load(wanted.name, self.data_dir, **wanted.parameters), wanted)

    def test_set(self, config: MethodConfig) -> TestSet:
        """The test set, on the devices once for all methods."""
        dataset, layout = self.dataset(config), self.layout(config)
        place = lambda: divide(padded(chunked(dataset.test_images, dataset.test_labels), layout.devices), layout)
        return self.once(f"test on {layout.devices}", place, config.dataset)

    def federation(self, config: MethodConfig) -> Federation:
        """The federation as it is partitioned, its images on the devices."""
        devices = self.layout(config).devices
        return self.once(f"federation on {devices}", lambda: self._federate(config), *_sections(config))

    def enlarged(self, federation: Federation, recipe: recipes.Recipe) -> Federation:
        """What a recipe makes of a federation before training; what each part makes is made once."""
        for part in recipe.parts:
            key = (id(federation), repr(part))
            if key not in self.larger:
                self.larger[key] = part.prepare_federation(federation)
            federation = self.larger[key]
        return federation

    def fingerprint(self, config: MethodConfig) -> np.ndarray:
        """The SHA-256, `UInt8[32]`, of images, labels, partition, auxiliary rows and presence files."""
        images = self.once("fingerprint", lambda: self._digest(config), *_sections(config))
        clock = [getattr(self.presence(config, name), "digest", None) for name in _CLOCK]
        if not any(clock):
            return images
        digest = hashlib.sha256(images.tobytes())
        for name, own in zip(_CLOCK, clock, strict=True):
            digest.update(name.encode() + (own or b""))
        return np.frombuffer(digest.digest(), np.uint8)

    def presence(self, config: MethodConfig, name: str) -> Any:
        """Availability, delivery or speed of the clients; a file is read once."""
        section = getattr(config, name)
        make = lambda: _CLOCK[name][section.name](**section.parameters)
        with _explained(f"{name} (of {config.name})"):
            return self.once(name, make, section)

    def model(self, config: MethodConfig) -> Model:
        """The network."""
        return self.once("model", lambda: self._build_model(config), config.model, config.dataset)

    def _federate(self, config: MethodConfig) -> Federation:
        dataset, wanted = self.dataset(config), config.partition
        with _explained("auxiliary"):
            pool = take_auxiliary(dataset, config.auxiliary, wanted.seed)
        with _explained("evaluation.validation"):
            pool = take_validation(pool, config)
        given = data.partition.from_dataset(data.partition.SCHEMES[wanted.scheme], dataset, pool.rest)
        with _explained("partition"):
            own = data.partition.draw(pool.labels[pool.rest], **wanted.drawing, given=given)
        rows, tests = [pool.rest[numbers] for numbers in own], None
        with _explained("evaluation.client_test"):
            if config.evaluation.client_test.wanted:
                pool, rows, tests = take_client_tests(pool, rows, dataset, config)
        whole = dataset._replace(train_images=pool.images, train_labels=pool.labels)
        federation = data.federate(whole, rows, auxiliary=pool.auxiliary, tests=tests)
        images, labels = self._placed(federation, config, own=pool.images is not dataset.train_images)
        return federation._replace(images=images, labels=labels)

    def _placed(self, federation: Federation, config: MethodConfig, *, own: bool) -> Any:
        """Images and labels on the devices, once for all methods and partitions that train on them."""
        layout, sections = self.layout(config), _sections(config) if own else (config.dataset,)
        place = lambda: replicate((federation.images, federation.labels), layout)
        return self.once(f"images on {layout.devices}", place, *sections)

    def _digest(self, config: MethodConfig) -> np.ndarray:
        dataset, federation = self.dataset(config), self.federation(config)
        digest = hashlib.sha256()
        held = (*federation.auxiliary.values(), *(federation.tests or ()))
        for array in (*dataset[:4], federation.rows, federation.offsets, *held):
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
                **config.model.parameters,
            )


class TrainingRows(NamedTuple):
    """The images of a federation.

    Attributes:
        images: `UInt8[D, H, W, K]`.
        labels: `Int[D]`.
        rest: the row numbers that clients may get.
        auxiliary: the server's row numbers, by the name of the set.
    """

    images: np.ndarray
    labels: np.ndarray
    rest: np.ndarray
    auxiliary: dict[str, np.ndarray]


def take_auxiliary(dataset: Dataset, wanted: AuxiliarySection, seed: int) -> TrainingRows:
    """Sets the server's own images apart before the others are partitioned.

    Raises:
        ValueError: a class has too few images.
    """
    images, labels = dataset.train_images, dataset.train_labels
    everything = np.arange(len(labels))
    if not wanted.per_class:
        return TrainingRows(images, labels, everything, {})
    if wanted.source == "train":
        # A generator of its own, so that the partition is drawn from the same numbers with and without.
        rng = np.random.default_rng([seed, zlib.crc32(b"auxiliary")])
        taken, rest = data.carve(rng, labels, wanted.per_class)
        return TrainingRows(images, labels, rest, {BALANCED: taken})
    taken = _first_of_each_class(dataset.test_labels, len(dataset.class_names), wanted.per_class)
    images, labels = np.concatenate([images, dataset.test_images[taken]]), [labels, dataset.test_labels[taken]]
    return TrainingRows(images, np.concatenate(labels), everything, {BALANCED: len(everything) + np.arange(len(taken))})


def take_validation(pool: TrainingRows, config: MethodConfig) -> TrainingRows:
    """The images without the validation rows, which become an auxiliary set."""
    wanted = config.evaluation.validation
    if not wanted.wanted:
        return pool
    taken, rest = without_validation(pool.labels, pool.rest, wanted, config.partition.seed)
    return pool._replace(rest=rest, auxiliary=pool.auxiliary | {VALIDATION: taken})


def take_client_tests(
    pool: TrainingRows, rows: Sequence[np.ndarray], dataset: Dataset, config: MethodConfig
) -> tuple[TrainingRows, Sequence[np.ndarray], list[np.ndarray]]:
    """The images, each client's training rows and its test rows, as the configuration holds them out."""
    wanted, seed = config.evaluation.client_test, config.partition.seed
    rows, tests, foreign = split_clients(rows, pool.labels, dataset.test_labels, wanted, seed)
    if foreign:
        labels = np.concatenate([pool.labels, dataset.test_labels])
        pool = pool._replace(images=np.concatenate([pool.images, dataset.test_images]), labels=labels)
    return pool, rows, tests


def _sections(config: MethodConfig) -> tuple[Any, ...]:
    """The sections of a configuration that decide which client holds which images."""
    held = (config.evaluation.validation, config.evaluation.client_test)
    return config.dataset, config.partition, config.auxiliary, *held


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


def set_up(
    config: Config,
    data_dir: str | None = None,
    devices: str | int | None = None,
    inputs: SharedInputs | None = None,
) -> Comparison:
    """Loads data, partitions it and builds a simulation for every method; compiles nothing yet.

    Args:
        config: the configuration.
        data_dir: the folder with the data set's files, unless that is embedded.
        devices: number of devices that share the work, whatever the configuration says; None leaves it to that.
        inputs: in place of both, inputs shared with other comparisons.

    Raises:
        ValueError: unreadable data, an impossible partition, or a recipe that doesn't fit its setting.
    """
    inputs = inputs or SharedInputs(data_dir, devices)
    methods = tuple(config.for_method(index) for index in range(len(config.methods)))
    simulations = tuple(_simulation(inputs, index, method) for index, method in enumerate(methods))
    for method, simulation in zip(methods, simulations, strict=True):
        if method.evaluation.privacy:
            _check_attack(method.name, simulation)
        if method.evaluation.personalised is not None:
            with _explained(f"evaluation (of {method.name})"):
                FineTuner(simulation, method.evaluation.personalised)
    fingerprints = tuple(inputs.fingerprint(method) for method in methods)
    return Comparison(config, methods, simulations, inputs.dataset(methods[0]), fingerprints)


def _simulation(inputs: SharedInputs, index: int, config: MethodConfig) -> Simulation:
    chosen, cohort = _chosen(config.selection), config.selection.clients_per_round
    federation, model = inputs.federation(config), inputs.model(config)
    with _explained(f"selection (of {config.name})"):
        (chosen or Choice()).build(cohort, federation)
    clock = {name: inputs.presence(config, name) for name in _CLOCK}
    with _explained(f"methods.{index} ({config.name})"):
        recipe = recipes.combine(*(recipes.RECIPES[spec.name](**spec.hyperparameters) for spec in config.recipes))
        return build(
            recipe,
            model,
            federation,
            inputs.test_set(config),
            rounds=config.training.rounds,
            local=config.training.options,
            participation=Participation(selector=chosen, clients_per_round=cohort, **clock),
            evaluation=config.evaluation.options,
            execution=dataclasses.replace(config.execution.options, devices=inputs.layout(config).devices),
            server_optimizer=_unless_default(config.training.server_optimizer.built),
            enlarge=inputs.enlarged,
        )


def _chosen(wanted: SelectionSection) -> Choice | None:
    """None for the default, which every recipe may replace by its own."""
    choice = Choice(wanted.name, tuple(sorted(wanted.parameters.items())))
    return None if choice == Choice() else choice


def _unless_default(server: Optimizer) -> Optimizer | None:
    """None for plain averaging, which every recipe may replace by its own."""
    return None if server == optimizer("sgd", 1.0) else server


def _check_attack(name: str, simulation: Simulation) -> None:
    """Refuses images that can't be attacked, before training."""
    try:
        check_attack(simulation)
    except ValueError as error:
        raise SetupError(f"evaluation.privacy: {name}: {error}; or set it to false") from error
