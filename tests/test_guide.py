"""The guide's table of roles, and its own method through the command line."""

import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import can_run
from typer.testing import CliRunner

from fedjax_bal import parts
from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config
from fedjax_bal.jax_setup import cores
from fedjax_bal.parts import Part

pytestmark = pytest.mark.slow

ROLES = Path(parts.__file__).parent / "guide" / "roles.md"
README = Path(__file__).parents[1] / "README.md"
PAPERS = README.parent / "benchmarks" / "papers_pages"
EXAMPLES = ("library", "own_data", "own_network", "functional_api", "extending", "roles")
"""Pages whose Python examples are a script, each by itself; that of roles goes on from library's."""
PRINTED = {
    "roles": ["()", "balanced_softmax+confident"],
    "extending": ["[3679 1840 1227  919  736  613  526  460]", "[2, 2]"],
}
"""Page -> lines that its examples print, which the page shows."""


def rows():
    """The cells of the table's rows, by role."""
    lines = [line.strip("|").split("|") for line in ROLES.read_text().splitlines() if line.startswith("| ")]
    cells = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    assert len(cells) == len(lines) - 1  # one row each, but two for any part
    return cells


def test_the_table_has_every_role_with_its_methods_and_a_part_that_plays_it():
    table, roles = rows(), {name: kind for name, kind in vars(parts).items() if inspect.isabstract(kind)}
    assert set(table) == {"role", "any part", *roles}
    for name, role in roles.items():
        methods, example = re.findall(r"`(\w+)`", table[name][0]), table[name][-1].strip("`")
        assert set(role.__abstractmethods__) <= set(methods) and all(hasattr(role, method) for method in methods)
        assert not example or issubclass(getattr(parts, example), role)
    assert all(hasattr(Part, method) for method in re.findall(r"`(\w+)`", table["any part"][0]))


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "page", [README, *(ROLES.with_name(f"{name}.md") for name in EXAMPLES)], ids=lambda page: page.stem
)
def test_examples_in_python_run_as_scripts_without_a_warning_on_all_cores(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    own = blocks(page, "python")
    for block in own:
        if block.startswith("# "):  # the content of a file
            (tmp_path / block[2:].partition("\n")[0]).write_text(block)
    before = blocks(page.with_name("library.md"), "python") if page.stem == "roles" else []
    code = "\n".join(block for block in [*before, *own] if not block.startswith("# ") and can_run(block))
    if ">>>" in code:
        code = doctest.script_from_examples("\n".join(line for line in page.read_text().splitlines()))
    code = re.sub(r'(rounds"?[=:] ?)20', r"\g<1>1", code)
    (tmp_path / "example.py").write_text(f"{code}\nimport jax\nprint(jax.device_count())\n")
    unset = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    command = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(command, cwd=tmp_path, env=unset, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    for line in PRINTED.get(page.stem, ()):
        assert f"{line}\n" in done.stdout and line in page.read_text()
    if "simulate(" in code or "make_round(" in code:  # a page that trains nothing leaves jax to its caller
        assert done.stdout.splitlines()[-1] == str(cores())


def test_links_lead_somewhere():
    for page in (README, README.with_name("CONTRIBUTING.md"), *ROLES.parent.glob("*.md"), *PAPERS.glob("*.md")):
        links = re.findall(r"\]\(([^)#]+)", page.read_text())
        assert all((page.parent / link).exists() for link in links if "://" not in link), page


def test_the_guides_method_is_a_plugin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("confident.py").write_text(blocks(ROLES, "python")[0])
    (command,) = re.findall(r"```bash\nfedjax-bal (.*)\n```", ROLES.read_text())
    small = ["training.rounds=2", "seeds=[0]", "model={name: mlp}", "--plain", "--out", "here"]
    result = CliRunner().invoke(app, [*shlex.split(command), *small])
    assert result.exit_code == 0, result.output
    names = ("fedavg", "confident", "balanced_softmax+confident")
    assert all(f'"method": "{name}"' in Path("here/metrics.jsonl").read_text() for name in names)


def test_what_other_simulators_call_otherwise_are_keys_here():
    page = ROLES.with_name("coming_from.md").read_text()
    changes = re.findall(r"`([\w.]+=[^`]+)`", page)
    assert len(changes) > 10
    for change in changes:
        load_config(None, [change])
    (command,) = blocks(ROLES.with_name("coming_from.md"), "console")
    config = load_config(None, shlex.split(command.partition(" run ")[2]))
    assert (config.partition.clients, config.training.rounds, len(config.methods)) == (20, 100, 2)
