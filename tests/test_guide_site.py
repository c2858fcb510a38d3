"""The guide's site: what its search finds, formulas, measured results, and the notebook."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from fedjax_bal import parts, recipes
from fedjax_bal.config import builtin_configs
from fedjax_bal.lab import load_sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".ci" / "guide")


def test_search_finds_methods_and_public_names_and_papers(tmp_path):
    for package in ("zensical", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason="the extra docs isn't installed")
    python = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([ROOT / ".ci" / "guide" / "build", tmp_path], env=python, check=True)
    site = tmp_path / "guide"
    found = [item["location"] for item in json.loads((site / "search.json").read_text())["items"]]
    names = {location.partition("#")[2] for location in found}
    assert {f"fedjax_bal.recipes.{name}" for name in recipes.RECIPES} <= names
    assert {f"fedjax_bal.parts.{name}" for name in parts.__all__} <= names
    assert {"fedjax_bal.simulate", "fedjax_bal.compare", "fedjax_bal.balance.smoothed_prior"} <= names
    for paper in ("astraea", "cbfl", "flcir", "iwds", "rebafl"):
        assert any(place.startswith(f"papers/{paper}.html") for place in found)
    page = (site / "methods" / "balanced_softmax.html").read_text()
    assert "<math" in page and "arithmatex" not in page
    assert "PriorCalibration</span>" in page and ">tau</span>" in page  # the signature of a part


def test_costs_are_relative_to_fedavg():
    import measured

    machine, figures = measured.on_long_tail()
    with (ROOT / "benchmarks" / "results" / "long_tail.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    paces = [
        [float(row["client_updates_per_s"]) for row in rows if row["method"] == name] for name in ("fedic", "fedavg")
    ]
    assert figures["fedic"].pace == pytest.approx(fmean(paces[0]) / fmean(paces[1]))
    assert figures["fedavg"].pace == 1 and "cores" in machine


def test_points_of_a_sweep_stand_beside_their_own_numbers(tmp_path, monkeypatch):
    import measured

    (first, second, _) = load_sweep(builtin_configs()["protocols/fedvls_mnist"]).configs
    runs = [
        (first, 50, 0.97, "done"),
        (first, 50, 0.99, "done"),
        (first, 49, 0.1, "done"),
        (second, 50, 0.1, "diverged"),
    ]
    lines = [f"{point},fedavg,{rounds},{best},{status}" for point, rounds, best, status in runs]
    (tmp_path / "fedvls_mnist.csv").write_text("\n".join(["point,method,rounds,best_accuracy,status", *lines]))
    monkeypatch.setattr(measured, "_RESULTS", tmp_path)
    (pair,) = measured.beside_papers.__wrapped__()
    assert (pair.setting, pair.recipe, pair.runs) == (first, "fedavg", 2)
    assert (pair.paper, pair.here) == (pytest.approx(98.96), pytest.approx(98))


def test_the_notebook_is_what_the_pages_give():
    import notebook

    assert notebook.NOTEBOOK.read_text() == notebook.notebook()


@pytest.mark.nightly
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the extra notebook isn't installed")
    pytest.importorskip("ipykernel", reason="the extra notebook isn't installed")
    import nbformat
    import notebook

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = nbclient.execute(nbformat.reads(notebook.notebook(), 4), cwd=tmp_path, timeout=600).cells
    printed = [output.text for cell in cells for output in cell.get("outputs", ()) if output.get("name") == "stdout"]
    shown = [output.data for cell in cells for output in cell.get("outputs", ()) if "data" in output]
    assert sum("image/png" in data for data in shown) == 2
    assert "scaffold + rebafl" in printed[0] and "confident" in printed[-1]
    assert "()\nbalanced_softmax+confident\n" in "".join(printed)
