"""FedAvg in FL-bench: its `FedAvgServer` and `FedAvgClient`; serial, or with `--processes N` as its Ray workers.

    cd benchmarks && peers/flbench/.venv/bin/python -m peers.flbench.run --workload W7.npz --json out.json

Batches are made by PyTorch's `DataLoader`, image by image, in the computer's memory, as FL-bench does; here the images
are normalised already. Batch statistics are averaged.
"""

import argparse
import itertools
import json
import os
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import _rival
import numpy as np
import peers.no_torchvision  # noqa: F401  before the rival that imports torchvision
import torch
from data.utils.datasets import BaseDataset
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from peers import torch_models
from src.client.fedavg import FedAvgClient
from src.server import fedavg as server_module
from src.server.fedavg import FedAvgServer
from src.utils.constants import DEFAULTS
from src.utils.models import DecoupledModel

NAME = "workload"


def main() -> None:
    chosen = _rival.parser(__doc__, torch_models.PRECISIONS).parse_args()
    torch_models.device_of(chosen)
    workload = _rival.load(chosen.workload, chosen.clients_per_round)
    watch = _rival.stopwatch(chosen)
    with tempfile.TemporaryDirectory() as folder:
        write_partition(workload, Path(folder))
        server = Cohorts(settings(workload, chosen), workload, watch)
        server.train()
    facts = torch_models.facts(chosen, torch_models.build(workload.spec)) | _rival.commit_of(__file__)
    _rival.write(chosen.json, "flbench", workload, watch, packages=("torch", "numpy"), **facts)


def write_partition(workload: _rival.Workload, folder: Path) -> None:
    """Write the clients' rows where FL-bench looks for them, and have it write its own files there, too."""
    clients = list(range(len(workload.offsets) - 1))
    rows = [{"train": workload.client(client), "val": [], "test": []} for client in clients]
    parts = {"train": clients, "val": [], "test": [], "total": len(clients)}
    place = folder / "data" / NAME
    place.mkdir(parents=True)
    (place / "args.json").write_text(json.dumps({"split": "sample"}))
    (place / "partition.pkl").write_bytes(pickle.dumps({"separation": parts, "data_indices": rows}))
    server_module.FLBENCH_ROOT = folder
    HydraConfig.instance().cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": str(folder / "out")}}})


def settings(workload: _rival.Workload, chosen: argparse.Namespace) -> Any:
    """FL-bench's defaults, with what the workload says, and without evaluation and its files."""
    spec = workload.spec
    made = OmegaConf.create(DEFAULTS)
    common = made.common
    made.dataset.name = NAME
    common.local_epoch, common.batch_size, common.global_epoch = spec["local_epochs"], spec["batch_size"], 1
    common.use_cuda = chosen.device == "cuda"
    common.client_side_evaluation = common.test.client.test = False
    common.test.client.interval = -1
    common.save_log = common.save_learning_curve_plot = common.save_metrics = False
    optimizer = dict(spec["optimizer"])
    made.optimizer.update({"name": optimizer.pop("name"), "lr": optimizer.pop("learning_rate"), **optimizer})
    if chosen.processes > 1:
        start_ray(chosen.precision)
        gpus = 1 if chosen.device == "cuda" else 0
        made.mode = "parallel"
        made.parallel.update({"num_workers": chosen.processes, "num_cpus": os.cpu_count(), "num_gpus": gpus})
    return made


def start_ray(precision: str) -> None:
    import ray

    def prepare() -> None:
        import peers.no_torchvision  # noqa: F401, F811  in a worker

        torch_models.set_precision(precision)

    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ray.init(
        runtime_env={"env_vars": path, "worker_process_setup_hook": prepare},
        include_dashboard=False,
        log_to_driver=False,
    )


class Network(DecoupledModel):
    """A workload's network, its last layer as FL-bench's classifier."""

    def __init__(self, network: torch.nn.Sequential) -> None:
        super().__init__()
        self.base, self.classifier = network[:-1], network[-1]


class Counting(FedAvgClient):
    """FL-bench's client, which also reports the sum of its losses and its steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tally = torch.zeros(2, device=self.device)
        loss = self.criterion

        def count(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            value = loss(outputs, labels)
            self.tally[0] += value.detach()
            self.tally[1] += 1
            return value

        self.criterion = count

    def package(self) -> dict[str, Any]:
        """What a client sends."""
        tally = self.tally.cpu()
        self.tally = torch.zeros_like(self.tally)
        return super().package() | {"tally": tally}


class Cohorts(FedAvgServer):
    """FL-bench's server, with the workload's data, network and cohorts, and a stopwatch."""

    client_cls = Counting

    def __init__(self, chosen: Any, workload: _rival.Workload, watch: _rival.Stopwatch) -> None:
        self.workload, self.watch = workload, watch
        super().__init__(chosen)
        self.client_sample_stream = Stream(workload)
        self.train_progress_bar = itertools.takewhile(lambda _: not self.over, itertools.count())
        self.over = False

    def init_model(self, *_: Any, **__: Any) -> None:
        """Give the server the workload's network."""
        super().init_model(Network(torch_models.build(self.workload.spec)))

    def get_dataset(self) -> BaseDataset:
        """The workload's images, normalised; FL-bench would scale them."""
        dataset = BaseDataset(torch.zeros(1), torch.from_numpy(self.workload.labels).long(), [])
        dataset.data = torch_models.images_of(self.workload.pixels())
        return dataset

    def aggregate_client_updates(self, client_packages: Any) -> None:
        """Average, then note the round."""
        super().aggregate_client_updates(client_packages)
        losses, steps = sum(package["tally"] for package in client_packages.values()).tolist()
        self.over = self.watch.lap(losses / steps)

    def display_metrics(self) -> None:
        """Nothing: no client has evaluated."""


class Stream:
    """The cohort of any round."""

    def __init__(self, workload: _rival.Workload) -> None:
        self.workload = workload

    def __getitem__(self, number: int) -> list[int]:
        return self.workload.cohort(number).tolist()


if __name__ == "__main__":
    random.seed(0)
    np.random.seed(0)
    main()
