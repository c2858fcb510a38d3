import numpy as np
import pytest

from fedjax_bal.data.partition import extended_dirichlet, pathological

LABELS = np.repeat(np.arange(5), 100)


class Draws(np.random.Generator):
    """A generator whose owners are drawn at random and whose Dirichlet draws are given."""

    def __init__(self, *draws):
        super().__init__(np.random.PCG64(0))
        self.draws, self.asked, self.rng = list(draws), [], np.random.default_rng(0)

    def dirichlet(self, alpha):
        self.asked.append(alpha.tolist())
        return np.array(self.draws.pop(0))

    def random(self, shape):
        return self.rng.random(shape)

    def permutation(self, rows):
        return rows


def table(parts, classes=5):
    return np.stack([np.bincount(LABELS[rows], minlength=classes) for rows in parts])


def test_by_hand():
    # Each of four clients owns the one label of its position: 0, 1, 0, 1 of two.
    labels = np.repeat([3, 8], 10)
    draws = Draws([0.75, 0.25], [1.0, 0.0])
    parts = extended_dirichlet(draws, labels, 4, 1, 0.6)
    assert draws.asked == [[0.6] * 2] * 2
    assert [len(rows) for rows in parts] == [8, 9, 2, 1]  # 7.5 and 2.5; all but the one that the other owner gets
    assert [set(labels[rows].tolist()) for rows in parts] == [{3}, {8}, {3}, {8}]


@pytest.mark.parametrize("alpha", [1e-300, 0.1, 10.0])
def test_everybody_has_exactly_as_many_classes_as_asked_for(alpha):
    counts = table(extended_dirichlet(np.random.default_rng(0), LABELS, 20, (1, 2, 5), alpha))
    assert (counts > 0).sum(axis=1).tolist() == ([1, 2, 5] * 7)[:20]
    assert counts.sum(axis=0).tolist() == [100] * 5
    assert (counts[np.arange(20), np.arange(20) % 5] > 0).all()


def test_a_large_alpha_is_an_even_split_over_the_owners():
    ours = table(extended_dirichlet(np.random.default_rng(4), LABELS, 10, 2, 1e300))
    even = table(pathological(np.random.default_rng(4), LABELS, 10, 2, form="niid_bench"))
    assert sorted(ours[ours > 0]) == pytest.approx(sorted(np.repeat(100 / (ours > 0).sum(0), (ours > 0).sum(0))), abs=1)
    assert (ours > 0).sum() == (even > 0).sum() == 20


def test_refusals():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="classes_per_client=6, but only 5 classes are present; take as many or fewer"):
        extended_dirichlet(rng, LABELS, 10, 6, 1.0)
    with pytest.raises(ValueError, match="a label with 100 rows has 101 owners.*take fewer clients"):
        extended_dirichlet(rng, LABELS, 101, 5, 1.0)
    with pytest.raises(ValueError, match="classes_per_client: received 'two', must be an integer"):
        extended_dirichlet(rng, LABELS, 10, "two", 1.0)
    with pytest.raises(ValueError, match="alpha=0; expected a finite number above 0"):
        extended_dirichlet(rng, LABELS, 10, 2, 0)
