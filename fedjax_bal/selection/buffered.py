"""FedBuff's event queue: clients train all the time, and a round ends when enough updates have arrived."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.annotations import Count, checked
from fedjax_bal.selection.selectors import Asynchrony, Selector, generator, open_loop, sample, single


class Queue(NamedTuple):
    """The clients in training between two rounds.

    Attributes:
        arrival: time at which each client's update arrives, in seconds from the beginning of the run, `Float64[N]`;
            infinity for a client that isn't training.
        version: the round, from 0, whose model each client received last, `Int64[N]`.
        clock: time at which the last round ended, `Float64[]`.
    """

    arrival: np.ndarray
    version: np.ndarray
    clock: Any


@checked
def buffered(clients_per_round: Count, concurrency: Count | None = None, max_staleness: Count = 20) -> Selector:
    """Selects the clients whose updates arrive next, while the others go on training; a round is a server step.

    Up to `concurrency` clients train at a time, drawn uniformly from those that are available and idle. A client that
    has finished is replaced at once by another one, which receives the current model: its update may arrive rounds
    later, and is stale by as many rounds. When `clients_per_round` updates have arrived, the server makes its step,
    and further clients receive the new model. A client contributes at most once to each step.

    How long a client trains follows from its number of local steps and its speed when it starts; without speeds, a
    local step takes a second. Sending takes no time. Learning rates, and everything else that depends on the round, are
    those of the round in which the update arrives.

    Args:
        clients_per_round: K, the updates in a step of the server, at least 1. A round has fewer if no other client is
            training or available.
        concurrency: M, the largest number of clients that train at the same time; by default twice
            `clients_per_round`. Fewer train while fewer are available.
        max_staleness: staler updates still count towards K, but are discarded: the client counts as dropped, as it does
            if `delivery` loses its update. Each device keeps the models of `max_staleness` + 1 rounds.

    Returns:
        The selector, for asynchronous rounds.

    Raises:
        ValueError: an argument out of range.

    Example:
        Client 2 needs ten seconds. Meanwhile the others finish, and start again on newer models:

        >>> selector = buffered(1, concurrency=3)
        >>> state = selector.init(0, 3)
        >>> for round in range(4):
        ...     chosen, state = selector.select(state, 0, round, np.ones(3, bool), np.array([3.0, 4.0, 10.0]))
        ...     client = chosen[0, 0]
        ...     print(f"after {state.clock:g} s client {client}, stale by {round - state.version[client]}")
        after 3 s client 0, stale by 0
        after 4 s client 1, stale by 1
        after 6 s client 0, stale by 1
        after 8 s client 1, stale by 1

    References:
        FedBuff (Nguyen et al., 2022), Algorithm 1. There all clients are always available, and staleness is bounded by
        assumption. Updates that arrive at the same time are received before a model is sent, so that clients of equal
        speed train in synchronous rounds if `concurrency` is `clients_per_round`. The authors' simulator FLSim starts
        clients at a given rate, so that their number varies, may draw a client that is in training, and doesn't count
        updates beyond its `max_staleness` towards the K.
    """
    places = clients_per_round
    limit = 2 * places if concurrency is None else concurrency

    def init(seed: int, num_clients: int) -> Queue:
        return Queue(np.full(num_clients, np.inf), np.zeros(num_clients, np.int64), np.float64(0))

    def select(
        state: Queue, seed: int, round: int, available: np.ndarray, seconds: np.ndarray
    ) -> tuple[np.ndarray, Queue]:
        rng = generator(seed, "selection", round)
        arrival = state.arrival.copy()
        version = state.version.copy()
        clock = state.clock
        received = np.zeros(0, np.int64)
        while len(received) < places:
            # Free places in training are filled. The first time, that is with the model of the round's beginning,
            # which the last round's step has made.
            training = np.isfinite(arrival)
            free = limit - int(np.count_nonzero(training))
            if free > 0:
                idle = available & ~training
                idle[received] = False
                started = sample(rng, idle, free)
                arrival[started] = clock + seconds[started]
                version[started] = round
            if not np.isfinite(arrival).any():
                break
            # All updates of an instant arrive before any client starts; those that find no place wait for the next
            # round.
            clock = arrival.min()
            arrived = np.flatnonzero(arrival == clock)[: places - len(received)]
            arrival[arrived] = np.inf
            received = np.append(received, arrived)
        return single(received, places, len(available)), Queue(arrival, version, clock)

    timing = Asynchrony(max_staleness, lambda state: state.version, lambda state: float(state.clock))
    return open_loop(select, places, init)._replace(asynchrony=timing)
