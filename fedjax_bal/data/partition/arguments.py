"""Checks of the arguments that partition schemes share."""

from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from fedjax_bal.data.row_numbers import cut, even_sizes, rows_by_label
from fedjax_bal.validate import check_generator, checked_labels, whole_number

Concentration = Annotated[float, Gt(0)]
"""The concentration of a Dirichlet law: small ones give each client few classes."""

_LARGEST_ALPHA = 1e12  # beyond it shares are equal to six digits, and their sum would overflow


def checked_pool(rng: Any, labels: np.ndarray, num_clients: int) -> tuple[int, list[np.ndarray], np.ndarray]:
    """Returns the number of clients, and of each class present the row numbers and how many they are, `Int[C]`."""
    check_generator(rng)
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    rows, _, sizes = rows_by_label(labels)
    return num_clients, cut(rows, sizes), sizes


def checked_even_pool(
    rng: Any, labels: np.ndarray, num_clients: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Returns `checked_pool`'s rows and numbers, and the sizes `Int[N]` of equal clients, each of at least a row."""
    num_clients, by_class, quotas = checked_pool(rng, labels, num_clients)
    total = int(quotas.sum())
    check_clients_below_rows(num_clients, total)
    return by_class, quotas, even_sizes(total, num_clients)


def checked_number(name: str, value: Any, allowed: Callable[[Any], bool], rule: str) -> float:
    """Returns a real number that is allowed; the message names the rule."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(value):
        raise ValueError(f"{name}={value!r}; expected {rule}.")
    return float(value)


def checked_alpha(alpha: float) -> float:
    """Returns the concentration of a Dirichlet law, at most 1e12."""
    checked = checked_number("alpha", alpha, lambda value: 0 < value < np.inf, "a finite number above 0")
    return min(checked, _LARGEST_ALPHA)


def check_clients_below_rows(num_clients: int, total: int) -> None:
    """Raises if there are more clients than rows."""
    if num_clients > total:
        raise ValueError(f"{num_clients} clients for {total} rows: some would be left with nothing; take fewer.")


def checked_room(total: int, num_clients: int, least: int, name: str = "least") -> tuple[int, int, int]:
    """Returns the three numbers if there are enough rows for each client to have the least size."""
    num_clients, least = whole_number("num_clients", num_clients), whole_number(name, least, low=0)
    total = whole_number("total", total)
    if num_clients * least > total:
        raise ValueError(
            f"{num_clients} clients of {least} rows or more ({name}) need {num_clients * least} rows, but there are "
            f"{total}; take fewer clients or a smaller {name}."
        )
    return total, num_clients, least
