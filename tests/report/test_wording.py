import pytest

from fedjax_bal.metrics.seeds import compare
from fedjax_bal.report.wording import (
    MINUS,
    NOTHING,
    lead,
    leader,
    megabytes,
    printable,
    shows_divergence,
    table,
    table_notes,
    tied,
    verdict,
)


def runs(**last5):
    return [
        {
            "method": method, "seed": seed, "final_accuracy": 0.5, "best_accuracy": 0.9, "last5_accuracy": last5,
            "worst_class_accuracy": 0.25,
            "rounds_to_target": 3 if seed == 0 else None, "traffic_bytes": 2_500_000,
            "traffic_to_target_bytes": 1_250_000 if seed == 0 else None,
        }
        for method, accuracies in last5.items()
        for seed, last5 in enumerate(accuracies)
    ]  # fmt: skip


def test_who_leads_is_told_without_a_distance_that_is_not_known():
    assert lead(compare(runs(fedavg=[0.5], rebafl=[0.6]))) == "rebafl 60.0% (+10.0 points from fedavg, one seed)"
    assert lead(compare(runs(fedavg=[None], rebafl=[0.6], scaffold=[0.4]))) == (
        "rebafl 60.0% (+20.0 points from scaffold, one seed)"
    )
    # The first method's distance is that from the next one.
    assert lead(compare(runs(fedavg=[0.5], rebafl=[0.3], moon=[0.4]))) == (
        "fedavg 50.0% (+10.0 points from moon, one seed)"
    )
    assert lead(compare(runs(fedavg=[0.5]))) == "fedavg 50.0% (one seed)"


def test_the_next_method_is_named_where_only_a_lower_one_may_be_as_good():
    summaries = compare(runs(a=[0.3, 0.7], b=[0.60, 0.80], c=[0.55, 0.75]))
    text = "b 70.0 ± 14.1%, c 65.0 ± 14.1%, clearly below; but b and a 50.0 ± 28.3%, "
    assert lead(summaries).startswith(f"no clear winner ({text}")
    assert verdict(summaries).startswith(
        f"No clear winner over the last five evaluations: {text}20.0 percentage points"
    )


def test_rows_have_a_cell_for_each_heading():
    summaries = compare(runs(fedavg=[0.50, 0.52], rebafl=[0.54, 0.55]))
    result = table(summaries, 0.6)
    # Differences 4 and 3 points: mean 3.5, deviation 0.7071, half width 12.7062 * 0.5.
    assert result.rows[1] == (
        "rebafl", "54.5 ± 0.7", f"+3.5 [{MINUS}2.9, +9.9]", "25.0 ± 0.0", "50.0 ± 0.0", "90.0 ± 0.0",
        "3 (1 of 2 seeds)", "1.25 (1 of 2)", "2.5", "2",
    )  # fmt: skip
    assert result.headings == (
        "Method", "Mean of last 5, %", "Difference from fedavg, points [95% interval]", "Worst class, %", "Final, %",
        "Best, %", "Rounds to 60%", "Traffic to 60%, MB", "Traffic, MB", "Seeds",
    )  # fmt: skip


def test_an_imbalanced_test_set_has_a_column_and_a_sentence_of_class_means():
    listed = runs(fedavg=[0.9, 0.9], rebafl=[0.8, 0.8])
    for run, mean in zip(listed, [0.5, 0.52, 0.6, 0.64], strict=True):
        run["balanced_accuracy"] = mean
    summaries = compare(listed)
    headings, rows = table(summaries)
    place = headings.index("Mean over classes, %")
    assert [cells[place] for cells in rows] == ["51.0 ± 1.4", "62.0 ± 2.8"]
    # Differences 10 and 12 points: mean 11, deviation 1.4142, half width 12.7062.
    assert verdict(summaries).endswith(
        "The test set is imbalanced: by the mean over classes after the last round rebafl is highest, 62.0 ± 2.8%, "
        f"+11.0 [{MINUS}1.7, +23.7] points from fedavg."
    )
    for run in listed:
        run["balanced_accuracy"] = 0.504  # as on a balanced test set, to rounding
    assert "Mean over classes, %" not in table(compare(listed)).headings
    assert "imbalanced" not in verdict(compare(listed))


def test_without_a_target_the_column_goes():
    headings, rows = table(compare(runs(fedavg=[0.5], rebafl=[0.4])))
    assert not any(" to " in heading or "interval" in heading for heading in headings)
    assert all(len(cells) == len(headings) for cells in rows)
    assert rows[1][2] == f"{MINUS}10.0"


def test_what_is_undefined_is_a_dash_and_lost_seeds_are_named():
    _, cells = table(compare(runs(fedavg=[None, None], rebafl=[0.4, None]))).rows
    assert cells[1:3] == ("40.0 (1 of 2 seeds)", NOTHING)


def test_never_reached():
    summary = compare(runs(fedavg=[0.5]))[0]._replace(rounds_to_target=None, reached=0)
    assert table([summary], 0.6).rows[0][5:7] == ("not reached", "not reached")


def test_traffic_to_the_target_is_a_dash_where_it_was_not_counted():
    (summary,) = compare(runs(fedavg=[0.5]))
    assert table([summary], 0.6).rows[0][5:7] == ("3", "1.25")
    assert table([summary._replace(traffic_to_target_bytes=None)], 0.6).rows[0][5:7] == ("3", NOTHING)


def test_a_narrow_table_has_no_room_for_traffic_to_the_target():
    headings, rows = table(compare(runs(fedavg=[0.50, 0.52])), 0.6, short=True)
    assert headings == ("method", "last 5", "worst", "final", "to 60%", "MB", "seeds")
    assert rows[0][4:] == ("3 (1 of 2 seeds)", "2.5", "2")


def mediated(*values, **last5):
    """Runs of which the last method has mediators of five clients."""
    kls = dict(zip(last5, values, strict=True))
    last = list(last5)[-1]
    about = lambda method: {"chain_kl": kls[method], "clients_per_chain": 5 if method == last else 1, "copies": 0}
    return compare([entry | about(entry["method"]) for entry in runs(**last5)])


def test_divergences_stand_beside_each_other_where_a_method_evens_classes():
    headings, rows = table(mediated(0.55049, 0.12, fedavg=[0.5], astraea=[0.5]), 0.6)
    assert headings[5:7] == ("Best, %", "KL") and all(len(cells) == len(headings) for cells in rows)
    assert [cells[5:7] for cells in rows] == [("90.0", "0.550"), ("90.0", "0.120")]


def test_in_a_narrow_table_divergences_take_the_place_of_the_last_evaluation():
    headings, rows = table(mediated(0.55, None, fedavg=[0.5], astraea=[0.5]), 0.6, short=True)
    assert headings == ("method", "last 5", "vs fedavg", "worst", "KL", "to 60%", "MB", "seeds")
    assert [cells[3:6] for cells in rows] == [("25.0", "0.550", "3"), ("25.0", NOTHING, "3")]


def test_without_mediators_copies_or_values_the_column_goes():
    plain = [entry | {"chain_kl": 0.5, "clients_per_chain": 1, "copies": 0} for entry in runs(fedavg=[0.5])]
    for summaries in (compare(plain), mediated(None, fedavg=[0.5])):
        assert not shows_divergence(summaries)
        for short in (False, True):
            assert "KL" not in table(summaries, short=short).headings
            assert table(summaries, short=short) == table(compare(runs(fedavg=[0.5])), short=short)


@pytest.mark.parametrize(
    ("finals", "expected"),
    [
        ({"a": [0.5], "b": [0.5]}, "Both methods have the same mean accuracy over their last five evaluations, 50.0%."),
        (
            {"a": [0.02], "b": [0.0204], "c": [0.0196]},
            "All 3 methods have the same mean accuracy over their last five evaluations, 2.0%.",
        ),
        (
            {"a": [0.4, 0.6], "b": [0.5, 0.5]},
            "Both methods have the same mean accuracy over their last five evaluations, 50.0%.",
        ),
        ({"a": [None], "b": [0.5], "c": [0.5]}, "The 2 methods that have an accuracy have the same mean"),
        ({"a": [0.5], "b": [0.501]}, "b has the highest accuracy over its last five evaluations, 50.1%"),
        ({"a": [0.5], "b": [0.5], "c": [0.4]}, "a has the highest accuracy over its last five evaluations, 50.0%"),
        ({"a": [0.5], "b": [None]}, "a reaches an accuracy of 50.0%"),
    ],
)
def test_verdict_names_nobody_where_all_end_alike(finals, expected):
    summaries = compare(runs(**finals))
    assert expected in verdict(summaries)
    assert tied(summaries) is ("the same mean" in expected)


@pytest.mark.parametrize(
    ("evaluations", "words", "heading"),
    [
        ([1, 1], "its only evaluation", "Mean of last 1, %"),
        ([2, 2], "its last two evaluations", "Mean of last 2, %"),
        ([2, 4], "its last two to four evaluations", "Mean of last 2 to 4, %"),
        ([5, 5], "its last five evaluations", "Mean of last 5, %"),
        ([6, 6], "its last five of 6 evaluations", "Mean of last 5 of 6, %"),
        ([6, 19], "its last five of 6 to 19 evaluations", "Mean of last 5 of 6 to 19, %"),
        ([200, 7], "its last five evaluations", "Mean of last 5, %"),
    ],
)
def test_headline_and_heading_say_as_many_evaluations_as_there_are(evaluations, words, heading):
    made = [run | {"evaluations": count} for run, count in zip(runs(a=[0.5, 0.6]), evaluations, strict=True)]
    summaries = compare(made)
    assert words in verdict(summaries) and table(summaries).headings[1] == heading
    assert f"“{heading.removesuffix(', %')}” averages the {words.removeprefix('its ')} of a run." in " ".join(
        table_notes(summaries, partitions=False)
    )


@pytest.mark.parametrize(
    ("finals", "best"),
    [
        ({"a": [0.50, 0.51, 0.52], "b": [0.60, 0.61, 0.62]}, "b"),
        ({"a": [0.60, 0.61, 0.62], "b": [0.50, 0.51, 0.52]}, "a"),
        ({"a": [0.50, 0.60, 0.70], "b": [0.71, 0.60, 0.52]}, None),
        ({"a": [0.50, 0.51, 0.52], "b": [0.60, 0.61, 0.62], "c": [0.601, 0.609, 0.619]}, None),
        ({"a": [0.5], "b": [0.6]}, None),
        ({"a": [0.5, 0.6]}, None),
        ({"a": [None, None], "b": [0.6, 0.61]}, None),
    ],
)
def test_a_leader_is_ahead_of_each_other_method_beyond_chance(finals, best):
    found = leader(compare(runs(**finals)))
    assert (found and found.method) == best


def test_no_winner_is_named_in_few_words_where_the_interval_includes_0():
    found = lead(compare(runs(a=[0.50, 0.60, 0.70], b=[0.71, 0.60, 0.52])))
    assert found.startswith(f"no clear winner (b 61.0 ± 9.5%, a 60.0 ± 10.0%, +1.0 [{MINUS}47.5, +49.5] points)")


@pytest.mark.parametrize(
    ("finals", "expected"),
    [
        ({"fedavg": [0.500, 0.504], "b": [0.550, 0.556]}, "5.1 percentage points above fedavg (95% interval"),
        ({"fedavg": [0.500, 0.504], "b": [0.550, 0.555]}, ": the interval excludes 0."),
        (
            {"fedavg": [0.50, 0.52], "b": [0.54, 0.55]},
            "No clear winner over the last five evaluations: b 54.5 ± 0.7%, fedavg 51.0 ± 1.4%, 3.5 percentage points",
        ),
        (  # the second one leads fedavg in every seed, but not the third one
            {"fedavg": [0.500, 0.504], "b": [0.550, 0.556], "c": [0.556, 0.549]},
            "No clear winner over the last five evaluations: b 55.3 ± 0.4%, c 55.2 ± 0.5%, 0.1 percentage points apart",
        ),
        (
            {"fedavg": [0.500, 0.504], "b": [0.550, 0.556], "c": [0.556, 0.549]},
            "b is 5.1 percentage points above fedavg (95% interval",
        ),
        (
            {"fedavg": [0.6, 0.6], "b": [0.5, 0.4], "c": [0.5, 0.58]},
            "No clear winner over the last five evaluations: fedavg 60.0 ± 0.0%, c 54.0 ± 5.7%, 6.0 percentage points",
        ),
        (
            {"fedavg": [0.6, 0.601], "c": [0.54, 0.542]},
            "fedavg has the highest accuracy over its last five evaluations, 60.1 ± 0.1%; the next is c, 5.9",
        ),
        ({"fedavg": [0.5], "b": [0.6]}, "10.0 percentage points above fedavg (one seed only: no interval; the"),
        ({"fedavg": [None], "b": [0.6], "c": [0.5]}, "with no run of the same seed and partition as fedavg"),
        (
            {"fedavg": [0.5]},
            "fedavg reaches an accuracy of 50.0% over its last five evaluations (one seed: no interval).",
        ),
        (
            {"fedavg": [0.5, 0.6]},
            "accuracy of 55.0 ± 7.1% over its last five evaluations (mean ± standard deviation, 2 seeds).",
        ),
        ({"fedavg": [None]}, "No run has an accuracy yet, so there is nothing to compare."),
        ({}, "No run has an accuracy yet, so there is nothing to compare."),
    ],
)
def test_verdict_claims_no_more_than_the_interval(finals, expected):
    assert expected in verdict(compare(runs(**finals)))


def test_no_negative_zero():
    cells = table(compare(runs(fedavg=[0.5], rebafl=[0.49999]))).rows[1]
    assert cells[2] == "+0.0"


def test_megabytes_are_of_a_million_bytes():
    assert [megabytes(x) for x in (0, 1_500_000, 99_940_000, 1_234_567_890)] == ["0", "1.5", "99.9", "1,235"]


def test_printable_keeps_to_one_line_and_a_length():
    assert printable("a\tb\n c\x1b[0m") == "a b c\N{REPLACEMENT CHARACTER}[0m"
    assert len(printable("x" * 50, 10)) == 10
