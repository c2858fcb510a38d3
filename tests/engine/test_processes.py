"""How processes find each other, what they agree on, and how they learn that one has gone; here, threads."""

import runpy
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedjax_bal.engine.processes import connection, rendezvous
from fedjax_bal.engine.processes.connection import free_port
from fedjax_bal.engine.processes.process_group import ProcessGroup
from fedjax_bal.engine.processes.rendezvous import ProcessPlace, RendezvousError, meet_processes

HOST = "127.0.0.1"


def places(count):
    port = free_port(HOST)
    return [ProcessPlace(HOST, port, index, count) for index in range(count)]


def together(function, *columns):
    """Calls in threads of their own; what each returns, or raises."""

    def one(*arguments):
        try:
            return function(*arguments)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(columns[0])) as pool:
        return list(pool.map(one, *columns))


def groups(count):
    """All processes of a run, and what each is told when another one goes."""
    told = [[] for _ in range(count)]
    heard = threading.Semaphore(0)
    met = together(lambda place: meet_processes(place, {"jax": "1"}, print, 10), places(count))
    assert len({port for _, port in met}) == 1
    listen = lambda index: lambda text: (told[index].append(text), heard.release())
    return [ProcessGroup(index, lines, listen(index)) for index, (lines, _) in enumerate(met)], told, heard


def close(own):
    """Ends their connections without a word."""
    for one in own:
        one._leaving = True
        for line in one._lines:
            line.close()


def test_what_is_said_is_heard_in_order_by_all():
    own, told, _ = groups(3)
    assert together(lambda one: one.share(f"I am {one.index}"), own) == [["I am 0", "I am 1", "I am 2"]] * 3
    assert together(lambda one: one.any(one.index == 2), own) == [True] * 3
    assert together(lambda one: one.any(False), own) == [False] * 3
    assert together(lambda one: one.least([5, None, 3][one.index]), own) == [None] * 3
    assert together(lambda one: one.least([5, 4, 7][one.index]), own) == [4] * 3
    assert together(lambda one: one.agree({"data": "same"}), own) == [None] * 3
    errors = together(lambda one: one.agree({"data": "same", "kind": "ab"[one.index == 1]}), own)
    assert all(str(error).endswith("differ in\n  kind: a on process 0, b on process 1") for error in errors)
    together(ProcessGroup.finish, own)
    assert told == [[], [], []]


def test_a_process_without_others_is_a_group_of_one():
    alone = ProcessGroup(0, (), print)
    assert (alone.first, alone.share("ready"), alone.any(False), alone.least(3)) == (True, ["ready"], False, 3)
    assert alone.agree({"data": "any"}) is None
    assert alone.from_first(lambda: "value", pytest.fail, pytest.fail) == "value"


def test_whoever_goes_is_missed_by_all():
    own, told, heard = groups(3)
    own[2].leave("the disk is full")
    own[2]._lines[0].close()
    for _ in range(2):
        assert heard.acquire(timeout=10)
    assert told == [["process 2 has ended: the disk is full"], ["process 2 has ended: the disk is full"], []]
    close(own)


def test_whoever_vanishes_without_a_word_is_missed_by_all():
    own, told, heard = groups(3)
    own[1]._leaving = True
    own[1]._lines[0].close()
    for _ in range(2):
        assert heard.acquire(timeout=10)
    gone = "process 1 is gone, killed or cut off"
    assert told == [[gone], [], [gone]]
    close(own)


def test_processes_that_differ_do_not_start():
    facts = [{"jax": "1", "rounds": str(index)} for index in (5, 5, 6)]
    errors = together(lambda place, own: meet_processes(place, own, print, 10), places(3), facts)
    assert [type(error) for error in errors] == [RendezvousError] * 3
    assert all(str(error).endswith("rounds: 5 on process 0, 6 on process 2") for error in errors)


def test_who_is_missing_is_named_again_and_again_and_at_last(monkeypatch):
    monkeypatch.setattr(rendezvous, "_REMINDER_S", 0.2)
    told = []
    first, second, third, _ = places(4)
    waits = [lambda: meet_processes(first, {}, told.append, 0.7), lambda: meet_processes(third, {}, print, 0.7)]
    errors = together(lambda wait: wait(), waits)
    assert f"process 0 of 4, at {first.address}: waiting for processes 1, 3" in told
    assert str(errors[0]).startswith(f"processes 1, 3 of 4 did not come to {first.address}: start it")
    assert "process 0 went away" in str(errors[1])
    with pytest.raises(RendezvousError, match="process 0 does not answer at .* refused.*: start it, or correct"):
        meet_processes(second, {}, told.append, 0.5)
    assert told[-1].startswith(f"process 1 of 4: waiting for process 0 at {first.address}")


def test_a_number_that_is_taken_or_contradicted_is_refused_and_the_others_come_together():
    first, second = places(2)
    wrong = [ProcessPlace(HOST, first.port, 1, 3), ProcessPlace(HOST, first.port, 2, 2)]
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(meet_processes, first, {}, print, 20)
        errors = together(lambda place: meet_processes(place, {}, print, 10), wrong)
        lines = meet_processes(second, {}, print, 10)[0] + found.result()[0]
    assert "received --processes 3, but process 0 has 2" in str(errors[0])
    assert "received --process-id 2, which" in str(errors[1])
    assert len(lines) == 2
    for line in lines:
        line.close()


def test_a_port_that_is_taken_is_named():
    from fedjax_bal.engine.processes.connection import server

    first = places(2)[0]
    with server(HOST, first.port), pytest.raises(RendezvousError, match="process 0 can't wait for the others there"):
        meet_processes(first, {}, print, 1)


def test_macos_names_an_option_of_sockets_differently(monkeypatch):
    monkeypatch.delattr(socket, "TCP_KEEPIDLE", raising=False)
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 16, raising=False)
    assert runpy.run_path(connection.__file__)["_SILENCE"][0] == (16, 10)
