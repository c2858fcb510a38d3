"""What the processes of a run tell each other, and on what they agree; here, threads stand for processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jax.experimental import multihost_utils

from fedjax_bal.engine.processes import ProcessGroup, processes

COUNT = 3


@pytest.fixture
def together(monkeypatch):
    """Calls a function with the group of each process; what each returns, or the `ValueError` that it raises."""
    barrier, here, arrays = threading.Barrier(COUNT, timeout=300), threading.local(), {}

    def gather(array):
        assert array.dtype.itemsize < 8  # jax would cut longer numbers off
        arrays[here.index] = array
        barrier.wait()
        found = np.stack([arrays[index] for index in range(COUNT)])  # as jax does, for arrays of one shape
        barrier.wait()
        return found

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda array: gather(array)[0])

    def call(function):
        def one(index):
            here.index = index
            try:
                return function(ProcessGroup(index, COUNT))
            except ValueError as error:
                return error

        with ThreadPoolExecutor(COUNT) as pool:
            return list(pool.map(one, range(COUNT)))

    return call


def test_what_is_said_is_heard_in_order_by_all(together):
    said = ["", "I am 1", "ü" * 500]
    assert together(lambda group: group.share(said[group.index])) == [said] * 3
    assert together(lambda group: group.any(group.index == 2)) == [True] * 3
    assert together(lambda group: group.any(False)) == [False] * 3
    assert together(lambda group: group.least([5, None, 3][group.index])) == [None] * 3
    assert together(lambda group: group.least([2**40 + 1, 2**40, 2**50][group.index])) == [2**40] * 3
    assert [group.first for group in together(lambda group: group)] == [True, False, False]


def test_facts_that_differ_are_named(together):
    assert together(lambda group: group.agree({"data": "same"})) == [None] * 3
    errors = together(lambda group: group.agree({"data": "same", "kind": "ab"[group.index == 1]}))
    assert all(str(error).endswith("differ in\n  kind: a on process 0, b on process 1") for error in errors)
    errors = together(lambda group: group.agree({"kind": "a"} if group.index else {}))
    assert all(str(error).endswith("kind: nothing on process 0, a on process 1") for error in errors)


@pytest.mark.parametrize("content", [b"", b"1", b"1234", bytes(range(256)) * 3 + b"1"])
def test_all_have_what_the_first_makes(together, content):
    made = []

    def make():
        made.append(1)
        return list(content)

    assert together(lambda group: group.from_first(make)) == [list(content)] * 3
    assert made == [1]


def test_a_process_without_others_waits_for_none(monkeypatch):
    monkeypatch.setattr(multihost_utils, "process_allgather", pytest.fail)
    alone = processes()
    assert (alone, alone.first, alone.share("ready"), alone.any(False), alone.least(3)) == (
        (0, 1), True, ["ready"], False, 3,
    )  # fmt: skip
    assert alone.agree({"data": "any"}) is None
    assert alone.from_first(lambda: "value") == "value"
