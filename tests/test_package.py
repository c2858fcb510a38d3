"""The wheel, which works where the source isn't, and the guide's site."""

import html
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedjax_bal import __version__
from fedjax_bal.metrics import METRICS
from fedjax_bal.recipes import RECIPES

ROOT = Path(__file__).parents[1]


def run(*words, **options):
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configurations_and_works_alone(tmp_path):
    run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        opened.extractall(tmp_path / "installed")
    tracked = subprocess.run(
        ["git", "ls-files", "fedjax_bal", "configs"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    wanted = {
        name.replace("configs/", "fedjax_bal/configs/", 1) if name.startswith("configs/") else name
        for name in tracked.split()
    }
    assert held == wanted

    alone = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path)}}
    (version,) = run("fedjax_bal", "--version", **alone).split()[-1:]
    assert f"-{version}-" in wheel.name
    assert "papers/rebafl/table1_fmnist_m20" in run("fedjax_bal", "list", "configs", **alone)


def test_what_others_cite_has_the_package_s_version():
    assert f'\nversion: "{__version__}"\n' in (ROOT / "CITATION.cff").read_text()


@pytest.mark.nightly
def test_the_guide_builds_without_a_warning():
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    build = ["bash", str(ROOT / ".ci" / "guide" / "build")]
    done = subprocess.run(build, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nbuild/guide/index.html\n")
    site = ROOT / "build" / "guide"
    cards = "".join(page.read_text() for page in (site / "methods").glob("*.html"))
    assert "<math" in cards and "arithmatex" not in cards
    assert all(f'id="fedjax_bal.recipes.{name}"' in cards for name in RECIPES)
    words = html.unescape(re.sub("<[^>]+>", "", cards))
    assert ">>> auto_augment().parts" in words and "mu: NonNegative = 0.001" in words
    assert all(f"<code>{name}</code>" in (site / "reading_results.html").read_text() for name in METRICS)
