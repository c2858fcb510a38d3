"""How rows are split between server, validation and clients, and what is said of how many are used."""

import functools
import re
from importlib import resources

import numpy as np
import pytest
import small_run
from PIL import Image
from typer.testing import CliRunner

from fedjax_bal import data
from fedjax_bal.cli.app import app
from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.lab.setup import SetupError, SharedInputs, set_up
from fedjax_bal.lab.splits import RowsUsed, whole_line
from fedjax_bal.lab.summary import summarise_partitions
from fedjax_bal.plugins import load_plugins

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
    return data.from_arrays((rows[:120], labels[:120]), (rows[120:], labels[120:]), clients=clients)
'''


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with own data: a file and a folder of images, a plug-in, and the guide's."""
    place = tmp_path_factory.mktemp("sources")
    images = np.random.default_rng(0).integers(0, 256, (150, 4, 4, 1), np.uint8)
    test = {"test_images": images[120:], "test_labels": np.arange(30) % 3}
    np.savez(place / "mine.npz", train_images=images[:120], train_labels=LABELS, train_clients=USERS, **test)
    for split, rows in (("train", range(60)), ("test", range(60, 66))):
        for row in rows:
            folder = place / "photos" / split / f"class{row % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row, :, :, 0]).save(folder / f"{row}.png")
    (place / "table.py").write_text(TABLE)
    rows = "".join(f"{row / 4},{row % 12},{row % 3}\n" for row in range(150))
    (place / "table.csv").write_text(f"a,u,y\n{rows}")
    rows = "".join(f"{row / 4},{row},{row // 4 % 3}\n" for row in range(150))
    (place / "alone.csv").write_text(f"a,u,y\n{rows}")  # each user has one row
    guide = resources.files("fedjax_bal").joinpath("guide", "own_data.md").read_text()
    (own,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "# mine.py" in block)
    (place / "mine.py").write_text(own)
    return place


@pytest.fixture
def here(sources, monkeypatch):
    """The same as the working directory."""
    monkeypatch.chdir(sources)
    return sources


def said(*changes, plugins=()):
    """The line on the data of two methods."""
    load_plugins(plugins)
    shared = SharedInputs(None, 1)
    set_up(load_config(None, [*changes, "methods=[fedavg,rebafl]", "model=mlp"]), shared)
    (line,) = (line for line in shared.data_lines() if line.startswith("data: "))
    return line.removeprefix("data: ")


NPZ = "dataset={name: npz, path: mine.npz}"
PHOTOS = "dataset={name: image_folder, path: photos, side: 4}"
ALL_USED = {
    "npz": ([NPZ, "partition=natural"], "npz: all 120 rows, 12 clients"),
    "npz, clients drawn": (
        [NPZ, "partition={scheme: iid, clients: 8}"],
        "npz: all 120 rows, 8 clients; users: 12, not used as clients (partition=natural uses them)",
    ),
    "a folder of images": ([PHOTOS, "partition={scheme: iid, clients: 4}"], "image_folder: all 60 rows, 4 clients"),
    "a file with users": (
        ["dataset={name: csv, path: table.csv, label: y, clients: u}", "partition=natural"],
        "csv: all 120 rows, 12 clients; inputs: 1 (a); classes: 3; test rows: 30, 0.2 of each class",
    ),
    "users who are held out": (
        ["dataset={name: csv, path: table.csv, label: y, clients: u, test_by: clients}", "partition=natural"],
        "csv: all 126 rows, 10 of 12 users; inputs: 1 (a); classes: 3; test rows: 24; users with test rows only: 2",
    ),
    "users who are in the test set by chance": (
        ["dataset={name: csv, path: alone.csv, label: y, clients: u}", "partition=natural"],
        "csv: all 120 rows, 120 of 150 users; inputs: 1 (a); classes: 3; test rows: 30, 0.2 of each class; "
        "users with test rows only: 30",
    ),
}


@pytest.mark.parametrize("source", ALL_USED)
def test_own_data_are_used_as_a_whole(here, source):
    changes, line = ALL_USED[source]
    assert said(*changes, plugins=("table.py", "mine.py")) == line


NATURAL = [NPZ, "partition=natural"]
FEWER = {
    # 40 rows of each class: 40, floor(40 / sqrt(4)) and 10 are left of a long tail of 4.
    "a long tail": ([*NATURAL, "imbalance_factor=4"], "70 of 120 rows, 12 clients; held back: imbalance_factor=4"),
    "validation": (
        [*NATURAL, "evaluation.validation.per_class=4"],
        "108 of 120 rows, 12 clients; held back: validation.per_class=4",
    ),
    "some users": (
        [*NATURAL, "partition.clients=5"],
        "50 of 120 rows, 5 of 12 users; held back: partition=natural; classes that no training client has: 1 ('1')",
    ),
    "two keys": (
        [*NATURAL, "auxiliary.per_class=10", "imbalance_factor=2"],  # 30, floor(30 / sqrt(2)) and 15 of the rest
        "66 of 120 rows, 12 clients; held back: imbalance_factor=2, auxiliary.per_class=10",
    ),
}


@pytest.mark.parametrize("why", FEWER)
def test_what_is_left_out_is_said_with_the_key_that_leaves_it_out(here, why):
    changes, line = FEWER[why]
    assert said(*changes) == f"npz: {line}"


@pytest.mark.slow
def test_methods_with_other_data_have_their_own_line(here):
    entries = "methods=[fedavg, {recipe: fedprox, partition: {imbalance_factor: 4}}]"
    result = CliRunner().invoke(app, ["run", NPZ, "partition=natural", "model=mlp", entries, "--dry-run"])
    assert "  data of fedavg: npz: all 120 rows, 12 clients\n" in result.output
    assert "  data of fedprox: npz: 70 of 120 rows, 12 clients; held back: imbalance_factor=4\n" in result.output


def test_classes_that_only_the_test_set_has_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.ones((40, 4), np.float32)
    arrays = {"train_images": rows, "test_images": rows[:4], "test_labels": np.array(["Cat", "cat", "dog", "Dog"])}
    arrays["train_labels"] = np.array(["cat", "dog"] * 20)
    np.savez("mine.npz", **arrays)
    with pytest.raises(data.DataError, match="mine.npz: test_labels holds 'Cat', .* classes cat, dog"):
        data.load("npz", path="mine.npz")
    np.savez("mine.npz", class_names=np.array(["Cat", "Dog", "cat", "dog"]), **arrays)  # as it is meant
    assert said("dataset={name: npz, path: mine.npz}", "partition=iid").endswith(
        "; classes that no training client has: 2 ('Cat', 'Dog')"
    )


def test_of_several_partitions_the_range_of_empty_clients_is_said(here, monkeypatch):
    """Where the plan is shown, and on the page."""
    scheme = "partition={scheme: dirichlet, alpha: 0.05, min_size: 0, clients: 30}"
    changes = [NPZ, scheme, "methods=[fedavg]", "model=mlp", "seeds=4", "partition_seeds=4"]
    config = load_config(None, changes)
    drawn = []
    draw = data.partition.draw

    def recorded(*args, **named):
        drawn.append(draw(*args, **named))
        return drawn[-1]

    monkeypatch.setattr(data.partition, "draw", recorded)
    shared = SharedInputs(None, 1)
    comparison = set_up(config, shared)
    assert len(drawn) == 4  # no partition is drawn for this
    empty = [sum(not len(rows) for rows in parts) for parts in drawn]
    assert 0 < min(empty) < max(empty)
    ending = f"({min(empty)} to {max(empty)} of 30), depending on the partition"
    (line,) = shared.data_lines()
    assert line.startswith("data: npz: all 120 rows, 30 clients; ") and line.endswith(ending)
    (entry,) = summarise_partitions(comparison)
    assert entry["data"] == line.removeprefix("data: ")


def test_of_several_partitions_all_classes_that_no_client_has_are_named():
    used = [RowsUsed("npz", 5, 0, names) for names in ((), ("Cat",), ("Dog",))]
    ending = "npz; classes that no training client has: "
    assert whole_line(used) == f"{ending}2 ('Cat', 'Dog'), depending on the partition"
    assert whole_line(used[1:2] * 2) == f"{ending}1 ('Cat')"


def test_fewer_users_than_a_round_asks_for_all_take_part(here):
    changes = [NPZ, "partition=natural", "selection.clients_per_round=50", "methods=[fedavg]", "model=mlp"]
    (simulation,) = set_up(load_config(None, changes)).simulations
    assert simulation.selector.chains * simulation.selector.chain_length == 12


def test_too_few_rows_are_explained_by_what_was_taken_before(here):
    changes = [NPZ, "methods=[fedavg]", "model=mlp", "partition={scheme: iid, clients: 100, imbalance_factor: 4}"]
    wanted = r"^partition: 100 clients for 66 rows.* \(66 of 120 training rows are left; held back: "
    with pytest.raises(SetupError, match=wanted + r"imbalance_factor=4, auxiliary\.per_class=2\)$"):
        set_up(load_config(None, [*changes, "auxiliary.per_class=2"]))
    with pytest.raises(SetupError) as whole:
        set_up(load_config(None, [NPZ, "methods=[fedavg]", "model=mlp", "partition={scheme: iid, clients: 500}"]))
    assert "are left" not in str(whole.value)
    without = ["dataset={name: image_folder, path: photos, side: 4}", "partition=natural", "auxiliary.per_class=2"]
    with pytest.raises(SetupError, match="natural needs a data set that says whose") as nobody:
        set_up(load_config(None, [*without, "methods=[fedavg]", "model=mlp"]))
    assert "are left" not in str(nobody.value)


IID = "partition={scheme: iid, clients: 10, seed: 0}"


@functools.cache
def inputs():
    """What all configurations share, so that the images are read once."""
    return SharedInputs(None, 1)


def prepared(tmp_path, *overrides):
    """The first method's federation and fingerprint."""
    comparison = set_up(small_run.config(tmp_path, *overrides), inputs())
    return comparison.simulations[0].federation, comparison.fingerprints[0]


@pytest.mark.parametrize(("key", "each"), [("per_class: 30", 30), ("fraction: 0.05", 50)])
def test_validation_images_are_taken_out_of_all_else(tmp_path, key, each):
    validation = f"evaluation.validation={{{key}}}"
    federation, _ = prepared(tmp_path, IID, "auxiliary.per_class=7", validation)
    taken, labels = federation.auxiliary["validation"], np.asarray(federation.labels)
    assert np.bincount(labels[taken]).tolist() == [each] * 10
    rows = [*taken, *federation.auxiliary["balanced"], *federation.rows]
    assert sorted(rows) == list(range(len(labels)))
    without, _ = prepared(tmp_path, IID, "auxiliary.per_class=7")
    assert np.array_equal(federation.auxiliary["balanced"], without.auxiliary["balanced"])


def test_clients_hold_out_their_share_and_train_on_the_rest(tmp_path):
    whole, _ = prepared(tmp_path)
    federation, _ = prepared(tmp_path, "evaluation.client_test.fraction=0.2")
    assert np.diff(federation.offsets).tolist() == [32] * 10
    assert np.diff(federation.tests.offsets).tolist() == [8] * 10
    for client in range(10):
        spans = [(x.rows, x.offsets) for x in (whole, federation, federation.tests)]
        before, training, tests = (rows[offsets[client] : offsets[client + 1]] for rows, offsets in spans)
        assert sorted([*training, *tests]) == sorted(before)
        counts = np.bincount(np.asarray(federation.labels)[training], minlength=10)
        assert federation.class_counts[client].tolist() == counts.tolist()


def test_clients_may_be_tested_on_the_test_set_instead(tmp_path):
    dataset, (whole, _) = data.load("fashion_mnist_small"), prepared(tmp_path)
    federation, _ = prepared(tmp_path, "evaluation.client_test.per_client=9")
    assert np.array_equal(federation.rows, whole.rows)
    tests, labels = federation.tests, np.asarray(federation.labels)
    own = [tests.rows[a:b] for a, b in zip(tests.offsets[:-1], tests.offsets[1:], strict=True)]
    for client, rows in enumerate(own):
        counts, held = np.bincount(labels[rows], minlength=10), federation.class_counts[client]
        assert sorted(counts[held > 0].tolist()) == [4, 5]  # half of each of two classes
        assert counts.sum() == 9
    first = len(dataset.train_labels)
    assert np.array_equal(np.asarray(federation.images)[tests.rows], dataset.test_images[tests.rows - first])


def test_what_is_set_aside_belongs_to_what_a_run_is_begun_with(tmp_path):
    settings = (
        (), ("auxiliary.per_class=4",), ("auxiliary.per_class=5",), ("auxiliary={per_class: 4, source: test}",),
        ("evaluation.validation.per_class=5",), ("evaluation.client_test.fraction=0.1",),
        ("evaluation.client_test.per_client=5",),
    )  # fmt: skip
    prints = [prepared(tmp_path, *overrides)[1].tobytes() for overrides in settings]
    assert len(set(prints)) == 7 and prepared(tmp_path)[1].tobytes() == prints[0]


def test_the_carved_rows_follow_the_partitions_seed_alone(tmp_path):
    rows = []
    for seed, clients in ((0, 10), (0, 5), (1, 10)):
        changes = (f"partition.seed={seed}", f"partition.clients={clients}")
        rows.append(prepared(tmp_path, "auxiliary.per_class=5", *changes)[0].auxiliary["balanced"].tolist())
    assert rows[0] == rows[1] != rows[2]


def test_test_images_are_the_first_of_each_class_and_the_partition_stays(tmp_path):
    dataset = data.load("fashion_mnist_small")
    without, _ = prepared(tmp_path)
    federation, _ = prepared(tmp_path, "auxiliary={per_class: 4, source: test}")
    assert np.array_equal(federation.rows, without.rows)
    assert np.array_equal(federation.offsets, without.offsets)
    images, labels = np.asarray(federation.images), np.asarray(federation.labels)
    taken = federation.auxiliary["balanced"]
    assert labels[taken].tolist() == np.repeat(np.arange(10), 4).tolist()
    expected = [dataset.test_images[dataset.test_labels == label][:4] for label in range(10)]
    assert np.array_equal(images[taken], np.concatenate(expected))
    assert np.array_equal(images[: len(dataset.train_images)], dataset.train_images)
    assert len(images) == len(dataset.train_images) + 40


TAIL = [500, 387, 299, 232, 179, 139, 107, 83, 64, 50]  # floor(500 * 10^(-c / 9))


@pytest.mark.parametrize("scheme", ["{scheme: noniid-labeldir, alpha: 0.3}", "{scheme: power_law}", "{scheme: shards}"])
def test_any_scheme_shares_out_what_the_long_tail_leaves(tmp_path, scheme):
    wanted = f"partition={scheme[:-1]}, clients: 10, seed: 3, imbalance_factor: 10}}"
    federation = prepared(tmp_path, wanted, "auxiliary.per_class=500")[0]
    assert federation.class_counts.sum(axis=0).tolist() == TAIL
    assert len(np.unique(federation.rows)) == sum(TAIL)
    assert not np.isin(federation.auxiliary["balanced"], federation.rows).any()


def test_a_method_may_have_another_one(tmp_path):
    scheme = "partition={scheme: iid, clients: 10, seed: 3}"
    comparison = set_up(small_run.config(tmp_path, scheme, "methods.1.partition={imbalance_factor: 10}"))
    plain, tailed = (simulation.federation for simulation in comparison.simulations)
    assert (len(plain.rows), plain.class_counts.sum(axis=0).tolist()) == (10_000, [1000] * 10)
    assert tailed.class_counts.sum(axis=0).tolist() == [1000, 774, 599, 464, 359, 278, 215, 166, 129, 100]
    assert comparison.fingerprints[0].tolist() != comparison.fingerprints[1].tolist()


MAKERS = np.array(["Zoe", "Abe", "Bo"])[np.repeat([0, 1, 2], [6, 10, 4])]


@pytest.fixture
def makers(tmp_path):
    """A file of 20 + 8 images by three people."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (28, 6, 6, 3), dtype=np.uint8)
    labels = np.arange(28) % 4
    arrays = {"train_images": images[:20], "train_labels": labels[:20], "test_images": images[20:]}
    np.savez(tmp_path / "mine.npz", **arrays, test_labels=labels[20:], train_clients=MAKERS)
    return tmp_path, images[:20]


def by_maker(folder, *overrides, path="mine.npz"):
    changes = (f"dataset={{name: npz, path: {path}}}", "selection.clients_per_round=1", *overrides)
    return set_up(small_run.config(folder, *changes), SharedInputs(str(folder))).simulations[0].federation


def test_who_made_what_stays_true_after_rows_are_carved_out(makers):
    folder, _ = makers
    found = by_maker(folder, "partition={scheme: natural, clients: 3, seed: 0}", "auxiliary.per_class=1")
    taken = found.auxiliary["balanced"]
    for client, name in enumerate(("Abe", "Bo", "Zoe")):
        rows = found.rows[found.offsets[client] : found.offsets[client + 1]]
        assert sorted(rows.tolist()) == sorted(set(np.flatnonzero(name == MAKERS)) - set(taken.tolist()))


def test_makers_that_are_not_known_are_explained(makers):
    folder, _ = makers
    with pytest.raises(SetupError, match="partition: 4 clients, but 3 writers or users have rows"):
        by_maker(folder, "partition={scheme: natural, clients: 4, seed: 0}")
    with pytest.raises(ValueError, match="dataset.path: there is no .*absent.npz"):
        by_maker(folder, path="absent.npz")
    natural = "partition={scheme: natural, clients: 4, seed: 0}"
    with pytest.raises(SetupError, match="partition: natural needs a data set that says whose its images are"):
        set_up(small_run.config(folder, natural))


BAD = [
    (("auxiliary.per_class=-1",), ConfigError, "auxiliary.per_class: received -1"),
    (
        ("auxiliary={per_class: 201, source: test}",),
        SetupError,
        "auxiliary: per_class: received 201, but the test set has only 200 images of class 0",
    ),
    (
        ("partition={scheme: iid, clients: 10000, seed: 0}", "evaluation.client_test.fraction=0.2"),
        SetupError,
        "evaluation.client_test: fraction: no client has two or more rows",
    ),
    (
        ("evaluation.client_test={fraction: 0.1, per_client: 3}",),
        ConfigError,
        "evaluation.client_test: received fraction 0.1 and per_client 3",
    ),
    (("evaluation.shots.few=300",), ConfigError, "evaluation.shots: received few 300 above many 100"),
    (
        ("training.early_stopping.patience=3",),
        ConfigError,
        "training.early_stopping: received 3, needs validation images",
    ),
    (
        ("evaluation.personalised=2",),
        SetupError,
        r"evaluation \(of fedavg\): personalised: received 2 and .* no test rows",
    ),
    (
        (
            "evaluation={client_test: {fraction: 0.2}, personalised: 2}",
            "training.optimizer.schedule={name: cosine, length: 7}",
        ),
        SetupError,
        r"evaluation \(of fedavg\): personalised: the learning rate is 0 after the last of 7 rounds",
    ),
]


@pytest.mark.parametrize(("overrides", "kind", "message"), BAD, ids=[case[0][0] for case in BAD])
def test_what_cannot_be_is_refused_with_a_reason(tmp_path, overrides, kind, message):
    with pytest.raises(kind, match=message):
        prepared(tmp_path, *overrides)
