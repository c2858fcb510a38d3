import numpy as np
import pytest
from rounding import FORMULA, SUM

from fedjax_bal.data import description
from fedjax_bal.data.description import DISTANCES, client_distances, describe

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 1])


def test_counts_by_hand():
    parts = [np.array([0, 3, 5]), np.array([1, 2]), np.array([], int), np.array([3])]
    told = describe(LABELS, parts, 4)
    assert told.class_counts.tolist() == [[1, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert told.sizes.tolist() == [3, 2, 0, 1]
    assert (told.unused, told.repeated) == (3, 1)  # rows 4, 6, 7; row 3 twice
    whole = np.array([3, 2, 1]) / 6
    assert told.kl_of_all == pytest.approx((whole * np.log(4 * whole)).sum(), rel=SUM)
    assert told.mid == pytest.approx(told.kl_of_all / np.log(4), rel=SUM)
    assert told.kl_of_clients == pytest.approx([np.log(4 / 3), np.log(4), np.log(4)], rel=SUM)
    assert 0 < told.wcs < 1


def test_even_clients():
    told = describe(np.arange(9) % 3, [np.arange(9)], 3)
    assert (told.kl_of_all, told.mid, told.unused, told.repeated) == (0, 0, 0, 0)
    assert told.kl_of_clients.tolist() == [0] and told.wcs == pytest.approx(1)


def by_hand(name, p, q):
    """A distance by its formula, class by class."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = (a + b) / 2
        if name == "KL":
            total += 0 if a == 0 else np.inf if b == 0 else a * np.log(a / b)
        elif name == "Hellinger":
            total += (np.sqrt(a) - np.sqrt(b)) ** 2 / 2
        else:
            total += sum(x * np.log2(x / m) / 2 for x in (a, b) if x > 0)
    return total if name == "KL" else np.sqrt(total)


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_to_all_clients_and_between_them(name):
    counts = np.array([[3, 1, 0], [0, 0, 0], [2, 2, 4], [5, 5, 5]])
    laws = [row / row.sum() for row in counts[[0, 2, 3]]]
    whole = counts.sum(0) / counts.sum()
    found = client_distances(counts)[name]
    assert found.to_all == pytest.approx([by_hand(name, law, whole) for law in laws], rel=SUM)
    pairs = [(p, q) for i, p in enumerate(laws) for j, q in enumerate(laws) if i != j]
    assert found.between == pytest.approx([by_hand(name, p, q) for p, q in pairs], rel=SUM)
    shown = client_distances(counts[:1], counts.sum(0))[name]  # the others aren't shown
    assert shown.to_all == pytest.approx([by_hand(name, laws[0], whole)], rel=SUM) and not shown.between.size


def test_some_of_many_clients_are_compared(monkeypatch):
    counts = np.random.default_rng(0).integers(0, 9, (9, 4))
    monkeypatch.setattr(description, "_MOST_PAIRED", 3)
    some, three = client_distances(counts)["Hellinger"], client_distances(counts[[0, 4, 8]])["Hellinger"]
    assert len(some.to_all) == 9
    np.testing.assert_allclose(some.between, three.between, rtol=FORMULA)
