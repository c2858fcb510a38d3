"""When early stopping ends a run, and which round it holds to be the best."""

import math

import pytest

from fedjax_bal.metrics import EarlyStopping


def records(values, metric="validation_accuracy"):
    return [{metric: value} for value in values]


CASES = [
    ({"patience": 2}, [0.1, 0.2, 0.3], False),
    ({"patience": 2}, [0.3, 0.2], False),
    ({"patience": 2}, [0.3, 0.2, 0.3], True),  # as good is no better
    ({"patience": 2}, [0.3, 0.2, 0.4, 0.1], False),
    ({"patience": 1}, [0.3], False),
    ({"patience": 1}, [], False),
    ({"patience": 2, "min_delta": 0.1}, [0.3, 0.35, 0.39], True),
    ({"patience": 2, "min_delta": 0.1}, [0.3, 0.35, 0.41], False),  # small steps add up
    ({"patience": 2, "metric": "validation_loss"}, [2.0, 1.0, 1.5], False),
    ({"patience": 2, "metric": "validation_loss"}, [2.0, 1.0, 1.5, 1.0], True),
    ({"patience": 2}, [0.3, None, math.nan], True),
    ({"patience": None}, [0.3] * 50, False),
]


@pytest.mark.parametrize(("options", "values", "over"), CASES)
def test_a_run_ends_after_so_many_evaluations_without_an_improvement(options, values, over):
    rule = EarlyStopping(**options)
    assert rule.should_stop(records(values, rule.metric)) is over


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 10])
def test_a_run_ends_with_the_dispatch_in_which_patience_runs_out_however_long_dispatches_are(rounds):
    rule = EarlyStopping(patience=2)
    values = [0.5, 0.4, 0.6, 0.5, 0.6, 0.7, 0.5, 0.8, 0.9, 0.8, 0.7, 0.9, 1.0]  # it runs out with the fifth
    ends = [end for end in range(rounds, len(values), rounds) if rule.should_stop(records(values[:end]))]
    assert ends[0] == -(-5 // rounds) * rounds


def test_the_best_is_the_first_of_the_best():
    assert EarlyStopping().best(records([0.1, 0.7, None, 0.7, 0.3])) == 1
    assert EarlyStopping(metric="validation_loss").best(records([3.0, 1.0, 2.0], "validation_loss")) == 1
    assert EarlyStopping().best(records([None, math.nan])) is None
    assert EarlyStopping().best([]) is None


BAD = [
    ({"patience": 0}, "early_stopping.patience: received 0"),
    ({"metric": "test_accuracy"}, "early_stopping.metric: received 'test_accuracy'"),
    ({"min_delta": -1}, "early_stopping.min_delta: received -1"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**options)
