import pytest

from fedjax_bal.report.statistics import compare
from fedjax_bal.report.words import MINUS, NOTHING, megabytes, printable, row, table, verdict


def runs(**finals):
    return [
        {
            "method": method, "seed": seed, "final_accuracy": final, "best_accuracy": 0.9, "last5_accuracy": 0.5,
            "rounds_to_target": 3 if seed == 0 else None, "traffic_bytes": 2_500_000,
        }
        for method, accuracies in finals.items()
        for seed, final in enumerate(accuracies)
    ]  # fmt: skip


def test_row_and_table_hold_the_same_figures():
    summaries = compare(runs(fedavg=[0.50, 0.52], rebafl=[0.54, 0.55]))
    result = table(summaries, 0.6)
    # Differences 4 and 3 points: mean 3.5, deviation 0.7071, half width 12.7062 * 0.5.
    assert result.rows[1] == (
        "rebafl", "54.5 ± 0.7", f"+3.5 [{MINUS}2.9, +9.9]", "50.0 ± 0.0", "90.0 ± 0.0", "3 (1 of 2 seeds)", "2.5", "2",
    )  # fmt: skip
    assert result.rows == [row(summary) for summary in summaries]
    assert result.headings == (
        "Method", "Final accuracy, %", "Difference from fedavg, points [95% interval]", "Mean of last 5, %", "Best, %",
        "Rounds to 60%", "Traffic, MB", "Seeds",
    )  # fmt: skip


def test_without_a_target_the_column_goes():
    headings, rows = table(compare(runs(fedavg=[0.5], rebafl=[0.4])))
    assert not any("Rounds to" in heading or "interval" in heading for heading in headings)
    assert all(len(cells) == len(headings) for cells in rows)
    assert rows[1][2] == f"{MINUS}10.0"


def test_what_is_undefined_is_a_dash_and_lost_seeds_are_named():
    _, cells = table(compare(runs(fedavg=[None, None], rebafl=[0.4, None]))).rows
    assert cells[1:3] == ("40.0 (1 of 2 seeds)", NOTHING)


def test_never_reached():
    summary = compare(runs(fedavg=[0.5]))[0]._replace(rounds_to_target=None, reached=0)
    assert row(summary)[5] == "not reached"


@pytest.mark.parametrize(
    ("finals", "expected"),
    [
        ({"fedavg": [0.500, 0.504], "b": [0.550, 0.556]}, "5.1 percentage points above fedavg (95% interval"),
        ({"fedavg": [0.500, 0.504], "b": [0.550, 0.555]}, ": the interval excludes 0."),
        ({"fedavg": [0.50, 0.52], "b": [0.54, 0.55]}, "2 paired seeds): no clear difference."),
        ({"fedavg": [0.6, 0.6], "b": [0.5, 0.4], "c": [0.5, 0.58]}, "fedavg has the highest mean final accuracy"),
        (
            {"fedavg": [0.6, 0.6], "b": [0.5, 0.4], "c": [0.5, 0.58]},
            "the next is c, 6.0 percentage points below fedavg",
        ),
        ({"fedavg": [0.5], "b": [0.6]}, "10.0 percentage points above fedavg (one seed in common: no interval"),
        ({"fedavg": [None], "b": [0.6], "c": [0.5]}, "with no seed in common with fedavg"),
        ({"fedavg": [0.5]}, "fedavg reaches a final accuracy of 50.0% (one seed: no interval)."),
        (
            {"fedavg": [0.5, 0.6]},
            "fedavg reaches a final accuracy of 55.0 ± 7.1% (mean ± standard deviation, 2 seeds).",
        ),
        ({"fedavg": [None]}, "No run has a final accuracy yet, so there is nothing to compare."),
        ({}, "No run has a final accuracy yet, so there is nothing to compare."),
    ],
)
def test_verdict_claims_no_more_than_the_interval(finals, expected):
    assert expected in verdict(compare(runs(**finals)))


def test_no_negative_zero():
    cells = table(compare(runs(fedavg=[0.5], rebafl=[0.49999]))).rows[1]
    assert cells[2] == "+0.0"


def test_megabytes_are_of_a_million_bytes():
    assert [megabytes(x) for x in (0, 1_500_000, 99_940_000, 123_456_789)] == ["0", "1.5", "99.9", "123"]


def test_printable_keeps_to_one_line_and_a_length():
    assert printable("a\tb\n c\x1b[0m") == "a b c\N{REPLACEMENT CHARACTER}[0m"
    assert len(printable("x" * 50, 10)) == 10
