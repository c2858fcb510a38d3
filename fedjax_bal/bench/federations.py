"""Federations and simulations of the workloads."""

import numpy as np

from fedjax_bal import data, models, recipes
from fedjax_bal.bench.workloads import Workload, material
from fedjax_bal.engine.host import Simulation, build
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.selection import uniform
from fedjax_bal.types import Federation, Model

HORIZON = 2**30
"""More rounds than any measurement takes, so that no round is the last."""


def federate(workload: Workload, data_dir: str | None = None, seed: int = 0) -> Federation:
    """Builds the workload's federation, on the host; arguments as in `workloads.material`."""
    made, source = material(workload, data_dir, seed), workload.source
    return data.federate(
        made.images, made.labels, made.rows_per_client, source.num_classes, mean=source.mean, std=source.std
    )


def model_of(workload: Workload, convolution: str = "auto") -> Model:
    """Builds the workload's model."""
    source = workload.source
    return models.build(
        workload.model, source.num_classes, source.input_shape, convolution=convolution, **workload.options
    )


def simulation_of(
    workload: Workload,
    federation: Federation,
    clients_per_round: int | None = None,
    execution: Execution = Execution(rounds_per_dispatch=1),
    convolution: str = "auto",
    method: str = "fedavg",
) -> Simulation:
    """Builds a recipe, by default federated averaging, on a workload, evaluated on a single image."""
    cohort = workload.clients_per_round if clients_per_round is None else clients_per_round
    return build(
        recipes.RECIPES[method](),
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
    """Clients of each round, ascending, `Int32[rounds, clients_per_round]`, as a simulation with this seed has them."""
    selector = uniform(workload.clients_per_round)
    state, all_clients = selector.init(seed, clients), np.ones(clients, bool)
    chosen = [np.sort(selector.select(state, seed, number, all_clients)[0][:, 0]) for number in range(rounds)]
    return np.stack(chosen).astype(np.int32)
