"""FedAvg in pfl-research: `SimulatedBackend` and `FederatedAveraging` on a PyTorch model.

    cd benchmarks && peers/pfl/.venv/bin/python -m peers.pfl.run --workload W2.npz --processes 2 --json out.json

Several processes are pfl's own way of using more cores: each is a worker of `torch.distributed`, and pfl deals the
cohort out to them, by size where sizes differ. Batch statistics are not aggregated: pfl averages parameters only.
"""

import argparse
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import _rival
import numpy as np

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def main() -> None:
    arguments = _rival.parser(__doc__, ("float32", "tensorfloat32")).parse_args()
    if arguments.processes > 1 and RANK not in os.environ:
        sys.exit(start_workers(arguments.processes))
    # pfl takes its place among the workers when it is imported.
    os.environ["PFL_PYTORCH_DEVICE"] = arguments.device
    if os.environ.get(RANK, "0") != "0":
        arguments.turn = None  # the first worker waits for all of them
    train(arguments)


def start_workers(processes: int) -> int:
    """Run this script once a worker; ends all when one fails, and returns the largest exit code."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    addresses = ",".join(f"localhost:{port + rank}" for rank in range(processes))
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    environment = os.environ | {ADDRESSES: addresses, "OMP_NUM_THREADS": threads}
    workers = [
        subprocess.Popen([sys.executable, "-m", "peers.pfl.run", *sys.argv[1:]], env=environment | {RANK: str(rank)})
        for rank in range(processes)
    ]
    while any(worker.poll() is None for worker in workers) and not any(worker.poll() for worker in workers):
        time.sleep(0.1)
    for worker in workers:
        worker.kill()  # those that wait for one that failed
    return max(abs(worker.wait()) for worker in workers)


def train(arguments: argparse.Namespace) -> None:
    import torch
    from peers import torch_models

    device = torch_models.device_of(arguments)
    share_device()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.model.pytorch import PyTorchModel

    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    if arguments.processes > workload.cohorts.shape[1]:
        sys.exit(f"pfl: --processes {arguments.processes}: a worker would have no client; leave it out")
    spec = workload.spec
    network = counting(torch_models.build(spec).to(device))
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, optimizer_maker(spec), central)
    dataset = federated_dataset(workload, device)
    watch = _rival.stopwatch(arguments)
    FederatedAveraging().run(
        NNAlgorithmParams(10**9, 10**9, workload.cohorts.shape[1], 0),
        SimulatedBackend(dataset, dataset, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(spec["batch_size"], spec["local_epochs"], spec["optimizer"]["learning_rate"]),
        NNEvalHyperParams(spec["batch_size"]),
        [lap_callback(network, watch)],
        send_metrics_to_platform=False,
    )
    if distributed.global_rank == 0:
        facts = torch_models.facts(arguments, network)
        _rival.write(arguments.json, "pfl", workload, watch, packages=("pfl", "torch", "numpy"), **facts)
    if torch.distributed.is_initialized():
        # Otherwise Gloo's threads may abort the worker that ends first.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def share_device() -> None:
    """Let the workers meet by Gloo on GPUs, too: NCCL, which pfl asks for there, refuses two of them on one GPU."""
    import torch.distributed

    start = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **options: start("gloo", **options)


def counting(network: Any) -> Any:
    """Give a network the `loss` and `metrics` that pfl calls; `loss` keeps count of the losses and steps of a round."""
    import torch
    from pfl.metrics import Weighted
    from torch.nn.functional import cross_entropy

    def loss(images: Any, labels: Any) -> Any:
        value = cross_entropy(network(images), labels)
        network.tally[0] += value.detach()
        network.tally[1] += 1
        return value

    network.tally = torch.zeros(2, device=next(network.parameters()).device)
    network.loss = loss
    network.metrics = lambda images, labels: {"loss": Weighted(0.0, 1)}
    return network


def optimizer_maker(spec: dict[str, Any]) -> Callable[..., Any]:
    from peers import torch_models

    return lambda params, lr: torch_models.optimizer(spec, params, fused=True)


def federated_dataset(workload: _rival.Workload, device: Any) -> Any:
    """The dataset of pfl's users: the workload's cohorts in turn, each user's rows shuffled anew at every visit."""
    import torch
    from peers import torch_models
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset

    pixels = torch.from_numpy(workload.pixels()).to(device)
    labels = torch.from_numpy(workload.labels).long().to(device)

    def user(client: int) -> Any:
        rows = torch.from_numpy(np.random.permutation(workload.client(client)))
        return PyTorchTensorDataset((torch_models.images_of(pixels[rows]), labels[rows]), user_id=str(client))

    sizes = np.diff(workload.offsets)
    weights = {client: int(size) for client, size in enumerate(sizes)} if sizes.min() < sizes.max() else None
    return FederatedDataset(user, sampler(workload), weights)


def sampler(workload: _rival.Workload) -> Callable[[], int]:
    users: Iterator[int] = itertools.cycle(workload.cohorts.ravel().tolist())
    return lambda: next(users)


def lap_callback(network: Any, watch: _rival.Stopwatch) -> Any:
    """A pfl callback that notes rounds; the first worker's watch says for all of them when the time is over."""
    import torch
    from pfl.callback.base import TrainingProcessCallback
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics

    class Lap(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            (losses, steps) = distributed.all_reduce([network.tally])[0].tolist()
            network.tally = torch.zeros_like(network.tally)
            over = torch.tensor([float(watch.lap(losses / steps) and distributed.global_rank == 0)])
            return distributed.all_reduce([over])[0].item() > 0, Metrics()

    return Lap()


if __name__ == "__main__":
    main()
