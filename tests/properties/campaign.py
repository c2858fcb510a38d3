"""Random runs, each run in every way that must not change what it computes.

    python tests/properties/campaign.py --draws 200 [--seed 0] [--only NUMBER]

Prints for each property how many runs have it, to how many it doesn't apply, and the largest difference between the
states of runs that may differ by rounding; exit code 1 if one hasn't. A run is its seed and number, which `--only`
makes again. 200 runs take an hour on one core, most of it for compiling.
"""

import argparse
import collections
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # most of the time is compiling

import jax
from properties.checks import CHECKS, BrokenError
from properties.draws import Draw

HELD, BROKEN, MISSING = "held", "broken", "not applicable"


def check(seed: int, number: int) -> tuple[Draw, dict[str, tuple[str, float, str]]]:
    """Makes a run, and checks it: by property the outcome, the difference, and what is wrong."""
    draw, found = Draw(seed, number), {}
    for name, one in CHECKS.items():
        try:
            difference = one(draw)
            found[name] = (MISSING, 0.0, "") if difference is None else (HELD, difference, "")
        except BrokenError as error:
            found[name] = (BROKEN, 0.0, str(error))
        except Exception:
            found[name] = (BROKEN, 0.0, traceback.format_exc(limit=-3))
    return draw, found


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this one again")
    wanted = parser.parse_args()
    began, refused, failed, used = time.monotonic(), 0, 0, collections.Counter()
    outcomes: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in CHECKS}
    largest = dict.fromkeys(CHECKS, 0.0)
    for number in range(wanted.draws) if wanted.only is None else [wanted.only]:
        try:
            draw, found = check(wanted.seed, number)
        except Exception:
            failed += 1
            print(f"{number}: {traceback.format_exc(limit=-3)}", file=sys.stderr, flush=True)
            continue
        refused, used = refused + len(draw.refused), used + collections.Counter(draw.names)
        for name, (outcome, difference, told) in found.items():
            outcomes[name][outcome] += 1
            largest[name] = max(largest[name], difference)
            if outcome == BROKEN:
                print(f"{number}: {name}: {told}\n  {draw}", file=sys.stderr, flush=True)
        if wanted.only is not None:
            print(draw, *draw.refused, sep="\n")
        jax.clear_caches()  # each compiled program takes memory maps, of which there is a limit
    print(f"| property | {HELD} | {MISSING} | {BROKEN} | largest difference |\n|---|---|---|---|---|")
    for name, counts in outcomes.items():
        print(f"| {name} | {counts[HELD]} | {counts[MISSING]} | {counts[BROKEN]} | {largest[name]:.1g} |")
    seconds = time.monotonic() - began
    ended = f"{refused} refused with a message, {failed} ended in a traceback"
    print(f"{len(used)} recipes in combinations, {ended}, {seconds / 60:.1f} minutes")
    return 1 if failed or any(counts[BROKEN] for counts in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
