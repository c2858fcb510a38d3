import math

import numpy as np
import pytest
from rounding import DOUBLE
from scipy import stats

from fedjax_bal.metrics.seeds import (
    Difference,
    Spread,
    apply_holm,
    class_accuracies,
    compare,
    cumulate,
    curve,
    holm,
    is_imbalanced,
    paired_difference,
    pooled_confusion,
    seeds_needed,
    spread,
)


def run(method, seed, final, **rest):
    defaults = {"best_accuracy": final, "last5_accuracy": final, "rounds_to_target": None, "traffic_bytes": 100}
    return {"method": method, "seed": seed, "final_accuracy": final, **defaults, **rest}


def test_by_hand_mean_deviation_and_interval():
    # Differences 1, 2, 3: mean 2, deviation 1, and with 2 degrees of freedom t has a closed form.
    ours, theirs = {0: 11.0, 1: 12.0, 2: 13.0}, {0: 10.0, 1: 10.0, 2: 10.0}
    found = paired_difference(ours, theirs)
    half = 0.95 / math.sqrt(2 * 0.975 * 0.025) / math.sqrt(3)
    assert (found.mean, found.std, found.pairs) == (2.0, 1.0, 3)
    np.testing.assert_allclose([found.low, found.high], [2 - half, 2 + half], rtol=DOUBLE)
    # With 2 degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2), at t = 2 / (1 / sqrt(3)).
    np.testing.assert_allclose(found.p, 1 - math.sqrt(12 / 14), rtol=1e-9)
    assert spread([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 3)


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_interval_and_p_value_are_those_of_the_paired_t_test(seeds):
    ours, theirs = np.random.default_rng(seeds).random((2, seeds))
    test = stats.ttest_rel(ours, theirs)
    expected = test.confidence_interval(0.95)
    found = paired_difference(dict(enumerate(ours)), dict(enumerate(theirs)))
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=1e-9, atol=DOUBLE)
    np.testing.assert_allclose(found.p, test.pvalue, rtol=1e-9)
    assert found.p_holm is None and not found.significant


def test_equal_differences_have_no_p_value_unless_they_are_0():
    assert paired_difference({0: 0.7, 1: 0.71}, {0: 0.69, 1: 0.7}).p is None
    assert paired_difference({0: 0.7, 1: 0.71}, {0: 0.7, 1: 0.71}).p == 1


def step_down(p_values):
    """Holm (1979) as it is told: from the smallest p-value on, alpha / m, alpha / (m - 1), ..., until one fails.

    The corrected p-value is the smallest alpha at which the hypothesis is rejected; equal p-values share it.
    """
    corrected = []
    for p in p_values:
        smaller = sorted(other for other in p_values if other <= p)
        levels = [len(p_values) - rank for rank in range(len(smaller))]
        # To reject p, each before it must be rejected; of those equal to p, the first one needs the smallest level.
        corrected.append(min(1, max(value * level for value, level in zip(smaller, levels, strict=True))))
    return corrected


def test_holms_correction_by_hand_with_ties():
    # 4 x 0.01, 3 x 0.02, then 2 x 0.02 and 0.03, which are smaller than the one before.
    assert holm([0.02, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1, 1] and holm([0.03]) == [0.03] and holm([]) == []
    for seed in range(5):
        p_values = np.random.default_rng(seed).choice([0.001, 0.004, 0.01, 0.02, 0.3], 9).tolist()
        np.testing.assert_allclose(holm(p_values), step_down(p_values), rtol=DOUBLE)


def test_differences_are_corrected_for_those_that_have_a_p_value():
    found = apply_holm([Difference(1, 0, 2, 3, 1, 0.02), Difference(1, None, None, 1), Difference(1, 0, 2, 3, 1, 0.03)])
    assert [value.p_holm for value in found] == [0.04, None, 0.04]
    assert [value.significant for value in found] == [True, False, True]


def power(pairs, effect, level):
    """P(T > quantile), as an integral over the chi distribution of the standard deviation, by the trapezoidal rule."""
    edge = stats.t.isf(level / 2, pairs - 1)
    deviations = np.linspace(1e-9, 1 + 8 / math.sqrt(pairs - 1), 20_001)
    density = stats.chi.pdf(deviations * math.sqrt(pairs - 1), pairs - 1) * math.sqrt(pairs - 1)
    return np.trapezoid(density * stats.norm.sf(edge * deviations - effect * math.sqrt(pairs)), deviations)


@pytest.mark.parametrize("level", [0.05, 0.05 / 53])
@pytest.mark.parametrize("std", [0.001, 0.01, 0.012, 0.05])
def test_the_seeds_needed_are_the_fewest_with_the_power(std, level):
    expected = next(pairs for pairs in range(2, 1000) if power(pairs, 0.01 / std, level) >= 0.8)
    assert seeds_needed(std, 0.01, level=level) == seeds_needed(std, -0.01, level=level) == expected
    assert seeds_needed(0.0, 0.01) == 2


def test_a_simulated_study_has_the_power():
    pairs = seeds_needed(0.012, 0.01)
    drawn = np.random.default_rng(0).normal(0.01, 0.012, (20_000, pairs))
    significant = (stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean()
    assert significant == pytest.approx(0.83, abs=0.03)  # four standard errors are 0.011


def test_methods_are_compared_by_the_mean_over_classes_where_it_differs_from_accuracy():
    runs = [run("a", 0, 0.9, balanced_accuracy=0.5), run("a", 1, 0.9, balanced_accuracy=0.6)]
    runs += [run("b", 0, 0.8, balanced_accuracy=0.7), run("b", 1, 0.8, balanced_accuracy=0.9)]
    a, b = compare(runs)
    assert (a.headline, b.headline.mean) == (a.class_mean, pytest.approx(0.8))
    assert b.difference.mean == pytest.approx(0.25)
    a, b = compare(runs, by_class_mean=False)
    assert (a.headline, b.difference.mean) == (a.last5, pytest.approx(-0.1))


@pytest.mark.parametrize(("gap", "expected"), [(0.004, False), (-0.006, True), (None, False)])
def test_a_gap_of_half_a_point_makes_a_test_set_imbalanced(gap, expected):
    other = None if gap is None else 0.5 + gap
    runs = [run("a", 0, 0.5, balanced_accuracy=0.5), run("b", 0, 0.5, balanced_accuracy=other), run("c", 0, None)]
    assert is_imbalanced(runs) is expected


def test_p_values_of_a_comparison_are_corrected_for_its_methods():
    finals = {"a": (0.50, 0.51, 0.52), "b": (0.60, 0.61, 0.625), "c": (0.52, 0.54, 0.545), "d": (0.5, None, None)}
    made = [run(name, seed, value) for name, values in finals.items() for seed, value in enumerate(values)]
    _, *others = compare(made)
    p_values = [stats.ttest_rel(finals[name], finals["a"]).pvalue for name in "bc"]
    assert [other.difference.p for other in others] == pytest.approx([*p_values, None])
    assert [other.difference.p_holm for other in others] == pytest.approx([2 * p_values[0], p_values[1], None])


def test_first_method_is_the_reference_and_order_is_of_appearance():
    runs = [run("z", 0, 0.5), run("a", 0, 0.7), run("z", 1, 0.6), run("a", 1, 0.7), run("a", 2, 0.1)]
    z, a = compare(runs)
    assert (z.method, z.difference, a.method, a.seeds) == ("z", None, "a", 3)
    difference = a.difference
    assert difference.pairs == 2
    np.testing.assert_allclose(difference.mean, 0.15, rtol=DOUBLE)
    np.testing.assert_allclose(a.final.mean, 0.5, rtol=DOUBLE)
    np.testing.assert_allclose(a.final.std, np.std([0.7, 0.7, 0.1], ddof=1), rtol=DOUBLE)


def test_one_seed_has_neither_deviation_nor_interval():
    _, b = compare([run("a", 3, 0.5), run("b", 3, 0.75)])
    assert b.final == Spread(0.75, None, 1)
    assert b.difference == Difference(0.25, None, None, 1)


def test_no_seed_in_common_and_undefined_values():
    a, b, c = compare([run("a", 0, 0.5), run("b", 1, 0.75), run("c", 0, None)])
    assert b.difference == c.difference == Difference(None, None, None, 0)
    assert c.final == Spread(None, None, 0)
    assert a.rounds_to_target is None and a.reached == 0


def test_rounds_to_target_counts_those_that_reached_it():
    found = ((0, 4, 10), (1, None, 20), (2, 7, 60))
    (a,) = compare([run("a", seed, 0.5, rounds_to_target=rounds, traffic_bytes=sent) for seed, rounds, sent in found])
    assert (a.rounds_to_target, a.reached, a.seeds, a.traffic_bytes) == (5.5, 2, 3, 30.0)


def test_traffic_to_target_counts_those_that_reached_it():
    def sent(*runs):
        (a,) = compare(
            [run("a", s, 0.5, rounds_to_target=r, traffic_to_target_bytes=b) for s, (r, b) in enumerate(runs)]
        )
        return a.traffic_to_target_bytes

    assert sent((4, 10), (None, None), (7, 40)) == 25.0
    assert sent((4, 10), (None, 99)) == 10.0
    assert sent((None, None)) is None
    assert sent((4, 10), (7, None)) is None
    assert compare([run("a", 0, 0.5, rounds_to_target=4)])[0].traffic_to_target_bytes is None


def test_divergence_is_a_mean_over_the_seeds_that_have_one():
    (a,) = compare([run("a", s, 0.5, chain_kl=kl) for s, kl in enumerate((0.25, 0.75, None))])
    assert (a.chain_kl, a.balances_classes) == (0.5, False)
    assert compare([run("a", 0, 0.5)])[0].chain_kl is None


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"clients_per_chain": 1, "copies": 0}, False),
        ({"clients_per_chain": None, "copies": None}, False),
        ({"clients_per_chain": 2, "copies": 0}, True),
        ({"clients_per_chain": 1, "copies": 1}, True),
    ],
)
def test_a_method_evens_classes_by_chains_or_by_copies(about, expected):
    assert compare([run("a", 0, 0.5, **about)])[0].balances_classes is expected


def test_the_same_run_twice_is_refused():
    with pytest.raises(ValueError, match="2 runs of method 'a' with seed 0"):
        compare([run("a", 0, 0.5), run("a", 0, 0.6)])


def lines(method, seed, values, key="test_accuracy"):
    return [{"method": method, "seed": seed, "round": at, key: value} for at, value in values.items()]


def test_curve_has_mean_and_band_over_seeds():
    data = lines("a", 0, {2: 0.4, 1: 0.1}) + lines("b", 0, {1: 9.0}) + lines("a", 1, {1: 0.3, 2: 0.8})
    rounds, mean, low, high = curve(data, "a", "test_accuracy")
    np.testing.assert_array_equal(rounds, [1, 2])
    np.testing.assert_allclose(mean, [0.2, 0.6], rtol=DOUBLE)
    std = np.array([0.1, 0.2]) * math.sqrt(2)
    np.testing.assert_allclose(low, mean - std, rtol=DOUBLE)
    np.testing.assert_allclose(high, mean + std, rtol=DOUBLE)


def test_curve_keeps_the_rounds_that_all_seeds_have():
    data = lines("a", 0, {1: 0.1, 2: 0.2, 3: 0.3}) + lines("a", 1, {1: 0.3, 2: None})
    assert curve(data, "a", "test_accuracy").rounds.tolist() == [1]
    empty = curve(data + lines("a", 2, {7: 0.5}), "a", "test_accuracy")
    assert empty.rounds.size == empty.mean.size == 0
    assert curve(data, "unknown", "test_accuracy").rounds.size == 0


def test_curve_of_one_seed_has_no_band():
    assert curve(lines("a", 0, {1: 0.1}), "a", "test_accuracy")[2:] == (None, None)


def test_traffic_adds_up_per_run_and_stops_at_a_gap():
    def line(method, seed, at, up):
        return {"method": method, "seed": seed, "round": at, "bytes_up": up, "bytes_down": 1}

    data = [line("a", 0, 1, 2), line("a", 1, 1, 10), line("a", 0, 3, 4), line("b", 0, 1, None), line("b", 0, 2, 1)]
    added = cumulate(data, "traffic", ("bytes_up", "bytes_down"))
    sums = {(x["method"], x["seed"], x["round"]): x["traffic"] for x in added}
    expected = {("a", 0, 1): 3, ("a", 0, 3): 8, ("a", 1, 1): 11, ("b", 0, 1): None, ("b", 0, 2): None}
    assert sums == expected


def test_class_accuracies_are_those_of_the_last_round():
    data = lines("a", 0, {2: [0.5, None], 1: [0.0, 0.0]}, "per_class_accuracy")
    data += lines("a", 1, {1: [0.9, 0.2]}, "per_class_accuracy")
    mean, low, high = class_accuracies(data, "a")
    np.testing.assert_allclose(mean, [0.7, np.nan], rtol=DOUBLE)
    std = np.std([0.5, 0.9], ddof=1)
    np.testing.assert_allclose([low[0], high[0]], [0.7 - std, 0.7 + std], rtol=DOUBLE)
    assert class_accuracies(lines("a", 0, {1: 0.5}), "a") is None


def test_confusion_is_pooled_over_seeds_before_it_is_normalised():
    runs = [
        {"method": "a", "confusion_matrix": [[1, 0], [0, 4]]},
        {"method": "b", "confusion_matrix": [[0, 9], [9, 0]]},
        {"method": "a", "confusion_matrix": [[0, 3], [0, 0]]},
    ]
    np.testing.assert_array_equal(pooled_confusion(runs, "a"), [[0.25, 0.75], [0, 1]])
    assert pooled_confusion([{"method": "a", "confusion_matrix": None}], "a") is None
