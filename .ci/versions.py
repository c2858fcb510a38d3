#!/usr/bin/env python3
"""Runs the demo and the quick tests with the oldest and the newest versions that `pyproject.toml` allows.

    .ci/versions.py [--python 3.11 3.12 3.13] [--of oldest newest] [--work DIR]

Each combination has a virtual environment of its own, one after another, made by `uv` (`pip install uv`) and removed
again. "oldest" is each dependency's lowest version from its bound on that has a wheel for this Python; what they depend
on themselves is the newest. Prints a table in Markdown; exit code 1 if something fails. A combination takes some
minutes and 1 GB.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
SHOWN = ("jax", "flax", "optax", "numpy", "scipy", "pydantic", "typer", "matplotlib", "tensorflow-datasets")


def main() -> int:
    """Tries all combinations; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--of", nargs="+", choices=list(RESOLUTIONS), default=list(RESOLUTIONS))
    parser.add_argument("--work", type=Path, help="an existing folder, where logs stay; by default a temporary one")
    wanted = parser.parse_args()
    if not shutil.which("uv"):
        parser.error("there is no uv: pip install uv")
    for folder in sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin"))):
        os.environ["PATH"] += os.pathsep + folder
    fine = True
    print(f"| Python | versions | {' | '.join(SHOWN)} | demo | tests |\n|{'---|' * (len(SHOWN) + 4)}")
    with tempfile.TemporaryDirectory() as temporary:
        for python in wanted.python:
            for which in wanted.of:
                cells = try_one(python, which, (wanted.work or Path(temporary)).resolve())
                fine = fine and not any("fail" in cell for cell in cells)
                print(f"| {python} | {which} | {' | '.join(cells)} |", flush=True)
    return 0 if fine else 1


def try_one(python: str, which: str, work: Path) -> list[str]:
    """The cells of a combination's row: versions, and how demo and tests ended."""
    place, log = work / f"{python}-{which}", work / f"{python}-{which}.log"
    log.unlink(missing_ok=True)
    own = place / "bin" / "python"
    env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(place / "cache")}
    try:
        install = [*("uv", "pip", "install", "--python", str(own), "--resolution", RESOLUTIONS[which])]
        install += [*_wheels(), "-r", str(ROOT / "pyproject.toml"), "--extra", "test"]
        for command in (["uv", "venv", "--python", python, "--clear", str(place)], install):
            if not _run(command, log, work, None):
                return ["failed to install"] + [""] * (len(SHOWN) + 1)
        listed = subprocess.run(
            ["uv", "pip", "list", "--format", "json", "--python", str(own)], check=True, capture_output=True
        )
        versions = {package["name"].lower(): package["version"] for package in json.loads(listed.stdout)}
        demo = _run([str(own), "-m", "fedjax_bal", "demo"], log, place, env)
        # Deprecations don't count, but some tests are of a warning that is an error.
        warnings = "filterwarnings=default\nerror::PIL.Image.DecompressionBombWarning"
        options = ["-n", "2", "-o", f"cache_dir={place / 'pytest'}", "-o", warnings]
        tests = _run([str(own), "-m", "pytest", *options], log, ROOT, env)
        shown = [versions.get(name, "") for name in SHOWN]
        return [*shown, "passes" if demo else "fails", "pass" if tests else _failures(log)]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _wheels() -> list[str]:
    """Options by which every dependency of our own comes as a wheel: old sources often no longer compile."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["test"], "pydantic-core"]
    return [word for text in named for word in ("--only-binary", re.split(r"[^\w.-]", text)[0])]


def _run(command: list[str], log: Path, place: Path, env: dict[str, str] | None) -> bool:
    with log.open("a") as stream:
        print("$", *command, file=stream, flush=True)
        return subprocess.run(command, cwd=place, env=env, stdout=stream, stderr=subprocess.STDOUT).returncode == 0


def _failures(log: Path) -> str:
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return f"{len(failed)} fail: {', '.join(failed[:3])}" if failed else "fail"


if __name__ == "__main__":
    sys.exit(main())
