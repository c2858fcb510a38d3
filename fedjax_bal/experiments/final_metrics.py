"""When a run is over, and what its last evaluations come to."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.config import MethodConfig
from fedjax_bal.validate import is_number

AT_THE_END = (
    "validation_accuracy",
    "balanced_accuracy",
    "worst_class_accuracy",
    "many_shot_accuracy",
    "medium_shot_accuracy",
    "few_shot_accuracy",
    "client_accuracy",
    "client_accuracy_std",
    "client_accuracy_worst10",
    "own_accuracy",
    "own_accuracy_std",
    "own_accuracy_worst10",
)
"""What a summary repeats of the last evaluated round."""

PERSONALISED = ("personalised_accuracy", "personalised_accuracy_std", "personalised_accuracy_worst10")
"""What it has of the clients' fine-tuned models."""

TIMES = ("simulated_s", "simulated_s_to_target")
"""What it has of the time that the clients would take."""


def is_over(config: MethodConfig, round: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run has come to its end.

    Args:
        config: its method's configuration.
        round: rounds done.
        lines: metrics of its evaluated rounds.

    Returns:
        True after the last round, or where early stopping says so; what the lines say is the same after a resumption.
    """
    return round >= config.training.rounds or config.training.early_stopping.rule.over(lines)


def final_metrics(
    config: MethodConfig,
    lines: Sequence[Mapping[str, Any]],
    personalised: Mapping[str, Any] | None,
    failure: str | None,
) -> dict[str, Any]:
    """What a summary says about the end of a run beyond its accuracy curve.

    Args:
        config: its method's configuration.
        lines: metrics of its evaluated rounds.
        personalised: what was noted about the clients' fine-tuned models; None where nothing was.
        failure: why the run has no end; None where it has, or will have.

    Returns:
        `stopped_early`: the last evaluated round of a run that early stopping ended, else None. The metrics named in
        `AT_THE_END`, of the last line. `best_validation_round`, the first round in which the validation metric was
        best, and `accuracy_at_best_validation`, that on the test set in that round. What `PERSONALISED` names.
        None for whatever there isn't.
    """
    rule, last = config.training.early_stopping.rule, lines[-1] if lines and not failure else {}
    early = bool(lines) and not failure and lines[-1]["round"] < config.training.rounds and rule.over(lines)
    best = rule.best(lines)
    chosen = {} if best is None else lines[best]
    return {
        "stopped_early": lines[-1]["round"] if early else None,
        **{key: last.get(key) for key in AT_THE_END},
        "best_validation_round": chosen.get("round"),
        "accuracy_at_best_validation": chosen.get("test_accuracy"),
        **{key: _number((personalised or {}).get(key)) for key in PERSONALISED},
    }


def simulated_times(lines: Sequence[Mapping[str, Any]], reached: int | None) -> dict[str, float | None]:
    """How long the rounds of a run would take.

    Args:
        lines: metrics of its evaluated rounds.
        reached: the round that reached the target; None where none did.

    Returns:
        What `TIMES` names, in seconds, up to the last evaluated round and up to the target; None without speeds.

    Example:
        >>> simulated_times([{"round": 1, "simulated_s": 2.0}, {"round": 2, "simulated_s": 3.0}], 1)
        {'simulated_s': 5.0, 'simulated_s_to_target': 2.0}
    """
    known = [line for line in lines if is_number(line.get("simulated_s"))]
    until = [line for line in known if reached is not None and line["round"] <= reached]
    return {
        name: round(sum(line["simulated_s"] for line in own), 6) if own else None
        for name, own in zip(TIMES, (known, until), strict=True)
    }


def _number(value: Any) -> Any:
    return value if is_number(value) else None
