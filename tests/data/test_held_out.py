"""Rows held out of training: their number and owners, and that they are used for nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.data import carve, carve_share, federate, hold_out, hold_out_clients, rows_by_share
from fedjax_bal.types import Names

IMAGES, LABELS = np.zeros((40, 2, 2, 1), np.uint8), np.repeat([0, 1, 2, 3], 10)


def rng(seed=0):
    return np.random.default_rng(seed)


@given(
    labels=st.lists(st.sampled_from([-1, 3, 4]), min_size=1, max_size=40).map(np.array),
    per_class=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_carve(labels, per_class, seed):
    present, sizes = np.unique(labels, return_counts=True)
    if sizes.min() < per_class:
        with pytest.raises(ValueError, match=f"class {present[sizes.argmin()]} has only {sizes.min()} rows"):
            carve(rng(seed), labels, per_class)
        return
    auxiliary, rest = carve(rng(seed), labels, per_class)
    assert labels[auxiliary].tolist() == np.repeat(present, per_class).tolist()
    assert sorted(auxiliary.tolist() + rest.tolist()) == list(range(len(labels)))
    assert rest.tolist() == sorted(rest.tolist())
    assert carve(rng(seed), labels, per_class)[0].tolist() == auxiliary.tolist()


def test_carve_is_random_and_checks_its_number():
    labels = np.zeros(1000, int)
    assert len(np.intersect1d(carve(rng(0), labels, 10)[0], carve(rng(1), labels, 10)[0])) < 10
    with pytest.raises(ValueError, match="per_class: received 0"):
        carve(rng(), labels, 0)


def test_a_share_of_each_class_is_taken_at_least_one_row_and_never_all():
    labels = np.repeat([0, 1, 2, 3], [100, 10, 2, 1])
    taken, rest = carve_share(np.random.default_rng(0), labels, 0.04)
    assert np.bincount(labels[taken], minlength=4).tolist() == [4, 1, 1, 0]
    assert sorted([*taken, *rest]) == list(range(113))
    most, _ = carve_share(np.random.default_rng(0), labels, 0.999)
    assert np.bincount(labels[most], minlength=4).tolist() == [99, 9, 1, 0]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 99))
def test_of_disjoint_clients_each_holds_out_its_share(sizes, fraction, seed):
    rows = np.split(np.random.default_rng(1).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    training, tests = hold_out(np.random.default_rng(seed), rows, fraction)
    for own, kept, held in zip(rows, training, tests, strict=True):
        wanted = min(max(round(fraction * len(own)), 1), len(own) - 1) if len(own) > 1 else 0
        assert len(held) == wanted
        assert sorted([*kept, *held]) == sorted(own)
    again = hold_out(np.random.default_rng(seed), rows, fraction)[1]
    assert all(np.array_equal(one, other) for one, other in zip(tests, again, strict=True))


def test_a_shared_row_that_is_held_out_is_trained_on_by_nobody():
    rng = np.random.default_rng(3)
    rows = [rng.choice(60, size, replace=False) for size in (40, 20, 30, 1)]
    training, tests = hold_out(np.random.default_rng(0), rows, 0.3)
    held = np.unique(np.concatenate(tests))
    assert not np.isin(np.concatenate(training), held).any()
    for own, kept, tested, share in zip(rows, training, tests, (12, 6, 9, 0), strict=True):
        assert sorted([*kept, *tested]) == sorted(own)
        assert len(tested) >= share
        assert np.array_equal(np.sort(tested), np.intersect1d(own, held))


def test_another_seed_holds_out_other_rows():
    rows = [np.arange(30)]
    drawn = [hold_out(np.random.default_rng(seed), rows, 0.5)[1][0].tolist() for seed in (0, 1)]
    assert drawn[0] != drawn[1]


def test_a_test_set_is_shared_out_in_the_proportions_of_each_clients_classes():
    counts = np.array([[7, 3, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 50]])
    rows = rows_by_share(np.random.default_rng(0), counts, LABELS, 10)
    found = [np.bincount(LABELS[own], minlength=4).tolist() for own in rows]
    found[1].sort()
    assert found == [[7, 3, 0, 0], [0, 3, 3, 4], [0, 0, 0, 0], [0, 0, 0, 10]]
    assert all(len(np.unique(own)) == len(own) for own in rows)
    assert len(rows_by_share(np.random.default_rng(0), counts, LABELS, 30)[3]) == 10  # all that there are


def test_classes_with_equal_shares_get_the_odd_test_row_equally_often():
    rows = rows_by_share(rng(), np.full((400, 4), 5), LABELS, 1)
    often = np.bincount(LABELS[np.concatenate(rows)], minlength=4)
    assert often.sum() == 400
    assert ((often - 100) ** 2 / 100).sum() < 16.3  # chi-squared, 3 degrees: one in a thousand


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan"), True, "0.5"])
def test_what_is_no_share_is_refused(fraction):
    with pytest.raises(ValueError, match="fraction: received .* above 0 and below 1"):
        hold_out(np.random.default_rng(0), [np.arange(5)], fraction)


def test_a_federation_keeps_test_rows_apart():
    training, tests = [np.array([1, 0]), np.array([20])], [np.array([5, 2]), np.array([], int)]
    federation = federate(IMAGES, LABELS, training, 4, {"validation": np.array([30])}, tests=tests)
    assert federation.tests.rows.tolist() == [5, 2]
    assert federation.tests.offsets.tolist() == [0, 2, 2]
    assert federation.class_counts.tolist() == [[2, 0, 0, 0], [0, 0, 1, 0]]
    assert federate(IMAGES, LABELS, training, 4).tests is None


BAD = [
    ([np.array([5])], "tests lists rows of 1 clients"),
    ([np.array([1]), np.array([7])], r"tests\[0\] lists row 1"),
    ([np.array([30]), np.array([7])], r"tests\[0\] lists row 30"),
    ([np.array([5, 5]), np.array([7])], r"tests\[0\] lists row 5 more than once"),
    ([np.array([5]), np.array([40])], r"tests\[1\] lists row 40"),
    ([np.array([], int), np.array([], int)], "tests has no row for any client"),
    ([np.array([0.5]), np.array([7])], r"tests\[0\] has shape \(1,\) and type float64"),
]


@pytest.mark.parametrize(("tests", "message"), BAD)
def test_test_rows_that_cannot_be_are_refused(tests, message):
    with pytest.raises(ValueError, match=message):
        federate(IMAGES, LABELS, [np.array([0, 1]), np.array([20])], 4, {"server": np.array([30])}, tests=tests)


@given(
    sizes=st.lists(st.integers(0, 4), min_size=2, max_size=9).filter(any),
    share=st.sampled_from([0.01, 0.2, 0.5, 0.99]),
    seed=st.integers(0, 99),
)
def test_a_share_of_the_clients_is_held_out_with_rows_tests_and_names(sizes, share, seed):
    ends = np.cumsum(sizes)
    rows = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    tests = [np.array([39 - client]) for client in range(len(sizes))]
    names = tuple(f"client {number}" for number in range(len(sizes)))
    whole = federate(IMAGES, LABELS, rows, 4, tests=tests)
    whole = whole._replace(names=Names(clients=names))
    kept, new = hold_out_clients(rng(seed), whole, share)
    assert new.num_clients == min(max(round(share * len(sizes)), 1), len(sizes) - 1)
    assert sorted(kept.client_names + new.client_names) == sorted(names)
    for part in (kept, new):
        assert list(part.client_names) == sorted(part.client_names)
        for place, name in enumerate(part.client_names):
            client = names.index(name)
            for ours, theirs in ((part, whole), (part.tests, whole.tests)):
                own = ours.rows[ours.offsets[place] : ours.offsets[place + 1]]
                assert own.tolist() == theirs.rows[theirs.offsets[client] : theirs.offsets[client + 1]].tolist()
            assert part.class_counts[place].tolist() == whole.class_counts[client].tolist()


def test_of_a_single_client_none_can_be_held_out():
    alone = federate(IMAGES, LABELS, [np.arange(9)], 4)
    with pytest.raises(ValueError, match="received 0.5 and a federation of one client"):
        hold_out_clients(rng(), alone, 0.5)
    with pytest.raises(ValueError, match="share"):
        hold_out_clients(rng(), alone, 1.0)
