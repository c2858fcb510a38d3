"""The plan that the host gives to a dispatch, the state that rounds carry, and the measurements that they report."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.export

from fedjax_bal.engine.device.layout import Assignment
from fedjax_bal.types import Array, Plan, PyTree, Variables


class State(NamedTuple):
    """Everything that is carried from round to round on the device.

    Attributes:
        variables: the global model.
        optimizer: the server optimizer's state.
        memory: per-client memory by slot, leaves `[N, ...]`.
        server: the server parts' state by slot.
        downloads: the models and broadcasts of the last `max_staleness + 1` rounds, on which clients may still train,
            leaves `[max_staleness + 1, ...]`; round t has row `t % (max_staleness + 1)`. Empty in synchronous rounds.
    """

    variables: Variables
    optimizer: PyTree
    memory: Mapping[str, PyTree]
    server: Mapping[str, PyTree]
    downloads: PyTree = ()


class Info(NamedTuple):
    """The measurements of a round: reported, never carried.

    Attributes:
        metrics: by name: `train_loss`, the mean training loss over the steps of the clients that delivered;
            `update_diversity`, if requested, the mean squared distance of the delivered models from their mean (ReBaFL
            eq. 24); both are nan if no client delivered; and the clients' own metrics, zeros in rounds without
            evaluation.
        steps: local steps of each client in one pass, `Int32[G, L]`.
        broken: fault of each client's delivery, `Int32[G, L]`: 0 for none, 1 if it is not finite, 2 if it is of an
            earlier round, 3 if it is scaled down, 4 if it is huge. Unless such clients are left out, only the first
            faulty client of each chain has a code, as the clients after it train on the model that it returned.
        model_finite: whether the new global model is finite, `Bool[]`.
        losses: mean training loss of each client, `Float[G, L]`; nan if it didn't deliver.
        probes: each Probe part's value for each client that delivered, by slot, leaves `[G, L, ...]`.
    """

    metrics: Mapping[str, Array]
    steps: Array
    broken: Array
    model_finite: Array
    losses: Array
    probes: Mapping[str, PyTree]


jax.export.register_namedtuple_serialization(Info, serialized_name="fedjax_bal.Info")


class DispatchPlan(NamedTuple):
    """The rounds of a dispatch, leaves `[T, ...]`, or one round.

    Attributes:
        number: the round, from 0.
        live: False for padding after the last round, which isn't executed.
        evaluate: whether the round ends with an evaluation.
        plan: the clients that train, and those that deliver.
        seats: row of each client in the memory, `Int32[T, G, L]`.
        assignment: the chains that each device trains.
    """

    number: Any
    live: Any
    evaluate: Any
    plan: Plan
    seats: Any
    assignment: Assignment
