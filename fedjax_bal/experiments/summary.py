"""What `summary.json` says of a comparison: runs, partitions, mini-batches, and what it all cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import Config, MethodConfig
from fedjax_bal.engine.host import Simulation
from fedjax_bal.experiments.client_summary import summarise_augmentation, summarise_batches, summarise_chains
from fedjax_bal.experiments.fault_summary import summarise_faults
from fedjax_bal.experiments.final_metrics import final_metrics, simulated_times
from fedjax_bal.metrics import summarise
from fedjax_bal.validate import is_number

_HEAT_MAP_CLIENTS = 200  # more rows than that can't be told apart on a page

Lines = Sequence[Mapping[str, Any]]


class Cost(NamedTuple):
    """What the work of a folder has cost so far, over all sessions."""

    compile_s: float = 0.0
    train_s: float = 0.0
    client_updates: int = 0
    samples: int = 0

    def record(self) -> dict[str, Any]:
        """What to write down: rates of training, compilation apart, None before anything was trained."""
        return {
            "client_updates_per_s": _rate(self.client_updates, self.train_s),
            "samples_per_s": _rate(self.samples, self.train_s),
            "cost": self._asdict(),
        }


def cost_of(saved: Any) -> Cost:
    """The cost that an earlier session wrote down; 0 for what is damaged."""
    values = saved if isinstance(saved, dict) else {}
    return Cost(*(number(values.get(key)) for key in Cost._fields))


def number(value: Any) -> Any:
    """A count or a time that an earlier session wrote; 0 where it is damaged."""
    return value if is_number(value) and math.isfinite(value) else 0


def summarise_run(
    config: MethodConfig,
    simulation: Simulation,
    lines: Lines,
    personalised: Mapping[str, Any] | None,
    failure: str | None,
) -> dict[str, Any]:
    """What a run's metrics come to.

    Args:
        config: its method's configuration.
        simulation: its simulation.
        lines: metrics of its evaluated rounds.
        personalised: what was noted about the clients' fine-tuned models; None where nothing was.
        failure: why the run has no end; None where it has, or will have.

    Returns:
        Names and values, ready for JSON.
    """
    target = config.evaluation.target_accuracy
    curve = summarise([line["test_accuracy"] for line in lines], [line["round"] for line in lines], target)
    reached = curve["rounds_to_target"]
    if failure:  # it has no end, whatever it had reached before
        curve |= {"final_accuracy": None, "last5_accuracy": None, "last10_accuracy": None}
    return {
        "rounds": lines[-1]["round"] if lines else 0,
        **curve,
        **final_metrics(config, lines, personalised, failure),
        "traffic_bytes": _traffic(lines),
        "traffic_to_target_bytes": None if reached is None else _traffic([x for x in lines if x["round"] <= reached]),
        **simulated_times(lines, reached),
        **summarise_faults(lines),
        **summarise_chains(simulation, lines),
    }


def summarise_partitions(config: Config, simulations: Sequence[Simulation]) -> list[dict[str, Any]]:
    """Who holds what, once for all methods that share it.

    Args:
        config: the configuration.
        simulations: one for each of its methods.

    Returns:
        An entry for each partition, ready for JSON.
    """
    shared: dict[Any, dict[str, Any]] = {}
    for method, simulation in zip(config.methods, simulations, strict=True):
        federation = simulation.federation
        clients = federation.num_clients
        shown = np.unique(np.linspace(0, clients - 1, min(clients, _HEAT_MAP_CLIENTS)).astype(int))
        entry = {
            "methods": [],
            "clients": clients,
            "mean": _shortest(federation.mean),
            "std": _shortest(federation.std),
            "shown": shown.tolist(),
            "class_counts": np.asarray(federation.class_counts)[shown].tolist(),
            **summarise_augmentation(federation),
        }
        # By content: what a method does to its federation may leave it like another one's.
        constants = entry["mean"], entry["std"]
        key = np.asarray(federation.class_counts).tobytes(), repr((summarise_augmentation(federation), constants))
        shared.setdefault(key, entry)["methods"].append(method.name)
    return list(shared.values())


def batches(config: Config, simulations: Sequence[Simulation]) -> list[dict[str, Any]]:
    """What methods that change mini-batches make of them, once for those that make the same.

    Args:
        config: the configuration.
        simulations: one for each of its methods.

    Returns:
        An entry for each, ready for JSON.
    """
    found: list[dict[str, Any]] = []
    for method, simulation in zip(config.methods, simulations, strict=True):
        about = summarise_batches(simulation)
        alike = next((entry for entry in found if {**entry, **about} == entry), None) if about else None
        if alike:
            alike["methods"].append(method.name)
        elif about:
            found.append({"methods": [method.name], **about})
    return found


def _shortest(numbers: Any) -> list[float]:
    """Numbers of 32 bits, with no more digits than they need: 0.1307, not 0.13070000708103180."""
    return [float(str(number)) for number in np.asarray(numbers, np.float32)]


def _traffic(lines: Lines) -> int:
    return sum(line["bytes_up"] + line["bytes_down"] for line in lines)


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds > 0 else None
