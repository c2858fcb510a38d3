"""Feeds thousands of damaged and hostile files to everything that reads files, and counts how that ends.

    python tests/fuzz/campaign.py --cases 10000

Each target has a process of its own, whose memory is bounded; a case is its target, seed and number, which `--only`
makes again. What went wrong is kept below `--out`.
"""

import argparse
import atexit
import collections
import functools
import hashlib
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()
sys.path[:0] = [str(_HERE.parents[1]), str(_HERE.parents[2])]

MOST_MEMORY = 3 * 2**30
"""Bytes of address space that a process may take beyond what it has at its start."""

MOST_GROWTH = 2**30
"""Bytes of memory in use that a process may come to have beyond what it had at its start."""

_PATIENCE = 90.0


def run_case(name: str, seed: int, number: int, valid: Path, case: Path) -> tuple[Any, str]:
    """Makes a case and runs it; returns how it ended, and the digest of what it was."""
    from fuzz.guard import attempt
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    target.make(random.Random(f"{name}/{seed}/{number}"), valid, case)
    digest = _digest(case)
    allowed = (case / "in", case / "out", *_own_places()) if target.writes else ()
    outside = _listed(case / "outside")
    outcome = attempt(lambda: target.read(case), allowed)
    if _listed(case / "outside") != outside:
        outcome = outcome._replace(outside=(*outcome.outside, "what lies outside has changed"))
    return outcome, digest


def _own_places() -> list[Path]:
    """Caches and the folder for temporary files."""
    names = (os.environ.get(key) for key in ("XDG_CACHE_HOME", "MPLCONFIGDIR"))
    return [*(Path(name) for name in names if name), Path(tempfile.gettempdir(), "unnamed")]


def _digest(case: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(case.rglob("*")):
        found.update(os.fsencode(path.relative_to(case)))
        if path.is_symlink():
            found.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            found.update(path.read_bytes())
        elif path.is_fifo():
            found.update(b"fifo")
    return found.hexdigest()


def _listed(folder: Path) -> list[Any]:
    return [(path.name, path.read_bytes()) for path in sorted(folder.glob("*")) if path.is_file()]


def work(name: str, seed: int, numbers: range, place: Path, out: Path) -> None:
    """A worker: its cases one after another, a line of JSON each."""
    from fuzz.targets import TARGETS

    channel = os.fdopen(os.dup(1), "w", buffering=1)  # what the cases print goes elsewhere
    os.dup2(2, 1)
    valid = place / "valid"
    if not valid.exists():
        valid.mkdir(parents=True)
        TARGETS[name].prepare(valid)
    _warm(name, seed, valid, place)
    start = _vm("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (start + MOST_MEMORY,) * 2)
    base = _vm("VmRSS")
    for number in numbers:
        print(json.dumps({"begin": number}), file=channel)
        _forget_peak()
        outcome, digest = run_case(name, seed, number, valid, place / "case")
        peak = _vm("VmHWM")
        told = {"end": number, **outcome._asdict(), "bad": outcome.bad, "digest": digest, "peak": peak}
        if peak - base > MOST_GROWTH:
            told |= {"kind": "memory", "bad": True, "told": f"grew by {(peak - base) >> 20} MiB; {outcome.told}"}
        if told["bad"]:
            _keep(out / f"{name}-{seed}-{number}", place, told)
        print(json.dumps(told), file=channel)


def _warm(name: str, seed: int, valid: Path, place: Path) -> None:
    """Imports what cases will import, so that the bound on memory is one on theirs."""
    shutil.rmtree(place / "case", ignore_errors=True)
    shutil.copytree(valid, place / "case" / "in")
    shutil.copytree(valid, place / "case" / "other")
    from fuzz.guard import attempt
    from fuzz.targets import TARGETS

    attempt(lambda: TARGETS[name].read(place / "case"))


def _vm(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak is then that of all cases so far


class Count:
    """What became of a target's cases."""

    def __init__(self) -> None:
        self.kinds: collections.Counter[str] = collections.Counter()
        self.pickles = self.outside = self.peak = 0
        self.digests: set[str] = set()
        self.seconds = self.work = 0.0

    def add(self, told: dict[str, Any]) -> None:
        """Counts a case."""
        self.kinds[told["kind"]] += 1
        self.pickles += bool(told.get("pickles"))
        self.outside += bool(told.get("outside"))
        self.peak = max(self.peak, told.get("peak", 0))
        self.digests.add(told.get("digest", ""))

    @property
    def bad(self) -> int:
        """Cases that ended as none may."""
        wrong = ("traceback", "hang", "memory", "crash")
        return sum(self.kinds[kind] for kind in wrong) + self.pickles + self.outside

    def row(self, name: str) -> str:
        """A line of the table."""
        kinds = [self.kinds[kind] for kind in ("error", "success", "traceback", "hang", "memory", "crash")]
        cells = [self.kinds.total(), len(self.digests), *kinds, self.pickles, self.outside]
        return (
            f"{name:<12}"
            + "".join(f"{cell:>11,}" for cell in cells)
            + f"{self.peak >> 20:>9,} MiB{self.seconds:>8.1f} s{self.work:>8.1f} s"
        )


_HEADS = ("cases", "different", "errors", "successes", "tracebacks", "hangs", "memory", "crashes", "pickles", "outside")


def campaign(name: str, seed: int, numbers: range, out: Path) -> Count:
    """All cases of a target; a worker that dies is followed by another."""
    count, begin, worked = Count(), time.monotonic(), _work()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        left = numbers
        while left:
            last, finished = _watch_worker(name, seed, left, Path(place), count, out)
            if finished:
                break
            left = range(last + 1, left.stop)
    count.seconds, count.work = time.monotonic() - begin, _work() - worked
    return count


def _work() -> float:
    """Seconds of the processor that workers have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch_worker(name: str, seed: int, numbers: range, place: Path, count: Count, out: Path) -> tuple[int, bool]:
    for folder in ("cache", "tmp"):
        (place / folder).mkdir(exist_ok=True)
    command = [sys.executable, str(_HERE), "--worker", str(place), "--target", name, "--seed", str(seed)]
    command += ["--first", str(numbers.start), "--cases", str(numbers.stop), "--out", str(out)]
    extra = {"XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    extra |= {"JAX_PLATFORMS": "cpu", "MPLCONFIGDIR": str(_fonts())}
    errors = place / "errors"
    with open(errors, "wb") as stream:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, env={**os.environ, **extra})
    assert worker.stdout is not None
    at = numbers.start
    begun = False
    try:
        for told in _lines(worker):
            if "begin" in told:
                at, begun = told["begin"], True
            else:
                count.add(told)
                begun = False
                if told["bad"]:
                    _tell(out / f"{name}-{seed}-{told['end']}", told)
    finally:
        worker.kill()
        worker.wait()
    if not begun and at + 1 >= numbers.stop:
        return at, True
    if not begun and at == numbers.start:
        raise SystemExit(f"{name}: its worker doesn't start:\n{errors.read_text(errors='replace')[-2000:]}")
    told = {"kind": "crash", "told": f"exit {worker.returncode}: {errors.read_text(errors='replace')[-1500:]}"}
    count.add(told)
    _keep(out / f"{name}-{seed}-{at}", place, told)
    _tell(out / f"{name}-{seed}-{at}", told)
    return at, False


@functools.cache
def _fonts() -> Path:
    """Where matplotlib notes the fonts that it finds, which takes it seconds and programs of others."""
    place = tempfile.TemporaryDirectory(prefix="fuzz-fonts-")
    atexit.register(place.cleanup)
    command = [sys.executable, "-c", "import matplotlib.font_manager"]
    subprocess.run(command, env={**os.environ, "MPLCONFIGDIR": place.name}, check=True)
    return Path(place.name)


def _lines(worker: subprocess.Popen[bytes]) -> Any:
    """What a worker says, as long as it says something."""
    assert worker.stdout is not None
    rest = b""
    patience = 300.0  # its start
    while True:
        ready, _, _ = select.select([worker.stdout], [], [], patience)
        chunk = os.read(worker.stdout.fileno(), 1 << 16) if ready else b""
        if not chunk:
            return
        patience = _PATIENCE
        *whole, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, whole)


def _keep(folder: Path, place: Path, told: dict[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with_links = {"symlinks": True, "dirs_exist_ok": True, "ignore": _no_pipes}
    shutil.copytree(place / "case", folder, **with_links)
    (folder / "outcome.json").write_text(json.dumps(told, indent=1))


def _tell(folder: Path, told: dict[str, Any]) -> None:
    seen = [*told.get("pickles", ()), *told.get("outside", ()), *told["told"].strip().splitlines()[-1:]]
    print(f"  {folder}: {told['kind']}: {'; '.join(seen)[:300]}", file=sys.stderr, flush=True)


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_fifo()]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--only", type=int, help="with --target: make and run this one case again, and say how it ends")
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir(), "fuzz-failures"), help="where failures go"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.worker:
        work(wanted.target[0], wanted.seed, range(wanted.first, wanted.cases), wanted.worker, wanted.out)
        return
    from fuzz.targets import TARGETS

    names = wanted.target or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    shares = sum(TARGETS[name].share for name in names)
    print(
        f"{'target':<12}" + "".join(f"{head:>11}" for head in _HEADS) + f"{'largest':>13}{'time':>10}{'processor':>10}",
        flush=True,
    )
    whole = Count()
    for name in names:
        cases = max(1, round(wanted.cases * TARGETS[name].share / shares))
        numbers = range(cases) if wanted.only is None else range(wanted.only, wanted.only + 1)
        count = campaign(name, wanted.seed, numbers, wanted.out)
        print(count.row(name), flush=True)
        whole.kinds += count.kinds
        whole.digests |= {f"{name}/{digest}" for digest in count.digests}
        whole.peak = max(whole.peak, count.peak)
        whole.pickles, whole.outside = whole.pickles + count.pickles, whole.outside + count.outside
        whole.seconds, whole.work = whole.seconds + count.seconds, whole.work + count.work
    print(whole.row("all"))
    sys.exit(1 if whole.bad else 0)


if __name__ == "__main__":
    main()
