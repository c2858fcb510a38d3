"""Disks that are full, folders that are closed and files that are damaged: what a command says then, and goes on to."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from faults import damage
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


def refused(done: Session, *words: str, code: int = BAD) -> list[str]:
    """What is wrong with how a command ended that had to end with a message and exit code 2, or another one."""
    found = [] if done.code == code else [f"exit code {done.code}"]
    found += [f"does not say {word!r}" for word in words if word not in done.said.lower()]
    found += ["a traceback"] if "Traceback" in done.said else []
    return [f"{one}: {done.said[-400:]}" for one in found]


def goes_on(wanted: Case, undisturbed: dict, *words: str) -> list[str]:
    """What is wrong with how a command goes on that nothing is in the way of any more."""
    done = session(wanted)
    found = [] if done.code == 0 else [f"afterwards: exit code {done.code}: {done.said[-400:]}"]
    found += [f"afterwards: does not say {word!r}: {done.said[-400:]}" for word in words if word not in done.said]
    if not found:
        found = [f"{name} differs" for name, value in undisturbed.items() if results(wanted.out).get(name) != value]
    return found


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


def begun(wanted: Case) -> None:
    """Leaves a folder in which the first run has two checkpoints."""
    third = {"kind": "kill", "of": "method-0-seed-0/.round-00000003", "at": 1}
    done = session(wanted, third)
    if len(list(wanted.first.glob("round-*.npz"))) != 2:
        raise RuntimeError(f"{wanted.first}: there are no two checkpoints: {done.said}")


def contents(out: Path) -> dict[Path, bytes]:
    """All bytes of a folder, but for the locks."""
    return {own.relative_to(out): own.read_bytes() for own in out.rglob("*") if own.is_file() and own.name != ".lock"}


def left_alone(wanted: Case, *words: str, inner: str = "") -> list[str]:
    """What is wrong with how a command refuses a folder, or does all but a part of it, and leaves that as it is."""
    before = contents(wanted.out / inner)
    found = refused(session(wanted), *words, code=1 if inner else BAD)
    return found + ["it was touched"] * (contents(wanted.out / inner) != before)


def damaged_checkpoints(wanted: Case, undisturbed: dict) -> Iterator[Outcome]:
    """The newest checkpoint, in every way, and then both, which nothing is done about."""
    begun(wanted)
    for name, how in damage.OF_AN_ARCHIVE.items():
        for both in (False, True) if name == "body" else (False,):
            other = wanted.beside("damaged")
            shutil.copytree(wanted.out, other.out)
            older, newer = sorted(other.first.glob("round-*.npz"))
            damage.apply(how, newer, *([older] if both else []))
            says = [f"warning: {newer}: damaged"]
            if wanted.kind == "run":
                says.append(f"resuming after round {int(older.stem.removeprefix('round-'))}")
            point = "points/learning_rate=0.05" if wanted.kind == "sweep" else ""
            troubles = (
                left_alone(other, "every checkpoint is damaged", "--fresh", inner=point)
                if both
                else goes_on(other, undisturbed, *says)
            )
            which = "both checkpoints" if both else "the newest checkpoint"
            yield Outcome(f"{wanted.kind}: {which} damaged: {name}", tuple(troubles))
            shutil.rmtree(other.out)


def damaged_texts(wanted: Case, undisturbed: dict) -> Iterator[Outcome]:
    """Every other file of a folder, each by garbage in its middle: named and left alone, but for pages and tables."""
    garbage = lambda content: content[: len(content) // 2] + b"\n{\xff\n" + content[len(content) // 2 :]
    for file in sorted(wanted.out.rglob("*")):
        if file.suffix in (".jsonl", ".json", ".yaml", ".csv", ".html"):
            other = wanted.beside("damaged")
            shutil.copytree(wanted.out, other.out)
            name = file.relative_to(wanted.out)
            damage.apply(garbage, other.out / name)
            if file.suffix == ".html" or file.name in ("tables.csv", "curves.csv"):
                troubles = goes_on(other, undisturbed)
            else:  # of a point: it is left alone while the others are done
                troubles = left_alone(other, file.name, inner=str(name.parent) if file.parent != wanted.out else "")
            yield Outcome(f"{wanted.kind}: {name} damaged", tuple(troubles))
            shutil.rmtree(other.out)


def unreadable(wanted: Case, undisturbed: dict) -> Iterator[Outcome]:
    """Files that can't be read for the moment: nothing is done about them, and then all goes on."""
    for name in ("round-", "metrics.jsonl", "summary.json"):
        other = wanted.beside("unreadable")
        shutil.copytree(wanted.out, other.out)
        inner = "points/learning_rate=0.05" if wanted.kind == "sweep" else ""
        before = contents(other.out / inner)
        fault = {"kind": "unreadable", "of": f"{inner}/" if inner else "", "name": name}
        troubles = refused(session(other, fault), "input/output error", code=1 if inner else BAD)
        troubles += ["it was touched"] * (contents(other.out / inner) != before)
        yield Outcome(f"{wanted.kind}: {name} can't be read", (*troubles, *goes_on(other, undisturbed)))
        shutil.rmtree(other.out)


def snapshot(wanted: Case, undisturbed: dict) -> Outcome:
    """A folder that was begun is copied with hard links, and goes on: the copy doesn't change, and goes on, too."""
    other = wanted.beside("begun-again")
    begun(other)
    copied = wanted.beside("snapshot")
    shutil.copytree(other.out, copied.out, copy_function=os.link)
    before = contents(copied.out)
    troubles = goes_on(other, undisturbed)
    troubles += ["the snapshot has changed"] * (contents(copied.out) != before)
    return Outcome(f"{wanted.kind}: a snapshot with hard links", (*troubles, *goes_on(copied, undisturbed)))


def two_users(wanted: Case, undisturbed: dict) -> Outcome:
    """The same command twice at once: one is refused, the other one isn't disturbed."""
    other = wanted.beside("shared")
    with ThreadPoolExecutor(2) as both:
        ends = sorted(both.map(session, [other, other]), key=lambda done: done.code)
    troubles = refused(ends[1], "another process is running in this folder") if ends[1].code else []
    return Outcome(f"{wanted.kind}: two users of a folder", (*troubles, *goes_on(other, undisturbed)))
