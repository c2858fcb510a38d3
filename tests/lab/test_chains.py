"""How even the classes of what is averaged are: in a run's summary, in the terminal and in the report."""

import json

import numpy as np
import pytest
import small_run
from rounding import DOUBLE
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.report import gallery

METHODS = "[{recipe: fedavg}, {recipe: astraea, name: mediators of 3 xx, alpha: 1.0, size: 3, store: false}]"
NOTE = "KL: divergence from uniform of the classes behind each averaged model, in nats"


def compared(place, *changes):
    """Runs the small comparison in 80 columns; what it prints, its lines and its summary's runs."""
    (place / "small.yaml").write_text(small_run.TEXT)
    arguments = ["run", "small.yaml", *changes, "--plain", "--out", "run"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((place / "run" / "summary.json").read_text())
    return result.output, small_run.metrics(place / "run"), summary["runs"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(gallery, "run_figures", lambda run: [])  # pictures are no matter here, and take their time
    return tmp_path


@pytest.mark.slow
def test_mediators_and_copies_are_compared_by_divergence(here):
    output, lines, runs = compared(here, f"methods={METHODS}", "evaluation.target_accuracy=0.9")
    assert [(run["clients_per_chain"], run["copies"] > 0) for run in runs] == [(1, False), (3, True)] * 2
    for run in runs:
        own = [x["chain_kl"] for x in lines if (x["method"], x["seed"]) == (run["method"], run["seed"])]
        assert run["chain_kl"] == pytest.approx(np.mean([x for x in own if x is not None]), rel=DOUBLE)
    assert NOTE in " ".join(output.split())
    table = output[output.index(" runs finished in ") : output.index("Test accuracy in %")].splitlines()[1:]
    assert max(map(len, table)) <= 80
    assert sum(text.split()[:1] == ["method"] and "KL" in text.split() for text in table) == 1
    for method in ("fedavg", "mediators of 3"):
        mean = np.mean([run["chain_kl"] for run in runs if run["method"].startswith(method)])
        assert sum(text.lstrip().startswith(method) and f"{mean:.3f}" in text.split() for text in table) == 1
    page = (here / "run" / "report.html").read_text()
    assert ">KL</th>" in page and NOTE in page
