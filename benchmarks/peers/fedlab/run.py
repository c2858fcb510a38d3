"""FedAvg in FedLab: its standalone pipeline, one client after another in one process.

    cd benchmarks && peers/fedlab/.venv/bin/python -m peers.fedlab.run --workload W2.npz --json out.json

FedLab flattens parameters with `view`, which channels-last weights don't allow: here only the images lie that way. It
averages parameters only, not batch statistics.
"""

import sys

import _rival
import peers.no_torchvision  # noqa: F401  before the rival that imports torchvision
import torch
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.client.trainer import SerialClientTrainer
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.aggregator import Aggregators
from fedlab.utils.serialization import SerializationTool
from peers import torch_models


def main() -> None:
    arguments = _rival.parser(__doc__).parse_args()
    if arguments.processes != 1:
        sys.exit(f"fedlab: --processes {arguments.processes}: its standalone pipeline has one process; leave it out")
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    network = torch_models.build(workload.spec, torch.contiguous_format)
    watch = _rival.Stopwatch(arguments.seconds)
    Pipeline(Server(network, workload), Trainer(network, workload), watch).main()
    params = torch_models.num_params(network)
    packages = ("fedlab", "torch", "numpy")
    _rival.write(arguments.json, "fedlab", workload, watch, packages=packages, params=params, processes=1)


class Server(SyncServerHandler):
    """Takes the workload's cohorts in turn, and weighs clients by their rows."""

    def __init__(self, network: torch.nn.Module, workload: _rival.Workload) -> None:
        super().__init__(network, global_round=10**9, sample_ratio=0.0)
        self.workload = workload

    @property
    def num_clients_per_round(self) -> int:
        """How many clients the server waits for."""
        return self.workload.cohorts.shape[1]

    def sample_clients(self) -> list[int]:
        """The cohort of this round."""
        return self.workload.cohort(self.round).tolist()

    def global_update(self, buffer: list[list[torch.Tensor]]) -> None:
        """Average what clients have sent, with FedLab's aggregator."""
        params, sizes = zip(*buffer, strict=True)
        SerializationTool.deserialize_model(self._model, Aggregators.fedavg_aggregate(params, torch.stack(sizes)))


class Trainer(SerialClientTrainer):
    """Trains one client after another; keeps count of losses and steps."""

    def __init__(self, network: torch.nn.Module, workload: _rival.Workload) -> None:
        super().__init__(network, len(workload.offsets) - 1, cuda=False)
        self.workload = workload
        self.local = torch_models.Local(workload, self._model)
        self.cache: list[list[torch.Tensor]] = []
        self.losses, self.steps = 0.0, 0

    @property
    def uplink_package(self) -> list[list[torch.Tensor]]:
        """What clients have sent since it was last asked for."""
        package, self.cache = self.cache, []
        return package

    def local_process(self, payload: list[torch.Tensor], id_list: list[int]) -> None:
        """Train a cohort."""
        self.losses, self.steps = 0.0, 0
        for client in id_list:
            self.set_model(payload[0])
            losses, steps = self.local.train(client)
            self.losses, self.steps = self.losses + losses, self.steps + steps
            self.cache.append([self.model_parameters, torch.tensor(float(self.workload.size(client)))])

    def setup_dataset(self) -> None:
        """Nothing to do: the workload is the data set."""

    def setup_optim(self) -> None:
        """Nothing to do: every visit has a fresh optimizer."""


class Pipeline(StandalonePipeline):
    """FedLab's pipeline, with a stopwatch in the place of evaluation."""

    def __init__(self, handler: Server, trainer: Trainer, watch: _rival.Stopwatch) -> None:
        super().__init__(handler, trainer)
        self.watch = watch

    def evaluate(self) -> None:
        """Note the round, and end the work when the time is over."""
        if self.watch.lap(self.trainer.losses / self.trainer.steps):
            self.handler.global_round = self.handler.round


if __name__ == "__main__":
    main()
