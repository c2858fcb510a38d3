"""Plug-ins: used like what is built in, part of a run's identity, and named with file and line where they fail."""

import csv
import json
import os
import re
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import registered
import small_run
from typer.testing import CliRunner

from fedjax_bal import check_recipe, models, plugins, recipes, register
from fedjax_bal.cli.app import app
from fedjax_bal.cli.distributed import shared_facts
from fedjax_bal.config import load_config
from fedjax_bal.data import DataError, load
from fedjax_bal.lab import RunFolder, SweepFolder, load_run
from fedjax_bal.lab.environment import command_options
from fedjax_bal.plugins import load_plugins, plugin_copies
from fedjax_bal.recipes import RECIPES
from fedjax_bal.registry import PluginError

FOLDER = Path(__file__).parent / "plugins"
METHODS = FOLDER / "methods"
SMALL = """
name: small
dataset: {name: fashion_mnist_small}
partition: {scheme: iid, clients: 4, seed: 0}
model: {name: mlp}
training: {rounds: 2, local_epochs: 1, batch_size: 50, optimizer: {name: sgd, learning_rate: 0.05}}
selection: {clients_per_round: 2}
methods: [{recipe: mine}]
seeds: [0]
"""
RECIPE = """
import fedjax_bal
from fedjax_bal.recipes import Recipe, fedprox

@fedjax_bal.register("recipe", "mine")
def mine(mu: float = 0.1):
    return Recipe("mine", fedprox(mu).parts)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    registered.forget()  # the next command is another process
    return result


def refusal(*arguments):
    """The one message of a command that is refused."""
    result = invoke(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output and result.output.count("fedjax-bal: ") == 1
    return result.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "--plugin : there is no Python file or module ''"),
        ("x" * 5000, f"--plugin {'x' * 100}: there is no Python file or module"),
        ("./absent", "there is no Python file"),
        ("..", "there is no Python file"),
    ],
)
def test_what_is_no_plugin_is_refused_by_its_name(here, monkeypatch, target, message):
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    (here / "below" / "__init__.py").write_text("raise SystemExit('executed')")
    with pytest.raises(PluginError) as refused:
        load_plugins([target])
    assert message in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.slow
def test_every_kind_is_used_like_what_is_built_in(here):
    own = (FOLDER / "own.yaml").read_text()
    (here / "own.yaml").write_text(own.replace("  - {recipe: fedavg}\n", "").replace("  - {recipe: alike}\n", ""))
    result = invoke("run", "own.yaml", "--plain", "--plugin", METHODS)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (here / "runs/own/metrics.jsonl").read_text().splitlines()]
    assert {line["method"] for line in lines} == {"soft_labels", "balanced_softmax+small_features"}
    assert all(0 <= line["geometric_mean"] <= 1 for line in lines)
    runs = json.loads((here / "runs/own/summary.json").read_text())["runs"]
    assert [run["geometric_mean"] for run in runs] == [line["geometric_mean"] for line in lines[1::2]]
    config = (here / "runs/own/config.yaml").read_text()
    assert "share: 0.2, temperature: 1.0" in config and "plugins: {methods: " in config
    page = (here / "runs/own/report.html").read_text()
    assert "geometric mean" in page and re.search(r"fedjax-bal run config.yaml --plugin \S*methods", page)
    result = invoke("report", "runs/own")
    assert result.exit_code == 0
    assert "left out geometric_mean; load the plug-in with --plugin (" in result.output
    assert "geometric mean" not in (here / "runs/own/report.html").read_text()
    result = invoke("report", "runs/own", "--plugin", METHODS)
    assert "plug-ins" not in result.output and "geometric mean" in (here / "runs/own/report.html").read_text()
    asked = "runs/own/config.yaml: plugins.methods: received '"
    for command in (("export", "runs/own", "--method", "soft_labels"), ("run", "runs/own/config.yaml")):
        text = refusal(*command)
        assert (
            asked in text
            and text.count("\n") == 1
            and "no plug-in of this name is loaded; give it with --plugin" in text
        )
    absent = load_run("runs/own")
    assert set(absent.metrics()["method"]) == {*absent.methods} == {line["method"] for line in lines}
    with pytest.raises(ValueError, match=f"^{asked}.* give it with --plugin, or import it in Python"):
        absent.variables("soft_labels")
    (here / "small.yaml").write_text(SMALL.replace("mine", "fedavg"))
    text = refusal("run", "small.yaml", "--out", "runs/own")
    assert (
        "belongs to a different configuration" in text
        and "plugins: made with 'methods', not loaded here; give it" in text
    )
    (here / "small.yaml").write_text(SMALL.replace("mine", "fedavg").replace("name: small", "name: own"))
    assert "would be written to runs/own-2" in invoke("run", "small.yaml", "--dry-run").output.replace("\n", " ")
    assert invoke("export", "runs/own", "--method", "soft_labels", "--plugin", METHODS).exit_code == 0
    load_plugins([str(METHODS)])
    variables = load_run("runs/own").variables("soft_labels", seed=0)
    registered.forget()
    assert variables.params


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("recipes", "soft_labels Soft labels: keeps a model from being sure."),
        ("recipes", "small_features Adds weight times the mean squared feature."),
        ("datasets", "stripes Images of one bright row, the class."),
        ("metrics", "of each evaluated round and of a whole run"),
    ],
)
def test_lists_have_plugins_too(kind, wanted, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert wanted in " ".join(invoke("list", kind, "--plugin", METHODS).output.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft_labels", "alike", "small_features"])
def test_the_examples_conform(name):
    load_plugins([str(METHODS)])
    assert check_recipe(RECIPES[name]()).failed == ()


@pytest.mark.slow
def test_a_changed_source_is_another_run(here):
    (here / "small.yaml").write_text(SMALL)
    (here / "mine.py").write_text(RECIPE)
    session = lambda: load_plugins(["mine.py"]) or small_run.run(here / "runs/small", load_config("small.yaml"))
    session()
    registered.forget()
    before = (here / "runs/small/metrics.jsonl").read_bytes()
    (here / "mine.py").write_text(RECIPE.replace("fedprox(mu)", "fedprox(2 * mu)"))
    text = refusal("run", "small.yaml", "--out", "runs/small", "--plain", "--plugin", "mine.py")
    assert "belongs to a different configuration" in text and "plugins.mine: '" in text
    text = refusal("run", "runs/small/config.yaml", "--out", "elsewhere", "--plain", "--plugin", "mine.py")
    assert "runs/small/config.yaml: plugins.mine: received '" in text and "source that is loaded" in text
    assert (here / "runs/small/metrics.jsonl").read_bytes() == before and not (here / "elsewhere").exists()

    (here / "mine.py").write_text(RECIPE)
    assert session().steps == [("mine", 0, 2)]  # nothing is left to do


def test_the_digest_is_of_all_files_of_a_package(here):
    digests = []
    for text in ("", "# another\n"):
        (here / "pack").mkdir(exist_ok=True)
        (here / "pack/__init__.py").write_text("from . import methods")
        (here / "pack/methods.py").write_text(RECIPE)
        (here / "pack/helper.py").write_text(text)
        load_plugins(["pack"])
        digests.append(load_config(None, ["methods=[{recipe: mine}]"]).plugins["pack"])
        registered.forget()
    assert digests[0] != digests[1]


def test_a_folder_holds_copies_of_its_plugins_which_are_the_same_plugins(here):
    (here / "my.pack/inner").mkdir(parents=True)
    (here / "my.pack/__init__.py").write_text("from . import methods")
    (here / "my.pack/methods.py").write_text(RECIPE)
    (here / "my.pack/inner/more.py").write_text("")
    (here / "my.pack/notes.txt").write_text("no code")
    (here / "unused.py").write_text("from fedjax_bal import recipes, register\nregister('recipe', 'u')(recipes.fedavg)")
    load_plugins(["my.pack", "unused.py"])
    config = load_config(None, ["methods=mine,fedavg"])
    sweep = SweepFolder(here / "swept")
    for folder in (RunFolder(here / "run"), sweep):
        folder.path.mkdir()
    RunFolder(here / "run").begin(config, fresh=False)
    sweep.begin("sweep: [{lr: [0.1]}]", {"point": config})
    assert command_options(config, None)["plugins"] == ["plugins/my.pack"]

    wanted = {"__init__.py", "methods.py", "inner/more.py"}
    shutil.rmtree(here / "my.pack")
    for name in ("swept", "run"):
        copies = here / name / "plugins"
        found = [file.relative_to(copies / "my.pack").as_posix() for file in copies.rglob("*") if file.is_file()]
        assert {*found} == wanted and {*copies.iterdir()} == {copies / "my.pack"}
        registered.forget()
        load_plugins([str(copies / "my.pack")])
        assert load_config("run/config.yaml") == config
    RunFolder(here / "run").finish()
    sums = (here / "run/SHA256SUMS").read_text()
    assert all(f"  plugins/my.pack/{name}\n" in sums for name in wanted)
    assert RunFolder(here / "run").read_runs() == ({"mine": "mine", "fedavg": "fedavg"}, (0, 1, 2, 3, 4))


def test_of_a_package_only_its_own_regular_files_count(here):
    (here / "pack/inner").mkdir(parents=True)
    (here / "pack/__init__.py").write_text("from . import methods")
    (here / "pack/methods.py").write_text(RECIPE)
    (here / "pack/inner/more.py").write_text("")
    (here / "shared.py").write_text("# shared")
    (here / "pack/linked.py").symlink_to(here / "shared.py")
    odd = ["a\\nb.py", "a\\\\b.py", os.fsdecode(b"caf\xe9.py")]
    for name in odd:
        (here / "pack" / name).write_text("")
    own = {f"pack/{name}" for name in ("__init__.py", "methods.py", "inner/more.py", "linked.py", *odd)}
    load_plugins(["pack"])
    config = load_config(None, ["methods=[{recipe: mine}]"])
    for foreign in (".venv/lib", ".git/hooks", "inner/.cache"):
        (here / "pack" / foreign).mkdir(parents=True, exist_ok=True)
        (here / "pack" / foreign / "foreign.py").write_text("raise SystemExit")
    (here / "pack/.hidden.py").write_text("")
    (here / "pack/dead.py").symlink_to(here / "nothing.py")
    (here / "pack/round.py").symlink_to(here / "pack/round.py")
    (here / "pack/zero.py").symlink_to("/dev/zero")
    (here / "pack/folder.py").mkdir()
    (here / "pack/above").symlink_to(here)
    os.mkfifo(here / "pack/pipe.py")
    assert {*plugin_copies(["pack"])} == own
    registered.forget()
    load_plugins(["pack"])
    assert load_config(None, ["methods=[{recipe: mine}]"]).plugins == config.plugins


_NAMED = {  # what a plug-in holds, and what the message says
    "a syntax error": ("\ndef broken(:\n", ["bad.py, line 2", "SyntaxError"]),
    "an exception at import": ("\n\nraise KeyError('nothing')\n", ["bad.py, line 3", "KeyError: 'nothing'"]),
    "a wrong kind": (RECIPE.replace('"recipe"', '"recipes"'), ["bad.py, line 5", "'recipes'", "did you mean 'recipe'"]),
    "a name that exists": (RECIPE.replace('"mine"', '"fedavg"'), ["bad.py, line 5", "'fedavg'", "exists"]),
    "no class of parts": (RECIPE.replace('"recipe"', '"part"'), ["bad.py, line 5", "must be a class of parts"]),
    "no annotation": (RECIPE.replace("mu: float = 0.1", "mu"), ["bad.py, line 5", "mu needs an annotation"]),
    "a partitioner of other arguments": (
        'from fedjax_bal import register\n@register("partitioner", "p")\ndef f(labels, clients): ...\n',
        ["bad.py, line 2", "rng, labels, num_clients first"],
    ),
    "a metric of a column's name": (
        'from fedjax_bal import register\n@register("metric", "seed")\ndef f(result): ...\n',
        ["bad.py, line 2", "'seed'"],
    ),
}


@pytest.mark.parametrize("name", _NAMED)
def test_a_plugin_that_cannot_be_loaded_is_named_with_its_line(here, name):
    source, fragments = _NAMED[name]
    (here / "bad.py").write_text(source)
    text = refusal("list", "recipes", "--plugin", "bad.py")
    assert all(fragment in text for fragment in fragments), text


_FAILING = {  # an own function, and what a run of it says
    "a recipe": ("    return Recipe('mine', fedprox(mu).nothing)", ["line 7", "AttributeError"]),
    "a hook": (
        """    return Recipe("mine", (Broken(),))

from fedjax_bal.parts import Loss, part

@part
class Broken(Loss):
    def loss(self, outputs, batch, params, ctx):
        return outputs.nothing
""",
        ["line 14", "AttributeError", "nothing"],
    ),
    "weights of another shape": (
        """    return Recipe("mine", (Odd(),))

from fedjax_bal.parts import Weigh, part

@part
class Odd(Weigh):
    def weigh(self, weights, cohort, server):
        return cohort.class_counts
""",
        ["Odd.weigh: received the shape (2, 10), must be (2,), one for each chain"],
    ),
    "a metric": (
        """    return Recipe("mine", ())

@fedjax_bal.register("metric", "odd")
def odd(result):
    return {}["odd"]
""",
        ["line 11", "KeyError: 'odd'"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _FAILING)
def test_an_exception_in_a_plugin_is_named_with_its_line(here, name):
    body, fragments = _FAILING[name]
    (here / "mine.py").write_text(RECIPE[: RECIPE.index("    return")] + body)
    (here / "small.yaml").write_text(SMALL)
    text = refusal("run", "small.yaml", "--plain", "--plugin", "mine.py")
    assert (f"{here / 'mine.py'}, " in text or ".weigh: " in text) and all(own in text for own in fragments), text


@pytest.mark.parametrize(
    ("change", "body", "wanted"),
    [
        (
            "partition={scheme: odd, clients: 20, seed: 0}",
            "partitioner(rng, labels, num_clients): return [labels]",
            "must return a list with the row numbers of each",
        ),
        ("model={name: odd}", "model(num_classes, input_shape): return num_classes", "a fedjax_bal Model"),
    ],
)
def test_what_a_plugin_returns_is_checked(here, change, body, wanted):
    kind = body.partition("(")[0]
    (here / "odd.py").write_text(f"import fedjax_bal\n@fedjax_bal.register('{kind}', 'odd')\ndef {body}\n")
    text = refusal("run", change, "methods=[{recipe: fedavg}]", "--plain", "--plugin", "odd.py")
    assert "odd.py, line " in text and wanted in text, text


@pytest.mark.slow
def test_a_sweep_goes_on_without_a_method_that_fails(here):
    body, _ = _FAILING["a hook"]
    (here / "mine.py").write_text(RECIPE[: RECIPE.index("    return")] + body)
    (here / "sweep.yaml").write_text(SMALL + "sweep: [{methods.0.recipe: [mine, fedavg]}]\n")
    result = invoke("sweep", "sweep.yaml", "--plain", "--plugin", "mine.py")
    assert result.exit_code == 1 and "mine.py, line 14: AttributeError" in result.output
    rows = csv.DictReader((here / "runs/small/results.csv").read_text().splitlines())
    assert [row["status"] for row in rows] == ["failed", "done"]


_TRIED = [  # ways in which a configuration might try to run code
    "methods: [{recipe: trap}]",
    "methods: [{recipe: trap.mine}]",
    "methods: [{recipe: !!python/name:trap.mine }]",
    "plugins: [trap.py]",
    "plugins: trap",
    "base: trap.py",
    "dataset: {name: trap}",
    "training: {rounds: 2, early_stopping: {metric: trap}}",
]


@pytest.mark.parametrize("line", _TRIED)
def test_a_configuration_never_imports_code(here, line, monkeypatch):
    monkeypatch.syspath_prepend(here)  # as if it were installed
    (here / "trap.py").write_text("open('sprung', 'w')\n" + RECIPE)
    key = line.partition(":")[0]
    kept = [
        own for own in SMALL.replace("recipe: mine", "recipe: fedavg").splitlines() if not own.startswith(f"{key}:")
    ]
    (here / "small.yaml").write_text("\n".join([*kept, line]) + "\n")
    refusal("run", "small.yaml", "--plain")
    refusal("run", line.replace(": ", "=", 1), "--plain")
    assert not (here / "sprung").exists() and "trap" not in sys.modules


def test_a_plugin_that_is_not_loaded_is_asked_for(here):
    (here / "small.yaml").write_text(SMALL + "plugins: {mine: '0123'}\n")
    text = refusal("run", "small.yaml")
    assert text.endswith(
        "plugins.mine: received '0123', but no plug-in of this name is loaded; give it with --plugin, or import it in "
        "Python\n"
    )
    assert text.count("\n") == 1  # that its recipe is unknown, too, is no news
    (here / "small.yaml").write_text(SMALL)
    text = refusal("run", "small.yaml")
    assert "methods.0.recipe: received 'mine'; a plug-in's needs --plugin FILE_OR_MODULE; `" in text
    assert text.endswith("`fedjax-bal list recipes` lists the others\n") and len(text) < 200
    assert "leave the key out, and name the file with --plugin" in refusal("run", "plugins=[mine.py]")


def test_installed_packages_offer_plugins(here, monkeypatch):
    (here / "installed").mkdir()
    (here / "installed/__init__.py").write_text("")
    (here / "installed/methods.py").write_text(RECIPE)
    monkeypatch.syspath_prepend(here)
    offered = [EntryPoint("mine", "installed.methods", plugins.GROUP)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: offered if group == plugins.GROUP else [])
    assert "No citation is known for mine" in " ".join(invoke("list", "recipes", "mine").output.split())
    for name in ("installed", "installed.methods"):
        del sys.modules[name]  # for good: monkeypatch would put it back
    (here / "installed/methods.py").write_text("raise OSError('no')")
    assert "the plug-in mine of an installed package: " in refusal("list", "recipes")


def test_a_name_is_a_module_where_there_is_one(here, monkeypatch):
    (here / "pack").mkdir()
    (here / "pack/__init__.py").write_text("from pack import methods")
    (here / "pack/methods.py").write_text(RECIPE)
    with pytest.raises(plugins.PluginError, match="pack/__init__.py, line 1: ModuleNotFoundError"):
        load_plugins(["pack"])
    monkeypatch.syspath_prepend(here)
    load_plugins(["pack"])
    assert RECIPES.plugin("mine").source == here / "pack"
    for name in ("pack", "pack.methods"):
        del sys.modules[name]  # for good: monkeypatch would put it back


def test_python_registers_too():
    @register("dataset", "dots")
    def dots(count: int = 8):
        return load("fashion_mnist_small")._replace(mean=None, train_labels=np.zeros(count, np.int32))

    assert len(load("dots", count=3).train_labels) == 3
    assert load("dots").std == load("fashion_mnist_small").std  # which the reader has set
    assert load("dots").mean != load("fashion_mnist_small").mean  # which it hasn't
    with pytest.raises((ValueError, DataError), match="takes count, received 'side'"):
        load("dots", side=3)


def test_a_name_means_one_thing():
    for _ in range(2):  # the same function again, as in a notebook

        @register("recipe", "mine")
        def mine():
            return recipes.fedavg()

    with pytest.raises(ValueError, match="recipe 'mine': received the name 'mine'"):
        register("recipe", "mine")(recipes.fedprox)
    with pytest.raises(ValueError, match="'fedavg'"):
        register("recipe", "fedavg")(recipes.fedprox)


BIBTEX = """
    @article{own2026,
      author = {Own, Ada and Other, Bo},
      year = {2026},
      journal = {Notes},
    }
"""


def test_a_recipe_of_ones_own_can_be_cited():
    register("recipe", "mine", citation=BIBTEX)(lambda: recipes.Recipe("mine"))
    together = recipes.citation(recipes.combine(recipes.fedprox(), RECIPES["mine"]()))
    keys = [line for line in together.splitlines() if line.startswith("@")]
    assert [key[key.index("{") + 1 : -1] for key in keys] == ["mcmahan2017fedavg", "li2020fedprox", "own2026"]
    assert recipes.short_citation("mine") == "Own and Other, Notes 2026"
    load_plugins([str(METHODS)])
    assert recipes.short_citation("soft_labels") == "Szegedy et al., CVPR 2016"


@pytest.mark.parametrize(
    "text", ["Own, 2026", "@article{own2026,\n  author = {Own, Ada},\n}", BIBTEX.replace("journal", "name"), 3]
)
def test_a_citation_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="recipe 'mine': citation: received"):
        register("recipe", "mine", citation=text)(lambda: recipes.Recipe("mine"))
    with pytest.raises(ValueError, match="metric 'mine': received a citation"):
        register("metric", "mine", citation=BIBTEX)(lambda result: 1.0)


def test_the_same_file_is_loaded_once_and_another_of_its_name_refused(here):
    for folder in ("a", "b"):
        (here / folder).mkdir()
        (here / folder / "mine.py").write_text(RECIPE)
    load_plugins(["a/mine.py", "./a/mine.py"])
    with pytest.raises(plugins.PluginError, match=r"--plugin b/mine.py: another plug-in has this name"):
        load_plugins(["b/mine.py"])


def test_a_models_convolution_is_handed_on_to_those_that_take_it():
    given = []

    @register("model", "odd")
    def odd(num_classes, input_shape, convolution: str = "fast", width: int = 4):
        given.append((convolution, width))
        return models.build("mlp", num_classes, input_shape, hidden=(width,))

    assert list(models.options("odd")) == ["width"]
    model = models.build("odd", 10, (28, 28, 1), convolution="plain", width=7)
    assert given == [("plain", 7)] and (model.name, model.options) == ("odd", (("width", 7),))
    with pytest.raises(ValueError, match="width: received 0.5"):
        models.build("odd", 10, (28, 28, 1), width=0.5)


def test_processes_of_a_run_have_to_agree_on_plugins(here):
    (here / "mine.py").write_text(RECIPE)
    load_plugins(["mine.py"])
    config = load_config(None, ["methods=[{recipe: mine}]"])
    assert shared_facts(config)["plugins.mine"] == repr(config.plugins["mine"])
