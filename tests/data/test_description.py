import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.data.description import describe, size_bins

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 1])


def test_counts_by_hand():
    parts = [np.array([0, 3, 5]), np.array([1, 2]), np.array([], int), np.array([3])]
    told = describe(LABELS, parts, 4)
    assert told.class_counts.tolist() == [[1, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert told.sizes.tolist() == [3, 2, 0, 1]
    assert (told.unused, told.repeated) == (3, 1)  # rows 4, 6, 7; row 3 twice
    whole = np.array([3, 2, 1]) / 6
    assert told.kl_of_all == pytest.approx((whole * np.log(4 * whole)).sum(), rel=1e-5)
    assert told.mid == pytest.approx(told.kl_of_all / np.log(4), rel=1e-5)
    assert told.kl_of_clients == pytest.approx([np.log(4 / 3), np.log(4), np.log(4)], rel=1e-5)
    assert 0 < told.wcs < 1


def test_even_clients():
    told = describe(np.arange(9) % 3, [np.arange(9)], 3)
    assert (told.kl_of_all, told.mid, told.unused, told.repeated) == (0, 0, 0, 0)
    assert told.kl_of_clients.tolist() == [0] and told.wcs == pytest.approx(1)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50).map(np.array))
def test_every_size_falls_into_a_bin(sizes):
    edges = size_bins(sizes)
    assert (np.diff(edges) > 0).all()
    assert edges[0] == sizes.min() and edges[-1] == sizes.max() + 1
    assert len(edges) <= 10
    assert np.histogram(sizes, edges)[0].sum() == len(sizes)


def test_bins_grow_where_sizes_have_a_heavy_tail():
    even, heavy = size_bins(np.arange(100, 180)), size_bins(np.array([1, 2, 3, 4, 5000]))
    assert np.diff(even).tolist() == [10] * 8
    assert np.diff(heavy)[-1] > 10 * np.diff(heavy)[0]
    assert size_bins(np.array([3, 5, 6])).tolist() == [3, 4, 5, 6, 7]
    assert size_bins(np.array([0, 1, 2, 1000])).tolist() == [0, 2, 6, 13, 32, 75, 178, 422, 1001]
