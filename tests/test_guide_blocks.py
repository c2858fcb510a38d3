"""Blocks of the guide's pages: all are valid, and some pages' run in their order, with a quickstart that is small."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import quick
import typer
from blocks import can_run
from rounding import SUM
from typer.testing import CliRunner

import fedjax_bal
from fedjax_bal.cli.app import app
from fedjax_bal.cli.arguments import split_arguments
from fedjax_bal.config import builtin_configs, load_config
from fedjax_bal.lab import load_sweep
from fedjax_bal.plugins import load_plugins

pytestmark = pytest.mark.slow

GUIDE = Path(fedjax_bal.__file__).parent / "guide"
ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^\w*\$ (?:srun )?fedjax-bal (.*)", re.MULTILINE)
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
    "extending": ("runs/mine/table.tex", "geometric mean"),
    "client_counts": ("runs/counts/results.csv", "partition.clients,selection.clients_per_round,point"),
    "paper_tables": ("runs/table/report.html", "Compared with the paper"),
}
"""Page -> a file that its blocks have written, and what it holds."""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Makes a folder the current one, and the quickstart small; returns its file."""
    known = builtin_configs()
    quickstart = tmp_path / "small.yaml"
    quickstart.write_text(SMALL.format(known["quickstart"]))
    monkeypatch.setattr("fedjax_bal.config.load.builtin_configs", lambda: known | {"quickstart": quickstart})
    monkeypatch.chdir(tmp_path)
    return quickstart


def run_blocks(text):
    """Runs blocks of Python and of commands, and writes those that begin with a file's name into it."""
    namespace = {}
    left_out = set()
    for language, file, block in BLOCK.findall(text):
        if file:
            Path(file).write_text(block)
            if language == "python" and not can_run(block):
                left_out.add(file)
        elif language == "python":
            if can_run(block):
                exec(block, namespace)
        else:
            for line in COMMAND.findall(block):
                words = shlex.split(line, comments=True)
                if "name: huggingface" in line and not can_run("import datasets"):
                    continue
                if left_out.isdisjoint(words):
                    run_command(words)
    return namespace


def run_command(words):
    if "DIR" in words:  # data that the tests don't have
        if "--plugin" in words:
            place = words.index("--plugin")
            load_plugins([words[place + 1]])
            words = words[:place] + words[place + 2 :]
        kept = [word for word in words[1:] if word not in ("--data-dir", "DIR", "--dry-run")]
        (load_sweep if words[0] == "sweep" else load_config)(kept[0], kept[1:])
        return
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (words, result.output)


@pytest.mark.parametrize("page", quick.only(PAGES, "own_data", "extending", "paper_tables", others=pytest.mark.nightly))
def test_the_blocks_of_a_page_run(page, small):
    if page == "own_data":  # the quickstart's other methods don't take all data
        small.write_text(small.read_text().replace("methods: [fedavg, rebafl]\n", ""))
    run_blocks((GUIDE / f"{page}.md").read_text())
    file, text = PAGES[page]
    assert text in Path(file).read_text()


@pytest.mark.nightly
def test_a_network_of_pytorch_trains_and_comes_back(small):
    pytest.importorskip("torch")
    found = run_blocks((GUIDE / "own_network.md").read_text())
    inputs = fedjax_bal.data.normalised(
        found["dataset"].test_images[:100], found["federation"].mean, found["federation"].std
    )
    outputs, _ = found["result"].model.apply(found["result"].evaluated, inputs, train=False)
    np.testing.assert_allclose(found["logits"], outputs.logits, rtol=SUM, atol=SUM)
    assert '"method": "rebafl"' in Path("runs/torch_net/metrics.jsonl").read_text()


@pytest.mark.nightly
def test_weights_go_in_and_models_out(small, capsys):
    pytest.importorskip("flatbuffers")
    shapes = {"0": (16, 1, 5, 5), "3": (32, 16, 5, 5), "7": (128, 32 * 7 * 7), "9": (10, 128)}
    state = {f"{layer}.weight": np.full(shape, 0.01) for layer, shape in shapes.items()}
    state |= {f"{layer}.bias": np.zeros(shape[0]) for layer, shape in shapes.items()}
    np.savez("pytorch.npz", **state)
    found = run_blocks((GUIDE / "pretrained.md").read_text())
    trained = found["trained"]
    assert {name: np.shape(trained[name]) for name in state} == {name: array.shape for name, array in state.items()}
    assert trained.keys() - state.keys() == {"mean", "std"}
    if "torch" in found:
        np.testing.assert_allclose(found["logits"], found["outputs"].logits, rtol=SUM, atol=SUM)
    runpy.run_path("predict.py")
    assert capsys.readouterr().out.splitlines()[-1].count("'") == 2 * 5


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))], ids=lambda page: page.stem)
def test_configurations_and_commands_are_valid(page, tmp_path, monkeypatch):
    text, own = page.read_text(), set()
    for language, file, block in BLOCK.findall(text):
        own.add(file)
        if language == "yaml":
            whole = block if re.search(r"^(base|methods):", block, re.MULTILINE) else f"methods: [fedavg]\n{block}"
            (tmp_path / (file or "block.yaml")).write_text(whole)
            (load_sweep if "\nsweep:" in block else load_config)(tmp_path / (file or "block.yaml"))
    monkeypatch.chdir(ROOT)
    for line in COMMAND.findall(text):
        words = shlex.split(line, comments=True)
        if own & set(words):  # one that runs, above
            continue
        parsed = parse(words)
        if words[0] in ("run", "sweep") and "FILE" not in words:
            file, overrides = split_arguments(parsed["arguments"])
            load_sweep(file, overrides) if words[0] == "sweep" else load_config(file, overrides)


def parse(words):
    """A command's arguments, once its name and options are known ones."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    return command.make_context(name, list(words)).params
