"""The workloads' networks in PyTorch, for every rival that trains with it.

They take images `[B, K, H, W]` in channels-last memory, which oneDNN convolves fastest, and pool before the activation,
which gives the same values for less work. Weights start as PyTorch starts them.
"""

import argparse
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PRECISIONS = ("float32", "tensorfloat32")
"""Those that PyTorch switches for a whole program."""


def device_of(chosen: argparse.Namespace) -> torch.device:
    """Returns the device that a command line asks for, and sets its precision."""
    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda, but this PyTorch sees no GPU; install its CUDA build, or use --device cpu")
    set_precision(chosen.precision)
    return torch.device(chosen.device)


def set_precision(precision: str) -> None:
    """Sets whether a GPU may use TensorFloat-32, PyTorch's default for convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True


def facts(chosen: argparse.Namespace, network: nn.Module) -> dict[str, Any]:
    """What a result says of a run on a CPU or a GPU."""
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu"
    return {
        "params": num_params(network),
        "processes": chosen.processes,
        "device": device,
        "precision": chosen.precision,
    }


class Flatten(nn.Module):
    """Flatten maps in the order they lie in memory, so that channels-last ones need no copy."""

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[B, K, H, W]` to `[B, H W K]`."""
        return maps.permute(0, 2, 3, 1).flatten(1)


def conv2_pfl(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *_head(15 * 15 * 64, 128, outputs),
    )


def conv2_lenet(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *_head(7 * 7 * 32, 128, outputs),
    )


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(*_head(28 * 28, 64, outputs))


def simple_cnn(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        Flatten(),
        nn.Linear(5 * 5 * 16, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


def pfllib_cnn(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *_head(4 * 4 * 64, 512, outputs),
    )


def astraea_cnn(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, 2),
        nn.ReLU(),
        nn.Conv2d(12, 18, 3, 2),
        nn.ReLU(),
        nn.Conv2d(18, 24, 2),
        nn.ReLU(),
        *_head(4 * 4 * 24, 150, outputs),
    )


def resnet20(outputs: int) -> nn.Module:
    blocks, inputs = [], 16
    for width in (16, 32, 64):
        for unit in range(3):
            blocks.append(Block(inputs, width, 2 if unit == 0 and width > 16 else 1))
            inputs = width
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
    network = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return network


class Block(nn.Module):
    """Two convolutions with batch normalisation and a way around them, projected where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        around = nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
        self.around = nn.Identity() if stride == 1 else nn.Sequential(*around)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[B, K, H, W]` to `[B, width, H / stride, W / stride]`."""
        inner = functional.relu(self.first_norm(self.first(maps)), inplace=True)
        return functional.relu(self.second_norm(self.second(inner)) + self.around(maps), inplace=True)


def _head(inputs: int, hidden: int, outputs: int) -> tuple[nn.Module, ...]:
    return Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)


NETWORKS = {
    network.__name__: network
    for network in (conv2_pfl, conv2_lenet, mlp, astraea_cnn, resnet20, simple_cnn, pfllib_cnn)
}


def build(spec: dict[str, Any], memory_format: torch.memory_format = torch.channels_last) -> nn.Module:
    """The network of a workload, in training mode, the same at every call."""
    torch.manual_seed(0)
    return NETWORKS[spec["model"]](spec["num_classes"]).to(memory_format=memory_format)


def images_of(pixels: Any) -> Tensor:
    """Pixels `[D, H, W, K]` as images `[D, K, H, W]` in channels-last memory, without a copy."""
    return torch.as_tensor(pixels).permute(0, 3, 1, 2)


def optimizer(spec: dict[str, Any], params: Any, **options: Any) -> torch.optim.Optimizer:
    """The local optimizer of a workload."""
    chosen = dict(spec["optimizer"])
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[chosen.pop("name")]
    return kind(params, lr=chosen.pop("learning_rate"), **chosen, **options)


class Local:
    """Local training for frameworks that leave it to their user.

    Attributes:
        network: the network that is trained.
    """

    def __init__(self, workload: Any, network: nn.Module, device: torch.device | None = None) -> None:
        self.workload, self.network = workload, network
        self.pixels = torch.from_numpy(workload.pixels()).to(device)
        self.labels = torch.from_numpy(workload.labels).long().to(device)

    def train(self, client: int, network: nn.Module | None = None) -> tuple[float, int]:
        """Train a client on the network as it stands; the sum of its losses, and its steps."""
        network, spec = network or self.network, self.workload.spec
        local, rows = optimizer(spec, network.parameters(), fused=True), torch.from_numpy(self.workload.client(client))
        losses, steps = torch.zeros((), device=self.labels.device), 0
        for _ in range(spec["local_epochs"]):
            for batch in rows[torch.randperm(len(rows))].to(self.labels.device).split(spec["batch_size"]):
                loss = functional.cross_entropy(network(images_of(self.pixels[batch])), self.labels[batch])
                local.zero_grad()
                loss.backward()
                local.step()
                losses, steps = losses + loss.detach(), steps + 1
        return losses.item(), steps


def num_params(network: nn.Module) -> int:
    """How many weights are trained."""
    return sum(value.numel() for value in network.parameters())
