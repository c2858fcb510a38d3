"""Published partitions against the steps of the code that draws them, one row at a time."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import published_partitions

pytestmark = pytest.mark.slow


def fedvls(labels, alpha):
    """What NumPy's global generator gives in the order in which the code asks for it."""
    np.random.seed(1)
    order = np.random.permutation(len(labels))
    own = labels[order[len(labels) // 4 :]]
    tries, clients = 0, [[] for _ in range(10)]
    while min(len(rows) for rows in clients) < 256:
        tries, clients = tries + 1, [[] for _ in range(10)]
        for label in range(10):
            rows = np.array([row for row in range(len(own)) if own[row] == label])
            np.random.shuffle(rows)
            shares = np.random.dirichlet([alpha] * 10)
            for client in range(10):
                shares[client] *= len(clients[client]) * 10 < len(own)
            done = 0.0
            for client in range(10):
                begin, done = int(done * len(rows)), done + shares[client] / shares.sum()
                clients[client] += list(rows[begin : len(rows) if client == 9 else int(done * len(rows))])
    return order, clients, tries


def test_clients_are_those_of_fedvls():
    labels = np.random.default_rng(0).integers(10, size=12_000)
    order, wanted, tries = fedvls(labels, 0.2)
    train, test, clients = published_partitions.draw_fedvls(labels, 0.2)
    assert tries > 1 and [rows.tolist() for rows in clients] == wanted
    assert np.array_equal([*test, *train], order) and len(test) == 3000


def test_clients_are_those_of_flower():
    labels = np.random.default_rng(1).integers(10, size=503)
    rng, classes, wanted = np.random.default_rng(42), [], [[] for _ in range(10)]
    for client in range(10):
        other = client
        while other == client:
            other = rng.choice(10, 1)[0]
        classes.append((client, other))
    for label in range(10):
        rows = np.array([row for row in range(503) if labels[row] == label])
        rng.shuffle(rows)
        owners = [client for client in range(10) if label in classes[client]]
        first = len(rows) % len(owners)  # owners who get one row more
        for place, owner in enumerate(owners):
            begin = place * (len(rows) // len(owners)) + min(place, first)
            wanted[owner] += list(rows[begin : begin + len(rows) // len(owners) + (place < first)])
    clients = published_partitions.draw_flower(labels, 42)
    assert [rows.tolist() for rows in clients] == wanted and sum(map(len, wanted)) == 503


def test_rebafl_draws_two_classes_for_each_client_with_numpys_global_generator():
    np.random.seed(2022)
    wanted = np.zeros((20, 10), int)
    for client in range(20):
        for label in np.random.choice(list(range(10)), 2, replace=False):
            wanted[client, label] = 500
    counts = published_partitions.draw_rebafl()
    assert counts.tolist() == wanted.tolist()
    assert (counts > 0).sum(0).tolist() == [4, 6, 5, 2, 5, 4, 4, 3, 2, 5]
