"""The words in which a sweep is announced, and the sizes of its batches."""

from types import SimpleNamespace

import numpy as np

from fedjax_bal.lab import outline
from fedjax_bal.lab.display import duration
from fedjax_bal.lab.loop import _for_all
from fedjax_bal.lab.plan import Axis, short_keys
from fedjax_bal.options import Execution


def test_keys_are_as_short_as_they_are_unique():
    keys = short_keys([Axis(("training.rounds",), ((1,),)), Axis(("partition.seed", "training.seed"), ((1,), (1,)))])
    assert list(keys.values()) == ["rounds", "partition.seed", "training.seed"]


def test_batches_leave_no_place_idle():
    assert (_for_all(3, [20], [20]), _for_all(4, [20, 2], [20, 2]), _for_all(9, [2], [2])) == ([9], [9, 2], [1])


def test_times_in_words():
    assert (duration(75), duration(3675), duration(None)) == ("1:15", "1:01:15", "-:--")


def test_a_part_that_needs_another_gradient_doubles_the_estimate_of_training(monkeypatch):
    monkeypatch.setattr(outline, "_time_a_step", lambda simulation: 0.5)
    selector = SimpleNamespace(chains=2, chain_length=1, passes=1)

    def seconds(*shifts):
        setting = SimpleNamespace(
            model=SimpleNamespace(name="", options=(), input_shape=()), batch_size=10, execution=Execution(),
            evaluation=SimpleNamespace(every=1), test_images=0, layout=SimpleNamespace(devices=1),
            parts_with=lambda role: [SimpleNamespace(needs_gradient=needs) for needs in shifts],
        )  # fmt: skip
        simulation = SimpleNamespace(setting=setting, selector=selector, rounds=4, steps_of_clients=np.array([3, 5]))
        return outline._seconds(SimpleNamespace(simulation=simulation, round=1), {})

    assert seconds() == seconds(False) == 0.5 * 3 * 2 * 4
    assert seconds(True) == 2 * seconds()
