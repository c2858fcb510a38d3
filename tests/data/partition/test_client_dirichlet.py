import numpy as np
import pytest
import scipy.stats
from data.partition.drawn import counts_of, rng

from fedjax_bal.data.partition import balanced_dirichlet, client_dirichlet, refilled_dirichlet
from fedjax_bal.data.partition.client_dirichlet import _served

LABELS = np.repeat(np.arange(4), [100, 60, 30, 10])


def literal(rng, labels, clients, alpha):
    """FedDyn's procedure, row by row: a client that isn't full, then a class among those that have rows left.

    It draws classes until one has rows left, which is drawing from the law over those.
    """
    left, quota = np.bincount(labels), np.full(clients, len(labels) // clients)
    laws = rng.dirichlet([alpha] * len(left), clients)
    counts = np.zeros((clients, len(left)), int)
    while quota.any():
        client = rng.integers(clients)
        if quota[client] == 0:
            continue
        law = laws[client] * (left > 0)
        law = law if law.sum() > 0 else left.astype(float)
        label = int(np.searchsorted(np.cumsum(law), rng.random() * law.sum(), side="right"))
        quota[client] -= 1
        left[label] -= 1
        counts[client, label] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_it_has_the_law_of_drawing_row_by_row(alpha):
    ours = np.stack([counts_of(LABELS, client_dirichlet(rng(seed), LABELS, 5, alpha)) for seed in range(150)])
    theirs = np.stack([literal(rng(1000 + seed), LABELS, 5, alpha) for seed in range(150)])
    assert ours.sum(axis=2).tolist() == theirs.sum(axis=2).tolist()  # 40 rows each
    for label in range(4):
        assert scipy.stats.ks_2samp(ours[:, 0, label], theirs[:, 0, label]).pvalue > 0.01
    most = [counts.max(axis=2).ravel() for counts in (ours, theirs)]
    assert scipy.stats.ks_2samp(*most).pvalue > 0.01


def test_turns_go_to_those_who_are_not_full_with_equal_chance():
    turns = np.stack([_served(rng(seed), np.array([1, 3])) for seed in range(2000)])
    assert (np.sort(turns, axis=1) == [0, 1, 1, 1]).all()
    place = np.bincount(np.argmin(turns, axis=1), minlength=4) / 2000
    # Client 0 is chosen with 1/2 each time, and for certain once the other one is full.
    np.testing.assert_allclose(place, [1 / 2, 1 / 4, 1 / 8, 1 / 8], atol=0.04)


def test_a_global_prior_has_the_classes_of_the_whole_on_average():
    uniform, whole = (
        np.mean([counts_of(LABELS, client_dirichlet(rng(seed), LABELS, 1, 1.0, prior))[0] for seed in range(3)], axis=0)
        for prior in ("uniform", "global")
    )
    assert uniform.tolist() == whole.tolist() == [100, 60, 30, 10]  # a single client gets everything
    first = np.array(
        [counts_of(np.tile(LABELS, 20), client_dirichlet(rng(seed), np.tile(LABELS, 20), 100, 50.0, "global"))[0]
         for seed in range(20)]
    )  # fmt: skip
    np.testing.assert_allclose(first.mean(axis=0) / 40, [0.5, 0.3, 0.15, 0.05], atol=0.05)


@pytest.mark.parametrize("scheme", [client_dirichlet, balanced_dirichlet])
def test_alpha_orders_how_many_classes_a_client_has(scheme):
    labels = np.repeat(np.arange(10), 200)
    held = [
        np.mean([(counts_of(labels, scheme(rng(seed), labels, 20, alpha)) > 0).sum(axis=1) for seed in range(3)])
        for alpha in (0.01, 0.1, 1.0, 100.0)
    ]
    assert held == sorted(held) and held[0] < 5 and held[-1] > 9.9


@pytest.mark.parametrize("scheme", [client_dirichlet, balanced_dirichlet])
def test_a_large_alpha_is_nearly_the_classes_of_the_whole(scheme):
    labels = np.repeat(np.arange(4), 1000)
    counts = counts_of(labels, scheme(rng(), labels, 4, 1e38))
    assert np.abs(counts - 250).max() < 60  # four standard deviations of a binomial


def test_many_classes_with_few_rows_are_all_given():
    labels = np.repeat(np.arange(2000), 3)
    parts = client_dirichlet(rng(), labels, 100, 0.01)
    assert sorted(np.concatenate(parts).tolist()) == list(range(6000))


def literal_refilled(rng, labels, clients, alpha):
    """FedDyn's procedure, but for a class that is used up, which starts anew before another one is drawn."""
    sizes, quota = np.bincount(labels), np.full(clients, len(labels) // clients)
    left, laws = sizes.copy(), np.cumsum(rng.dirichlet([alpha] * len(sizes), clients), axis=1)
    counts = np.zeros((clients, len(sizes)), int)
    while quota.any():
        client = rng.integers(clients)
        if quota[client] == 0:
            continue
        quota[client] -= 1
        while True:
            label = np.argmax(rng.random() <= laws[client])
            if left[label] > 0:
                break
            left[label] = sizes[label]
        left[label] -= 1
        counts[client, label] += 1
    return counts


def test_refilled_has_the_law_of_drawing_row_by_row():
    labels = np.repeat(np.arange(4), 100)  # a client has 40 rows: no class is too small for one
    ours = np.stack([counts_of(labels, refilled_dirichlet(rng(seed), labels, 10, 0.3)) for seed in range(100)])
    theirs = np.stack([literal_refilled(rng(1000 + seed), labels, 10, 0.3) for seed in range(100)])
    assert (ours.sum(axis=2) == 40).all() and (theirs.sum(axis=2) == 40).all()
    for counts in (lambda tables: tables.max(axis=2).ravel(), lambda tables: tables.sum(axis=1).ravel()):
        assert scipy.stats.ks_2samp(counts(ours), counts(theirs)).pvalue > 0.01


def test_refilled_rows_of_a_class_are_used_equally_often():
    labels = np.repeat(np.arange(4), 100)
    parts = refilled_dirichlet(rng(), labels, 10, 0.05)
    used = np.bincount(np.concatenate(parts), minlength=400).reshape(4, 100)
    assert (used.max(axis=1) - used.min(axis=1) <= 1).all() and used.max() > 1
    assert all(len(set(own.tolist())) == len(own) for own in parts)


def test_refilled_gives_a_client_no_more_of_a_class_than_there_is():
    counts = counts_of(LABELS, refilled_dirichlet(rng(), LABELS, 2, 1e-37))
    assert (counts <= [100, 60, 30, 10]).all() and counts.sum(axis=1).tolist() == [100, 100]
