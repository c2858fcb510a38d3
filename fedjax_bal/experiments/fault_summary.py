"""What a run's summary says about clients that were left out or cut."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.validate import is_number

MOST_NAMED = 8


def summarise_faults(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often clients broke, and which.

    Args:
        lines: metrics of the evaluated rounds, maybe from a file.

    Returns:
        `excluded` and `clipped`, counts over all rounds, None where broken clients end the run; `broken_clients`, the
        first few of both in words, None where there are none.

    Example:
        >>> summarise_faults([{"excluded": 1, "clipped": 0, "broken_clients": [[5, 3, "not finite"]]}])
        {'excluded': 1, 'clipped': 0, 'broken_clients': 'client 3 in round 5 (not finite)'}
    """
    counts = {key: [line[key] for line in lines if is_number(line.get(key))] for key in ("excluded", "clipped")}
    sums = {key: int(sum(values)) if values else None for key, values in counts.items()}
    total = sum(value or 0 for value in sums.values())
    rows = [row for line in lines for row in _list(line.get("broken_clients")) if len(_list(row)) == 3]
    named = [f"client {client} in round {round} ({why})" for round, client, why in rows[:MOST_NAMED]]
    rest = total - len(named)
    text = ", ".join(named) + (f", and {rest} more" if rest > 0 else "")
    return {**sums, "broken_clients": text if total else None}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
