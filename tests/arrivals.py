"""FedBuff's Algorithm 1 without the training, event by event."""

import heapq

import numpy as np

from fedjax_bal.selection.selectors import generator, sample


def events(places, limit, seconds_by_round, available_by_round, seed=0):
    """The clients, their staleness and the time of each of the server's steps.

    A heap holds (time, client) for each client in training, `model_of` the number of the model that it received. Only
    the draw of idle clients is the library's.
    """
    heap, model_of, clock, rounds = [], {}, 0.0, []
    for number, (seconds, available) in enumerate(zip(seconds_by_round, available_by_round, strict=True)):
        rng, buffer, complete = generator(seed, "selection", number), {}, False
        while not complete:
            if len(model_of) < limit:
                idle = [available[c] and c not in model_of and c not in buffer for c in range(len(seconds))]
                for client in map(int, sample(rng, np.array(idle), limit - len(model_of))):
                    model_of[client] = number
                    heapq.heappush(heap, (clock + seconds[client], client))
            at_once = bool(heap)
            while at_once and not complete:
                clock, client = heapq.heappop(heap)
                buffer[client] = number - model_of.pop(client)
                complete = len(buffer) == places
                at_once = bool(heap) and heap[0][0] == clock
            complete = complete or not (heap or any(available[c] and c not in buffer for c in range(len(seconds))))
        rounds.append((list(buffer), list(buffer.values()), clock))
    return rounds
