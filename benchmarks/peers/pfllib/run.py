"""FedAvg in PFLlib: its `FedAvg` server and `clientAVG`, one client after another in one process.

    cd benchmarks && peers/pfllib/.venv/bin/python -m peers.pfllib.run --workload W7.npz --json out.json

PFLlib reads a client's images from a file of its own whenever it trains, drops short batches, has plain SGD, sends the
model to all clients in every round, and averages parameters only, not batch statistics.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import _rival
import numpy as np
import torch
from flcore.servers.serveravg import FedAvg
from peers import torch_models


def main() -> None:
    chosen = _rival.parser(__doc__, torch_models.PRECISIONS).parse_args()
    if chosen.processes != 1:
        sys.exit(f"pfllib: --processes {chosen.processes}: it trains in one process; leave it out")
    workload = _rival.load(chosen.workload, chosen.clients_per_round)
    refuse(workload)
    network = torch_models.build(workload.spec).to(torch_models.device_of(chosen))
    watch = _rival.stopwatch(chosen)
    with tempfile.TemporaryDirectory() as folder:
        write_clients(workload, Path(folder))
        server = Cohorts(settings(workload, network, chosen.device), workload, watch)
        server.train()
        os.chdir(Path(__file__).parent)
    facts = torch_models.facts(chosen, network) | _rival.commit_of(__file__)
    _rival.write(chosen.json, "pfllib", workload, watch, packages=("torch", "numpy"), **facts)


def refuse(workload: _rival.Workload) -> None:
    """Refuse what PFLlib would train otherwise than the workload says."""
    spec, sizes = workload.spec, np.diff(workload.offsets)
    if spec["optimizer"].keys() != {"name", "learning_rate"} or spec["optimizer"]["name"] != "sgd":
        sys.exit(f"pfllib: {spec['name']}: it has SGD without momentum only")
    if (sizes % spec["batch_size"]).any():
        sys.exit(f"pfllib: {spec['name']}: it drops short batches")


def write_clients(workload: _rival.Workload, folder: Path) -> None:
    """Write every client's images where PFLlib looks for them, and go where it looks from."""
    pixels = workload.pixels().transpose(0, 3, 1, 2)
    for part in ("train", "test"):
        (folder / "dataset" / "workload" / part).mkdir(parents=True)
        for client in range(len(workload.offsets) - 1):
            rows = workload.client(client)[: None if part == "train" else 1]
            data = np.array({"x": pixels[rows], "y": workload.labels[rows]})
            np.savez(folder / "dataset" / "workload" / part / f"{client}.npz", data=data)
    (folder / "system").mkdir()
    os.chdir(folder / "system")


def settings(workload: _rival.Workload, network: torch.nn.Module, device: str) -> argparse.Namespace:
    """The options that PFLlib's FedAvg reads, those that the workload doesn't say at PFLlib's defaults."""
    spec, clients = workload.spec, len(workload.offsets) - 1
    return argparse.Namespace(
        model=network,
        device=device,
        dataset="workload",
        num_classes=spec["num_classes"],
        num_clients=clients,
        join_ratio=workload.cohorts.shape[1] / clients,
        global_rounds=10**9,
        local_epochs=spec["local_epochs"],
        batch_size=spec["batch_size"],
        local_learning_rate=spec["optimizer"]["learning_rate"],
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        random_join_ratio=False,
        few_shot=0,
        algorithm="FedAvg",
        time_select=False,
        goal="test",
        time_threthold=10_000,
        save_folder_name="items",
        top_cnt=100,
        auto_break=True,
        eval_gap=10**9,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
    )


class Cohorts(FedAvg):
    """PFLlib's server, with the workload's cohorts in turn and a stopwatch in the place of evaluation."""

    def __init__(self, chosen: argparse.Namespace, workload: _rival.Workload, watch: _rival.Stopwatch) -> None:
        super().__init__(chosen, 0)
        self.workload, self.watch, self.number, self.over = workload, watch, 0, False
        self.current_num_join_clients = workload.cohorts.shape[1]
        self.tally = torch.zeros(2, device=chosen.device)
        for client in self.clients:
            client.loss = self.counting(client.loss)

    def counting(self, loss: Any) -> Any:
        """A loss that adds itself to the round's, and counts steps."""

        def count(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            value = loss(outputs, labels)
            self.tally[0] += value.detach()
            self.tally[1] += 1
            return value

        return count

    def select_clients(self) -> list[Any]:
        """The cohort of this round."""
        cohort = self.workload.cohort(self.number)
        self.number += 1
        return [self.clients[client] for client in cohort]

    def evaluate(self, acc: Any = None, loss: Any = None) -> None:
        """Note what PFLlib prints at the end; the other rivals don't evaluate either."""
        self.rs_test_acc = [0.0]

    def aggregate_parameters(self) -> None:
        """Average, then note the round."""
        super().aggregate_parameters()
        losses, steps = self.tally.tolist()
        self.tally.zero_()
        self.over = self.watch.lap(losses / steps)

    def check_done(self, *_: Any, **__: Any) -> bool:
        """Whether the time is over."""
        return self.over


if __name__ == "__main__":
    random.seed(0)
    main()
