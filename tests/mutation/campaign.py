"""Runs the tests against mutants of the package, and tells which of them no test notices.

    python tests/mutation/campaign.py --mutants 60 [--seed 0] [--out DIR] [--jobs 2] [--only TEXT] [--depth near]

A mutant is the package with one expression changed (`mutants.py`). It meets the tests in stages, those nearest to its
file first and the slow ones last, up to the first failure, which has to be one that the unchanged package doesn't have;
one that `explained.py` explains meets the nearest alone.
Nothing is changed in the repository: tests run in copies. The same command again goes on where it stopped, and draws
the same mutants as long as the sources are the same; delete `results.json` once tests have changed. Prints two tables;
exit code 1 if a mutant survives that `explained.py` doesn't explain. With two jobs 60 mutants take some hours.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.explained import EXPLAINED
from mutation.mutants import KINDS, PACKAGES, Mutant, draw

ROOT = Path(__file__).parents[2]
DEPTHS = ("near", "package", "conformance", "golden", "everything")
LIMITS = dict(zip(DEPTHS, (300, 900, 600, 600, 2400), strict=True))
"""Seconds that a stage of quick tests may take; of slow ones four times as many."""


class Failure(NamedTuple):
    """How a mutant was noticed: the first failing test, if one has failed, and how it ended."""

    test: str | None
    told: str


class Copies:
    """Copies of the repository: an unchanged one, and one for each job."""

    def __init__(self, out: Path, jobs: int) -> None:
        self.out, self.clean = out, out / "clean"
        self.free: queue.Queue[Path] = queue.Queue()
        self.distrusted: set[str] = set()
        self._sound: set[str] = set()
        self._lock = threading.Lock()
        for place in (self.clean, *(out / f"copy-{job}" for job in range(jobs))):
            _copy(place)
            if place != self.clean:
                self.free.put(place)
        told = self.python(self.clean, "-c", "import fedjax_bal; print(fedjax_bal.__file__)").stdout
        if str(self.clean) not in told:
            sys.exit(f"the copy isn't what is imported, but {told}")

    def python(self, place: Path, *arguments: str, limit: float = 300.0) -> subprocess.CompletedProcess:
        """Runs Python in a copy; ends all of its processes after the limit, with return code None."""
        command, env = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(place)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=place, env=env, start_new_session=True, **streams)
        with contextlib.suppress(OSError):  # of all processes Linux ends those of a mutant that takes too much memory
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        try:
            told, _ = process.communicate(timeout=limit)
            code: Any = process.returncode
        except subprocess.TimeoutExpired:
            code, told = None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what tests have started, too
            process.wait()
        return subprocess.CompletedProcess(command, code, told)

    def first_failure(self, place: Path, options: list[str], limit: float) -> Failure | None:
        """Runs tests up to the first failure that is the copy's own."""
        while True:
            failure = self._test(place, [*options, *(f"--deselect={test}" for test in sorted(self.distrusted))], limit)
            if failure is None or self._trusted(failure, options):
                return failure

    def _test(self, place: Path, options: list[str], limit: float) -> Failure | None:
        common = ["-m", "pytest", "-x", "-n", "0", "--tb=no", "-rfE", "-o", f"cache_dir={self.out / 'cache'}"]
        done = self.python(place, *common, *options, limit=limit)
        if done.returncode in (0, 5):  # 5: there is no such test
            return None
        if done.returncode is None:
            return Failure(None, f"not done after {limit:.0f} s")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", done.stdout, re.MULTILINE)
        if failed is None:
            return Failure(None, f"exit code {done.returncode}: {done.stdout[-300:]}")
        return Failure(failed[1], failed[2] or "")

    def _trusted(self, failure: Failure, options: list[str]) -> bool:
        """Whether the unchanged package passes the test, which is looked up once."""
        if failure.test is None or "::" not in failure.test:
            return True
        with self._lock:
            if failure.test not in self._sound:
                slow = ["--all"] if "--all" in options else []
                if self._test(self.clean, [*slow, failure.test], 900) is not None:
                    print(f"  {failure.test} fails without a mutant, too: left out", file=sys.stderr, flush=True)
                    self.distrusted.add(failure.test)
                    return False
                self._sound.add(failure.test)
        return True


def _copy(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def stages(file: str, depth: str, speeds: tuple[bool, ...]) -> list[tuple[str, bool, list[str]]]:
    """Stages of a mutant of a file, each its name, whether it is of slow tests, and pytest's options."""
    package = file.split("/")[1]
    near, paths = nearest(file), [f"tests/{package}", f"fedjax_bal/{package}"]
    folders = [near, paths, ["tests/testing", "tests/recipes"], ["tests/golden"], []]
    made = []
    for slow in speeds:
        done: list[str] = []
        for name, wanted in zip(DEPTHS, folders, strict=True):
            skipped = [f"--ignore={path}" for path in done if any(path.startswith(f"{each}/") for each in wanted)]
            options = wanted + (skipped if wanted else [f"--ignore={path}" for path in done])
            # Without a path of tests `conftest.py` isn't read, and without any path all tests run.
            if wanted is folders[-1] or any(path.startswith("tests/") for path in wanted):
                made.append((name, slow, [*(["--all", "-m", "slow"] if slow else []), *options]))
                done += wanted
            if name == depth:
                break
    return made


@functools.cache
def nearest(file: str) -> list[str]:
    """The file's own examples, the tests that mirror it, and the package's three that name most of what it holds."""
    path = Path(file)
    text = (ROOT / path).read_text(encoding="utf-8")
    names = {path.stem, *re.findall(r"^(?:def|class) ([A-Za-z]\w*)", text, re.MULTILINE)}
    words = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b")
    counts: collections.Counter[str] = collections.Counter()
    for test in sorted((ROOT / "tests" / path.parts[1]).rglob("test_*.py")):
        counts[test.relative_to(ROOT).as_posix()] = len(words.findall(test.read_text(encoding="utf-8")))
    mirror = f"tests/{path.parts[1]}/test_{path.stem}.py"
    mentioning = [name for name, count in counts.most_common(3) if count and name != mirror]
    return [*([file] if ">>>" in text else []), *([mirror] if (ROOT / mirror).exists() else []), *mentioning]


def meet(copies: Copies, mutant: Mutant, rest: list[tuple[str, bool, list[str]]], begun: dict) -> dict[str, Any]:
    """Lets a mutant meet its stages; returns what the file of results holds of it."""
    place, began = copies.free.get(), time.monotonic()
    file = place / mutant.file
    source = file.read_bytes()
    result = mutant._asdict() | {"passed": begun.get("passed", []), "caught": None}
    try:
        _write(file, mutant.applied(source))
        for name, slow, options in rest:
            stage = f"{name}, slow" if slow else name
            if stage in result["passed"]:
                continue
            failure = copies.first_failure(place, options, LIMITS[name] * (4 if slow else 1))
            if failure:
                result["caught"] = {"stage": stage, "slow": slow, **failure._asdict()}
                break
            result["passed"] = [*result["passed"], stage]
    finally:
        _write(file, source)
        copies.free.put(place)
    return result | {"seconds": round(begun.get("seconds", 0) + time.monotonic() - began)}


def _write(file: Path, source: bytes) -> None:
    """Writes a source; its compiled form would be kept if it were as long and of the same second."""
    file.write_bytes(source)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def explanation(result: dict[str, Any]) -> str | None:
    """Why a mutant that survives is as good as the original."""
    return EXPLAINED.get((result["file"], result["text"], f"{result['before']} -> {result['after']}"))


def tables(results: list[dict[str, Any]], whole: bool) -> str:
    """How many mutants were noticed by which command, and those that weren't."""
    lines = ["| | mutants | noticed by `pytest -n 2` | only by `--all` | not noticed | of these explained |"]
    lines.append("|---|---|---|---|---|---|")
    for label, key in [(name, "package") for name in PACKAGES] + [(name, "kind") for name in KINDS] + [("all", "")]:
        own = [each for each in results if not key or label == _group(each, key)]
        if own:
            caught = [each["caught"] for each in own if each["caught"]]
            left = [each for each in own if not each["caught"]]
            slow = sum(each["slow"] for each in caught)
            counts = (len(own), len(caught) - slow, slow, len(left), sum(map(bool, map(explanation, left))))
            lines.append(f"| {label} | {' | '.join(map(str, counts))} |")
    lines += ["", "| survivor | line | change | explanation |", "|---|---|---|---|"]
    for each in results:
        if not each["caught"]:
            place, change = f"{each['file']}:{each['line']}", f"{each['before']} -> {each['after']}"
            cells = (place, f"`{each['text']}`", f"`{change}`", explanation(each) or "NONE")
            lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    seconds = sum(each["seconds"] for each in results)
    return "\n".join([*lines, "", f"{seconds / 60:.0f} minutes" + ("" if whole else "; not all stages")])


def _group(result: dict[str, Any], key: str) -> str:
    return result["file"].split("/")[1] if key == "package" else result["kind"]


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=60, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="of the drawn ones, only those whose file or kind contains this")
    parser.add_argument("--depth", choices=DEPTHS, default=DEPTHS[-1], help="leave out the stages after this one")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/mutation"), help="copies, compiled programs, results")
    wanted = parser.parse_args()
    drawn = draw(ROOT, wanted.seed, wanted.mutants)
    drawn = [each for each in drawn if wanted.only in each.file or wanted.only == each.kind]
    if not drawn:
        parser.error(f"--only: none of the {wanted.mutants} drawn mutants is of {wanted.only!r}")
    out = wanted.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    file, copies = out / "results.json", Copies(out, min(wanted.jobs, len(drawn)))
    results: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    lock, speeds = threading.Lock(), (False,) if wanted.quick else (False, True)

    def one(mutant: Mutant) -> None:
        begun = results.get(mutant.key, {})
        if not begun.get("caught"):
            depth = DEPTHS[0] if explanation(mutant._asdict()) else wanted.depth
            result = meet(copies, mutant, stages(mutant.file, depth, speeds), begun)
            with lock:
                results[mutant.key] = result
                file.with_suffix(".part").write_text(json.dumps(results, indent=1))
                file.with_suffix(".part").replace(file)
        caught = results[mutant.key]["caught"]
        how = f"{caught['stage']}: {caught['test'] or caught['told']}" if caught else "not noticed"
        print(f"{mutant.file}:{mutant.line} {mutant.before} -> {mutant.after}: {how}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(wanted.jobs) as pool:
        list(pool.map(one, drawn))
    shown = [results[mutant.key] for mutant in drawn]
    print(tables(shown, wanted.depth == DEPTHS[-1] and not wanted.quick))
    return 0 if all(each["caught"] or explanation(each) for each in shown) else 1


if __name__ == "__main__":
    sys.exit(main())
