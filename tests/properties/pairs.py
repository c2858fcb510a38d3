"""Traces each recipe before and after each other one: a pair is refused with a message, or becomes a program.

    python tests/properties/pairs.py [--only NAME]

Nothing is compiled or run; all pairs take an hour on one core. Prints how many end in which way, and those
that end in anything but a `ValueError`; exit code 1 if there is one.
"""

import argparse
import collections
import itertools
import sys
import time
import traceback
from pathlib import Path

from fedjax_bal.engine.host import build_simulation
from fedjax_bal.options import Execution, LocalTraining, Participation

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import table

from fedjax_bal import recipes
from fedjax_bal.optim import optimizer
from fedjax_bal.testing import toy

ACCEPTED, REFUSED, BROKEN = "become a program", "are refused", "end in a traceback"
_OPTIONS = {
    "model": toy.network(),
    "federation": toy.federation(),
    "test": toy.test_set(),
    "rounds": 2,
    "participation": Participation(clients_per_round=4),
    "local": LocalTraining(batch_size=4, lone_rows="keep", optimizer=optimizer("sgd", 0.1)),
}


def outcome(names: tuple[str, ...]) -> str:
    """How it ends if these recipes are combined in this order."""
    how = "exclude" if "faults" in names else "raise"
    options = _OPTIONS | {"execution": Execution(strategy="map", devices=1, broken_clients=how)}
    for name in names:
        options |= {key: value for key, value in table.small(name)[1].items() if key != "tolerance"}
    try:
        recipe = recipes.combine(*(table.small(name)[0] for name in names))
        simulation = build_simulation(recipe, **options)
        simulation.lower(simulation.setting)
    except ValueError:
        return REFUSED
    except Exception:
        print(f"{'+'.join(names)}: {traceback.format_exc(limit=-3)}", file=sys.stderr, flush=True)
        return BROKEN
    return ACCEPTED


def main() -> int:
    """Tries all pairs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(table.ACTIVE), help="the pairs of one recipe")
    wanted = parser.parse_args()
    counts, began = collections.Counter(), time.monotonic()
    pairs = [pair for pair in itertools.permutations(sorted(table.ACTIVE), 2) if wanted.only in (None, *pair)]
    for number, pair in enumerate(pairs, 1):
        counts[outcome(pair)] += 1
        if number % 50 == 0:
            jax.clear_caches()  # traced programs take memory
    told = ", ".join(f"{counts[how]} {how}" for how in (ACCEPTED, REFUSED, BROKEN))
    print(f"{len(pairs)} pairs: {told}; {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if counts[BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main())
