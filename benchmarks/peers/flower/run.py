"""FedAvg in Flower: its simulation engine, which trains clients in processes of Ray's, and its `FedAvg` strategy.

    cd benchmarks && peers/flower/.venv/bin/python -m peers.flower.run --workload W2.npz --processes 2 --json out.json

There are as many nodes as clients a round; in each round a node plays another client of the workload's cohort.
"""

import contextlib
import os
import tempfile
from typing import Any

import _rival
import torch
from flwr.client import ClientApp
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from peers import torch_models
from peers.flower.client import VARIABLES, client, values_of


def main() -> None:
    arguments = _rival.parser(__doc__).parse_args()
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    network, watch = torch_models.build(workload.spec), _rival.Stopwatch(arguments.seconds)
    threads = max(1, (os.cpu_count() or 1) // arguments.processes)
    settings = str(arguments.workload.resolve()), str(workload.cohorts.shape[1]), str(threads)
    os.environ |= dict(zip(VARIABLES, settings, strict=True))
    # The simulation has no way to end early but an error.
    with contextlib.suppress(RuntimeError), tempfile.TemporaryDirectory() as folder:
        os.environ["FLWR_HOME"] = folder
        simulate(workload, network, watch, arguments.processes)
    facts = {"params": torch_models.num_params(network), "processes": arguments.processes}
    _rival.write(arguments.json, "flower", workload, watch, packages=("flwr", "ray", "torch", "numpy"), **facts)


def simulate(workload: _rival.Workload, network: torch.nn.Module, watch: _rival.Stopwatch, processes: int) -> None:
    """Train until the stopwatch ends it."""

    def server(_: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=Timed(network, watch), config=ServerConfig(num_rounds=10**6))

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=client),
        num_supernodes=workload.cohorts.shape[1],
        backend_config={"init_args": {"num_cpus": processes}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


class Timed(FedAvg):
    """FedAvg without evaluation, and with a stopwatch."""

    def __init__(self, network: torch.nn.Module, watch: _rival.Stopwatch) -> None:
        start = ndarrays_to_parameters(values_of(network))
        tell = lambda number: {"round": number - 1}
        super().__init__(fraction_evaluate=0.0, initial_parameters=start, on_fit_config_fn=tell)
        self.watch = watch

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average, and note the round."""
        if failures:
            raise failures[0] if isinstance(failures[0], BaseException) else RuntimeError(str(failures[0]))
        averaged = super().aggregate_fit(server_round, results, failures)
        losses, steps = (sum(answer.metrics[key] for _, answer in results) for key in ("losses", "steps"))
        if self.watch.lap(losses / steps):
            raise RuntimeError("the time is over")
        return averaged


if __name__ == "__main__":
    main()
