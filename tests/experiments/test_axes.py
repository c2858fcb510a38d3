"""Axes of a sweep: lists, ranges, and what is refused."""

import pytest

from fedjax_bal.config import ConfigError
from fedjax_bal.experiments.plan import Axis, combinations, read_axes

RANGES = [
    ({"from": 0, "to": 1, "steps": 3}, (0.0, 0.5, 1.0)),
    ({"from": 10, "to": 40, "steps": 4}, (10, 20, 30, 40)),
    ({"from": 0.001, "to": 1, "steps": 4, "scale": "log"}, (0.001, 0.01, 0.1, 1.0)),
    ({"from": 1000, "to": 10, "steps": 3, "scale": "log"}, (1000, 100, 10)),
    ({"from": 1, "to": 2, "steps": 4}, (1.0, 1.33333, 1.66667, 2.0)),
]


@pytest.mark.parametrize(("wanted", "values"), RANGES, ids=[str(values) for _, values in RANGES])
def test_a_range_has_both_ends_and_even_steps(wanted, values):
    [axis] = read_axes([{"a.b": wanted}], "my.yaml")
    assert axis == Axis(("a.b",), (values,))
    assert [type(value) for value in axis.values[0]] == [type(value) for value in values]


def test_keys_of_one_axis_change_together_and_axes_are_crossed():
    axes = read_axes([{"a": [1, 2], "b": ["x", "y"]}, {"c": [True, False]}], "my.yaml")
    assert combinations(axes) == [
        {"a": 1, "b": "x", "c": True},
        {"a": 1, "b": "x", "c": False},
        {"a": 2, "b": "y", "c": True},
        {"a": 2, "b": "y", "c": False},
    ]


BAD = [
    (None, "my.yaml: sweep: received null, must be a list of axes"),
    ([], r"sweep: received \[\], must be a list of axes"),
    ([3], "sweep.0: received 3, must be a mapping of keys to their values"),
    ([{"a": 3}], "sweep.0: a: received 3, must be a list of 1 to 1000 values"),
    ([{"a": []}], r"sweep.0: a: received \[\], must be a list"),
    ([{"a": [1, 2, 1]}], "sweep.0: a: received 1 twice"),
    ([{"a": [1], "b": [1, 2]}], "sweep.0: a has 1, b has 2 values; keys of one axis change together"),
    ([{"a": [1]}, {"a": [2]}], "sweep.1: a: already on axis 0"),
    ([{"a..b": [1]}], "received the key 'a..b', must be a dotted path"),
    ([{"a": {"form": 1}}], "'form': unknown key of a range; allowed: from, scale, steps, to; did you mean 'from'"),
    ([{"a": {"from": 1, "to": "x", "steps": 3}}], "to: received 'x', must be a finite number"),
    ([{"a": {"from": 1, "to": 2, "steps": 1}}], "steps: received 1, must be an integer from 2 to 1000"),
    ([{"a": {"from": 0, "to": 2, "steps": 3, "scale": "log"}}], "with scale log, must be above 0"),
    ([{"a": {"from": 1, "to": 2, "steps": 3, "scale": "lg"}}], "scale: received 'lg'; allowed: linear, log"),
    ([{"a": {"from": 2, "to": 2, "steps": 3}}], "must be two different numbers"),
    ([{k: {"from": 0, "to": 1, "steps": 200}} for k in "abc"], "200 x 200 x 200 = 8000000 points; at most 10000"),
]


@pytest.mark.parametrize(("entries", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_no_axis_is_refused(entries, message):
    with pytest.raises(ConfigError, match=message):
        read_axes(entries, "my.yaml")
