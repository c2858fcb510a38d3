"""Kills against a real run and a real sweep.

    python tests/faults/campaign.py --kills 50 [--seed 0] [--out DIR]

They hit a run, a sweep, a run with a plug-in on two devices, and one that more rounds are asked of half way. Prints a
table; exit code 1 if anything was not as it should be. 50 kills take ten to fifteen minutes on two cores. With a folder
the working files are kept there.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import killing
from faults.cases import KINDS, case


def main() -> int:
    """Carries the campaign through; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    parser.add_argument("--out", type=Path, help="an empty folder or a new one; by default a temporary one")
    wanted = parser.parse_args()
    if wanted.kills < 0:
        parser.error(f"--kills: received {wanted.kills}, must be at least 0")
    if wanted.out and wanted.out.exists() and (not wanted.out.is_dir() or any(wanted.out.iterdir())):
        parser.error(f"--out: {wanted.out} is not an empty folder; give another one")
    with contextlib.ExitStack() as last:
        place = (wanted.out or Path(last.enter_context(tempfile.TemporaryDirectory()))).resolve()
        # Shared by all sessions, so that only the first one compiles.
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        os.environ["JAX_NUM_CPU_DEVICES"] = "2"
        root = str(Path(__file__).parents[2])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        tally = killing.Tally()
        for number, kind in enumerate(KINDS):
            share = (wanted.kills + len(KINDS) - 1 - number) // len(KINDS)
            if share:
                tally = tally.plus(killing.campaign(case(kind, place / kind), share, wanted.seed + number, _tell))
    print(f"| kills | resumed | equal |\n|---|---|---|\n| {tally.kills} | {tally.resumed} | {tally.equal} |")
    print("".join(f"  {trouble}\n" for trouble in tally.troubles), end="")
    return 0 if tally.kills == tally.resumed == tally.equal == wanted.kills and not tally.troubles else 1


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
