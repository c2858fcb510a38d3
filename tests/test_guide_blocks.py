"""The blocks of the guide's pages run in their order, with a quickstart that is the same in small."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedjax_bal
from fedjax_bal.cli.app import app
from fedjax_bal.config import builtin_configs, load_config
from fedjax_bal.experiments.results_table import COSTS
from fedjax_bal.metrics import METRICS

GUIDE = Path(fedjax_bal.__file__).parent / "guide"
BLOCK = re.compile(r"```(python|yaml|console)\n(?:# (\S+\.\w+)\n)?(.*?)```", re.DOTALL)
SMALL = """
name: quickstart
base: {}
training: {{rounds: 2, local_epochs: 1, batches_per_epoch: 2}}
selection: {{clients_per_round: 3}}
methods: [fedavg, rebafl]
seeds: [0, 1]
"""
PAGES = {
    "getting_started": ("runs/quickstart/comparison.html", "quickstart-2"),
    "own_data": ("runs/clouds/metrics.jsonl", '"method": "rebafl"'),
    "client_counts": ("runs/counts/results.csv", "partition.clients,selection.clients_per_round,point"),
    "paper_tables": ("runs/table/report.html", "Beside the paper"),
}
"""Page -> a file that its blocks have written, and what it holds."""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Makes a folder the current one, and the quickstart small."""
    known = builtin_configs()
    quickstart = tmp_path / "small.yaml"
    quickstart.write_text(SMALL.format(known["quickstart"]))
    monkeypatch.setattr("fedjax_bal.config.load.builtin_configs", lambda: known | {"quickstart": quickstart})
    monkeypatch.chdir(tmp_path)


def run_blocks(text):
    """Runs blocks of Python and of commands, and writes those that begin with a file's name into it."""
    namespace = {}
    for language, file, block in BLOCK.findall(text):
        if file:
            Path(file).write_text(block)
        elif language == "python":
            exec(block, namespace)
        else:
            for line in re.findall(r"^\$ fedjax-bal (.*)", block, re.MULTILINE):
                run_command(shlex.split(line, comments=True))
    return namespace


def run_command(words):
    if "DIR" in words:  # data that the tests don't have
        kept = [word for word in words[1:] if word not in ("--data-dir", "DIR")]
        load_config(kept[0], kept[1:])
        return
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (words, result.output)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, small):
    run_blocks((GUIDE / f"{page}.md").read_text())
    file, text = PAGES[page]
    assert text in Path(file).read_text()


@pytest.mark.slow
def test_results_are_explained(small):
    page = (GUIDE / "reading_results.md").read_text()
    named = {name.rstrip("/") for name in re.findall(r"`([\w.*/-]+)`", page)}
    run_command(["run"])
    assert len(run_blocks(page)["fedavg"]) == 4

    folder = Path("runs/quickstart")
    assert {file.name for file in folder.iterdir() if file.suffix not in (".md", ".tex", "") or file.is_dir()} <= named
    (_, headings, *_) = re.findall(
        r"^.*$", (folder / "tables.md").read_text().replace("fedavg", "FIRST"), re.MULTILINE
    )[1:]
    columns = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert set(headings.strip("| ").split(" | ")[1:]) <= set(columns)
    summary = json.loads((folder / "summary.json").read_text())
    line = json.loads((folder / "metrics.jsonl").read_text().partition("\n")[0])
    assert {*summary, *summary["runs"][0], *line} - {*METRICS} <= named
    assert {"point", "status", "failure", *COSTS} <= named
