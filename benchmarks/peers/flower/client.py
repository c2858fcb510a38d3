"""The client of `run.py`, in a module of its own, from which Ray's processes import it."""

import functools
import os
from typing import Any

import _rival
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Context
from peers import torch_models

VARIABLES = "FLOWER_PEER_WORKLOAD", "FLOWER_PEER_CLIENTS", "FLOWER_PEER_THREADS"
"""How Ray's processes, which inherit the environment, learn what to load."""


class Client(NumPyClient):
    """Plays one client of a round's cohort.

    Attributes:
        place: which of the cohort.
    """

    def __init__(self, place: int) -> None:
        self.place = place

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        """Train; the values, the number of rows, and the losses."""
        local = local_training()
        workload, network = local.workload, local.network
        number = int(workload.cohort(config["round"])[self.place])
        with torch.no_grad():
            for tensor, value in zip(network.state_dict().values(), parameters, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(value)))
        losses, steps = local.train(number)
        return values_of(network), workload.size(number), {"losses": losses, "steps": steps}


def client(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


@functools.cache
def local_training() -> torch_models.Local:
    """A process's copy of the workload and of the network."""
    file, clients, threads = (os.environ[name] for name in VARIABLES)
    torch.set_num_threads(int(threads))
    workload = _rival.load(file, int(clients))
    return torch_models.Local(workload, torch_models.build(workload.spec))


def values_of(network: torch.nn.Module) -> list[np.ndarray]:
    return [value.numpy() for value in network.state_dict().values()]
