import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedjax_bal.data.partition import normal_density, normal_shares


def rng(seed=0):
    return np.random.default_rng(seed)


def counts_of(labels, parts):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def test_shares_of_ten_classes():
    density = norm.pdf([-2.7, -2.1, -1.5, -0.9, -0.3, 0.3, 0.9, 1.5, 2.1, 2.7])
    np.testing.assert_allclose(normal_shares(10), density / density.sum(), rtol=1e-12)
    assert normal_shares(10).max() / normal_shares(10).min() == pytest.approx(np.exp(3.6))
    assert normal_shares(1).tolist() == [1.0]
    np.testing.assert_allclose(normal_shares(2), [0.5, 0.5])
    assert normal_shares(4, span=2.0)[1] / normal_shares(4, span=2.0)[0] == pytest.approx(np.exp(1.0))


@pytest.mark.parametrize("local", ["even", "iid", "random"])
def test_cinic10(local):
    labels = rng().permutation(np.repeat(np.arange(10), 9000))
    parts = normal_density(rng(), labels, 100, local=local)
    counts = counts_of(labels, parts)
    quotas, density = counts.sum(axis=0), norm.pdf(np.arange(-2.7, 3, 0.6))
    assert quotas.max() == 9000
    assert np.abs(quotas - 9000 * density / density.max()).max() < 1
    assert len(set(np.concatenate(parts).tolist())) == quotas.sum()
    assert np.ptp(counts.sum(axis=1)) <= 1
    expected = quotas / 100
    spread = (((counts - expected) ** 2).mean(axis=0) / expected).mean()
    # Rounding alone; one draw in a hypergeometric law, below 1; weights of variance 1/12 around 1/2 on top.
    assert {"even": spread < 0.3, "iid": 0.5 < spread < 1.1, "random": spread > 5}[local]


def test_observed_sizes():
    parts = normal_density(rng(), np.repeat(np.arange(10), 9000), 100, sizes="empirical", quantiles={0: 5, 1: 500})
    sizes = np.array([len(rows) for rows in parts])
    assert sizes.min() >= 10 and 20 < sizes.max() / sizes.min() < 101
    logs = np.log(sizes)  # uniform, between the two quantiles
    assert np.median(logs) - logs.min() > 0.35 * np.ptp(logs) and logs.max() - np.median(logs) > 0.35 * np.ptp(logs)


@settings(max_examples=100, deadline=None)
@given(
    held=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    clients=st.integers(1, 10),
    total=st.one_of(st.none(), st.integers(1, 120)),
    local=st.sampled_from(["even", "iid", "random"]),
    skew=st.sampled_from(["uniform", "exponential"]),
    sizes=st.sampled_from(["equal", "lognormal"]),
    seed=st.integers(0, 99),
)
def test_disjoint_rows_and_the_largest_set(held, clients, total, local, skew, sizes, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(held)), held))
    shares = normal_shares(len(held))
    rows = int(min(np.array(held) / shares) + 1e-9) if total is None else total
    draw = lambda: normal_density(rng(seed), labels, clients, total, sizes, local, skew, least=1)
    if rows > len(labels) or rows < clients:
        with pytest.raises(ValueError, match="rows"):
            draw()
        return
    parts = draw()
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert len(together) == len(set(together.tolist())) == rows
    quotas = np.bincount(labels[together], minlength=len(held))
    assert (quotas <= held).all()
    if total is None:
        assert np.abs(quotas - rows * shares).max() < 1
        assert rows + 1 > min(np.array(held) / shares)


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (5, {"span": 0.0}, "span=0.0; expected a number above 0 and of at most 10"),
        (5, {"span": float("nan")}, "span=nan"),
        (5, {"total": 1001}, "total=1001 rows, but the classes that take part hold 1000"),
        (5, {"local": "odd"}, "local: received 'odd'"),
        (5, {"local_skew": "odd"}, "local_skew: received 'odd'"),
        (5, {"sizes": "empirical"}, "values and quantiles: give one of them"),
        (900, {}, "900 clients for 435 rows"),
    ],
)
def test_refusals(clients, options, message):
    with pytest.raises(ValueError, match=message):
        normal_density(rng(), np.repeat(np.arange(10), 100), clients, **options)
