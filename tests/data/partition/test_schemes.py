"""What holds for every scheme: one table, and what each promises."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.data import partition


class Case(NamedTuple):
    scheme: str
    parameters: dict
    disjoint: bool = True
    complete: bool = True  # all rows are used
    nobody_empty: bool = True
    equal: bool = False  # sizes differ by at most 1


CASES = {
    "iid": Case("iid", {}, equal=True),
    "quantity dirichlet": Case("quantity", {"alpha": 0.1}),
    "quantity dirichlet, empty clients": Case("quantity", {"alpha": 0.01, "least": 0}, nobody_empty=False),
    "quantity zipf": Case("quantity", {"sizes": "power", "exponent": -1}),
    "quantity exponential": Case("quantity", {"sizes": "exponential", "exponent": 30.0}),
    "quantity lognormal": Case("quantity", {"sizes": "lognormal", "sigma": 3.0}),
    "quantity empirical": Case("quantity", {"sizes": "empirical", "values": (3, 9, 80)}),
    "pathological": Case("pathological", {"classes_per_client": 2}, disjoint=False, complete=False, equal=True),
    "pathological, niid-bench": Case("pathological", {"classes_per_client": 2, "form": "niid_bench"}, complete=False),
    "shards": Case("shards", {"shards_per_client": 1}, equal=True),
    "shards, three of a client": Case("shards", {"shards_per_client": 3}),
    "dirichlet": Case("dirichlet", {"alpha": 0.1, "min_size": 1}),
    "dirichlet, plain": Case("dirichlet", {"alpha": 0.1, "min_size": 1, "form": "plain"}),
    "dirichlet, cbfl": Case("dirichlet", {"alpha": 0.1, "form": "cbfl"}, complete=False, nobody_empty=False),
    "client_dirichlet": Case("client_dirichlet", {"alpha": 0.1}, equal=True),
    "client_dirichlet, no mass": Case("client_dirichlet", {"alpha": 5e-324}, equal=True),
    "client_dirichlet, global prior": Case(
        "client_dirichlet", {"alpha": 0.1, "prior": "global", "sizes": "lognormal", "least": 1}
    ),
    "balanced_dirichlet": Case("balanced_dirichlet", {"alpha": 0.1}, equal=True),
    "balanced_dirichlet, no mass": Case("balanced_dirichlet", {"alpha": 5e-324}, equal=True),
    "refilled_dirichlet": Case("refilled_dirichlet", {"alpha": 0.1}, disjoint=False, complete=False, equal=True),
    "refilled_dirichlet, no mass": Case(
        "refilled_dirichlet", {"alpha": 5e-324}, disjoint=False, complete=False, equal=True
    ),
    "equal_cut_dirichlet": Case("equal_cut_dirichlet", {"alpha": 0.1}, equal=True),
    "equal_cut_dirichlet, no mass": Case("equal_cut_dirichlet", {"alpha": 5e-324}, equal=True),
    "extended_dirichlet": Case("extended_dirichlet", {"classes_per_client": 2, "alpha": 0.1}, complete=False),
    "extended_dirichlet, no mass": Case(
        "extended_dirichlet", {"classes_per_client": (1, 3), "alpha": 5e-324}, complete=False
    ),
    "long_tail": Case("long_tail", {"alpha": 0.9}, nobody_empty=False),
    "flcir_realworld": Case("flcir_realworld", {"discard": False}),
    "flcir_realworld, discarding": Case("flcir_realworld", {"discarded": (0,)}, complete=False),
    "astraea": Case("astraea", {"variant": "INS", "least": 1}, complete=False),
    "normal_density": Case("normal_density", {}, complete=False, equal=True),
}
LABELS = st.lists(st.sampled_from([-3, 0, 2, 7, 8]), min_size=1, max_size=120).map(np.array)


def draw(case, labels, clients, seed):
    """The partition, or None where there is none and the reason says what to do."""
    try:
        return partition.SCHEMES[case.scheme](np.random.default_rng(seed), labels, clients, **case.parameters)
    except ValueError as error:
        words = ("take", "omit", "name some", "fewer", "at least", "expected")
        assert any(word in str(error) for word in words), error
        return None


def same(parts, others):
    return [rows.tolist() for rows in parts] == [rows.tolist() for rows in others]


def test_every_scheme_is_in_the_table():
    asking = {"natural", "file"}  # for owners, or a file
    assert {case.scheme for case in CASES.values()} == set(partition.SCHEMES) - asking


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20, deadline=None)
@given(labels=LABELS, clients=st.integers(1, 12), seed=st.integers(0, 9))
def test_rows_are_given_as_promised(name, labels, clients, seed):
    case = CASES[name]
    parts = draw(case, labels, clients, seed)
    if parts is None:
        return
    rows, sizes = np.concatenate(parts), [len(part) for part in parts]
    assert len(parts) == clients and len(rows) > 0
    assert rows.min() >= 0 and rows.max() < len(labels) and rows.dtype.kind == "i"
    if case.disjoint:
        assert len(set(rows.tolist())) == len(rows)
    if case.complete:
        assert set(rows.tolist()) == set(range(len(labels)))
    if case.nobody_empty:
        assert min(sizes) >= 1
    if case.equal:
        assert max(sizes) - min(sizes) <= 1
    assert all(len(set(part.tolist())) == len(part) for part in parts)
    assert same(parts, draw(case, labels, clients, seed))


@pytest.mark.parametrize("name", CASES)
def test_usual_input_has_a_partition_that_depends_on_the_seed(name):
    case, labels = CASES[name], np.repeat(np.arange(10), 60)
    first, second = (draw(case, labels, 10, seed) for seed in (0, 1))
    assert first is not None and second is not None
    assert not same(first, second)


@pytest.mark.parametrize("name", CASES)
def test_a_global_long_tail_comes_before_any_of_them(name):
    case, labels = CASES[name], np.repeat(np.arange(10), 200)
    wanted = (case.scheme, 10, 3, case.parameters)
    plain, tailed = partition.draw(labels, *wanted), partition.draw(labels, *wanted, imbalance_factor=10)
    assert same(plain, draw(case, labels, 10, 3))
    # 200 * 10^(-c / 9), rounded down
    kept = np.array([200, 154, 119, 92, 71, 55, 43, 33, 25, 20])
    counts = np.bincount(labels[np.unique(np.concatenate(tailed))], minlength=10)
    assert (counts <= kept).all()
    if case.complete:
        assert counts.tolist() == kept.tolist()


def test_the_long_tail_keeps_the_same_rows_whatever_the_scheme():
    labels = np.repeat(np.arange(4), 100)
    drawn = [
        partition.draw(labels, scheme, 4, 5, parameters, 20, "step", "random")
        for scheme, parameters in (("iid", {}), ("shards", {}), ("balanced_dirichlet", {"alpha": 0.3}))
    ]
    assert len({tuple(sorted(np.concatenate(parts).tolist())) for parts in drawn}) == 1


def test_classes_that_a_group_lacks_are_no_matter_once_everybody_has_a_share():
    labels = np.array([-3] * 10 + [0])
    for seed in range(20):
        parts = partition.equal_cut_dirichlet(np.random.default_rng(seed), labels, 11, alpha=5e-324)
        assert sorted(np.concatenate(parts)) == list(range(11))
