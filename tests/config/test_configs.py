"""The configurations that come with the package: each loads, can be set up, and runs on a small copy of its data."""

import functools
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import registered
from PIL import Image

from fedjax_bal.config import (
    build_config,
    continues,
    load_config,
    parse_overrides,
    parse_yaml,
    resolved_yaml,
    run_digest,
    to_plain,
)
from fedjax_bal.data import DATASETS, partition
from fedjax_bal.lab.setup import SharedInputs, set_up
from fedjax_bal.lab.sweep_plan import load_sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2] / "configs"
ALL = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.rglob("*.yaml"))}
SWEEPS = [name for name, file in ALL.items() if "\nsweep:\n" in file.read_text()]
FILES = [name for name in ALL if not name.startswith("sweeps/")]
REBAFL = [name for name in FILES if name.startswith("papers/rebafl/")]
CBFL = [name for name in FILES if name.startswith("papers/cbfl/")]

ROWS = {name: [rows] * 10 for name, rows in (("fashion_mnist", 6000), ("cifar10", 5000), ("fashion_mnist_small", 1000))}
ROWS["mnist"] = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
ROWS |= {"cinic10": [9000] * 10, "labels_47": [16_000] * 47, "cifar100": [500] * 100}
ROWS |= {f"inaturalist2019{size}": np.linspace(25, 500, 1010).astype(int).tolist() for size in ("", "_32")}
ROWS["shuttle"] = [34_108, 37, 132, 6_748, 2_458, 6, 11]
ROWS["emnist_astraea"] = [34_000] * 10 + np.linspace(2_500, 17_000, 37).astype(int).tolist()
ROWS["npz"] = [2861, 914, 1491, 994, 3501, 636, 1675, 587, 3382, 132, 633, 2182, 1112, 3497, 2671, 939, 244, 1861, 992]
ROWS["npz"] += [1508, 1819, 474, 361, 280, 834, 734]  # of the letters of benchmarks/letters.py
"""Training images of each class; those of EMNIST ByMerge and iNaturalist are about as uneven as the real ones."""

TOTALS = {("fashion_mnist", "astraea"): 19_537, ("labels_47", "astraea"): 230_752}
TOTALS |= {("cinic10", "normal_density"): 39_238, ("cifar10", "normal_density"): 21_799}
"""Images that a scheme takes of a pool where the file doesn't say."""


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with balanced sets of random images in the official formats.

    CIFAR-10 with 2,500 + 500 of them, CIFAR-100 with 500 + 500, CINIC-10 with 600 + 10, iNaturalist with 120 + 2, and
    EMNIST with 4,700 for training as of ByMerge and 47 for testing as of Balanced; and letters, 1,560 + 26.
    """
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    batches = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    for classes, bytes_of_labels, files in ((10, 1, batches), (100, 2, ("train.bin", "test.bin"))):
        for file in files:
            records = rng.integers(0, 256, (500, 3072 + bytes_of_labels), dtype=np.uint8)
            records[:, :bytes_of_labels] = (np.arange(500) % classes)[:, None] // np.array([10, 1])[-bytes_of_labels:]
            (folder / file).write_bytes(records.tobytes())
    for half, rows in (("bymerge-train", 4_700), ("balanced-test", 47)):
        header = [number.to_bytes(4, "big") for number in (0x803, rows, 28, 28, 0x801, rows)]
        labels = (np.arange(rows) % 47).astype(np.uint8)
        stem = f"{folder}/emnist-{half}"
        Path(f"{stem}-images-idx3-ubyte").write_bytes(b"".join(header[:4]) + rng.bytes(rows * 784))
        Path(f"{stem}-labels-idx1-ubyte").write_bytes(b"".join(header[4:]) + labels.tobytes())
    for half, rows in (("train", 60), ("test", 1)):
        for name, row in itertools.product(DATASETS["cinic10"].class_names, range(rows)):
            file = folder / half / name / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, compress_level=1)
    for half, rows in (("train", 120), ("val", 2)):
        images = [{"id": row, "file_name": f"train_val2019/{half}{row}.jpg"} for row in range(rows)]
        classes = [{"image_id": row, "category_id": 8 * row} for row in range(rows)]
        (folder / f"{half}2019.json").write_text(json.dumps({"images": images, "annotations": classes}))
        for image in images:
            file = folder / image["file_name"]
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(file)
    letters = {"train": np.arange(1560) % 26, "test": np.arange(26)}
    arrays = {f"{half}_labels": labels for half, labels in letters.items()}
    arrays |= {f"{half}_images": rng.integers(0, 256, (len(own), 28, 28), np.uint8) for half, own in letters.items()}
    np.savez(folder / "letters.npz", **arrays)
    return str(folder)


@pytest.fixture(autouse=True)
def plugins():
    """The plug-ins that the papers' configurations use."""
    registered.load_included()


@functools.cache
def configs_of(name):
    """The configuration that a file holds, or those of a sweep's points."""
    return [point.config for point in load_sweep(ALL[name]).points] if name in SWEEPS else [load_config(ALL[name])]


def methods_of(*configs):
    """The methods of all of these configurations."""
    return [method for config in configs for method in config.methods]


def all_methods(name):
    """The methods of all of a file's configurations, point after point."""
    return methods_of(*configs_of(name))


SMALL = {("training", "batch_size"): 5, ("evaluation", "local_test_images"): 5, ("partition", "total"): 1500}
FEW_CLIENTS = {("partition", "clients"): 10, ("selection", "clients_per_round"): 5}
TINY = SMALL | FEW_CLIENTS
TINY |= {("training", "batch_size"): 20, ("training", "rounds"): 3, ("training", "local_epochs"): 1}
FAKES = {"warm_up": 1, "iterations": 1, "generator_batch": 4, "width": 4, "latent": 3, "fakes": 4}
"""Generators as small as can be."""
LATE = {"fedlf": {"warm_up": 2}, "fedrela": {"start": 2}}
"""What begins late begins in the last of three rounds."""


def lowered(config, most, *changes):
    """A configuration with numbers limited to `most`, also where a method overrides them."""
    tree = parse_yaml(resolved_yaml(config), config.name)
    for part, ((section, key), value) in itertools.product((tree, *tree["methods"]), most.items()):
        if part.get(section, {}).get(key) is not None:
            part[section][key] = min(part[section][key], value)
    if tree["partition"]["scheme"] == "file":  # a published one, which doesn't come with the package
        tree["partition"] = {"scheme": "iid", "clients": tree["partition"]["clients"]}
    for method in tree["methods"]:
        first = method["recipe"][0]
        if isinstance(method["recipe"], str):
            method |= LATE.get(method["recipe"], {})
        elif isinstance(first, dict) and first["name"] == "cbfl":
            first |= FAKES
        elif isinstance(first, dict) and first["name"] == "cbfl_dcgan":
            first |= {key: FAKES[key] for key in ("warm_up", "iterations", "width", "latent", "fakes")} | {"pool": 2}
    one_seed = [f"{key}=[0]" for key in ("seeds", "partition_seeds") if tree.get(key)]
    return build_config(tree, parse_overrides([*one_seed, *changes])[0], config.name)


def small(config, most=SMALL, *changes):
    """A configuration with little data of the same shape."""
    data = config.dataset.name
    few = FEW_CLIENTS if data.startswith("inaturalist2019") else {("partition", "clients"): 100}
    if data in ("fashion_mnist", "mnist"):
        changes = ("dataset.name=fashion_mnist_small", *changes)
    if config.partition.scheme == "pathological" and config.partition.parameters["form"] == "rebafl":
        changes = ("partition.samples_per_client=60", *changes)
    return lowered(config, (few if data.startswith(("emnist", "inaturalist", "npz")) else {}) | most, *changes)


def tiny(config):
    """A small configuration whose programs are small: ten clients, three rounds, one epoch, a perceptron."""
    recipes = {spec.name for method in config.methods for spec in method.recipes}
    changes = [
        "model.name=mlp",
        "training.drop_last=true",
        f"execution.rounds_per_dispatch={1 if 'flcir' in recipes else 3}",
        "execution.devices=1",
        "execution.huge_factor=null",
    ]
    if config.partition.scheme == "astraea":
        changes += ["partition.total=1500", "partition.least=20"]
    # In the partition by main classes every class has as many clients: two for each of Shuttle's seven.
    few = {("partition", "clients"): 14} if config.dataset.name == "shuttle" else {}
    return small(config, TINY | few, "evaluation.every=1", *changes)


def unseen(name, made_small, seen, key_of):
    """A file's configurations, made small, without the methods whose key was seen before."""
    for config in map(made_small, configs_of(name)):
        kept = []
        for method in config.methods:
            key = json.dumps(key_of(to_plain(method)), sort_keys=True)
            if key not in seen:
                seen.add(key)
                kept.append(method)
        if kept:
            yield config.model_copy(update={"methods": tuple(kept)})


def setting_of(method):
    """All but who is there and how it is tested and executed, and but numbers, whose ranges are checked on loading."""
    return [
        without_numbers(method[part]) for part in ("recipes", "dataset", "auxiliary", "partition", "model", "training")
    ]


def without_numbers(tree):
    """A tree whose numbers are all the same."""
    if isinstance(tree, dict):
        return {key: without_numbers(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_numbers(value) for value in tree]
    return "a number" if type(tree) in (int, float) else tree


def plain_setting_of(method):
    """The network on a data set, without what methods add; MobileNetV2, which takes long, on one alone."""
    network = method["model"]["name"]
    data = [] if network == "mobilenetv2" else method["dataset"]
    return [data, network] if method["recipes"][0]["name"] == "fedavg" else None


def program_of(method):
    """Which recipes are composed, and what is measured: a recipe alone is the public battery's.

    Augmentations of images go with one method, and not with each.
    """
    names = [spec["name"] for spec in method["recipes"] if spec["name"] != "fedavg"]  # which adds nothing to others
    images = [name for name in names if name in ("crop_flip", "cutout")]
    others = [name for name in names if name not in images]
    flags = [method["evaluation"][metric] for metric in ("update_diversity", "local_accuracy")]
    return [others if len(others) > 1 else [], images, flags]


SET_UP: set[str] = {json.dumps(None)}
RAN: set[str] = {json.dumps(None)}


@pytest.mark.parametrize("name", FILES)
def test_methods_can_be_set_up(name, small_data, monkeypatch):
    # Nothing is allocated, and what the machine has left at the moment must not decide.
    monkeypatch.setattr("fedjax_bal.engine.host.memory.host_bytes", lambda: None)
    monkeypatch.setattr("fedjax_bal.engine.host.memory.free_bytes", lambda layout: None)
    for config in unseen(name, small, SET_UP, plain_setting_of if name in CBFL else setting_of):
        comparison = set_up(config, SharedInputs(small_data))
        assert [method.name for method in comparison.methods] == [method.name for method in config.methods]
        for method, simulation in zip(comparison.methods, comparison.simulations, strict=True):
            assert simulation.federation.num_clients == method.partition.clients
            assert simulation.setting.model.name.startswith(method.model.name)
            assert (np.diff(simulation.federation.offsets) > 0).all() or may_be_empty(method.partition)


def may_be_empty(split):
    """Whether clients may come out without images, as they do in CBFL's code."""
    return split.parameters.get("form") == "cbfl"


@pytest.mark.parametrize("name", [name for name in FILES if name not in CBFL])  # rounds with fakes: test_cbfl.py, dcgan
def test_three_rounds_of_a_small_copy(name, small_data):
    for config in unseen(name, tiny, RAN, program_of):
        comparison = set_up(config, SharedInputs(small_data))
        for method, simulation in zip(comparison.methods, comparison.simulations, strict=True):
            records = three_rounds(simulation)
            assert [record["round"] for record in records] == list(range(1, min(3, simulation.rounds) + 1))
            for record in records:
                # In a round without any available client nothing is trained and nothing is sent.
                losses = [record["test_loss"], *([record["train_loss"]] if record["clients"] else [])]
                assert np.isfinite(losses).all(), method.name
                assert (record["bytes_up"] > 0) == (record["clients"] > 0), method.name
                for metric in ("update_diversity", "local_accuracy"):
                    assert (record.get(metric) is not None) == getattr(method.evaluation, metric)
            assert any(record["clients"] for record in records), method.name


def three_rounds(simulation):
    records, snapshot = [], simulation.init(0)
    while snapshot.round < min(3, simulation.rounds):
        after = simulation.advance(0, snapshot)
        records, snapshot = records + after.records, after.snapshot
    return records


@functools.cache
def _full_partition(name, kept, text):
    labels = np.repeat(np.arange(len(ROWS[name])), np.array(ROWS[name]) - kept)
    return labels, partition.draw(labels, **json.loads(text))


@pytest.mark.parametrize("name", FILES)
def test_the_partition_exists_at_full_size(name):
    for method in all_methods(name):
        wanted, data, auxiliary = method.partition, method.dataset.name, method.auxiliary
        if wanted.scheme == "file":
            continue
        assert DATASETS[data].num_classes in (0, len(ROWS[data]))
        kept = auxiliary.per_class if auxiliary.source == "train" else 0
        labels, parts = _full_partition(data, kept, json.dumps(wanted.drawing, sort_keys=True))
        assert len(parts) == wanted.clients
        assert all(len(rows) for rows in parts) or may_be_empty(wanted)
        rows = np.concatenate(parts)
        if wanted.scheme == "refilled_dirichlet":
            assert {len(rows) for rows in parts} == {len(labels) // wanted.clients}
            continue
        if wanted.scheme == "pathological" and wanted.parameters["form"] == "rebafl":
            cycle = np.resize(wanted.parameters["classes_per_client"], wanted.clients)
            assert [len(np.unique(labels[rows])) for rows in parts] == cycle.tolist()
            assert {len(rows) for rows in parts} == {wanted.parameters["samples_per_client"] or len(labels) // 50}
            continue
        assert len(np.unique(rows)) == len(rows)
        if wanted.scheme in ("astraea", "normal_density"):
            assert len(rows) == (wanted.parameters["total"] or TOTALS[data, wanted.scheme])
        elif wanted.scheme == "flcir_realworld":
            shares = np.bincount(labels[rows]) / (ROWS[data][0] - kept)
            assert np.flatnonzero(shares < 0.1).tolist() == [1, 5, 7]
            assert (np.delete(shares, [1, 5, 7]) == 1).all()
        elif wanted.imbalance_factor > 1:
            counts = np.sort(np.bincount(labels[rows]))
            assert counts[0] == int(counts[-1] / wanted.imbalance_factor)
            assert counts[-1] == len(labels) / 10 or len(set(ROWS[data])) > 1  # a class can have too few for that
        elif may_be_empty(wanted):
            assert len(rows) > 0.99 * len(labels)
            assert sum(len(own) == 0 for own in parts) < wanted.clients / 4
        else:
            np.testing.assert_array_equal(np.sort(rows), np.arange(len(labels)))


@pytest.mark.parametrize("name", ALL)
def test_published_accuracies_are_of_methods_in_the_file(name):
    for config in configs_of(name):
        published = set(config.paper.accuracy) if config.paper else set()
        assert published <= {method.name for method in config.methods}
        # ReBaFL's row of SCAFFOLD comes from its authors' code, where the file has the published algorithm, too.
        scaffolds = {method.name for method in config.methods if "scaffold" in method.name}
        if published and len(scaffolds) > 1:
            assert published & scaffolds == {"scaffold (authors' code)"}


@pytest.mark.parametrize("name", [name for name in REBAFL if "table1" in name and "crops" not in name])
def test_published_accuracies_are_those_of_the_header(name):
    header = " ".join(line.lstrip("# ") for line in ALL[name].read_text().partition("Expect")[0].splitlines())
    numbers = {word.lower(): float(number) / 100 for word, number in re.findall(r"([\w-]+) (\d\d\.\d\d)\b", header)}
    numbers["balanced_softmax"] = numbers.pop("bsm-fedavg")
    numbers["scaffold (authors' code)"] = numbers.pop("scaffold")
    (config,) = configs_of(name)
    assert config.paper.accuracy == pytest.approx(numbers)


def test_run_folders_do_not_collide():
    names = [configs_of(name)[0].name for name in ALL]
    assert len(set(names)) == len(names)


PAPER, CROPS = "papers/rebafl/table1_c10_m20", "papers/rebafl/table1_c10_crops"


def settings_of(tmp_path, *changes):
    """What is noted of the changes of a paper's configuration, in one go, in a file based on it, or after a run."""
    based, recorded = tmp_path / "based.yaml", tmp_path / "recorded.yaml"
    whole = load_config(PAPER, changes).paper.setting
    based.write_text(f"base: {PAPER}\n")
    recorded.write_text(resolved_yaml(load_config(PAPER, changes[:1])))
    assert load_config(based, changes).paper.setting == load_config(recorded, changes[1:]).paper.setting == whole
    return whole


def test_changes_of_a_papers_configuration_are_noted_with_its_values(tmp_path):
    assert settings_of(tmp_path) == settings_of(tmp_path, "rounds=200", "execution.strategy=map", "name=mine") == {}
    assert settings_of(tmp_path, "methods=[fedavg, rebafl]", "execution.precision=float32") == {}
    assert settings_of(tmp_path, "rounds=2", "seeds=1", "model=mlp", "partition.clients=30") == {
        "training.rounds": 200, "seeds": [0, 1, 2], "model.name": "rebafl_cifar", "partition.clients": 20,
    }  # fmt: skip
    assert settings_of(tmp_path, "rounds=2", "rounds=200") == {}
    # The table's SCAFFOLD has no momentum, one that is given by its name alone has that of all methods.
    assert settings_of(tmp_path, "rounds=2", "methods=[{recipe: fedavg, name: scaffold}]") == {
        "training.rounds": 200, "scaffold: training.optimizer.momentum": 0.0, "scaffold: recipe": "scaffold",
    }  # fmt: skip


def test_a_papers_setting_is_known_without_the_plug_ins_of_methods_that_are_not_trained():
    config = load_config("papers/rebafl/table1_fmnist_m20", ["methods=fedavg,rebafl", "rounds=3"])
    assert config.paper.setting == {"training.rounds": 200}


def test_a_papers_setting_is_no_part_of_what_a_run_is():
    short, long = load_config(PAPER, ["rounds=2"]), load_config(PAPER, ["rounds=3"])
    assert continues(long, short) and run_digest(short) == run_digest(load_config(PAPER))


def test_changes_of_a_papers_sweep_are_noted_and_its_own_axes_are_not():
    of = lambda *changes: [point.config.paper.setting for point in load_sweep(ALL[f"{CROPS}.yaml"], changes).points]
    assert of() == [{}, {}] and of("rounds=7") == [{"training.rounds": 200}] * 2
