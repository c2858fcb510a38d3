"""The words in which a sweep is announced, and the sizes of its batches."""

from fedjax_bal.lab.display import duration
from fedjax_bal.lab.loop import spread_batches
from fedjax_bal.lab.sweep_plan import Axis, short_keys


def test_keys_are_as_short_as_they_are_unique():
    keys = short_keys([Axis(("training.rounds",), ((1,),)), Axis(("partition.seed", "training.seed"), ((1,), (1,)))])
    assert list(keys.values()) == ["rounds", "partition.seed", "training.seed"]


def test_batches_leave_no_place_idle():
    assert (spread_batches(3, [20], [20]), spread_batches(4, [20, 2], [20, 2]), spread_batches(9, [2], [2])) == (
        [9],
        [9, 2],
        [1],
    )


def test_times_in_words():
    assert (duration(75), duration(3675), duration(None)) == ("1:15", "1:01:15", "-:--")
