from collections import Counter

import numpy as np
import pytest
from data.partition.drawn import rng
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.data.partition import pathological

TEN = np.repeat(np.arange(10), 100)


def shares(total, number):
    return [total // number + (slot < total % number) for slot in range(number)]


def assert_walked(labels, parts, wanted):
    """Independent walk: given which labels each client took, in order, each place of a label is always the same row."""
    sizes, cursor, rows = Counter(labels.tolist()), Counter(), {}
    for part, number in zip(parts, wanted, strict=True):
        rest = part.tolist()
        for share in shares(len(part), number):
            label = int(labels[rest[0]])
            if cursor[label] + share > sizes[label]:
                cursor[label] = 0
            for row in rest[:share]:
                assert rows.setdefault((label, cursor[label]), row) == row
                assert labels[row] == label
                cursor[label] += 1
            rest = rest[share:]
    assert len(set(rows.values())) == len(rows)


@given(
    labels=st.lists(st.sampled_from([-3, 0, 2, 7]), min_size=1, max_size=60).map(np.array),
    clients=st.integers(1, 30),
    cycle=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    samples=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 99),
)
def test_rebafl_gives_what_it_promises_or_there_is_no_solution(labels, clients, cycle, samples, seed):
    wanted = [cycle[i % len(cycle)] for i in range(clients)]
    total = len(labels) // clients if samples is None else samples
    sizes = sorted(np.unique(labels, return_counts=True)[1], reverse=True)
    enough = lambda number: all(size >= share for size, share in zip(sizes, shares(total, number), strict=False))
    solvable = max(wanted) <= len(sizes) and total >= max(wanted) and all(map(enough, wanted))
    if not solvable:
        with pytest.raises(ValueError, match=r"rows|classes"):
            pathological(rng(seed), labels, clients, cycle, samples)
        return
    parts = pathological(rng(seed), labels, clients, cycle, samples)
    assert [len(part) for part in parts] == [total] * clients
    for part, number in zip(parts, wanted, strict=True):
        assert len(set(part.tolist())) == total
        counts = Counter(labels[part].tolist())
        assert sorted(counts.values(), reverse=True) == shares(total, number)
    assert_walked(labels, parts, wanted)


def test_rebafl_of_the_paper():
    labels = rng(1).permutation(np.repeat(np.arange(10), 500))
    parts = pathological(rng(), labels, 50, 2, 100)
    assert all(sorted(Counter(labels[part].tolist()).values()) == [50, 50] for part in parts)
    assert_walked(labels, parts, [2] * 50)
    used = Counter(np.concatenate(parts).tolist())
    takes = Counter(label for part in parts for label in set(labels[part].tolist()))
    for label, count in takes.items():
        rows = [used[row] for row in np.flatnonzero(labels == label).tolist()]
        assert sum(rows) == 50 * count
        assert max(rows) - min(rows) <= 1


def test_rebafl_leaves_random_rows_out_where_takes_do_not_fill_a_label():
    labels = np.repeat([0, 1], 10)  # takes of 6 of 10 rows
    used = np.zeros(20)
    for seed in range(300):
        used[np.unique(np.concatenate(pathological(rng(seed), labels, 4, 1, 6)))] += 1
    for label in (0, 1):
        often = used[labels == label]
        assert ((often - often.mean()) ** 2 / (0.4 * often.mean())).sum() < 27.9  # chi-squared: one in a thousand


def test_rebafl_clusters():
    parts = pathological(rng(), TEN, 20, (2, 2, 3, 3, 5), 50)
    assert [len(np.unique(TEN[part])) for part in parts] == [2, 2, 3, 3, 5] * 4
    assert [Counter(TEN[parts[2]].tolist()).most_common()[slot][1] for slot in range(3)] == [17, 17, 16]


def test_rebafl_draws_labels_uniformly():
    pairs = Counter(tuple(sorted(set(TEN[part].tolist()))) for part in pathological(rng(3), TEN, 9000, 2, 2))
    assert len(pairs) == 45
    expected = 9000 / 45
    chi_square = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert chi_square < 78.7  # 0.999 quantile for 44 degrees of freedom


def test_rebafl_labels_just_large_enough_for_the_smaller_share():
    labels = np.array([0, 0, 1, 2])  # 3 rows over 2 labels: 2 of the first, 1 of the second
    for seed in range(20):
        (part,) = pathological(rng(seed), labels, 1, 2, 3)
        assert set(part.tolist()) in ({0, 1, 2}, {0, 1, 3})
        (part,) = pathological(rng(seed), np.array([0, 0, 1, 1, 2]), 1, 3, 5)  # 2 of two labels, 1 of the third
        assert sorted(part.tolist()) == [0, 1, 2, 3, 4]


def test_rebafl_scale_and_chunks():
    parts = pathological(rng(), TEN, 70_000, 1, 1)
    assert len(parts) == 70_000
    words = rng().random((70_000, 10))
    assert [int(TEN[part[0]]) for part in parts] == np.argmin(words, axis=1).tolist()


def array_split_reference(labels, owners):
    """How many rows of each label the owners get, in client order."""
    return {
        label: [len(piece) for piece in np.array_split(np.flatnonzero(labels == label), max(1, len(who)))]
        for label, who in owners.items()
    }


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    clients=st.integers(1, 20),
    cycle=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_niid_bench(sizes, clients, cycle, seed):
    values = np.array([-2, 0, 5, 6, 9])[: len(sizes)]
    labels = rng(seed).permutation(np.repeat(values, sizes))
    wanted = [cycle[i % len(cycle)] for i in range(clients)]
    alone = Counter(i % len(sizes) for i in range(clients) if wanted[i] == 1)
    solvable = max(wanted) <= len(sizes) and clients <= sum(sizes)
    if not solvable or any(count > sizes[label] for label, count in alone.items()):
        with pytest.raises(ValueError, match=r"rows|classes"):
            pathological(rng(seed), labels, clients, cycle, form="niid_bench")
        return
    parts = pathological(rng(seed), labels, clients, cycle, form="niid_bench")
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert len(set(together.tolist())) == len(together)
    assert all(len(part) for part in parts)
    held = [set(labels[part].tolist()) for part in parts]
    assert all(len(mine) <= cycle[i % len(cycle)] for i, mine in enumerate(held))
    if min(sizes) >= clients:
        assert [len(mine) for mine in held] == [cycle[i % len(cycle)] for i in range(clients)]
        assert all(values[i % len(values)] in mine for i, mine in enumerate(held))
        owners = {label: [i for i in range(clients) if label in held[i]] for label in values.tolist()}
        for label, counts in array_split_reference(labels, owners).items():
            if owners[label]:
                assert [int((labels[parts[i]] == label).sum()) for i in owners[label]] == counts
            assert (label in labels[together]) == bool(owners[label])


def test_niid_bench_nobody_is_left_with_nothing_where_rows_are_scarce():
    parts = pathological(rng(), TEN[::10], 100, 2, form="niid_bench")  # 10 rows a label for about 20 owners
    assert [len(part) for part in parts] == [1] * 100
    assert [TEN[::10][part[0]] for part in parts] == [client % 10 for client in range(100)]
    (one, other) = pathological(rng(), np.array([0, 1, 1, 1]), 2, 2, form="niid_bench")
    assert (len(one), len(other)) == (2, 2)


def test_niid_bench_without_a_solution():
    with pytest.raises(ValueError, match=r"1 rows is the only one of more clients.*fewer than 100 clients"):
        pathological(rng(), np.repeat([0, 1], [1, 99]), 100, 1, form="niid_bench")
    with pytest.raises(ValueError, match="11 clients for 10 rows"):
        pathological(rng(), np.arange(10), 11, 1, form="niid_bench")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((20, 11), "classes_per_client=11, but only 10 classes are present"),
        ((20, 2, 1), "samples_per_client=1: 1 rows can't hold 2 classes"),
        ((900, 2), "1000 rows for 900 clients: 1 rows can't hold 2 classes"),
        ((2, 1), "needs 1 labels with at least 500 rows each, but only 0"),
        ((3, 2, 201), "needs 1 labels with at least 101 rows each, but only 0"),
        ((2**20, 1, 2**12), "at most 2147483647 rows"),
        ((20, 2, 50, "niid_bench"), "samples_per_client=50"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        pathological(rng(), TEN, *arguments)
