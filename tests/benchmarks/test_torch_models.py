"""The rivals' networks in PyTorch."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from export import spec

from fedjax_bal.bench.workloads import WORKLOADS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workload", WORKLOADS)
def test_networks_have_the_size_and_the_input_of_the_workloads(workload):
    torch = pytest.importorskip("torch")
    from peers import torch_models

    told = spec(WORKLOADS[workload])
    network = torch_models.build(told)
    assert torch_models.num_params(network) == told["params"]
    height, width, channels = told["input_shape"]
    assert network(torch.zeros(2, channels, height, width)).shape == (2, told["num_classes"])
