"""From a workload to a federation and a simulation of this package."""

import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.bench.workloads import Workload, material
from fedjax_bal.engine.host import Simulation, build
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import uniform
from fedjax_bal.types import Federation, Model

HORIZON = 2**30
"""More rounds than anybody measures, so that no round is the last."""


def federate(workload: Workload, data_dir: str | None = None, seed: int = 0) -> Federation:
    """The workload's federation, on the host; arguments as in `workloads.material`."""
    made, source = material(workload, data_dir, seed), workload.source
    return data.federate(
        made.images, made.labels, made.rows_per_client, source.num_classes, mean=source.mean, std=source.std
    )


def model_of(workload: Workload, convolution: str = "fast") -> Model:
    """The workload's model."""
    source = workload.source
    return models.build(
        workload.model, source.num_classes, source.input_shape, convolution=convolution, **workload.options
    )


def simulation_of(
    workload: Workload,
    federation: Federation,
    clients_per_round: int | None = None,
    execution: Execution = Execution(rounds_per_dispatch=1),
    convolution: str = "fast",
) -> Simulation:
    """Federated averaging on a workload.

    Args:
        workload: the workload.
        federation: its federation.
        clients_per_round: the cohort's size; by default the workload's own.
        execution: how it is executed.
        convolution: the form of the model's convolutions.

    Returns:
        The simulation, which tests on a single image.

    Raises:
        ValueError: a cohort or an option that doesn't fit.
    """
    cohort = workload.clients_per_round if clients_per_round is None else clients_per_round
    return build(
        recipes.fedavg(),
        model_of(workload, convolution),
        federation,
        (federation.images[:1], federation.labels[:1]),
        rounds=HORIZON,
        local=LocalTraining(
            epochs=workload.local_epochs,
            batch_size=workload.batch_size,
            optimizer=optimizer(**workload.optimizer),
        ),
        participation=Participation(clients_per_round=cohort),
        evaluation=Evaluation(every=HORIZON),
        execution=execution,
    )


def cohorts(workload: Workload, clients: int, rounds: int, seed: int = 0) -> np.ndarray:
    """Who trains in each round, as a simulation with this seed chooses.

    Args:
        workload: the workload.
        clients: N.
        rounds: T.
        seed: the run's seed.

    Returns:
        `Int32[T, clients_per_round]`, ascending in each round.
    """
    selector = uniform(workload.clients_per_round)
    state, everybody = selector.init(seed, clients), np.ones(clients, bool)
    chosen = [np.sort(selector.select(state, seed, number, everybody)[0][:, 0]) for number in range(rounds)]
    return np.stack(chosen).astype(np.int32)
