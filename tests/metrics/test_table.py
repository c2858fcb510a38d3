"""The table of metrics: what is written of a round and of a run, against values by hand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_bal.metrics import METRICS, SHARE, EarlyStopping, RoundResult, RunHistory, record_round, summarise_run
from fedjax_bal.metrics.classification import OVER_CLIENTS
from fedjax_bal.metrics.table import _METRICS, POINTS
from fedjax_bal.metrics.traffic import MOST_SUMMARISED
from fedjax_bal.options import Evaluation
from fedjax_bal.types import ClientTests, EvaluationResult, Plan

CONFUSION = np.array([[3, 1, 0], [0, 2, 2], [0, 0, 0]], np.int32)


def result(reported=(), groups=(), tests=None, **evaluation):
    """A round of three clients, of whom the last does not deliver."""
    federation = SimpleNamespace(class_counts=np.array([[2, 2, 0], [0, 4, 0], [9, 9, 9]]), num_clients=3, tests=tests)
    plan = Plan(np.array([[0], [1], [2]]), np.array([[True], [True], [False]]))
    seen = EvaluationResult(**({"confusion": CONFUSION, "loss": np.float32(np.inf)} | evaluation))
    return RoundResult(federation, plan, seen, dict(reported), dict(groups))


def history(accuracies, rounds, **more):
    """A run by its accuracies, which exchanges 2 bytes up and 3 down in each evaluated round."""
    pairs = zip(rounds, accuracies, strict=True)
    lines = [{"round": round, "test_accuracy": value, "bytes_up": 2, "bytes_down": 3} for round, value in pairs]
    return RunHistory(lines, **({"rounds": 100} | more))


def test_names_are_unique_and_every_metric_is_computed():
    assert len(METRICS) == len(_METRICS)
    assert all(metric.of_round or metric.of_run for metric in METRICS.values())
    assert all(metric.of_run for metric in METRICS.values() if metric.column)


TESTED_ELSEWHERE = {
    "update_diversity": "engine/test_identities.py",
    "personalised_accuracy": "engine/test_held_out.py",
    "new_client_accuracy": "lab/test_new_clients.py",
    "new_client_fine_tuned_accuracy": "lab/test_new_clients.py",
    "dropped": "engine/test_identities.py",
    "epsilon": "methods/test_accountant.py",
}


def test_every_metric_is_compared_with_a_value_by_hand():
    tests = Path(__file__).parents[1]
    here = "".join(file.read_text() for file in (tests / "metrics").glob("test_*.py"))
    of_families = {f"{name}_shot_accuracy" for name in ("many", "medium", "few")}
    of_families |= {name + end for name in METRICS for end in OVER_CLIENTS if end}  # see test_classification.py
    missing = [name for name in METRICS if f'"{name}"' not in here and name not in of_families | {*TESTED_ELSEWHERE}]
    assert missing == [], "test each by hand in tests/metrics, or name the file that does in TESTED_ELSEWHERE"
    assert all((tests / file).is_file() for file in TESTED_ELSEWHERE.values())


def test_a_round_without_anything_more_has_these_metrics():
    found = record_round(result())
    assert found == {
        "test_accuracy": 5 / 8,
        "balanced_accuracy": 0.625,
        "macro_f1": pytest.approx((6 / 7 + 4 / 7) / 2),
        "worst_class_accuracy": 0.5,
        "per_class_accuracy": [0.75, 0.5, None],
        "test_loss": None,
        "chain_kl": pytest.approx((np.log(1.5) + np.log(3)) / 2),
        "chain_kls": [round(np.log(1.5), 4), round(np.log(3), 4)],
        "cohort_kl": pytest.approx(np.log(3) + (2 * np.log(2 / 8) + 6 * np.log(6 / 8)) / 8),
    }


def test_what_is_reported_is_written_and_null_where_it_is_not_finite():
    found = record_round(result({"local_accuracy": np.float32(0.5), "train_loss": np.float32(np.nan), "clients": 2}))
    assert (found["local_accuracy"], found["train_loss"], found["clients"]) == (0.5, None, 2)
    assert all(type(value) in (float, int, list, type(None)) for value in found.values())


def test_what_the_program_measures_of_a_cohort_belongs_to_its_metric():
    evaluation = Evaluation(local_accuracy=True, local_test_images=20)
    measured = {metric.measured.name: metric.measured for metric in METRICS.values() if metric.measured}
    asked = {name for name, each in measured.items() if each.enabled(evaluation, SimpleNamespace(tests=None))}
    assert asked == {"local_accuracy", "local_test_accuracy"} < set(METRICS)
    # Two clients of 10 and 20 rows, of which the second took no step.
    cohort = SimpleNamespace(sizes=np.array([[10], [20]]), local_steps=np.array([[3], [0]]))
    hits = np.array([[15], [0]])
    values = {name: measured[name].of_cohort(hits, cohort, evaluation) for name in asked}
    assert values == {"local_accuracy": 15 / 30, "local_test_accuracy": 15 / 20}


def test_groups_of_classes_are_means_of_their_classes_and_null_without_a_tested_one():
    groups = {"many": np.array([1, 1, 0], bool), "medium": np.zeros(3, bool), "few": np.array([0, 0, 1], bool)}
    found = record_round(result(groups=groups))
    assert [found[f"{name}_shot_accuracy"] for name in groups] == [0.625, None, None]


def test_validation_rows_are_scored_like_test_images():
    found = record_round(result(validation=EvaluationResult(CONFUSION.T[[1, 0, 2]], np.float32(0.25))))
    assert (found["validation_accuracy"], found["validation_loss"]) == (pytest.approx(1 / 8), 0.25)
    assert found["validation_balanced_accuracy"] == pytest.approx((1 / 3 + 0 + 0) / 3)
    assert found["validation_macro_f1"] == pytest.approx((2 / (3 + 4) + 0 + 0) / 3)


def test_clients_are_those_with_test_rows_and_own_models_those_that_were_delivered():
    tests = ClientTests(np.zeros(6, int), np.array([0, 2, 6, 6]))
    hits = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    found = record_round(result({"own_hits": np.array([[2], [1], [0]])}, tests=tests, client_hits=hits))
    assert found["client_accuracies"] == [1.0, 0.25, None]
    assert (found["client_accuracy"], found["client_accuracy_std"], found["client_accuracy_worst10"]) == (
        0.625, 0.375, 0.25,
    )  # fmt: skip
    assert (found["own_accuracy"], found["own_accuracy_worst10"]) == (0.625, 0.25)
    assert [METRICS[f"client_accuracy{end}"].unit for end in ("", "_std", "_worst10")] == [SHARE, POINTS, SHARE]


def test_summary_of_a_curve():
    found = summarise_run(history([0.1, 0.7, 0.5, 0.6, 0.4, 0.2], [2, 4, 6, 8, 10, 12], target=0.55))
    wanted = {
        "rounds": 12, "final_accuracy": 0.2, "best_accuracy": 0.7, "last5_accuracy": pytest.approx(0.48),
        "last10_accuracy": None, "evaluations": 6, "rounds_to_target": 4, "traffic_bytes": 30,
        "traffic_to_target_bytes": 10,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert summarise_run(history([0.0] + [0.5] * 10, range(1, 12)))["last10_accuracy"] == 0.5
    for target in (0.2, None):
        found = summarise_run(history([0.1], [1], target=target))
        assert found["rounds_to_target"] is found["traffic_to_target_bytes"] is None


def test_a_run_that_failed_has_no_end_and_one_without_a_line_has_nothing():
    run = history([0.5, 0.6], [1, 2], failure="diverged", target=0.5)
    for line in run.lines:
        line |= {"simulated_s": 1.0, "chain_kl": 0.5, "validation_accuracy": 0.5, "excluded": 1}
    found = summarise_run(run)
    assert {name: value for name, value in found.items() if value is not None} == {
        "rounds": 2, "evaluations": 2, "excluded": 2, "broken_clients": found["broken_clients"],
        "clients_per_chain": 1, "copies": 0,
    }  # fmt: skip
    empty = summarise_run(history([], []))
    assert {name for name, value in empty.items() if value is not None} == {
        "rounds", "evaluations", "traffic_bytes", "clients_per_chain", "copies",
    }  # fmt: skip


def test_early_stopping_and_validation_pick_rounds():
    run = history([0.1, 0.3, 0.2], [1, 2, 3], stopping=EarlyStopping(patience=2))
    for line, value in zip(run.lines, (0.5, 0.4, 0.4), strict=True):
        line["validation_accuracy"] = value
    found = summarise_run(run)
    assert (found["stopped_early"], found["best_validation_round"], found["accuracy_at_best_validation"]) == (3, 1, 0.1)
    assert found["validation_accuracy"] == 0.4


def test_times_are_summed_up_to_the_end_and_to_the_target():
    run = history([0.1, 0.9, 0.9], [1, 2, 3], target=0.5)
    for line, seconds in zip(run.lines, (2.0, 3.0, 4.0), strict=True):
        line["simulated_s"] = seconds
    found = summarise_run(run)
    assert (found["simulated_s"], found["simulated_s_to_target"]) == (9.0, 5.0)


def faults(*lines):
    """What a summary says of broken clients."""
    rows = [{"round": 1, "test_accuracy": 0.5, "bytes_up": 0, "bytes_down": 0, **line} for line in lines]
    found = summarise_run(RunHistory(rows, 1))
    return [found[name] for name in ("excluded", "clipped", "broken_clients")]


def test_lines_that_somebody_else_wrote_do_no_harm():
    odd = {"excluded": 2, "broken_clients": [7, [1, 2], ["<b>", None, []]]}
    assert faults({"excluded": "x", "broken_clients": 3}, odd, {}) == [
        2, None, "client None in round <b> ([]), and 1 more",
    ]  # fmt: skip
    named = {"excluded": 50, "clipped": 1, "broken_clients": [[1, client, "long"] for client in range(16)]}
    text = faults(named)[2]
    assert text.count("client") == MOST_SUMMARISED
    assert text.endswith(f", and {51 - MOST_SUMMARISED} more")
    assert faults({}) == [None, None, None]
