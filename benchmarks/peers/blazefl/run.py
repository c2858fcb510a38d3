"""FedAvg in BlazeFL: its thread pool trainer and its own averaging.

    cd benchmarks && peers/blazefl/.venv/bin/python -m peers.blazefl.run --workload W2.npz --processes 2 --json out.json

`--processes` is the number of threads that train clients at once, each with an equal share of the cores. BlazeFL
flattens parameters with `view`, which channels-last weights don't allow: here only the images lie that way. This
version asks for Python 3.12 but runs on 3.11 as it is.
"""

import os
import threading

import _rival
import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler
from blazefl.core import ThreadPoolClientTrainer
from blazefl.core.utils import deserialize_model, serialize_model
from peers import torch_models

Package = tuple[torch.Tensor, int, float, int]


def main() -> None:
    arguments = _rival.parser(__doc__).parse_args()
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    watch = _rival.Stopwatch(arguments.seconds)
    network = torch_models.build(workload.spec, torch.contiguous_format)
    train(workload, network, watch, arguments.processes)
    facts = {"params": torch_models.num_params(network), "processes": arguments.processes}
    _rival.write(arguments.json, "blazefl", workload, watch, packages=("blazefl", "torch", "numpy"), **facts)


def train(workload: _rival.Workload, network: torch.nn.Module, watch: _rival.Stopwatch, threads: int) -> None:
    """Train whole rounds until the time is over."""
    trainer = Trainer(workload, network, threads)
    for number in watch.rounds():
        trainer.local_process(serialize_model(network), workload.cohort(number).tolist())
        params, sizes, losses, steps = zip(*trainer.uplink_package(), strict=True)
        deserialize_model(network, FedAvgBaseServerHandler.aggregate(list(params), list(sizes)))
        watch.lap(sum(losses) / sum(steps))


class Trainer(ThreadPoolClientTrainer[Package, torch.Tensor]):
    """Trains clients in threads, each of which has a network of its own."""

    def __init__(self, workload: _rival.Workload, network: torch.nn.Module, threads: int) -> None:
        self.num_parallels, self.device, self.device_count = threads, "cpu", 0
        self.cache: list[Package] = []
        self.stop_event = threading.Event()
        self.workload = workload
        self.local = torch_models.Local(workload, network)
        self.own = threading.local()
        self.making = threading.Lock()

    def uplink_package(self) -> list[Package]:
        """What clients have sent since it was last asked for."""
        package, self.cache = self.cache, []
        return package

    def worker(self, cid: int, device: str, payload: torch.Tensor, stop_event: threading.Event) -> Package:
        """Train a client."""
        network = self.network()
        deserialize_model(network, payload)
        losses, steps = self.local.train(cid, network)
        return serialize_model(network), self.workload.size(cid), losses, steps

    def network(self) -> torch.nn.Module:
        """This thread's network."""
        if not hasattr(self.own, "network"):
            # PyTorch keeps the number of its own threads by Python thread.
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.num_parallels))
            with self.making:
                self.own.network = torch_models.build(self.workload.spec, torch.contiguous_format)
        return self.own.network


if __name__ == "__main__":
    main()
