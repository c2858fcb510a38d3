"""FedAvg with `torch.func.vmap`: the clients of a round train concurrently on stacked parameters.

    python benchmarks/torch_vmap.py --workload W3.npz --processes 2 --json out.json

Clients are sorted by size and stacked `--chunk` at a time. A finished client leaves the stack, so the only wasted
computation is on the masked missing rows of short last batches. On a GPU the images are in its memory, and all clients
of a round are stacked. `--compile` compiles losses and gradients; with `reduce-overhead` a GPU replays them from CUDA
graphs. `torch.func` can't carry batch statistics through `vmap`, so `resnet20` doesn't run.
"""

import argparse
import copy
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import _rival
import numpy as np
import torch
from peers import torch_models, torch_rounds
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

Stack = dict[str, Tensor]
CHUNKS = {"mlp": 100, "astraea_cnn": 25, "conv2_lenet": 10, "conv2_pfl": 10, "simple_cnn": 10, "pfllib_cnn": 10}
ADAM = 0.9, 0.999, 1e-8


def main() -> None:
    chosen = parse()
    device = torch_models.device_of(chosen)
    workload = _rival.load(chosen.workload, chosen.clients_per_round)
    model = workload.spec["model"]
    if model not in CHUNKS:
        sys.exit(f"torch_vmap: {model} doesn't run: torch.func.vmap can't carry batch statistics.")
    whole = workload.cohorts.shape[1]
    chunk = chosen.chunk or (whole if chosen.device == "cuda" else CHUNKS[model])
    watch = _rival.stopwatch(chosen)
    make = functools.partial(Stacks, workload, device, chunk, chosen.compile)
    torch_rounds.run(workload, make, chosen.processes, watch)
    facts = torch_models.facts(chosen, torch_models.build(workload.spec)) | {"chunk": chunk, "compiled": chosen.compile}
    _rival.write(chosen.json, "torch_vmap", workload, watch, packages=("torch", "numpy"), **facts)


def parse() -> argparse.Namespace:
    made = _rival.parser(__doc__, torch_models.PRECISIONS)
    made.add_argument("--chunk", type=int, help=f"clients stacked at a time (default on a CPU: by model, {CHUNKS})")
    made.add_argument("--compile", choices=("default", "reduce-overhead"), help="the mode of torch.compile")
    return made.parse_args()


class Stacks:
    """Trains clients on stacks of parameters.

    Attributes:
        values: `[P]`; `start` holds views of it.
    """

    def __init__(
        self, workload: _rival.Workload, device: torch.device, chunk: int, mode: str | None, seed: int
    ) -> None:
        self.workload, self.device, self.chunk = workload, device, chunk
        network = torch_models.build(workload.spec).to(device)
        sums = copy.deepcopy(network)
        self.values, self.sum_values = torch_rounds.flat(network), torch_rounds.flat(sums)
        self.start, self.sums = named(network), named(sums)
        gradients = vmap(grad_and_value(loss_of(network)))
        self.gradients = torch.compile(gradients, mode=mode) if mode else gradients
        self.pixels = torch.from_numpy(workload.pixels()).to(device)
        self.labels = torch.from_numpy(workload.labels).long().to(device)
        self.rng = np.random.default_rng(seed)

    def cohort(self, clients: Sequence[int], start: Tensor, total: Tensor) -> tuple[float, int]:
        """Trains clients from `start` and adds their weighted values to `total`; returns summed losses and steps."""
        self.values.copy_(start)
        self.sum_values.zero_()
        ordered, losses, steps = sorted(clients, key=self.workload.size, reverse=True), 0.0, 0
        for first in range(0, len(ordered), self.chunk):
            loss, taken = self.stack(ordered[first : first + self.chunk])
            losses, steps = losses + loss, steps + taken
        total.copy_(self.sum_values)
        return losses, steps

    def stack(self, clients: Sequence[int]) -> tuple[float, int]:
        """Trains clients concurrently, longest first, and adds them to the sums; returns summed losses and steps."""
        rows = [self.schedule(client) for client in clients]
        stack = {name: value.expand(len(rows), *value.shape).clone() for name, value in self.start.items()}
        update, losses = optimizer(self.workload.spec["optimizer"], stack), torch.zeros((), device=self.device)
        for step in range(len(rows[0])):
            batch = torch.from_numpy(np.stack([steps[step] for steps in rows if len(steps) > step])).to(self.device)
            images = self.pixels[batch].permute(0, 1, 4, 2, 3)
            params = {name: value[: len(batch)] for name, value in stack.items()}
            slopes, loss = self.gradients(params, images, self.labels[batch], (batch >= 0).float())
            update(params, slopes, step)
            losses += loss.sum()
        sizes = torch.tensor([float(self.workload.size(client)) for client in clients], device=self.device)
        for name, value in self.sums.items():
            value.add_(torch.tensordot(sizes, stack[name], 1))
        return losses.item(), sum(map(len, rows))

    def schedule(self, client: int) -> np.ndarray:
        """Returns a client's shuffled rows `[steps, B]`, epoch after epoch, padded with -1 in short last batches."""
        size, batch = self.workload.size(client), self.workload.spec["batch_size"]
        epochs = []
        for _ in range(self.workload.spec["local_epochs"]):
            rows = np.full(-(-size // batch) * batch, -1, np.int64)
            rows[:size] = self.rng.permutation(self.workload.client(client))
            epochs.append(rows.reshape(-1, batch))
        return np.concatenate(epochs)


def named(network: nn.Module) -> Stack:
    return {name: value.detach() for name, value in network.named_parameters()}


def loss_of(network: nn.Module) -> Callable[[Stack, Tensor, Tensor, Tensor], Tensor]:
    """Computes the loss of one client's batch: the mean over its real rows."""

    def loss(params: Stack, images: Tensor, labels: Tensor, real: Tensor) -> Tensor:
        each = cross_entropy(functional_call(network, params, (images,)), labels, reduction="none")
        return (each * real).sum() / real.sum()

    return loss


def optimizer(chosen: dict[str, Any], stack: Stack) -> Callable[[Stack, Stack, int], None]:
    """Updates the first clients of a stack with SGD or Adam, in place."""
    if chosen["name"] == "adam":
        return adam(chosen["learning_rate"], stack)
    return sgd(chosen["learning_rate"], chosen.get("momentum", 0.0), stack)


def sgd(rate: float, momentum: float, stack: Stack) -> Callable[[Stack, Stack, int], None]:
    kept = {name: torch.zeros_like(value) for name, value in stack.items()} if momentum else {}

    def update(params: Stack, slopes: Stack, step: int) -> None:
        for name, value in params.items():
            slope = kept[name][: len(value)].mul_(momentum).add_(slopes[name]) if momentum else slopes[name]
            value.sub_(slope, alpha=rate)

    return update


def adam(rate: float, stack: Stack) -> Callable[[Stack, Stack, int], None]:
    means = {name: torch.zeros_like(value) for name, value in stack.items()}
    squares = {name: torch.zeros_like(value) for name, value in stack.items()}
    early, late, epsilon = ADAM

    def update(params: Stack, slopes: Stack, step: int) -> None:
        scale, spread = rate / (1 - early ** (step + 1)), (1 - late ** (step + 1)) ** 0.5
        for name, value in params.items():
            mean = means[name][: len(value)].lerp_(slopes[name], 1 - early)
            square = squares[name][: len(value)].mul_(late).addcmul_(slopes[name], slopes[name], value=1 - late)
            value.addcdiv_(mean, square.sqrt().div_(spread).add_(epsilon), value=-scale)

    return update


if __name__ == "__main__":
    main()
