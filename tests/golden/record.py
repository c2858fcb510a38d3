"""Records anew how the package behaves, and prints what has changed.

python tests/golden/record.py                           # everything
python tests/golden/record.py states configs            # of states and configs one alone
python tests/golden/record.py scaffold evaluation       # the final states of some cases alone, see cases.py
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from golden import texts  # noqa: E402

PARTS = ("states", "configs")


def main() -> None:
    """Records what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(PARTS)} and the names of cases; everything by default")
    parser.add_argument("--processes", type=int, default=2, help="how many work at a time")
    options = parser.parse_args()
    asked = options.what or list(PARTS)
    changed = False
    for change in _in_processes(asked, options.processes):
        changed = True
        print(change, flush=True)
    if not changed:
        print("nothing changed")


def _in_processes(asked: list[str], processes: int) -> Iterator[str]:
    """The changes that several processes find, each with the flags with which tests compile."""
    with ProcessPoolExecutor(processes, get_context("spawn"), _set_up) as pool:
        jobs = pool.submit(_jobs, asked).result()
        for number, done in enumerate(as_completed([pool.submit(_one, *job) for job in jobs]), 1):
            print(f"{number} of {len(jobs)} done", file=sys.stderr, flush=True)
            yield from done.result()


def _set_up() -> None:
    import conftest  # noqa: F401
    import jax

    jax.devices()


def _jobs(asked: list[str]) -> list[tuple[str, str]]:
    """Parts, each with what it is cut into."""
    from golden import cases, configs

    pieces = {"configs": configs.FOLDERS, "states": list(cases.CASES)}
    unknown = set(asked) - pieces.keys() - cases.CASES.keys()
    if unknown:
        sys.exit(f"received {sorted(unknown)}; allowed: {', '.join([*PARTS, *cases.CASES])}")
    jobs = [(part, piece) for part in pieces if part in asked for piece in pieces[part]]
    return jobs + [("states", name) for name in asked if name in cases.CASES]


def _one(part: str, piece: str) -> list[str]:
    from golden import configs, states

    if part == "states":
        return _renew(states.file_of(piece), states.head(piece), states.record(piece), states.alike(piece))
    return _renew(configs.file_of(piece), configs.head(piece), configs.record(piece))


def _renew(name: str, head: str, new: texts.Record, alike: Callable[[str, str], bool] = str.__eq__) -> list[str]:
    """Writes a record; returns what has changed."""
    old = texts.read(name)
    new = texts.settled(old, new, alike)
    texts.write(name, head, new)
    return texts.differences(name, old, new)


if __name__ == "__main__":
    main()
