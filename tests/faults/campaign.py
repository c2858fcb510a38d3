"""Kills, full disks and closed folders, against a real run and a real sweep.

    python tests/faults/campaign.py --kills 50 [--seed 0] [--out DIR] [--only kills disks]

The kills hit a run, a sweep, a run with a plug-in on two devices, and one that more rounds are asked of half way.
Prints a table; exit code 1 if anything was not as it should be. 50 kills take ten to fifteen minutes on two cores, the
rest as long again. With a folder the working files are kept there.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import failing, killing
from faults.cases import KINDS, case, results, session


def main() -> int:
    """Carries the campaign through; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    parser.add_argument("--out", type=Path, help="an empty folder or a new one; by default a temporary one")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="one of the parts")
    wanted = parser.parse_args()
    if wanted.kills < 0:
        parser.error(f"--kills: received {wanted.kills}, must be at least 0")
    if wanted.out and wanted.out.exists() and (not wanted.out.is_dir() or any(wanted.out.iterdir())):
        parser.error(f"--out: {wanted.out} is not an empty folder; give another one")
    with contextlib.ExitStack() as last:
        place = wanted.out or Path(last.enter_context(tempfile.TemporaryDirectory()))
        # Shared by all sessions, so that only the first one compiles.
        os.environ["XDG_CACHE_HOME"] = str(place.resolve() / "cache")
        os.environ["JAX_NUM_CPU_DEVICES"] = "2"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_root()), os.environ.get("PYTHONPATH")]))
        fine = [PARTS[part](place.resolve() / part, wanted) for part in wanted.only]
    return 0 if all(fine) else 1


def kills(place: Path, wanted: argparse.Namespace) -> bool:
    """Kills commands of each kind."""
    tally = killing.Tally()
    for number, kind in enumerate(KINDS):
        share = (wanted.kills + len(KINDS) - 1 - number) // len(KINDS)
        if share:
            tally = tally.plus(killing.campaign(case(kind, place / kind), share, wanted.seed + number, _tell))
    print(
        f"| kills | resumed | equal |\n|---|---|---|\n| {tally.kills} | {tally.resumed} | {tally.equal} |", flush=True
    )
    print("".join(f"  {trouble}\n" for trouble in tally.troubles), end="")
    return tally.kills == tally.resumed == tally.equal == wanted.kills and not tally.troubles


def disks(place: Path, wanted: argparse.Namespace) -> bool:
    """Full disks and closed folders."""
    del wanted
    return _table(outcome for kind in ("run", "sweep") for outcome in _of_disks(kind, place))


def _of_disks(kind: str, place: Path) -> Iterator[failing.Outcome]:
    whole = case(kind, place / kind)
    done = session(whole)
    if done.code:
        sys.exit(f"the undisturbed {kind} fails: {done.said}")
    undisturbed = results(whole.out)
    # At the start, while lines are added, in a checkpoint, and where tables and pages are written.
    for at in (2, 20, 50, 110):
        yield failing.full_disk(whole.beside(f"full-{at}"), undisturbed, at)
    yield failing.small_disk(whole.beside("small"), undisturbed)
    yield failing.closed_folder(whole.beside("closed"), undisturbed, 50)


def _table(outcomes: Iterator[failing.Outcome]) -> bool:
    print("| case | message, exit code 2 or recovery, then equal |\n|---|---|")
    fine = True
    for outcome in outcomes:
        word = f"skipped: {outcome.skipped}" if outcome.skipped else "NO" if outcome.troubles else "yes"
        print(f"| {outcome.name} | {word} |", flush=True)
        print("".join(f"  {trouble}\n" for trouble in outcome.troubles), end="")
        fine = fine and not outcome.troubles
    return fine


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _root() -> Path:
    return Path(__file__).parents[2]


PARTS = {"kills": kills, "disks": disks}

if __name__ == "__main__":
    sys.exit(main())
