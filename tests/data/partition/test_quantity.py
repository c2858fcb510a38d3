import numpy as np
import pytest

from fedjax_bal.data.partition import quantity

LABELS = np.repeat(np.arange(10), 100)


def sizes(*arguments, clients=4, seed=0, **parameters):
    parts = quantity(np.random.default_rng(seed), LABELS, clients, *arguments, **parameters)
    return [len(rows) for rows in parts]


class Shares(np.random.Generator):
    """A generator whose Dirichlet draw is given."""

    def __init__(self, *shares):
        super().__init__(np.random.PCG64(0))
        self.shares, self.asked = np.array(shares), None

    def dirichlet(self, alpha):
        self.asked = alpha.tolist()
        return self.shares

    def permutation(self, count):
        return np.arange(count)


@pytest.mark.parametrize(
    ("exponent", "expected"), [(0, [250] * 4), (1, [100, 200, 300, 400]), (-1, [480, 240, 160, 120])]
)
def test_powers(exponent, expected):
    assert sizes("power", exponent=exponent) == expected


def test_a_power_that_does_not_divide_is_rounded_up_or_down():
    squares = sizes("power", exponent=2)
    assert sum(squares) == 1000
    assert np.abs(np.array(squares) - [100 / 3, 400 / 3, 300, 1600 / 3]).max() < 1


def test_exponential():
    shares = np.exp(np.arange(4)) / np.exp(np.arange(4)).sum()
    assert np.abs(np.array(sizes("exponential")) - 1000 * shares).max() < 1
    assert sizes("exponential", exponent=-1.0) == sizes("exponential")[::-1]
    assert sizes("exponential", exponent=1000.0, least=3) == [3, 3, 3, 991]


def test_dirichlet_by_hand():
    rng = Shares(0.5, 0.3, 0.195, 0.005)
    parts = quantity(rng, LABELS, 4, alpha=0.7)
    assert rng.asked == [0.7] * 4
    assert [len(rows) for rows in parts] == [500, 300, 195, 5]
    assert np.concatenate(parts).tolist() == list(range(1000))
    # 20 rows for the last one leave 980 to the others, in proportion to 0.5, 0.3, 0.195
    raised = quantity(Shares(0.5, 0.3, 0.195, 0.005), LABELS, 4, least=20)
    assert [len(rows) for rows in raised] == [492, 296, 192, 20]


def test_given_sizes_leave_the_rest_out():
    assert sizes("given", values=[1, 2.0, 30, 4]) == [1, 2, 30, 4]
    parts = quantity(np.random.default_rng(0), LABELS, 2, "given", values=[500, 500])
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_classes_are_those_of_the_whole_up_to_chance():
    parts = quantity(np.random.default_rng(0), np.repeat(np.arange(2), 50_000), 2, "power")
    shares = [np.mean(rows >= 50_000) for rows in parts]
    np.testing.assert_allclose(shares, 0.5, atol=0.01)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sizes": "x"}, "sizes: received 'x'"),
        ({"alpha": 0}, "alpha=0; expected a finite number above 0"),
        ({"sizes": "power", "exponent": np.nan}, "exponent: received nan"),
        ({"least": 251}, "4 clients of 251 rows or more .least. need 1004 rows"),
        ({"sizes": "given"}, "'given' with no values for 4 clients"),
        ({"sizes": "given", "values": [1, 2]}, "'given' with 2 values for 4 clients"),
        ({"sizes": "given", "values": [1, 2, 3, 995]}, "values sum to 1001 rows, but there are 1000"),
        ({"sizes": "given", "values": [1, 2, 3, 0]}, "values: received 0, must be an integer of at least 1"),
        ({"sizes": "given", "values": [1, 2, 3, 1.5]}, "values: received 1.5, must be an integer"),
        ({"sizes": "given", "values": [1, 2, 3, np.inf]}, "values: received inf, must be an integer"),
        ({"values": [1, 2, 3, 4]}, "values are given, but sizes='dirichlet'"),
        ({"sizes": "given", "values": [1] * 4, "quantiles": {0: 1}}, "quantiles are given, but sizes='given'"),
        ({"sizes": "empirical"}, "values and quantiles: give one of them"),
        ({"sizes": "lognormal", "sigma": -1}, "sigma: received -1"),
        ({"sizes": "given", "values": [2**62] * 4}, f"values sum to {2**64} rows"),
    ],
)
def test_refusals(parameters, message):
    with pytest.raises(ValueError, match=message):
        sizes(**parameters)
