"""Long tails of classes over clients, of each client's classes, and of a whole set."""

from fractions import Fraction

import numpy as np
import pytest
from data.partition.drawn import counts_of, rng
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.data import partition
from fedjax_bal.data.partition import local_long_tail, long_tail, long_tailed, mixed_long_tail


def exact_counts(sizes, clients, alpha, quirk):
    """The published procedure in exact arithmetic, one class after another: rows of each class by client."""
    classes, alpha = len(sizes), Fraction(alpha)
    group = clients // classes
    main = alpha / group
    tail = (1 - (main if quirk else alpha)) / (clients - group)
    table = []
    for label, size in enumerate(sizes):
        vector = [tail] * clients
        for i in range(group):
            vector[label + i * classes] = main
        points = [Fraction(0)]
        for share in vector:
            points.append(points[-1] + share / sum(vector))
        ends = [int(point * size) for point in points]  # int() of a positive fraction is its floor
        table.append(np.diff(ends).tolist())
    return np.array(table).T.tolist()


@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    group=st.integers(1, 6),
    alpha=st.fractions(0, 1, max_denominator=100),
    quirk=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_once_and_as_many_as_in_exact_arithmetic(sizes, group, alpha, quirk, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    clients = group * len(sizes)
    parts = long_tail(rng(seed), labels, clients, float(alpha), quirk)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert counts_of(labels, parts).tolist() == exact_counts(sizes, clients, alpha, quirk)


@pytest.mark.parametrize(
    ("clients", "quirk", "main", "tail"),
    [
        (10, False, 0.9, 0.011111),
        (10, True, 0.9, 0.011111),
        (100, False, 0.09, 0.0011111),
        (100, True, 0.0497238, 0.00558625),
    ],
)
def test_shares_of_large_classes(clients, quirk, main, tail):
    labels = np.repeat(np.arange(10), 100_000)
    shares = counts_of(labels, long_tail(rng(), labels, clients, 0.9, quirk)) / 100_000
    is_main = np.arange(clients)[:, None] % 10 == np.arange(10)
    np.testing.assert_allclose(shares[is_main], main, atol=1.1e-5)  # a row more or less is 1e-5
    np.testing.assert_allclose(shares[~is_main], tail, atol=1.1e-5)


def test_labels_need_not_count_from_zero_and_one_class_is_spread_evenly():
    labels = np.repeat([-3, 7], 10)
    parts = long_tail(rng(), labels, 2, 1.0)
    assert [set(labels[part].tolist()) for part in parts] == [{-3}, {7}]
    for alpha in (0.0, 0.5, 1.0):
        assert [len(part) for part in long_tail(rng(), np.zeros(12, int), 3, alpha)] == [4, 4, 4]


def test_which_rows_is_random_but_how_many_is_not():
    labels = np.repeat(np.arange(2), 50)
    one, other = long_tail(rng(1), labels, 4, 0.9), long_tail(rng(2), labels, 4, 0.9)
    assert counts_of(labels, one).tolist() == counts_of(labels, other).tolist()
    assert sorted(one[0].tolist()) != sorted(other[0].tolist())


@pytest.mark.parametrize(
    ("clients", "alpha", "message"),
    [(12, 0.9, "num_clients=12 for 10 classes"), (3, 0.9, "num_clients=3 for 10 classes")],
)
def test_refusals(clients, alpha, message):
    with pytest.raises(ValueError, match=message):
        long_tail(rng(), np.repeat(np.arange(10), 5), clients, alpha)


def counts(labels, *arguments, seed=0, classes=10):
    return np.bincount(labels[long_tailed(rng(seed), labels, *arguments)], minlength=classes).tolist()


@pytest.mark.parametrize(
    ("classes", "each", "factor", "total"),
    [(10, 5000, 100, 12_406), (10, 5000, 50, 13_996), (10, 5000, 10, 20_431), (100, 500, 100, 10_847)],
)
def test_cifar_lt_has_the_sizes_that_everybody_reports(classes, each, factor, total):
    labels = np.repeat(np.arange(classes), each)
    kept = long_tailed(rng(), labels, factor)
    literal = [int(each * (1 / factor) ** (label / (classes - 1))) for label in range(classes)]
    assert len(kept) == total == sum(literal)
    assert np.bincount(labels[kept]).tolist() == literal


def test_steps():
    labels = np.repeat(np.arange(10), 500)
    assert counts(labels, 10, "step") == [500] * 5 + [50] * 5
    assert counts(labels[labels < 3], 7, "step", classes=3) == [500, 500, 71]


def test_orders_of_classes():
    labels = np.repeat([0, 1, 2], [40, 100, 60])
    # by label the smallest n_max decides: class 0 has 40; by frequency: class 1, then 2, then 0
    assert counts(labels, 4, classes=3) == [40, 20, 10]
    assert counts(labels, 4, "exponential", "frequency", classes=3) == [25, 100, 50]
    drawn = {tuple(counts(labels, 4, "exponential", "random", seed=seed, classes=3)) for seed in range(20)}
    assert len(drawn) == 6


def test_a_factor_of_one_keeps_a_balanced_set_whole_and_levels_another():
    labels = np.repeat([3, 8], [5, 5])
    assert long_tailed(rng(), labels, 1).tolist() == list(range(10))
    assert len(long_tailed(rng(), np.repeat([3, 8], [5, 9]), 1)) == 10


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    factor=st.floats(1, 1000),
    profile=st.sampled_from(["exponential", "step"]),
    order=st.sampled_from(["label", "frequency", "random"]),
)
def test_any_pool(sizes, factor, profile, order):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    kept = long_tailed(rng(), labels, factor, profile, order)
    assert (np.diff(kept) > 0).all()
    left = np.bincount(labels[kept], minlength=len(sizes))
    assert (left >= 1).all() and (left <= sizes).all()
    # Rounding down moves each end by less than one row.
    assert (left.max() + 1) / max(left.min(), 1) >= min(factor, left.max()) * 0.999 or len(sizes) == 1
    assert left.max() <= factor * (left.min() + 1) * 1.001


@pytest.mark.parametrize("factor", [0.01, 0, -1, np.nan, np.inf, True, "100", None])
def test_a_wrong_factor_is_refused(factor):
    with pytest.raises(ValueError, match="imbalance_factor: received .* of at least 1"):
        long_tailed(rng(), np.zeros(4, int), factor)


def tail(total, classes, factor):
    """Rows of a client's classes by rank, as LongTailLib computes them, one number after another."""
    decay = np.log(factor) / max(classes - 1, 1)
    weights = [np.exp(-decay * rank) for rank in range(classes)]
    return [max(1, round(total * weight / sum(weights))) for weight in weights]


@given(
    sizes=st.lists(st.integers(5, 80), min_size=1, max_size=6),
    clients=st.integers(1, 5),
    factor=st.floats(1, 200, width=16),  # nothing so close to 1 that the last bit decides how a half is rounded
    seed=st.integers(0, 99),
)
def test_every_clients_tail_is_cut_from_its_dirichlet_share(sizes, clients, factor, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    dealt = partition.dirichlet(rng(seed), labels, clients, 2.0, form="plain", min_size=1)
    parts = local_long_tail(rng(seed), labels, clients, factor, alpha=2.0)
    for before, after in zip(dealt, parts, strict=True):
        assert set(after.tolist()) <= set(before.tolist())
        had = counts_of(labels, [before])[0]
        kept = counts_of(labels, [after])[0]
        present = np.flatnonzero(had)
        # Some order of the classes explains what is left: each class keeps all it has, or the number of its rank.
        ranks = sorted(tail(len(before), len(present), factor), reverse=True)
        cut = sorted(kept[kept < had].tolist())
        for number in cut:
            assert number in ranks
            ranks.remove(number)
        whole = sorted(had[present][kept[present] == had[present]].tolist())
        assert all(number <= rank for number, rank in zip(whole, sorted(ranks), strict=True))


def test_a_local_tail_reaches_a_factor_of_14_and_a_mixed_one_all_of_50():
    labels = np.repeat(np.arange(10), 20_000)
    parts = local_long_tail(rng(), labels, 4, 50.0, alpha=1e6)
    wanted = [5000, 5000, 5000, *tail(50_000, 10, 50.0)[3:]]
    for counts in counts_of(labels, parts):
        np.testing.assert_allclose(np.sort(counts)[::-1], wanted, rtol=0.01)
        assert counts.max() / counts.min() == pytest.approx(14, rel=0.02)
    counts = counts_of(labels, mixed_long_tail(rng(), labels, 4, 50.0, tailed=0.25))
    with_tail = counts[counts.max(1).argmax()]
    assert with_tail.max() / with_tail.min() == pytest.approx(50, rel=0.002)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 9),
    factor=st.floats(1, 200, width=16),  # nothing so close to 1 that the last bit decides how a half is rounded
    tailed=st.sampled_from([0.01, 0.5, 0.75, 1.0]),
    seed=st.integers(0, 99),
)
def test_mixed_clients_take_turns_at_the_pools_of_classes(sizes, clients, factor, tailed, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    generator = rng(seed)
    with_tail = sorted(generator.choice(clients, max(1, int(round(clients * tailed, 6))), replace=False).tolist())
    each, pools = sum(sizes) // clients, list(sizes)
    wanted = np.zeros((clients, len(sizes)), int)
    for client in with_tail:
        for label, number in zip(generator.permutation(len(sizes)), tail(each, len(sizes), factor), strict=True):
            wanted[client, label] = min(number, pools[label])
            pools[label] -= wanted[client, label]
    for client in sorted(set(range(clients)) - set(with_tail)):
        for label in range(len(sizes)):
            wanted[client, label] = min(each // len(sizes), pools[label])
            pools[label] -= wanted[client, label]
    if (wanted.sum(1) == 0).any():
        with pytest.raises(ValueError, match="without rows; use fewer"):
            mixed_long_tail(rng(seed), labels, clients, factor, tailed)
    else:
        parts = mixed_long_tail(rng(seed), labels, clients, factor, tailed)
        assert counts_of(labels, parts).tolist() == wanted.tolist()


SEEDS = 250


@pytest.mark.parametrize(
    ("scheme", "parameters"), [(local_long_tail, {"alpha": 1000.0}), (mixed_long_tail, {"tailed": 1.0})]
)
def test_every_class_is_as_often_the_smallest_of_a_client(scheme, parameters):
    labels = np.repeat(np.arange(4), 300)
    drawn = [counts_of(labels, scheme(rng(seed), labels, 5, 1e3, **parameters)) for seed in range(SEEDS)]
    smallest = [counts[0].argmin() for counts in drawn]  # the first client is served from full pools
    shares = np.bincount(smallest, minlength=4) / SEEDS
    np.testing.assert_allclose(shares, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / SEEDS))


@pytest.mark.parametrize("scheme", [local_long_tail, mixed_long_tail])
def test_rows_of_a_class_are_equally_likely_to_be_taken(scheme):
    labels = np.repeat(np.arange(3), 20)
    taken = np.zeros(60)
    for seed in range(SEEDS):
        taken[np.concatenate(scheme(rng(seed), labels, 3, 10.0))] += 1 / SEEDS
    share = taken.mean()
    np.testing.assert_allclose(taken, share, atol=5 * np.sqrt(share * (1 - share) / SEEDS))
