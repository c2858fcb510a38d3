"""FedAvg in BlazeFL: its thread pool trainer and its own averaging.

    cd benchmarks && peers/blazefl/.venv/bin/python -m peers.blazefl.run --workload W2.npz --processes 2 --json out.json

`--processes` is the number of threads that train clients at once, each with an equal share of the cores. BlazeFL
flattens parameters with `view`, which channels-last weights don't allow: here only the images lie that way. This
version asks for Python 3.12 but runs on 3.11 as it is.
"""

import os
import sysconfig
import threading

import _rival
import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler
from blazefl.core import ThreadPoolClientTrainer
from blazefl.core.utils import deserialize_model, serialize_model
from peers import torch_models

Package = tuple[torch.Tensor, int, float, int]


def main() -> None:
    arguments = _rival.parser(__doc__, torch_models.PRECISIONS).parse_args()
    device = torch_models.device_of(arguments)
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    watch = _rival.stopwatch(arguments)
    network = torch_models.build(workload.spec, torch.contiguous_format).to(device)
    train(workload, network, watch, Trainer(workload, network, device, arguments.processes))
    facts = torch_models.facts(arguments, network) | {"free_threaded": sysconfig.get_config_var("Py_GIL_DISABLED") == 1}
    _rival.write(arguments.json, "blazefl", workload, watch, packages=("blazefl", "torch", "numpy"), **facts)


def train(workload: _rival.Workload, network: torch.nn.Module, watch: _rival.Stopwatch, trainer: "Trainer") -> None:
    """Train whole rounds until the time is over."""
    for number in watch.rounds():
        trainer.local_process(serialize_model(network), workload.cohort(number).tolist())
        params, sizes, losses, steps = zip(*trainer.uplink_package(), strict=True)
        deserialize_model(network, FedAvgBaseServerHandler.aggregate(list(params), list(sizes)))
        watch.lap(sum(losses) / sum(steps))


class Trainer(ThreadPoolClientTrainer[Package, torch.Tensor]):
    """Trains clients in threads, each of which has a network of its own."""

    def __init__(self, workload: _rival.Workload, network: torch.nn.Module, device: torch.device, threads: int) -> None:
        self.num_parallels, self.device, self.device_count = threads, device.type, 1
        self.cache: list[Package] = []
        self.stop_event = threading.Event()
        self.workload = workload
        self.local = torch_models.Local(workload, network, device)
        self.own = threading.local()
        self.making = threading.Lock()

    def uplink_package(self) -> list[Package]:
        """What clients have sent since it was last asked for."""
        package, self.cache = self.cache, []
        return package

    def worker(self, cid: int, device: str, payload: torch.Tensor, stop_event: threading.Event) -> Package:
        """Train a client."""
        network = self.network(device)
        deserialize_model(network, payload)
        losses, steps = self.local.train(cid, network)
        return serialize_model(network), self.workload.size(cid), losses, steps

    def network(self, device: str) -> torch.nn.Module:
        """This thread's network."""
        if not hasattr(self.own, "network"):
            # PyTorch keeps the number of its own threads by Python thread.
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.num_parallels))
            with self.making:
                self.own.network = torch_models.build(self.workload.spec, torch.contiguous_format).to(device)
        return self.own.network


if __name__ == "__main__":
    main()
