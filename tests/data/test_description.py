import numpy as np
import pytest

from fedjax_bal.data.description import describe

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
