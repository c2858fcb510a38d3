"""Analyses of plug-ins: done once for the first seed of each method, again after a kill, and drawn in the report."""

import html
import json

import numpy as np
import pytest
import small_run
from matplotlib.figure import Figure

from fedjax_bal import register, report
from fedjax_bal.analyses import Analysis, Findings
from fedjax_bal.config import ConfigError, load_config, resolved_sheet
from fedjax_bal.lab.setup import SetupError

ASKED = (*small_run.ONE, "seeds=[0, 1]", "evaluation.analyses={norm: {factor: 2}}")


@pytest.fixture(autouse=True)
def norm():
    """Registers an analysis; returns what it was asked to examine, and what it raises next."""
    log = {"rounds": [], "raises": None, "refuses": ""}

    @register("analysis", "norm")
    class Norm(Analysis):
        """The first weight, times a factor."""

        def __init__(self, factor: float = 1.0) -> None:
            self.factor = factor

        def check(self, simulation):
            if log["refuses"]:
                raise ValueError(log["refuses"])

        def examine(self, simulation, snapshot):
            log["rounds"].append(snapshot.round)
            if log["raises"]:
                raise log["raises"]
            return Findings({"factor": self.factor, "nothing": float("nan")}, {"eye": np.eye(2)})

        @staticmethod
        def figures(method, found, classes):
            yield (
                "eye",
                f"The eye of {method}",
                f"Times {found.numbers['factor']}, {found.arrays['eye'].sum()}.",
                Figure(),
            )

    return log


def found(path):
    return sorted(file.relative_to(path).as_posix() for file in path.glob("analyses/*/*"))


@pytest.mark.slow
def test_it_is_done_once_after_a_kill_too_and_drawn(tmp_path, norm):
    path, config = tmp_path / "run", small_run.config(tmp_path, *ASKED)
    norm["raises"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        small_run.run(path, config)
    assert found(path) == [] and norm["rounds"] == [4]
    norm["raises"] = None
    display = small_run.run(path, config)
    assert norm["rounds"] == [4, 4] and "fedavg, seed 0: running the analysis norm" in " ".join(display.notes)
    assert found(path) == ["analyses/norm/fedavg-seed-0.json", "analyses/norm/fedavg-seed-0.npz"]
    assert json.loads((path / found(path)[0]).read_text())["factor"] == 2.0
    small_run.run(path, config)
    assert norm["rounds"] == [4, 4]
    page = html.unescape(report.write_run_page(path).read_text())
    assert "The eye of fedavg" in page and "Times 2.0, 2.0." in page
    small_run.run(path, small_run.config(tmp_path, *ASKED, "training.rounds=6"))
    assert norm["rounds"] == [4, 4, 6]
    small_run.run(path, small_run.config(tmp_path, *ASKED, "training.rounds=6"), fresh=True)
    assert norm["rounds"] == [4, 4, 6, 6]


def test_what_it_refuses_is_refused_before_training(tmp_path, norm):
    norm["refuses"] = "no weights to speak of"
    with pytest.raises(SetupError, match="evaluation.analyses .of fedavg.: norm: no weights to speak of"):
        small_run.run(tmp_path / "run", small_run.config(tmp_path, *ASKED))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("norm", {"norm": {"factor": 1.0}}),
        ("[norm]", {"norm": {"factor": 1.0}}),
        ("{norm: {factor: 3}}", {"norm": {"factor": 3.0}}),
        ("{norm: null}", {"norm": {"factor": 1.0}}),
        ("[]", {}),
    ],
)
def test_short_forms_mean_the_same(text, wanted):
    config = load_config(None, [f"evaluation.analyses={text}"])
    assert config.evaluation.analyses == wanted == resolved_sheet(config)["evaluation"]["analyses"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nrm]", "evaluation.analyses: received 'nrm'; did you mean 'norm'"),
        ("{norm: {factor: much}}", "evaluation.analyses.norm.factor: received 'much'"),
        ("{norm: {fctor: 2}}", "evaluation.analyses.norm.fctor: unknown key"),
        ("3", r"evaluation.analyses: received 3, must be .NAME"),
    ],
)
def test_what_is_unknown_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"evaluation.analyses={text}"])
