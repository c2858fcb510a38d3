"""Disks that are full and folders that are closed: what a command says then, and goes on to."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from faults.cases import Case, Session, results, session

BAD = 2
# Small enough for a few checkpoints, and large enough for all that is written.
SMALL, LARGE = "4m", "64m"


class Outcome(NamedTuple):
    """What came of a case.

    Attributes:
        name: what was done.
        troubles: what was not as it should be; none where all was well.
        skipped: why it couldn't be done here; empty where it could.
    """

    name: str
    troubles: tuple[str, ...] = ()
    skipped: str = ""


def refused(done: Session, *words: str) -> list[str]:
    """What is wrong with how a command ended that had to end with a message and exit code 2."""
    found = [] if done.code == BAD else [f"exit code {done.code}"]
    found += [f"does not say {word!r}" for word in words if word not in done.said.lower()]
    found += ["a traceback"] if "Traceback" in done.said else []
    return [f"{one}: {done.said[-400:]}" for one in found]


def goes_on(wanted: Case, undisturbed: dict) -> list[str]:
    """What is wrong with how a command goes on that nothing is in the way of any more."""
    done = session(wanted)
    if done.code:
        return [f"afterwards: exit code {done.code}: {done.said[-400:]}"]
    return [f"{name} differs" for name, value in undisturbed.items() if results(wanted.out).get(name) != value]


def full_disk(wanted: Case, undisturbed: dict, at: int) -> Outcome:
    """From one dealing with the disk on nothing can be written any more."""
    done = session(wanted, {"kind": "full", "at": at})
    troubles = refused(done, "no space left on device", str(wanted.out)) + goes_on(wanted, undisturbed)
    return Outcome(f"{wanted.kind}: no space from dealing {at} with the disk on", tuple(troubles))


def small_disk(wanted: Case, undisturbed: dict) -> Outcome:
    """A small file system of its own, which is then made larger."""
    name = f"{wanted.kind}: a file system of {SMALL}B"
    wanted.out.mkdir()
    if not _mount(wanted.out, SMALL):
        return Outcome(name, skipped="file systems can't be mounted here")
    try:
        done = session(wanted)
        troubles = refused(done, "no space left on device", str(wanted.out))
        _mount(wanted.out, f"{LARGE},remount")
        return Outcome(name, tuple(troubles + goes_on(wanted, undisturbed)))
    finally:
        subprocess.run(["umount", str(wanted.out)], check=True)


def _mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def closed_folder(wanted: Case, undisturbed: dict, at: int) -> Outcome:
    """The permission to write is taken away on the way; the next session hasn't got it from the start."""
    name = f"{wanted.kind}: no permission to write from dealing {at} with the disk on, and afterwards"
    done = session(wanted, {"kind": "closed", "at": at})
    if "rights can't be dropped" in done.said:
        return Outcome(name, skipped="root may write everywhere here")
    says = "permission denied", str(wanted.out)
    troubles = refused(done, *says) + refused(session(wanted, {"kind": "closed"}), *says)
    open_up(wanted.out)
    return Outcome(name, tuple(troubles + goes_on(wanted, undisturbed)))


def open_up(path: Path) -> None:
    """Makes a folder and those in it writable again."""
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o755)
