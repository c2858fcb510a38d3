"""The privacy that a run of `recipes.dp` guarantees, as epsilon."""

import importlib
from typing import Literal

import numpy as np

from fedjax_bal.validate import finite_number, one_of, whole_number

# Of Rényi divergences. The sums for orders in between don't converge for every sampling rate, and the package warns of
# each; without sampling its own orders have a closed form.
_ORDERS_OF_SAMPLES = np.array([*range(2, 65), 128, 256, 512, 1024])


def epsilon(
    noise: float,
    rounds: int,
    clients: int,
    clients_per_round: int,
    delta: float,
    neighbours: Literal["add_or_remove", "replace"] = "add_or_remove",
) -> float:
    r"""The $\epsilon$ for which so many rounds of `recipes.dp` are $(\epsilon, \delta)$-differentially private.

    What is private is a client's taking part. The metric `epsilon` of a run is this number after each round. It needs
    `pip install 'fedjax_bal[privacy]'`, whose package `dp-accounting` adds up Rényi divergences.

    Args:
        noise: z, the recipe's noise multiplier, above 0.
        rounds: the number of rounds so far.
        clients: N.
        clients_per_round: the cohort's size, at most N.
        delta: in (0, 1), usually below 1 / N.
        neighbours: "add_or_remove", federations with one client more or less, as if each client were drawn on its own
            with probability `clients_per_round` / N: the usual number in papers. "replace", federations that differ in
            one client, and cohorts of fixed size, as `selection.uniform` draws them: larger, for a client that is
            replaced moves the sum by twice the bound.

    Returns:
        epsilon, infinite without noise.

    Raises:
        ImportError: `dp-accounting` is not installed.
        ValueError: a value out of range.
    """
    if finite_number("epsilon: noise", noise) == 0:
        return float("inf")
    rounds, clients = whole_number("epsilon: rounds", rounds), whole_number("epsilon: clients", clients)
    size = whole_number("epsilon: clients_per_round", clients_per_round)
    one_of("epsilon: neighbours", neighbours, ("add_or_remove", "replace"))
    if size > clients or not 0 < delta < 1:
        raise ValueError(
            f"epsilon: received {size} clients a round of {clients}, and delta {delta}; must be at most all clients, "
            "and a delta between 0 and 1"
        )
    try:
        accounting, rdp = importlib.import_module("dp_accounting"), importlib.import_module("dp_accounting.rdp")
    except ImportError as error:
        raise ImportError("epsilon: needs the package dp-accounting: pip install 'fedjax_bal[privacy]'") from error
    sampled = size < clients
    if neighbours == "replace":
        relation = accounting.NeighboringRelation.REPLACE_ONE
        event = accounting.GaussianDpEvent(noise / 2)
        event = accounting.SampledWithoutReplacementDpEvent(clients, size, event) if sampled else event
    else:
        relation = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = accounting.PoissonSampledDpEvent(size / clients, accounting.GaussianDpEvent(noise))
    accountant = rdp.RdpAccountant(_ORDERS_OF_SAMPLES if sampled else None, neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
