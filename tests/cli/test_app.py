"""The command line: what a user meets when something is wrong, and when the process is killed."""

import html
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
import quick
import small_run
from typer.testing import CliRunner

from fedjax_bal.cli import running
from fedjax_bal.cli.app import app
from fedjax_bal.cli.listing import KINDS
from fedjax_bal.config import load_config, yaml_text
from fedjax_bal.lab import RunFolder, output_folder

BAD = {
    "unknown key": (["training.round=3"], ["training.round: unknown key", "did you mean 'rounds'"]),
    "missing file": (["nowhere.yaml"], ["nowhere.yaml: there is no such file"]),
    "two files": (["a.yaml", "b.yaml"], ["received 2 files"]),
    "a space in a value": (["lr=0.1,", "0.2"], ["lr=0.1, 0.2: remove the space after the comma"]),
    "a partition that does not exist": (
        ["absent_clients", "partition.classes_per_client=11"],
        ["partition:", "11", "10"],
    ),
    "a model that does not fit": (
        ["model.name=fedavg_cnn", "dataset.name=cifar10", "methods=fedavg"],
        ["cifar10", "--data-dir"],
    ),
    "data that is not there": (
        ["dataset.name=mnist", "methods=fedavg", "--data-dir", "."],
        ["mnist", "train-images-idx3-ubyte"],
    ),
    "scaffold with momentum, before data is looked for": (
        ["absent_clients", "methods=[{recipe: scaffold}]", "dataset.name=mnist"],
        ["methods.0: scaffold: received", "momentum", "scaffold_momentum"],
    ),
    "fakes that would never come": (
        ["absent_clients", "methods=[{recipe: fedavg}, {recipe: cbfl}]", "model.name=tiny_bn"],
        ["methods.1: cbfl: warm_up: the first fakes come in round 700, but rounds=40"],
    ),
    "a generator without batch statistics": (
        ["absent_clients", "methods=[{recipe: cbfl, warm_up: 40}]"],
        ["methods.0: cbfl: generator: received the model 'rebafl_fmnist' without batch normalisation"],
    ),
    "a folder that can't be written": (["--out", "/dev/null/run"], ["/dev/null/run", "--out"]),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and no network: data sets can only come from files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_message_and_exit_code_2(here, name):
    arguments, fragments = BAD[name]
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for fragment in fragments:
        assert fragment in result.output
    assert not list(here.glob("runs/*/config.yaml"))


def test_a_file_may_have_a_sign_in_its_path_that_changes_have_too(here):
    (here / "alpha=0.1").mkdir()
    (here / "alpha=0.1" / "config.yaml").write_text("name: [x\n a: b\n")
    for command in (("run",), ("data", "describe")):
        assert "alpha=0.1/config.yaml: line 2" in invoke(*command, "alpha=0.1/config.yaml").output


def test_the_help_shows_lists_in_brackets():
    assert "methods=[fedavg,rebafl]" in "".join(re.findall(r"[^\s│]+", invoke("run", "--help").output))


def test_run_writes_everything_and_says_where(here, monkeypatch):
    (here / "small.yaml").write_text(small_run.TEXT)
    result = invoke("run", "small.yaml", "--plain", "--verbose")  # whose programs `trained` has, too
    assert result.exit_code == 0, result.output
    assert re.search(r"^  2 +control variates +2 +1 +7 ", result.output, re.MULTILINE)
    assert re.search(r"fedavg, seeds? .*: program ready after [\d.]+ s; .* on each of \d+ device\(s\)", result.output)
    used = "fashion_mnist_small: 400 of 10,000 rows, 10 clients; held back: partition=pathological"
    assert result.output.startswith(f"data: {used}")
    folder = here / "runs" / "small"
    assert used in (folder / "report.html").read_text()
    assert "report: runs/small/report.html" in result.output
    closing = r"^[1-9]\d* client updates in \d+ s, [\d,.]+/s while training; compiling took \d+% of the time$"
    assert re.search(closing, result.output, re.MULTILINE)
    written = {entry.name for entry in folder.iterdir()}
    own = {
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "confusion.npz",
        "SHA256SUMS",
        "report.html",
        "plots",
        "checkpoints",
        ".lock",
        ".owner",
    }
    assert written == own | {"execution.json", "tables.csv", "tables.tex"}
    HTMLParser().feed((folder / "report.html").read_text())

    monkeypatch.setattr("fedjax_bal.report.gallery.run_figures", lambda runs: [])  # they take seconds
    (folder / "report.html").unlink()
    again = invoke("report", folder)
    assert again.exit_code == 0 and "vs fedavg [95%]" in again.output and "No clear winner: " in again.output
    assert (folder / "report.html").exists()

    said = invoke("run", "small.yaml", "--quiet").output
    verdict, report = said.rstrip("\n").rsplit("\n", 1)
    assert verdict.startswith("No clear winner: ") and verdict in result.output
    assert report == "report: runs/small/report.html"

    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    lines = invoke("run", "small.yaml", "seeds=[0, 1, 2]", "--dry-run").output.splitlines()
    assert lines[0].startswith("small: 2 of 6 runs to train; about ")
    assert lines[2].split()[:5] == ["1", "fedavg", "1", "1", "7"]
    assert lines[-1] == "  would resume in runs/small"
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_configurations_of_one_name_that_start_at_once_take_folders_of_their_own(here):
    (here / "small.yaml").write_text(small_run.TEXT)
    refused = ("run", "small.yaml", "partition.samples_per_client=9999", "--plain")  # once it has its folder
    config = load_config("small.yaml")
    with RunFolder(here / "runs" / "small").claimed(config):
        with RunFolder(here / "runs" / "small-2").claimed(config.model_copy(update={"seeds": (5,)})):
            assert "writing to runs/small-3. Differences:\n" in invoke(*refused).output
        same = invoke("run", "small.yaml", "training.rounds=8", "--plain")  # more of what the other process does
        assert same.exit_code == 2 and "runs/small: another process is using this folder; wait" in same.output
        named = invoke(*refused, "--out", "runs/small")
        assert named.exit_code == 2 and "another process is using this folder" in named.output


def test_a_dry_run_leaves_no_folder(here):
    (here / "small.yaml").write_text(small_run.TEXT)
    result = invoke("run", "small.yaml", "methods=[fedavg]", "--dry-run")
    assert result.exit_code == 0 and result.output.endswith("\n  would be written to runs/small\n")
    assert [file.name for file in here.iterdir()] == ["small.yaml"]
    refused = invoke("run", "small.yaml", "--dry-run", "--out", "small.yaml")
    assert refused.exit_code == 2 and "can't be written (not a directory)" in refused.output
    refused = invoke("run", "small.yaml", "--quiet", "--verbose")
    assert refused.exit_code == 2 and "--quiet: received together with --verbose" in refused.output


def test_a_part_of_a_sweep_leaves_table_and_page_to_the_whole(here):
    (here / "grid.yaml").write_text(f"{small_run.TEXT}sweep: [{{partition.samples_per_client: [9998, 9999]}}]\n")
    for part in ("0/2", "3/2", "1", "a/b", "-1/2"):
        refused = invoke("sweep", "grid.yaml", f"--part={part}")
        assert refused.exit_code == 2 and f"--part: received '{part}', must be I/N" in refused.output
    done = invoke("sweep", "grid.yaml", "--part", "2/2", "--plain")
    assert done.exit_code == 1 and "part 2 of 2 is done, in runs/small; " in done.output  # no point has so many rows
    assert "samples_per_client=9999" in done.output and "samples_per_client=9998" not in done.output
    assert not list(here.glob("runs/small/*.csv")) and not list(here.glob("runs/small/*.html"))


def test_another_configuration_takes_the_next_folder_and_says_so(here, monkeypatch):
    monkeypatch.setattr(
        "fedjax_bal.lab.run_comparison",
        lambda config, folder, *_, **__: folder.begin(config, fresh=False) or {"runs": []},
    )
    monkeypatch.setattr(running, "show_comparison", lambda *_: None)
    (here / "small.yaml").write_text(small_run.TEXT)
    assert invoke("run", "small.yaml").output == invoke("run", "small.yaml", "training.rounds=9").output == ""
    for _ in range(2):
        assert invoke("run", "small.yaml").output.splitlines() == [
            "runs/small holds different results; writing to runs/small-2. Differences:",
            "  training.rounds: 9 here, 7 asked for",
        ]
    assert sorted(folder.name for folder in here.glob("runs/*")) == ["small", "small-2"]
    refused = invoke("run", "small.yaml", "--out", "runs/small")
    assert refused.exit_code == 2
    assert "runs/small: belongs to a different configuration" in refused.output
    assert "training.rounds: 9 here, 7 asked for" in refused.output


def test_each_file_is_parsed_once_and_each_folder_compared_once(here, monkeypatch):
    monkeypatch.setattr(
        "fedjax_bal.lab.run_comparison",
        lambda config, folder, *_, **__: folder.begin(config, fresh=False) or {"runs": []},
    )
    monkeypatch.setattr(running, "show_comparison", lambda *_: None)
    done = []
    for place, step in ((yaml_text, "parse_yaml"), (output_folder, "parse_yaml"), (RunFolder, "compared")):
        original = getattr(place, step)
        monkeypatch.setattr(
            place, step, lambda *given, original=original, step=step: done.append(step) or original(*given)
        )
    (here / "small.yaml").write_text(small_run.TEXT)
    once = ["parse_yaml", "compared"]
    for changes, wanted in {
        (): once,
        ("--plain",): once,  # equal, so that the folder's file isn't parsed
        ("rounds=9",): [*once, "parse_yaml"],
        ("rounds=9", "batch_size=7"): [*once, "parse_yaml", "compared"],
    }.items():
        assert invoke("run", "small.yaml", *changes).exit_code == 0
        assert done == wanted
        done.clear()


@pytest.mark.slow
def test_another_sweep_takes_the_next_folder_and_says_so(here, monkeypatch):
    def begin(plan, folder, *_, **__):
        folder.begin(plan.text, plan.configs)
        for label, config in plan.configs.items():
            folder.point(label).create()
            folder.point(label).begin(config, fresh=False)
        return []

    monkeypatch.setattr("fedjax_bal.lab.run_sweep", begin)
    monkeypatch.setattr(running, "show_sweep", lambda folder: None)
    (here / "grid.yaml").write_text(f"{small_run.TEXT}sweep: [{{training.batch_size: [10, 20]}}]\n")
    for changes in ([], ["training.rounds=9"]):
        assert "Differences" not in invoke("sweep", "grid.yaml", *changes).output
    for _ in range(2):
        assert invoke("sweep", "grid.yaml").output.splitlines()[:2] == [
            "runs/small holds different results; writing to runs/small-2. Differences:",
            "  batch_size=10: training.rounds: 9 here, 7 asked for",
        ]
    assert sorted(folder.name for folder in here.glob("runs/*")) == ["small", "small-2"]
    refused = invoke("sweep", "grid.yaml", "--out", "runs/small")
    assert refused.exit_code == 2
    assert "runs/small: belongs to a different sweep; nothing in it was changed" in refused.output
    assert "training.rounds: 9 here, 7 asked for" in refused.output


@pytest.mark.slow
def test_a_diverging_run_is_named_and_the_others_go_on(here):
    (here / "small.yaml").write_text(small_run.TEXT)
    changes = ("training.optimizer.learning_rate=1e30", "methods.1.training={optimizer: {learning_rate: 0.05}}")
    result = invoke("run", "small.yaml", *changes, "seeds=[0]", "--plain")
    assert result.exit_code == 1
    assert "fedavg, seed 0: round 1: the update" in result.output
    assert "learning rate" in result.output
    assert "Traceback" not in result.output
    first, second = json.loads((here / "runs" / "small" / "summary.json").read_text())["runs"]
    assert (first["rounds"], first["final_accuracy"]) == (0, None)
    assert (second["rounds"], second["failure"]) == (7, None)


_LISTED = {
    "recipes": "rebafl",
    "models": "takes dropout=[0.25, 0.25, 0.5]",
    "selectors": "cucb",
    "partitions": "dirichlet",
    "datasets": "cifar10",
    "metrics": "of each evaluated round, in nats",
    "analyses": "",  # those of plug-ins alone
    "optimizers": "takes momentum=0.0, nesterov=false",
    "schedules": "takes every, factor=0.1",
    "availability": "clustered",
    "delivery": "bernoulli",
    "speeds": "lognormal",
    "configs": "papers/rebafl/table1_fmnist_m20",
}


def test_list_names_what_a_configuration_can_use():
    assert set(_LISTED) == set(KINDS)
    for what, wanted in _LISTED.items():
        result = invoke("list", what)
        assert result.exit_code == 0 and wanted in result.output


def test_recipes_are_listed_by_family_and_one_name_with_all_about_it():
    assert "Methods against client drift:\n" in invoke("list", "recipes").output
    text = invoke("list", "recipes", "scaffold").output
    assert "ControlVariates (Memory, Report, Server, Gradient, Weigh)" in text and "karimireddy2020scaffold" in text
    assert "Needs at these defaults: plain SGD, no local momentum\n" in text
    text = invoke("list", "recipes", "rebafl").output
    assert r"Adds $\tau \log p_c$" in text and "prototypes=local_override, carry=false" in text
    assert "variant=paper: the defaults\nvariant=code: prototypes=global_only, min_classes=2, mu=0.5\n" in text
    assert "classes_per_client:" in invoke("list", "partitions", "pathological").output
    result = invoke("list", "recipes", "scafold")
    assert result.exit_code == 2 and "'scafold'; did you mean 'scaffold'? `fedjax-bal list recipes`" in result.output


def test_unknown_lists_and_folders_are_refused(here):
    assert "did you mean 'recipes'?" in invoke("list", "recipe").output
    assert "received 'fedprox'" in invoke("list", "fedprox").output
    result = invoke("report", "nowhere")
    assert result.exit_code == 2
    assert "no such folder" in result.output


@pytest.mark.parametrize(("width", "rows"), [("40", "  final: "), ("80", "±"), ("140", "±")])
def test_no_figure_is_cut_off_at_any_width(here, monkeypatch, trained, width, rows):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr("fedjax_bal.report.gallery.run_figures", lambda runs: [])  # they take seconds
    (here / "small.yaml").write_text(small_run.TEXT)
    shutil.copytree(trained(), here / "runs" / "small")
    result = invoke("run", "small.yaml", "methods.1.label=" + 60 * "x", "--plain")
    assert result.exit_code == 0, result.output
    runs = json.loads((here / "runs" / "small" / "summary.json").read_text())["runs"]
    means = [run["last5_accuracy"] for run in runs if run["method"] == "fedavg"]
    assert f"{100 * sum(means) / 2:.1f}" in result.output
    assert rows in result.output
    assert "…" not in result.output.replace("x…", "")  # but for the name that is itself too long


@pytest.mark.nightly
def test_neither_a_closed_pipe_nor_a_poor_encoding_costs_the_report(tmp_path):
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    command = f"{sys.executable} -m fedjax_bal run small.yaml 'methods=[{{recipe: fedavg}}]' seeds=[0] --plain"
    page = tmp_path / "runs" / "small" / "report.html"
    for line in (f"{command} | head -1", f"PYTHONIOENCODING=ascii {command}"):
        result = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        assert page.exists()
        page.unlink()


def start(here):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "fedjax_bal", "run", "small.yaml", "training.rounds=60", "--plain"]
    return subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
    """Exit code and output."""
    output = process.communicate()[0].decode()
    return process.returncode, output


def wait_for_lines(here, process, count):
    """Waits until the run has written so many lines, or is over."""
    file = here / "runs" / "small" / "metrics.jsonl"
    while process.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") >= count):
        time.sleep(0.02)


@pytest.mark.nightly
def test_ctrl_c_says_how_to_go_on_which_comes_to_the_same_lines(tmp_path):
    whole, disturbed = folders = [tmp_path / name for name in ("undisturbed", "disturbed")]
    for folder in folders:
        folder.mkdir()
        (folder / "small.yaml").write_text(small_run.TEXT)
    assert finish(start(whole))[0] == 0
    process = start(disturbed)
    wait_for_lines(disturbed, process, 35)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130, output
    assert "Run the command again to resume" in output
    assert finish(start(disturbed))[0] == 0
    results = [small_run.metrics(folder / "runs" / "small") for folder in folders]
    assert len(results[0]) == 4 * 30
    assert results[0] == results[1]
    final = [json.loads((f / "runs" / "small" / "summary.json").read_text())["runs"] for f in folders]
    assert final[0] == final[1]


@pytest.mark.parametrize("option", ["--part=1/2", "--together=2", "--engine=ray", "--address=auto"])
def test_an_option_for_sweeps_is_refused_without_axes(here, option):
    result = invoke("sweep", "quickstart", "rounds=3", option)
    name = option.partition("=")[0]
    assert result.exit_code == 2 and result.output.startswith(f"fedjax-bal: {name}: is for a sweep, but no key has")


def test_an_address_is_for_ray(here):
    result = invoke("run", "rounds=1,2", "--address", "auto")
    assert result.exit_code == 2 and result.output.startswith("fedjax-bal: --address: is for --engine ray")


@pytest.mark.slow
def test_run_takes_a_sweep_s_configurations(here):
    (here / "small.yaml").write_text(small_run.TEXT)
    (here / "grid.yaml").write_text("base: small.yaml\nsweep: [{training.rounds: [1, 2]}]\n")
    memory = re.compile(r"memory: about [\d.]+ [MG]B|[\d.e-]+ (s|MB)")  # this process's, which grows; and times
    plans = [
        " ".join(memory.sub("", invoke(command, *arguments, "--dry-run").output).split())
        for arguments in (["grid.yaml"], ["small.yaml", "rounds=1,2", "name=grid"])
        for command in ("run", "sweep")
    ]
    assert plans[0] == plans[1] == plans[2] == plans[3] and plans[0].startswith("grid: 8 of 8 runs ")
    result = invoke("bench", "grid.yaml")
    assert result.exit_code == 2
    wanted = "fedjax-bal: grid.yaml: has the key `sweep`, so it is a sweep: use `fedjax-bal sweep grid.yaml`\n"
    assert result.output == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--fresh"], "--fresh: is for one comparison, but this is a sweep; leave it out"),
        (["run", "--distributed"], "--distributed: is for one comparison, but"),
    ],
)
def test_an_option_of_the_other_kind_is_refused(here, words, message):
    command, *others = words
    result = invoke(command, "absent_clients", "rounds=1,2", *others)
    assert result.exit_code == 2 and result.output.startswith(f"fedjax-bal: {message}")


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["run", "--rounds", "5"], "--rounds: is a key of the configuration, not an option: write rounds=VALUE"),
        (["sweep", "--lr=0.1,0.2"], "--lr: is a key of the configuration, not an option: write lr=VALUE"),
        (["run", "--seed", "3"], "--seed: is a key of the configuration, not an option: write seeds=[VALUE]"),
        (["run", "--clients-per-round", "--plain"], "not an option: write clients_per_round=VALUE"),
        (["run", "--dryrun"], "No such option: --dryrun (Possible options: --dry-run)"),
    ],
)
def test_a_key_given_as_an_option_is_shown_as_a_change(here, words, written):
    result = invoke(*words)
    assert result.exit_code == 2 and written in result.output


PLUGIN = '''
import numpy as np
from fedjax_bal import recipes, register
from fedjax_bal.data import from_arrays

@register("recipe", "mine")
def mine(scale: float = 1.0):
    return recipes.fedavg()

@register("dataset", "points")
def points(path: str):
    """Points in the plane."""
    halves = np.load(path)
    return from_arrays((halves["x"], halves["y"]), (halves["x"], halves["y"]))
'''
POINTS = """
name: points
dataset: {name: points, path: points.npz}
partition: {scheme: iid, clients: 3}
model: {name: mlp, hidden: [3]}
training: {rounds: 1, batch_size: 10}
selection: {clients_per_round: 2}
execution: {devices: 1}
methods: [mine]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "data", "axes"),
    quick.only(
        [("run", "the data", ""), ("run", None, ""), ("sweep", "the data", "sweep: [{lr: [0.1]}]\n")],
        ("sweep", "the data", "sweep: [{lr: [0.1]}]\n"),
        others=pytest.mark.nightly,
    ),
)
def test_the_pages_command_repeats_the_run_in_an_empty_folder(tmp_path, kind, data, axes):
    first, empty = tmp_path / "first", tmp_path / "empty"
    (first / "the data").mkdir(parents=True)
    empty.mkdir()
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(60, 2)).astype(np.float32), "y": np.arange(60) % 3}
    np.savez(first / (data or ".") / "points.npz", **arrays)
    (first / "my plug.py").write_text(PLUGIN)
    (first / "points.yaml").write_text(POINTS + axes)
    shell = lambda line, cwd: subprocess.run(["sh", "-ec", line], cwd=cwd, check=True, capture_output=True, text=True)
    place = f"--data-dir '{data}'" if data else ""
    shell(f"fedjax-bal {kind} points.yaml --plugin 'my plug.py' {place} --out out", first)
    page = (first / "out" / {"run": "report.html", "sweep": "sweep.html"}[kind]).read_text()
    (command,) = re.findall(r"<pre>(fedjax-bal .*?)</pre>", page)
    sheet = {"run": "config.yaml", "sweep": "sweep.yaml"}[kind]
    (copied,) = re.findall(rf"<summary>{sheet}</summary><pre>(.*?)</pre>", page, re.DOTALL)
    (first / "my plug.py").write_text("raise NotImplementedError")
    shutil.copytree(first / "out" / "plugins", empty / "plugins")
    (empty / sheet).write_text(html.unescape(copied))
    shell(html.unescape(command), empty)
    inner = "points/learning_rate=0.1" if axes else "."
    assert small_run.metrics(empty / "runs" / "points" / inner) == small_run.metrics(first / "out" / inner)
