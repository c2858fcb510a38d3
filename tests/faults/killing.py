"""Kills a command again and again, at moments drawn from a seed, and lets it go on until it is done."""

import random
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

from faults.cases import Case, Session, results, session, torn

PER_FOLDER = 6
SIGKILL = -9
# Of a whole session, from when python starts; the first third is spent on imports.
EARLIEST, LATEST = 0.3, 1.0
DEALINGS = 70


class Tally(NamedTuple):
    """What came of kills.

    Attributes:
        kills: how many there were.
        resumed: after how many of them the same command went on without a complaint, from files that were whole.
        equal: after how many of them the end was that of the undisturbed command, bit for bit.
        troubles: what was not as it should be.
    """

    kills: int = 0
    resumed: int = 0
    equal: int = 0
    troubles: tuple[str, ...] = ()

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


def moments(seed: int, seconds: float) -> Iterator[dict]:
    """How to kill, without end: half of the time from outside, half of it at a dealing with the disk.

    Args:
        seed: of the draws.
        seconds: that a whole session takes.

    Yields:
        Arguments of `session`.
    """
    draw = random.Random(seed)
    while True:
        if draw.random() < 0.5:
            yield {"kill_after": draw.uniform(EARLIEST, LATEST) * seconds}
        else:
            stage = draw.choice(("before", "middle", "middle", "after"))
            yield {"fault": {"kind": "kill", "at": draw.randint(1, DEALINGS), "stage": stage}}


def kill_until_done(wanted: Case, how: Iterator[dict], most: int, undisturbed: dict) -> Tally:
    """Kills a command at most so many times in one folder, then lets it come to its end.

    Args:
        wanted: the case; its folder must not be there.
        how: arguments of `session` for each try.
        most: how many kills.
        undisturbed: `results` of the same case without kills.

    Returns:
        The tally.
    """
    kills, resumed, troubles = 0, 0, []
    for number, own in enumerate(wanted.stages, start=1):
        killed, limit = False, most * number // len(wanted.stages)
        while True:
            done = session(own, **next(how)) if kills < limit else session(own)
            found = complaints(wanted, done)
            resumed += killed and not found
            troubles += found
            killed = done.code == SIGKILL
            kills += killed
            if not killed:
                break
    differing = [name for name, value in undisturbed.items() if results(wanted.out).get(name) != value]
    troubles += [f"{wanted.out.name}: {name} differs" for name in differing]
    return Tally(kills, resumed, 0 if differing else kills, tuple(troubles))


def complaints(wanted: Case, done: Session) -> list[str]:
    """What a session said or left behind that it shouldn't, none being hurt but by kills."""
    place = wanted.out.name
    found = [f"{place}: half written: {file}" for file in torn(wanted)]
    if done.code not in (0, SIGKILL):
        found.append(f"{place}: exit code {done.code}: {done.said[-300:]}")
    return found + [f"{place}: {line}" for line in done.said.splitlines() if "warning" in line.lower()]


def campaign(wanted: Case, kills: int, seed: int, tell: Callable[[str], object]) -> Tally:
    """Kills a command so many times, over several folders.

    Args:
        wanted: the case; its own folder gets the undisturbed results.
        kills: how many.
        seed: of the moments.
        tell: hears about each folder.

    Returns:
        The tally.
    """
    whole = [session(wanted), session(wanted.beside("again"))]  # the second one finds the compiled programs
    if any(one.code for one in whole):
        return Tally(troubles=tuple(one.said[-300:] for one in whole))
    undisturbed = results(wanted.out)
    how = moments(seed, whole[1].seconds)
    tally, folder = Tally(), 0
    if results(wanted.beside("again").out) != undisturbed:
        tally = Tally(troubles=("two undisturbed commands differ",))
    while tally.kills < kills:
        folder += 1
        other = wanted.beside(f"killed-{folder}")
        tally = tally.plus(kill_until_done(other, how, min(PER_FOLDER, kills - tally.kills), undisturbed))
        tell(f"{wanted.kind}: {tally.kills} kills, {tally.resumed} resumed, {tally.equal} equal")
        shutil.rmtree(other.out)
    return tally
