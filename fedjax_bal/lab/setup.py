"""Builds simulations from a configuration."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.analyses import ANALYSES
from fedjax_bal.config import Config, MethodConfig, ModelSection, received_value, with_convolution
from fedjax_bal.engine.device import Layout, TestSet, in_batches, padded
from fedjax_bal.engine.host import FineTuner, Simulation, build_simulation, device_count, divide, replicate
from fedjax_bal.lab.exports import compare_names, read_weights
from fedjax_bal.lab.splits import RowsUsed, SetupError, generator, prefix_errors, rows_used, split_rows, whole_line
from fedjax_bal.models import automatic
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Participation, derived, trusted
from fedjax_bal.parts import keeps_model
from fedjax_bal.selection import PATTERNS, SPEEDS, Choice
from fedjax_bal.types import Dataset, Federation, Model, Names, Variables

_DYNAMICS: Mapping[str, Mapping[str, Any]] = {"availability": PATTERNS, "delivery": PATTERNS, "speed": SPEEDS}
_MOST_LINES = 8


@dataclasses.dataclass(frozen=True)
class Setup:
    """The simulations of a configuration on their data; tuples have one entry per method.

    If each seed has its own partition, the fields belong to the first seed, and `others` has the other seeds.
    """

    methods: tuple[MethodConfig, ...]
    simulations: tuple[Simulation, ...]
    dataset: Dataset  # of the first method
    rows_used: tuple[RowsUsed, ...]  # describes the rows and clients used for training
    data_digests: tuple[np.ndarray, ...]  # see `SharedInputs.data_digest`
    fingerprints: tuple[np.ndarray, ...]  # see `SharedInputs.fingerprint`
    tuners: tuple[FineTuner | None, ...]  # for the clients of `partition.new_clients`
    others: Mapping[int, "Setup"] = dataclasses.field(default_factory=dict)  # by seed

    def of(self, seed: int) -> "Setup":
        """Returns the simulations of a seed."""
        return self.others.get(seed, self)


class SharedInputs:
    """Data sets, federations and models, each built once and shared by all methods that use it.

    `devices`, the number of devices that share the work, overrides the configurations unless it is None.
    `initial_devices`, the number that the runs started with, replaces "auto" in the configurations. With `plan=True`,
    an official data set without files (no `data_dir`) is replaced by black images in classes of equal size.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike | None = None,
        devices: str | int | None = None,
        initial_devices: int | None = None,
        *,
        plan: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.devices = devices
        self.initial_devices = initial_devices
        self.plan = plan
        self.assumed: set[str] = set()
        self.made: dict[str, Any] = {}
        self.larger: dict[tuple[Any, ...], Federation] = {}
        self.used: dict[str, tuple[dict[str, None], dict[RowsUsed, None]]] = {}
        self.cautions: dict[str, None] = {}

    def cached(self, kind: str, make: Any, *sections: Any) -> Any:
        """Returns the value of `make`, computed once per kind and sections of a configuration."""
        key = json.dumps([kind, *(section.model_dump(mode="json") for section in sections)], sort_keys=True)
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def layout(self, config: MethodConfig) -> Layout:
        """Returns the devices that share the work."""
        wanted = self.devices or config.execution.options.devices
        count = device_count(wanted)
        if wanted == "auto" and not self.devices and self.initial_devices is not None:
            count = min(count, self.initial_devices)
        return Layout(devices=count)

    def dataset(self, config: MethodConfig) -> Dataset:
        """Returns the data set."""
        wanted = config.dataset
        reader = data.find_reader(wanted.name)
        if self.plan and self.data_dir is None and reader.origin == "official" and reader.counts and not reader.clients:
            self.assumed.add(wanted.name)
            return self.cached("dataset", lambda: data.stand_in(reader), wanted)
        return self.cached("dataset", lambda: data.load(wanted.name, self.data_dir, **wanted.parameters), wanted)

    def test_set(self, config: MethodConfig) -> TestSet:
        """Returns the test set, placed on the devices."""
        dataset = self.dataset(config)
        layout = self.layout(config)
        place = lambda: divide(padded(in_batches(dataset.test_images, dataset.test_labels), layout.devices), layout)
        return self.cached(f"test on {layout.devices}", place, config.dataset)

    def federation(self, config: MethodConfig) -> Federation:
        """Returns the partitioned federation without new clients, with its images on the devices."""
        return self._federations(config)[0]

    def new_clients(self, config: MethodConfig) -> Federation | None:
        """Returns the clients of `partition.new_clients`, with the same images; None for none."""
        return self._federations(config)[1]

    def _federations(self, config: MethodConfig) -> tuple[Federation, Federation | None]:
        devices = self.layout(config).devices
        return self.cached(f"federation on {devices}", lambda: self._federate(config), *_sections(config))

    def enlarged(self, federation: Federation, recipe: recipes.Recipe) -> Federation:
        """Applies the preparations of a recipe's parts to a federation, each only once."""
        for part in recipe.parts:
            numbers, structure = jax.tree.flatten(part)
            key = (id(federation), structure, *(np.asarray(number).tobytes() for number in numbers))
            if key not in self.larger:
                self.larger[key] = part.prepare_federation(federation)
            federation = self.larger[key]
        return federation

    def data_digest(self, config: MethodConfig) -> np.ndarray:
        """Hashes images, labels, names, owners of rows, partition and auxiliary rows: SHA-256, `UInt8[32]`."""
        return self.cached("data digest", lambda: self._digest(config), *_sections(config))

    def fingerprint(self, config: MethodConfig) -> np.ndarray:
        """Hashes all that a run reads from files (data, initial weights and traces): SHA-256, `UInt8[32]`."""
        images = self.data_digest(config)
        digests = {name: getattr(self.presence(config, name), "digest", None) for name in _DYNAMICS}
        if config.model.weights is not None or models.MODELS.plugin(config.model.name):  # a plug-in may read some, too
            start = lambda: _digest_of_weights(self.model(config))
            digests["weights"] = self.cached("digest", start, config.model, config.dataset)
        if not any(digests.values()):
            return images
        digest = hashlib.sha256(images.tobytes())
        for name, file_digest in digests.items():
            digest.update(name.encode() + (file_digest or b""))
        return np.frombuffer(digest.digest(), np.uint8)

    def presence(self, config: MethodConfig, name: str) -> Any:
        """Returns the availability, delivery or speed of the clients; each file is read once."""
        section = getattr(config, name)
        with prefix_errors(f"{name} (of {config.name})"):
            return self.cached(name, lambda: _DYNAMICS[name][section.name](**section.parameters), section)

    def rows_used(self, config: MethodConfig) -> RowsUsed:
        """Counts the rows and clients that are used."""
        use = lambda: rows_used(config, self.dataset(config), *self._federations(config))
        used = self.cached("rows used", use, *_sections(config))
        names, partitions = self.used.setdefault(used.text, ({}, {}))
        names[config.name] = None
        partitions[used] = None
        return used

    def data_lines(self) -> list[str]:
        """Describes the rows and clients that are used, and why a method can't learn from them.

        There is a line for each distinct description, up to a limit.
        """
        several = len({tuple(names) for names, _ in self.used.values()}) > 1
        whose = lambda names: f" of {', '.join(names)}" if several else ""
        lines = [f"data{whose(names)}: {whole_line(partitions)}" for names, partitions in self.used.values()]
        more = len(lines) - _MOST_LINES
        if more > 0:
            lines[_MOST_LINES:] = [f"data: {more} more partitions"]
        if self.assumed:
            names = ", ".join(sorted(self.assumed))
            lines.append(f"data: {names} not read (no --data-dir); the counts assume classes of equal size")
        return [*lines, *(f"note: {text}" for text in list(self.cautions)[:_MOST_LINES])]

    def model(self, config: MethodConfig) -> Model:
        """Returns the network."""
        dataset = self.dataset(config)
        shape = dataset.train_images.shape[1:]
        file = config.model.weights

        def make() -> Model:
            model = network(config.model, len(dataset.class_names), shape)
            if file is None:
                return model
            weights = self.weights(config)
            try:
                return models.with_weights(model, weights)
            except ValueError as error:
                raise SetupError(f"model.weights: {file}: {str(error).removeprefix('variables: ')}") from error

        return self.cached("model", make, config.model, config.dataset)

    def weights(self, config: MethodConfig) -> Variables:
        """Returns the weights that the network starts from."""
        path = Path(config.model.weights or "")
        dataset = self.dataset(config)

        def read() -> Variables:
            variables, trained_on = read_weights(path)
            names = Names(dataset.class_names, dataset.input_names)
            self.cautions |= dict.fromkeys(compare_names(path, trained_on, names))
            return variables

        with prefix_errors("model.weights"):
            return self.cached("weights", read, config.model, config.dataset)

    def _federate(self, config: MethodConfig) -> tuple[Federation, Federation | None]:
        dataset = self.dataset(config)
        layout = self.layout(config)
        pool, rows, tests = split_rows(dataset, config)
        whole = dataset._replace(train_images=pool.images, train_labels=pool.labels)
        federation = data.federate(whole, rows, auxiliary=pool.auxiliary, tests=tests)
        # The data set's original images are placed once for all of its partitions, and once more with its test images,
        # which are appended for clients that have rows there.
        sections = (config.dataset,) if pool.images is dataset.train_images else _sections(config)
        place = lambda: replicate((federation.images, federation.labels), layout)
        images, labels = self.cached(f"{len(federation.labels)} images on {layout.devices}", place, *sections)
        federation = federation._replace(images=images, labels=labels)
        if config.partition.new_clients is None:
            return federation, None
        rng = generator(config.partition.seed, "new clients")
        with prefix_errors("partition.new_clients"):
            return data.hold_out_clients(rng, federation, config.partition.new_clients)

    def _digest(self, config: MethodConfig) -> np.ndarray:
        dataset = self.dataset(config)
        federation, new = self._federations(config)
        digest = hashlib.sha256()
        # Other names, or an order of their own, would swap the accuracies of classes and clients, or a model's inputs.
        digest.update(repr(federation.names).encode())
        owners = () if dataset.train_clients is None else (dataset.train_clients,)
        held = (*federation.auxiliary.values(), *(federation.tests or ()))
        if new is not None:
            held += (new.rows, new.offsets, *(new.tests or ()))
        hash_arrays(digest, (*dataset[:4], *owners, federation.rows, federation.offsets, *held))
        return np.frombuffer(digest.digest(), np.uint8)


def hash_arrays(digest: Any, arrays: Iterable[Any]) -> None:
    """Updates a digest of `hashlib` with the types, shapes and values of arrays."""
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data)


def _digest_of_weights(model: Model) -> bytes | None:
    """Computes the SHA-256 of the weights that a network starts from; None if it draws them all."""
    traced = jax.make_jaxpr(model.init)(jax.random.key(0))
    # Arrays without axes are no constants but literals among the results.
    given = [*traced.consts, *(result.val for result in traced.jaxpr.outvars if hasattr(result, "val"))]
    digest = hashlib.sha256()
    hash_arrays(digest, given)
    return digest.digest() if given else None


def network(section: ModelSection, classes: int, shape: Sequence[int]) -> Model:
    """Builds the network of a configuration, with weights that are drawn."""
    options = {"convolution": section.convolution, **section.parameters}
    with prefix_errors("model"):
        if section.convolution == "builtin" and models.convolves(section.name):
            automatic.check_builtin()  # before anything is written; tracing would find it, too
        return models.build(section.name, classes, tuple(shape), **options)


def _sections(config: MethodConfig) -> tuple[Any, ...]:
    """Returns the sections of a configuration that determine which client holds which images."""
    held = (config.evaluation.validation, config.evaluation.client_test)
    return config.dataset, config.partition, config.auxiliary, *held


def set_up(config: Config, inputs: SharedInputs | None = None) -> Setup:
    """Loads the data, partitions it and builds a simulation for every method; compiles nothing.

    Raises:
        ValueError: the data can't be read, the partition is impossible, or a recipe doesn't fit its configuration.
    """
    inputs = inputs or SharedInputs()
    distinct = config.seeds if config.partition_seeds else config.seeds[:1]
    first, *others = (_on_partition_of(seed, config, inputs) for seed in distinct)
    return dataclasses.replace(first, others=dict(zip(distinct[1:], others, strict=True)))


def to_read(config: Config) -> Config:
    """Replaces "builtin" convolutions by "fast" ones on a machine that lacks them, for reading trained models."""
    return config if automatic.choice()[0] == "builtin" else with_convolution(config, "fast", of="builtin")


def cautions(simulations: Mapping[str, Simulation]) -> Iterator[str]:
    """Yields why methods learn next to nothing, and which of them train models that their runs don't test."""
    for simulation in simulations.values():
        yield from simulation.cautions
    own = [
        name
        for name, simulation in simulations.items()
        if simulation.federation.tests is None and any(map(keeps_model, simulation.setting.parts))
    ]
    if own:
        yield (
            f"{', '.join(own)}: each client uses a model of its own, which this run doesn't test: accuracies are the "
            "global model's (evaluation.client_test.fraction=0.2 gives clients test rows, in Python `tests` of "
            "data.federate)"
        )


def _on_partition_of(seed: int, config: Config, inputs: SharedInputs) -> Setup:
    methods = tuple(config.with_partition_of(seed, method) for method in config.methods)
    _check_classes(methods, inputs)
    simulations = tuple(_simulation(inputs, index, method) for index, method in enumerate(methods))
    named = {method.name: simulation for method, simulation in zip(methods, simulations, strict=True)}
    inputs.cautions |= dict.fromkeys(cautions(named))
    # Invalid post-training analyses are rejected before training.
    tuners: list[FineTuner | None] = []
    for method, simulation in zip(methods, simulations, strict=True):
        for name, options in method.evaluation.analyses.items():
            with prefix_errors(f"evaluation.analyses (of {method.name}): {name}"):
                ANALYSES[name](**options).check(simulation)
        if method.evaluation.personalised is not None:
            with prefix_errors(f"evaluation (of {method.name})"):
                FineTuner(simulation, method.evaluation.personalised)
        new = inputs.new_clients(method)
        with prefix_errors(f"partition (of {method.name})"):
            tuners.append(None if new is None else FineTuner(simulation, method.evaluation.new_client_epochs, new))
    return Setup(
        methods,
        simulations,
        inputs.dataset(methods[0]),
        rows_used=tuple(map(inputs.rows_used, methods)),
        data_digests=tuple(map(inputs.data_digest, methods)),
        fingerprints=tuple(map(inputs.fingerprint, methods)),
        tuners=tuple(tuners),
    )


def _check_classes(methods: Sequence[MethodConfig], inputs: SharedInputs) -> None:
    """Refuses data sets with different classes, because a run's results have one list of class names."""
    first, *others = methods
    wanted = inputs.dataset(first).class_names
    for method in others:
        names = inputs.dataset(method).class_names
        if names != wanted:
            in_words = lambda names: f"{len(names):,} classes ({received_value(', '.join(names))})"
            raise SetupError(
                f"dataset (of {method.name}): received {in_words(names)}, but {first.name} has {in_words(wanted)}; the "
                "methods of a run need the same classes: train these two in separate runs"
            )


def _simulation(inputs: SharedInputs, index: int, config: MethodConfig) -> Simulation:
    # Default selection and averaging are passed as None, because the recipe may define its own.
    selector = Choice(config.selection.name, tuple(sorted(config.selection.parameters.items())))
    server = config.training.server_optimizer.built
    cohort = config.selection.clients_per_round
    federation = inputs.federation(config)
    model = inputs.model(config)
    if config.partition.known_clients is None:
        cohort = min(cohort, federation.num_clients)
    with prefix_errors(f"selection (of {config.name})"):
        selector.build(cohort, federation)
    dynamics = {name: inputs.presence(config, name) for name in _DYNAMICS}
    with prefix_errors(f"methods.{index} ({config.name})"):
        return build_simulation(
            config.recipe,
            model,
            federation,
            inputs.test_set(config),
            rounds=config.training.rounds,
            local=config.training.options,
            participation=trusted(
                Participation,
                selector=None if selector == Choice() else selector,
                clients_per_round=cohort,
                **dynamics,
            ),
            evaluation=config.evaluation.options,
            execution=derived(config.execution.options, devices=inputs.layout(config).devices),
            server_optimizer=None if server == optimizer("sgd", 1.0) else server,
            enlarge=inputs.enlarged,
            saves=True,
            needs_checked=config.partition.known_clients is not None,  # else the data decide the number of clients
        )
