"""FedAvg as a hand-written PyTorch loop: one client after another, optimised as far as plain PyTorch allows.

    python benchmarks/torch_loop.py --workload W2.npz --processes 2 --json out.json

Images are normalised once and stored in channels-last memory, the optimizer is fused, and pooling precedes the
activation. On a GPU the images are in its memory. `--compile` compiles network and loss, which on a GPU are then
replayed with their gradients from CUDA graphs; smaller batches at the end of an epoch stay eager, because every size
would be compiled.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext

import _rival
import torch
from peers import torch_models, torch_rounds
from torch import Tensor
from torch.nn.functional import cross_entropy


def main() -> None:
    chosen = parse()
    device = torch_models.device_of(chosen)
    workload = _rival.load(chosen.workload, chosen.clients_per_round)
    watch = _rival.stopwatch(chosen)
    torch_rounds.run(workload, lambda rank: Loop(workload, chosen, device, rank), chosen.processes, watch)
    facts = torch_models.facts(chosen, torch_models.build(workload.spec)) | {"compiled": chosen.compile}
    _rival.write(chosen.json, "torch_loop", workload, watch, packages=("torch", "numpy"), **facts)


def parse() -> argparse.Namespace:
    made = _rival.parser(__doc__, (*torch_models.PRECISIONS, "bfloat16"))
    made.add_argument("--compile", action="store_true", help="compile the network; on a GPU with CUDA graphs")
    return made.parse_args()


class Loop:
    """Trains one client after another on one network.

    Attributes:
        values: `[P]`, parameters and batch statistics; the network's tensors are views of it.
    """

    def __init__(self, workload: _rival.Workload, chosen: argparse.Namespace, device: torch.device, seed: int) -> None:
        self.workload = workload
        self.network = torch_models.build(workload.spec).to(device)
        self.values = torch_rounds.flat(self.network)
        self.optimizer = torch_models.optimizer(workload.spec, self.network.parameters(), fused=True)
        self.pixels = torch.from_numpy(workload.pixels()).to(device)
        self.labels = torch.from_numpy(workload.labels).long().to(device)
        low = chosen.precision == "bfloat16"
        self.cast = torch.autocast(chosen.device, torch.bfloat16) if low else nullcontext()
        self.compiled = torch.compile(self.loss, mode="reduce-overhead") if chosen.compile else None
        self.generator = torch.Generator().manual_seed(seed)

    def cohort(self, clients: Sequence[int], start: Tensor, total: Tensor) -> tuple[float, int]:
        """Trains clients from `start` and adds their weighted values to `total`; returns summed losses and steps."""
        losses, steps = torch.zeros((), device=total.device), 0
        total.zero_()
        for client in clients:
            self.values.copy_(start)
            self.optimizer.state.clear()
            for batch in self.batches(client):
                losses += self.step(batch)
                steps += 1
            total.add_(self.values, alpha=self.workload.size(client))
        return losses.item(), steps

    def batches(self, client: int) -> list[Tensor]:
        """Yields a client's rows in batches, shuffled for every epoch."""
        rows, spec = torch.from_numpy(self.workload.client(client)), self.workload.spec
        orders = [torch.randperm(len(rows), generator=self.generator) for _ in range(spec["local_epochs"])]
        return [batch for order in orders for batch in rows[order].to(self.labels.device).split(spec["batch_size"])]

    def step(self, batch: Tensor) -> Tensor:
        """Takes one step; returns its loss."""
        images, labels = torch_models.images_of(self.pixels[batch]), self.labels[batch]
        whole = len(batch) == self.workload.spec["batch_size"]
        loss = (self.compiled or self.loss)(images, labels) if whole else self.loss(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Computes the loss of a batch."""
        with self.cast:
            return cross_entropy(self.network(images), labels)


if __name__ == "__main__":
    main()
