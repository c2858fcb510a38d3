"""How many rows and clients of a user's own data are trained on, and what is said about it."""

import re
from importlib import resources

import numpy as np
import pytest
import registered
from PIL import Image
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config
from fedjax_bal.experiments.setup import SetupError, set_up

LABELS, USERS = np.arange(120) % 3, np.arange(120) % 12
TABLE = '''
import numpy as np
import fedjax_bal
from fedjax_bal import data

@fedjax_bal.register("dataset", "table")
def table(users: bool = True):
    """Rows of four numbers."""
    rows, labels = np.random.default_rng(0).normal(size=(150, 4)), np.arange(150) % 3
    clients = list(np.arange(120) % 12) if users else None
    return data.from_arrays((rows[:120], labels[:120]), (rows[120:], labels[120:]), train_clients=clients)
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with own data: a file and a folder of images, a plug-in, and the guide's."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (150, 4, 4, 1), np.uint8)
    test = {"test_images": images[120:], "test_labels": np.arange(30) % 3}
    np.savez("mine.npz", train_images=images[:120], train_labels=LABELS, train_clients=USERS, **test)
    for split, rows in (("train", range(60)), ("test", range(60, 66))):
        for row in rows:
            place = tmp_path / "photos" / split / f"class{row % 3}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row, :, :, 0]).save(place / f"{row}.png")
    (tmp_path / "table.py").write_text(TABLE)
    guide = resources.files("fedjax_bal").joinpath("guide", "own_data.md").read_text()
    (own,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "# mine.py" in block)
    (tmp_path / "mine.py").write_text(own)
    yield tmp_path
    registered.forget()


def said(*arguments):
    """The line on the data that a dry run of two methods prints."""
    result = CliRunner().invoke(app, ["run", *arguments, "methods=[fedavg,rebafl]", "model=mlp", "--dry-run"])
    assert result.exit_code == 0, result.output
    (line,) = (line.strip() for line in result.output.splitlines() if line.strip().startswith("data"))
    return line.removeprefix("data: ")


NPZ = "dataset={name: npz, path: mine.npz}"
PHOTOS = "dataset={name: image_folder, path: photos, side: 4}"
TABLE_PLUGIN = ("--plugin", "table.py")
ALL_USED = {
    "npz": ([NPZ, "partition=natural"], "npz, all 120 rows, 12 clients"),
    "npz, clients drawn": (
        [NPZ, "partition={scheme: iid, clients: 8}"],
        "npz, all 120 rows, 8 clients; its 12 users are not the clients (partition=natural makes them so)",
    ),
    "a folder of images": ([PHOTOS, "partition={scheme: iid, clients: 4}"], "image_folder, all 60 rows, 4 clients"),
    "a table with users": ([*TABLE_PLUGIN, "dataset=table", "partition=natural"], "table, all 120 rows, 12 clients"),
    "a table without": (
        [*TABLE_PLUGIN, "dataset={name: table, users: false}", "partition=iid"],
        "table, all 120 rows, 20 clients",
    ),
    "the guide's": (
        ["--plugin", "mine.py", "dataset={name: clouds, spread: 2}"],
        "clouds, all 1,000 rows, 20 clients",
    ),
}


@pytest.mark.parametrize("source", ALL_USED)
def test_own_data_are_used_as_a_whole(here, source):
    arguments, line = ALL_USED[source]
    assert said(*arguments) == line


NATURAL = [NPZ, "partition=natural"]
FEWER = {
    # 40 rows of each class: 40, floor(40 / sqrt(4)) and 10 are left of a long tail of 4.
    "a long tail": ([*NATURAL, "imbalance_factor=4"], "70 of 120 rows and 12 clients (imbalance_factor=4)"),
    "rows of the server": (
        [*NATURAL, "auxiliary.per_class=2"],
        "114 of 120 rows and 12 clients (auxiliary.per_class=2)",
    ),
    "validation": (
        [*NATURAL, "evaluation.validation.per_class=4"],
        "108 of 120 rows and 12 clients (validation.per_class=4)",
    ),
    "test rows of clients": (
        [*NATURAL, "evaluation.client_test.fraction=0.2"],
        "96 of 120 rows and 12 clients (client_test.fraction=0.2)",
    ),
    "some users": ([*NATURAL, "partition.clients=5"], "50 of 120 rows and 5 of 12 users (clients=5)"),
    "a scheme": (
        [NPZ, "partition={scheme: pathological, clients: 6, classes_per_client: 1, samples_per_client: 5}"],
        "30 of 120 rows and 6 clients (scheme=pathological, clients=6, classes_per_client=1, samples_per_client=5); "
        "its 12 users are not the clients (partition=natural makes them so)",
    ),
    "two keys": (
        [*NATURAL, "auxiliary.per_class=10", "imbalance_factor=2"],  # 30, floor(30 / sqrt(2)) and 15 of the rest
        "66 of 120 rows and 12 clients (imbalance_factor=2, auxiliary.per_class=10)",
    ),
}


@pytest.mark.parametrize("why", FEWER)
def test_what_is_left_out_is_said_with_the_key_that_leaves_it_out(here, why):
    arguments, line = FEWER[why]
    assert said(*arguments) == f"npz, trained on {line}"


def test_methods_that_need_rows_of_the_server_are_named(here):
    config = load_config(None, [NPZ, "partition=natural", "methods=[fedavg, flcir]", "model=mlp"])
    (line, other) = set_up(config).rows_used
    assert line == other == "npz, trained on 90 of 120 rows and 12 clients (auxiliary.per_class=10, which flcir needs)"


def test_keys_of_the_quickstart_that_do_not_count_are_named_unless_it_is_quiet(here):
    command = ["run", NPZ, "partition=natural", "methods=[fedavg]", "model=mlp", "--dry-run"]
    left_out = "clients=20, partition.imbalance_factor=50, auxiliary.per_class=10, evaluation.target_accuracy=0.6"
    line = f"not taken from the base, whose data or partition is another: partition.{left_out}\n"
    assert CliRunner().invoke(app, command).output.startswith(line)
    assert "not taken" not in CliRunner().invoke(app, [*command, "--quiet"]).output


def test_methods_with_other_data_have_their_own_line(here):
    entries = "methods=[fedavg, {recipe: fedprox, partition: {imbalance_factor: 4}}]"
    result = CliRunner().invoke(app, ["run", NPZ, "partition=natural", "model=mlp", entries, "--dry-run"])
    assert "  data of fedavg: npz, all 120 rows, 12 clients\n" in result.output
    assert "  data of fedprox: npz, trained on 70 of 120 rows and 12 clients (imbalance_factor=4)\n" in result.output


def test_clients_without_rows_are_counted(here):
    (here / "clients.txt").write_text("0 1 2\n\n3 4 5\n\n")
    scheme = "partition={scheme: file, file: clients.txt, clients: 4}"
    (line,) = set_up(load_config(None, [NPZ, scheme, "methods=[fedavg]", "model=mlp"])).rows_used
    assert line.startswith("npz, trained on 6 of 120 rows and 4 clients (scheme=file, clients=4, file=")
    assert "; empty clients: 50% (2 of 4); " in line


def test_fewer_users_than_a_round_asks_for_all_take_part(here):
    changes = [NPZ, "partition=natural", "selection.clients_per_round=50", "methods=[fedavg]", "model=mlp"]
    (simulation,) = set_up(load_config(None, changes)).simulations
    assert simulation.selector.chains * simulation.selector.chain_length == 12


def test_too_few_rows_are_explained_by_what_was_taken_before(here):
    changes = [NPZ, "methods=[fedavg]", "model=mlp", "partition={scheme: iid, clients: 100, imbalance_factor: 4}"]
    wanted = r"^partition: 100 clients for 66 rows.* \(66 of the 120 training rows are left, because of "
    with pytest.raises(SetupError, match=wanted + r"imbalance_factor=4, auxiliary\.per_class=2\)$"):
        set_up(load_config(None, [*changes, "auxiliary.per_class=2"]))
    with pytest.raises(SetupError) as whole:
        set_up(load_config(None, [NPZ, "methods=[fedavg]", "model=mlp", "partition={scheme: iid, clients: 500}"]))
    assert "are left" not in str(whole.value)
