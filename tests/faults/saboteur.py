"""Runs the command line and does it harm at its k-th dealing with the disk.

    python tests/faults/saboteur.py '{"below": DIR, "kind": "kill", "at": 17, "stage": "middle"}' run CONFIG --out DIR

Only dealings with files below `below` count: writes, fsync, replace, unlink and mkdir. Kinds: `kill` (SIGKILL `before`,
in the `middle` of or `after` the k-th; only writes have a middle), `full` (from the k-th on what is written stops half
way with ENOSPC), `closed` (at the k-th the folders are made read-only; root gives up its right to write all the same).
"""

import ctypes
import errno
import json
import os
import signal
import sys
from pathlib import Path

CAPABILITIES = 0x20080522  # the version of the kernel's structure
DAC_OVERRIDE = 1 << 1


class Saboteur:
    """Counts dealings with the disk, and strikes.

    Args:
        below: the folder whose files count.
        kind: of harm.
        at: the number of the dealing, from 1.
        stage: before, middle or after; of kills.
        of: what a path must have in it in order to count.
    """

    def __init__(self, below, kind, at=0, stage="before", of=""):
        self.below, self.of, self.kind, self.at, self.stage = os.path.realpath(below), of, kind, at, stage
        self.count = 0

    def counts(self, place):
        """Whether a path, or the path of an open file, is one of those that are watched."""
        if isinstance(place, int):
            place = os.readlink(f"/proc/self/fd/{place}")
        place = os.path.realpath(place)
        return place.startswith(self.below) and self.of in place

    def deal(self, act, place, half=None):
        """Does what was to be done, and harm where it is due.

        Args:
            act: does it.
            place: path or descriptor.
            half: does half of it; None where there is no such thing.

        Returns:
            What `act` returns.
        """
        if not self.counts(place):
            return act()
        self.count += 1
        if self.kind == "kill" and self.count == self.at:
            self.kill(act, half)
        if self.kind == "full" and self.count >= self.at and half is not None:
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "closed" and self.count == self.at:
            close(self.below)
        return act()

    def kill(self, act, half):
        """Ends this process without a warning."""
        if self.stage == "middle" and half is not None:
            half()
        elif self.stage == "after":
            act()
        os.kill(os.getpid(), signal.SIGKILL)

    def opening(self, fdopen):
        """`os.fdopen`, by which the package opens all that it writes, whose files are watched."""

        def opened(handle, mode="r", *args, **kwargs):
            stream, file = fdopen(handle, mode, *args, **kwargs), os.readlink(f"/proc/self/fd/{handle}")
            if not set(mode) & set("wax") or not self.counts(file) or Path(file).name == ".lock":
                return stream
            return Watched(self.deal(lambda: stream, file), file, self)

        return opened

    def settle(self):
        """Takes the places of what the package deals with the disk by."""
        os.fdopen = self.opening(os.fdopen)
        for name in ("fsync", "replace", "unlink", "mkdir"):
            setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, function):
        """A function of paths or descriptors that is watched."""
        return lambda place, *args, **kwargs: self.deal(lambda: function(place, *args, **kwargs), place)


class Watched:
    """A file whose writes are watched."""

    def __init__(self, stream, file, saboteur):
        self.stream, self.file, self.saboteur = stream, file, saboteur

    def __enter__(self):
        return self

    def __exit__(self, *about):
        self.stream.close()

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, content):
        """Writes, or half."""

        def half():
            self.stream.write(content[: len(content) // 2])
            self.stream.flush()

        return self.saboteur.deal(lambda: self.stream.write(content), self.file, half)

    def writelines(self, lines):
        """Writes all of them, or half."""
        content = b"".join(lines)
        if content:
            self.write(content)


def close(path):
    """Makes a folder and those in it read-only, for this process too."""
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o555)


def obey_permissions():
    """Takes from root's process the right to write where permissions say that nobody may.

    Raises:
        OSError: that can't be done here.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    # Of the six words the first two are what is in effect and what is permitted of the first 32 capabilities.
    if libc.capget(header, sets) == 0:
        sets[0], sets[1] = sets[0] & ~DAC_OVERRIDE, sets[1] & ~DAC_OVERRIDE
        if libc.capset(header, sets) == 0:
            return
    raise OSError(ctypes.get_errno(), "root's rights can't be dropped")


def main():
    """Settles in, and runs the command."""
    fault = json.loads(sys.argv[1])
    if fault["kind"] == "closed":
        obey_permissions()
    saboteur = Saboteur(**fault)
    saboteur.settle()
    from fedjax_bal.cli import main as command

    sys.argv = ["fedjax-bal", *sys.argv[2:]]
    command()


if __name__ == "__main__":
    main()
