"""Fine-tunes the final model on each client, a cohort at a time, and tests it on the client's own test rows."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal import recipes
from fedjax_bal.engine.device import (
    Assignment,
    ChainClients,
    ChainWeights,
    LocalTest,
    RoundInputs,
    Setting,
    hits_by_client,
    over_chains,
    purpose_key,
)
from fedjax_bal.engine.host.assignment import assign
from fedjax_bal.engine.host.compatibility import check_is_federation
from fedjax_bal.engine.host.executable import compile_for_backend, compile_to_fit
from fedjax_bal.engine.host.front_door import build_simulation
from fedjax_bal.engine.host.placement import fetch, replicate
from fedjax_bal.engine.host.simulation import Simulation, Snapshot
from fedjax_bal.engine.host.strategy import check_steps
from fedjax_bal.metrics import OWN_HITS, client_accuracies
from fedjax_bal.options import Evaluation, Execution, LocalTraining
from fedjax_bal.parts import keeps_model
from fedjax_bal.types import Array, ClientTests, Federation, Key, Model, Variables
from fedjax_bal.validate import whole_number


class FineTuned(NamedTuple):
    """Accuracies of the clients' fine-tuned models.

    Attributes:
        accuracies: accuracy of each client, `Float64[N]`; nan for a client without test rows.
        diverged: number of clients whose parameters did not stay finite; their accuracy counts as 0.
    """

    accuracies: np.ndarray
    diverged: int


class TunedAccuracies(NamedTuple):
    """Accuracies of a model on the clients' test rows, `Float64[N]`; nan for a client without any.

    Attributes:
        before: of the model as it is.
        after: of the model fine-tuned on the client; 0 for a client whose parameters did not stay finite.
    """

    before: np.ndarray
    after: np.ndarray


class FineTuningCohort(NamedTuple):
    """Clients that are fine-tuned in one call; leaves as in `Plan` and `Assignment`."""

    clients: Any
    real: Any
    assignment: Assignment


class FineTuner:
    """Fine-tunes the global model on each client with test rows, and tests the result on these.

    The clients are those of the simulation or, with `new`, the clients of another federation with the same inputs and
    classes, which join when training is over. A new client begins with the global model: leaves that a personalised
    method leaves to the clients have their initial values there, and are trained with all others.

    All methods are fine-tuned with plain cross-entropy and the local optimizer, from a fresh state and at the next
    round's learning rate in every step, so that their final models are compared. Clients are trained along the same
    axis as in a round, as many in a call as a round has, so that fine-tuning fits into memory if a round does. A client
    that takes no step keeps the global model. Raises ValueError if no client has test rows, if there are no epochs, if
    the learning rate is 0 after the last round, or if leaves of the model stay with the clients, unless these are new.
    """

    def __init__(self, simulation: Simulation, epochs: int, new: Federation | None = None) -> None:
        key = "personalised" if new is None else "new_clients"
        federation = simulation.federation if new is None else new
        tests = federation.tests
        if tests is None:
            received = f"{epochs} and a federation whose clients" if new is None else "new clients that"
            raise ValueError(
                f"{key}: received {received} have no test rows: set evaluation.client_test, for instance to "
                "{fraction: 0.2}, or use the natural partition of data whose test rows have users"
            )
        whole_number(key, epochs)
        for part in filter(keeps_model, simulation.setting.parts) if new is None else ():
            raise ValueError(
                f"personalised: received together with {part.slot}, which gives clients personal models already, "
                "whose accuracy is client_accuracy: leave personalised out for this method"
            )
        rounds = simulation.rounds
        if simulation.setting.optimizer.rate(rounds) == 0:
            raise ValueError(
                f"{key}: the learning rate is 0 after the last of {rounds} rounds, so fine-tuning would "
                "change nothing: keep training.optimizer above 0, with a schedule that is longer or ends above 0"
            )
        self.simulation = simulation
        self.federation = federation
        self._stored = simulation.federation_on_device
        if new is not None:
            self._stored = replicate(new.without_names(), simulation.setting.layout)
        self._tests = tests
        self._sizes = tests.sizes
        self._clients = np.flatnonzero(self._sizes)
        self._epochs = epochs
        sizes = federation.sizes
        check_steps(self._plain_setting(), sizes, simulation.selector.chains * simulation.selector.chain_length)
        self._program: Any = None

    def _plain_setting(self) -> Setting:
        setting = plain_setting(self.simulation.setting, self._epochs)
        return dataclasses.replace(setting, max_size=int(self.federation.sizes.max()))

    def run(self, seed: int, snapshot: Snapshot) -> FineTuned:
        """Fine-tunes a run's model; layouts agree up to rounding. Compiles the program the first time."""
        stored = self._stored
        number = np.int32(snapshot.round)
        key = purpose_key(jax.random.key(seed), "personalise")
        model = self.simulation.tested_model(seed, snapshot)
        given = (key, number, replicate(model, self.simulation.setting.layout))

        def build(setting: Setting) -> Any:
            jitted = jax.jit(setting.traced(train_and_test), out_shardings=setting.layout.replicated)
            return compile_for_backend(jitted.lower(setting, *given, self._cohorts(setting)[0], stored))

        if self._program is None:
            fixed = self.simulation.execution.chunk != "auto"
            # Only now, because a run that resumes may have got another strategy since this was created.
            self._setting, self._program = compile_to_fit(self._plain_setting(), build, fixed=fixed)
        results = [self._program(self._setting, *given, cohort, stored) for cohort in self._cohorts(self._setting)]
        hits, broken = (np.concatenate(column)[: len(self._clients)] for column in zip(*results, strict=True))
        accuracies = np.full(len(self._sizes), np.nan)
        accuracies[self._clients] = client_accuracies(np.where(broken, 0, hits), self._sizes[self._clients])
        return FineTuned(accuracies, int(np.count_nonzero(broken)))

    def hits(self, seed: int, snapshot: Snapshot) -> np.ndarray:
        """Counts the test rows of each client that a run's model classifies correctly, see `client_hits_shape`."""
        setting = self.simulation.setting
        model = self.simulation.tested_model(seed, snapshot)
        return fetch(jax.jit(setting.traced(count_hits))(setting, model, self._stored, self._tests))

    def _cohorts(self, setting: Setting) -> list[FineTuningCohort]:
        """Divides the clients into cohorts as large as a round's; N marks empty places."""
        federation = self.federation
        selector = self.simulation.selector
        count = min(selector.chains * selector.chain_length, len(self._clients))
        # All cohorts have the same size, as shapes never change; the last one may end in empty places.
        places = np.full(-(-len(self._clients) // count) * count, federation.num_clients, np.int32)
        places[: len(self._clients)] = self._clients
        sizes = np.append(federation.sizes, 0)
        cohorts = []
        for clients in places.reshape(-1, count, 1):
            real = clients < federation.num_clients
            steps = setting.local_steps(sizes[clients]) * real
            cohorts.append(FineTuningCohort(clients, real, assign(setting.layout, steps, real[:, 0])[0]))
        return cohorts


def fine_tune(
    model: Model,
    variables: Variables,
    federation: Federation,
    *,
    epochs: int,
    local: LocalTraining = LocalTraining(),
    seed: int = 0,
    execution: Execution = Execution(),
) -> TunedAccuracies:
    """Tests a trained model on the clients' test rows, unchanged and fine-tuned on each client's training rows.

    The clients may be new ones, from `fedjax_bal.data.hold_out_clients`. Fine-tuning is plain cross-entropy on all
    parameters, from the same variables for each client.

    Args:
        model: the network, such as `Result.model`.
        variables: its variables, such as `Result.evaluated`.
        federation: the clients; those without test rows are left out.
        epochs: passes over a client's training rows.
        local: batch size and optimizer; its epochs and steps are ignored.
        seed: the seed of the order of rows.
        execution: the layout of the work on the machine.

    Returns:
        The accuracies by client.

    Raises:
        ValueError: no client has test rows, or arguments don't fit together.

    Example:
        >>> from fedjax_bal import data, models, recipes, simulate
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 40)
        >>> inputs = (labels[:, None] + rng.normal(size=(80, 3))).astype(np.float32)
        >>> training, tests = data.hold_out(rng, data.partition.iid(rng, labels, 5), 0.25)
        >>> whole = data.federate(inputs, labels, training, num_classes=2, tests=tests)
        >>> federation, new = data.hold_out_clients(rng, whole, 0.2)
        >>> result = simulate(recipes.fedavg(), models.build("mlp", 2, (3,), hidden=[8]), federation, (inputs, labels),
        ...                   rounds=1, seed=0)
        >>> tested = fine_tune(result.model, result.evaluated, new, epochs=20)
        >>> bool(tested.after[0] >= tested.before[0])
        True
    """
    epochs = whole_number("epochs", epochs)
    check_is_federation(federation)
    if federation.tests is None:
        raise ValueError("federation: received clients that have no test rows: give data.federate their `tests`")
    rows = np.asarray(federation.tests.rows)
    test = np.asarray(federation.images)[rows], np.asarray(federation.labels)[rows]
    simulation = build_simulation(recipes.fedavg(), model, federation, test, rounds=1, local=local, execution=execution)
    tuner = FineTuner(simulation, epochs)
    start = simulation.init(seed, variables)
    before = client_accuracies(tuner.hits(seed, start).sum(1), federation.tests.sizes)
    return TunedAccuracies(before, tuner.run(seed, start).accuracies)


def plain_setting(setting: Setting, epochs: int) -> Setting:
    """Makes the setting for fine-tuning: no parts, one pass over the chain, whole epochs of a client's rows."""
    # Both objects are built from scratch, not copied with changes: a new field of a setting must be chosen here, and
    # options of local training that aren't named here have their defaults.
    local = LocalTraining(
        # A schedule by local steps was made for as many steps as a client takes in a round.
        optimizer=dataclasses.replace(setting.optimizer, step_schedule=None),
        epochs=epochs,
        batch_size=setting.local.batch_size,
        drop_last=setting.local.drop_last,
        lone_rows=setting.local.lone_rows,
        drawing="epochs",
    )
    return Setting(
        parts=(),
        local=local,
        server=setting.server,
        model=setting.model,
        drawn_by_size=False,
        passes=1,
        carried=False,
        max_staleness=0,
        max_size=setting.max_size,
        evaluation=Evaluation(),
        measured=(OWN_HITS,),
        test_images=setting.test_images,
        layout=dataclasses.replace(setting.layout, lanes=setting.layout.strategy == "vmap", even=False),
        execution=Execution(precision=setting.execution.precision, huge_factor=None),
    )


def count_hits(setting: Setting, variables: Variables, federation: Federation, tests: ClientTests) -> Array:
    """Counts the test rows of each client that one model classifies correctly."""
    return hits_by_client(setting.model, variables, federation, tests, setting.layout)


def train_and_test(
    setting: Setting, key: Key, number: Array, variables: Variables, cohort: FineTuningCohort, federation: Federation
) -> tuple[Array, Array]:
    """Trains G clients and tests them: hits on their own test rows, and whether they diverged, both `Int32[G]`.

    `key` is that of the whole fine-tuning; `number` is the round, from 0, whose learning rate is used.
    """
    chains = ChainClients(cohort.clients, cohort.real, {})
    shared = RoundInputs(key, number, variables, {}, federation, LocalTest(None, jnp.array(True)))
    # Weights are 0, because only the clients' records are read, not the sums.
    none = jnp.zeros(len(cohort.clients))
    result = over_chains(setting, shared, chains, ChainWeights(none, none, cohort.real[:, 0]), cohort.assignment)
    return result.records.metrics[OWN_HITS.name][:, 0], result.records.broken[:, 0]
