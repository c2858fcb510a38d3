import numpy as np
import pytest

from fedjax_bal.report.cohorts import (
    MOST_DOTS,
    MOST_STEPS,
    chain_divergences,
    chosen_at_most,
    differ,
    mean_divergence,
    pooled,
    pooled_composition,
    times_chosen,
)


def line(method, seed, at, values):
    return {"method": method, "seed": seed, "round": at, "chain_kls": values}


def composition(clients, rank, estimated, true):
    return {
        "clients": clients, "rank_correlation": rank, "shown": list(range(len(true))), "estimated": estimated,
        "true": true,
    }  # fmt: skip


def test_divergences_are_those_of_one_method_by_seed_and_round():
    lines = [line("a", 0, 1, [0.5, 0.75]), line("b", 0, 1, [9.0]), line("a", 1, 1, [0.25])]
    lines += [line("a", 0, 2, []), line("a", 0, 3, None), {"method": "a", "seed": 0, "round": 4}]
    values = chain_divergences(lines, "a")
    assert values == {(0, 1): (0.5, 0.75), (1, 1): (0.25,)}
    assert pooled(values).tolist() == [0.25, 0.5, 0.75]


def test_the_mean_is_over_rounds_then_seeds_and_not_of_the_values_drawn():
    # Seed 0 has two rounds with 0.2 and 0.4, seed 1 one round with 0.6: (0.3 + 0.6) / 2.
    lines = [{**line("a", 0, 1, [9.0]), "chain_kl": 0.2}, {**line("a", 0, 2, [9.0]), "chain_kl": 0.4}]
    lines += [{**line("a", 1, 1, [9.0]), "chain_kl": 0.6}, {**line("a", 1, 2, []), "chain_kl": None}]
    assert mean_divergence([*lines, {**line("b", 0, 1, []), "chain_kl": 7.0}], "a") == pytest.approx(0.45, rel=1e-12)
    assert mean_divergence(lines, "b") is None


def test_times_chosen_leaves_out_runs_without_clients():
    runs = [
        {"method": "a", "seed": 0, "rounds": 3, "chosen": [[0, 1], [2, 2]]},
        {"method": "a", "seed": 1, "rounds": 2, "chosen": None},
        {"method": "a", "seed": 2, "rounds": 2, "chosen": []},
        {"method": "a", "seed": 3, "rounds": 0, "chosen": [[0, 0], [1, 0]]},
        {"method": "b", "seed": 0, "rounds": 3, "chosen": [[0, 3]]},
    ]
    assert times_chosen(runs, "a") == {(0, 3): ((0, 1), (2, 2))}


def test_shares_are_averaged_over_seeds_not_over_clients():
    # One seed with 2 clients, one with 8: at most once are 1 of 2 and 6 of 8.
    times, shares = chosen_at_most([((1, 1), (3, 1)), ((0, 2), (1, 4), (2, 2))], 4)
    assert times.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(shares, [0.125, 0.625, 0.75, 1, 1], rtol=1e-12)


def test_a_long_line_keeps_its_ends():
    times, shares = chosen_at_most([[(times, 1) for times in range(100_000)]], 99_999)
    assert len(times) == MOST_STEPS and (times[0], times[-1]) == (0, 99_999)
    np.testing.assert_allclose(shares, (times + 1) / 100_000, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], False),
        ([{1: (2, 3)}], False),
        ([{1: (2, 3)}, {1: (2, 3)}], False),
        ([{1: (2, 3)}, {1: (3, 2)}], True),
        ([{1: (2, 3), 2: (5,)}, {1: (2, 3)}], False),
        ([{1: (2, 3)}, {2: (2, 3)}], True),
        ([{1: (2,)}, {1: (2,), 2: (4,)}, {2: (5,)}], True),
    ],
)
def test_methods_differ_only_where_they_can_be_compared(values, expected):
    assert differ(values) is expected


def test_compositions_are_pooled_over_seeds():
    runs = [
        {"method": "a", "composition": composition(10, 0.5, [[0.75, 0.25]], [[1, 0]])},
        {"method": "b", "composition": composition(1, 1.0, [[0, 1]], [[0, 1]])},
        {"method": "a", "composition": composition(20, 1.0, [[0.5, 0.5], [0.125, 0.875]], [[0.5, 0.5], [0, 1]])},
        {"method": "a", "composition": None},
        {"method": "a"},
    ]
    found = pooled_composition(runs, "a")
    assert found is not None
    assert found.estimated.tolist() == [0.75, 0.25, 0.5, 0.5, 0.125, 0.875]
    assert found.true.tolist() == [1, 0, 0.5, 0.5, 0, 1]
    assert (found.clients, found.rank_correlation.mean, found.rank_correlation.seeds) == (15, 0.75, 2)
    assert pooled_composition(runs, "c") is None
    assert pooled_composition([{"method": "a", "composition": composition(0, None, [], [])}], "a") is None


def test_of_many_pairs_random_ones_are_kept_together():
    true = (np.arange(10 * MOST_DOTS) / (10 * MOST_DOTS)).reshape(-1, 10)
    found = pooled_composition(
        [{"method": "a", "composition": composition(9, None, (1 - true).tolist(), true.tolist())}], "a"
    )
    assert found is not None and len(found.true) == MOST_DOTS
    assert found.rank_correlation.mean is None
    number = np.rint(found.true * 10 * MOST_DOTS).astype(int)
    expected = MOST_DOTS / 10
    for often in (np.bincount(number % 10), np.bincount(number // MOST_DOTS)):  # by class, and by tenth of the clients
        assert ((often - expected) ** 2 / expected).sum() < 27.9  # chi-squared, 9 degrees: one in a thousand
    np.testing.assert_allclose(found.true + found.estimated, 1, rtol=1e-12)
