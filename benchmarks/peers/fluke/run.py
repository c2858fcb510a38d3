"""FedAvg in fluke: its clients and its server, one client after another in one process.

benchmarks/peers/fluke/.venv/bin/python benchmarks/peers/fluke/run.py --workload W2.npz --json out.json
"""

import sys
from collections.abc import Sequence
from typing import Any

import _rival
import peers.no_torchvision  # noqa: F401  before the rival that imports torchvision
import torch
from fluke import DDict, FlukeENV
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import EarlyStopping, Server
from peers import torch_models


def main() -> None:
    arguments = _rival.parser(__doc__).parse_args()
    if arguments.processes != 1:
        sys.exit(f"fluke: --processes {arguments.processes}: it trains in one process; leave it out")
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    network, watch = torch_models.build(workload.spec), _rival.Stopwatch(arguments.seconds)
    server = Cohorts(workload, network, make_clients(workload))
    lap = Lap(workload, watch)
    server.attach(lap)
    for client in server.clients:
        client.attach(lap)
        client.set_channel(server.channel)
    server.fit(n_rounds=10**6, finalize=False)
    params = torch_models.num_params(network)
    packages = ("fluke-fl", "torch", "numpy")
    _rival.write(arguments.json, "fluke", workload, watch, packages=packages, params=params, processes=1)


def make_clients(workload: _rival.Workload) -> list[Client]:
    spec = workload.spec
    chosen = dict(spec["optimizer"])
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[chosen.pop("name")]
    optimizer = OptimizerConfigurator(DDict(name=kind, lr=chosen.pop("learning_rate"), fused=True, **chosen))
    pixels, labels = torch.from_numpy(workload.pixels()), torch.from_numpy(workload.labels).long()
    clients = []
    for number in range(len(workload.offsets) - 1):
        rows = torch.from_numpy(workload.client(number))
        data = FastDataLoader(
            pixels[rows],
            labels[rows],
            num_labels=spec["num_classes"],
            batch_size=spec["batch_size"],
            shuffle=True,
            transforms=torch_models.images_of,
            skip_singleton=False,
        )
        loss = torch.nn.CrossEntropyLoss()
        clients.append(Client(number, data, None, optimizer, loss, spec["local_epochs"], persistency=False))
    return clients


class Cohorts(Server):
    """fluke's server, with the workload's cohorts in turn."""

    def __init__(self, workload: _rival.Workload, network: torch.nn.Module, clients: list[Client]) -> None:
        super().__init__(network, None, clients, weighted=True)
        self.workload, self.number = workload, 0

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
        """The cohort of this round."""
        cohort = self.workload.cohort(self.number)
        self.number += 1
        return [self.clients[client] for client in cohort]


class Lap:
    """Observes clients and server: adds up losses, notes rounds, and stops the server when the time is over."""

    def __init__(self, workload: _rival.Workload, watch: _rival.Stopwatch) -> None:
        self.workload, self.watch = workload, watch
        self.losses, self.steps = 0.0, 0

    def end_fit(self, round: int, client_id: int, model: Any, loss: float, **_: Any) -> None:
        """Add a client's losses; fluke tells their mean."""
        steps = -(-self.workload.size(client_id) // self.workload.spec["batch_size"])
        self.losses, self.steps = self.losses + loss * steps, self.steps + steps

    def end_round(self, round: int) -> None:
        """Note the round."""
        loss, self.losses, self.steps = self.losses / self.steps, 0.0, 0
        if self.watch.lap(loss):
            raise EarlyStopping(round)

    def __getattr__(self, event: str) -> Any:
        """All other events of fluke's mean nothing here."""
        if event.startswith("_"):
            raise AttributeError(event)
        return lambda *_, **__: None


if __name__ == "__main__":
    main()
