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
IWDS = [name for name in FILES if name.startswith("papers/iwds/")]
ASTRAEA = [name for name in FILES if name.startswith("papers/astraea/")]
FLCIR = [name for name in FILES if name.startswith("papers/flcir/")]
CBFL = [name for name in FILES if name.startswith("papers/cbfl/")]

ROWS = {name: [rows] * 10 for name, rows in (("fashion_mnist", 6000), ("cifar10", 5000), ("fashion_mnist_small", 1000))}
ROWS["mnist"] = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
ROWS |= {"cinic10": [9000] * 10, "labels_47": [16_000] * 47, "cifar100": [500] * 100}
ROWS |= {f"inaturalist2019{size}": np.linspace(25, 500, 1010).astype(int).tolist() for size in ("", "_32")}
ROWS["shuttle"] = [34_108, 37, 132, 6_748, 2_458, 6, 11]
ROWS["emnist_astraea"] = [34_000] * 10 + np.linspace(2_500, 17_000, 37).astype(int).tolist()
"""Training images of each class; those of EMNIST ByMerge and iNaturalist are about as uneven as the real ones."""

TOTALS = {("fashion_mnist", "astraea"): 19_537, ("labels_47", "astraea"): 230_752}
TOTALS |= {("cinic10", "normal_density"): 39_238, ("cifar10", "normal_density"): 21_799}
"""Images that a scheme takes of a pool where the file doesn't say."""

# The constants of the methods in ReBaFL's experiments; what a file leaves out has to be the recipe's default.
CONSTANTS = {
    "fedprox": {"mu": 0.001},
    "feddyn": {"alpha": 1e-4, "adaptive": False},
    "moon": {"mu": 1.0, "temperature": 0.5, "projection": "side"},
    "fedrs": {"alpha": 0.5, "mode": "hard"},
    "fedlc": {"tau": 1.0},
    "fedbabu": {"fine_tune_epochs": 0},
    "fedavg_ft": {"epochs": 5, "learning_rate": 0.01, "momentum": 0.5},
}


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with balanced sets of random images in the official formats.

    CIFAR-10 with 2,500 + 500 of them, CIFAR-100 with 500 + 500, CINIC-10 with 600 + 10, iNaturalist with 120 + 2, and
    EMNIST with 4,700 for training as of ByMerge and 47 for testing as of Balanced.
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
"""Generators as small as can be, all of them at work from the second round on."""
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
    return build_config(tree, parse_overrides([*one_seed, *changes]), config.name)


def small(config, most=SMALL, *changes):
    """A configuration with little data of the same shape."""
    data = config.dataset.name
    few = FEW_CLIENTS if data.startswith("inaturalist2019") else {("partition", "clients"): 100}
    if data in ("fashion_mnist", "mnist"):
        changes = ("dataset.name=fashion_mnist_small", *changes)
    if config.partition.scheme == "pathological" and config.partition.parameters["form"] == "rebafl":
        changes = ("partition.samples_per_client=60", *changes)
    return lowered(config, (few if data.startswith(("emnist", "inaturalist")) else {}) | most, *changes)


def tiny(config):
    """A small configuration whose programs are small: ten clients, three rounds, one epoch, a perceptron."""
    recipes = {spec.name for method in config.methods for spec in method.recipes}
    changes = [f"model.name={'tiny_bn' if config.name.startswith('cbfl') else 'mlp'}", "training.drop_last=true"]
    changes += [
        f"execution.rounds_per_dispatch={1 if 'flcir' in recipes else 3}",
        "execution.devices=1",
        "execution.huge_factor=null",
    ]
    if config.partition.scheme == "astraea":
        changes += ["partition.total=1500", "partition.least=20"]
    return small(config, TINY, "evaluation.every=1", *changes)


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
    """All but who is there and how it is tested and executed; of augmentation, whether there is any."""
    recipes = [dict(spec["hyperparameters"], name=spec["name"]) for spec in method["recipes"]]
    for values in recipes:
        if values["name"] == "astraea":
            values |= {"alpha": values["alpha"] is not None, "max_copies": None}
    return [recipes, *(method[part] for part in ("dataset", "auxiliary", "partition", "model", "training"))]


def plain_setting_of(method):
    """The network on a data set, without what methods add; MobileNetV2, which takes long, on one alone."""
    network = method["model"]["name"]
    data = [] if network == "mobilenetv2" else method["dataset"]
    return [data, network] if method["recipes"][0]["name"] == "fedavg" else None


def fakes_of(method):
    """A generator or DCGANs; other kinds of fakes, and methods without any, are tested elsewhere."""
    first = method["recipes"][0]
    shared = first["name"] == "cbfl" and first["hyperparameters"]["generator"] == "shared"
    return first["name"] if shared or first["name"] == "cbfl_dcgan" else None


def program_of(method):
    """Which recipes are composed, and what is measured: a recipe alone is the public battery's.

    Augmentations of images go with one method, and not with each.
    """
    names = [spec["name"] for spec in method["recipes"]]
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


@pytest.mark.parametrize("name", FILES)
def test_three_rounds_of_a_small_copy(name, small_data):
    for config in unseen(name, tiny, RAN, fakes_of if name in CBFL else program_of):
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
        assert DATASETS[data].num_classes == len(ROWS[data])
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
            counts = np.bincount(labels[rows])
            assert counts[0] == len(labels) / 10 and counts[-1] == int(counts[0] / wanted.imbalance_factor)
        elif may_be_empty(wanted):
            assert len(rows) > 0.99 * len(labels)
            assert sum(len(own) == 0 for own in parts) < wanted.clients / 4
        else:
            np.testing.assert_array_equal(np.sort(rows), np.arange(len(labels)))


@pytest.mark.parametrize("name", ALL)
def test_the_header_says_how_to_run_the_file_and_what_to_expect(name):
    header = ALL[name].read_text().partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") and len(line) <= 120 for line in header)
    entries = [line.split()[1] for line in header if line.startswith("# ") and line[2] != " " and len(line) > 11]
    assert {"Command", "Expect", "Time", "Machine"} <= set(entries)
    command = "sweep" if name in SWEEPS else "run"
    assert any(f"fedjax-bal {command} configs/{name}" in line for line in header)
    used = {plugin for config in configs_of(name) for plugin in config.plugins}
    assert all(f"--plugin {plugin}" in "\n".join(header) for plugin in used)
    if name.startswith("papers/"):
        order = ["Command", "Paper", "Expect", "Time", "Machine"]
        assert [entry for entry in entries[1:] if entry in order] == order


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


def _methods(paper, stem):
    return all_methods(f"papers/{paper}/{stem}.yaml")


def _recipes(methods):
    names = dict.fromkeys(method.recipes[0].name for method in methods)
    return [name for name in names if name != "late_control_variates"]  # a further row of some tables


def _of(method, *keys):
    return tuple(method.recipes[0].hyperparameters[key] for key in keys)


@pytest.mark.parametrize("name", REBAFL)
def test_rebafl_constants(name):
    for method in all_methods(name):
        optimizer, (spec, *images) = method.training.optimizer, method.recipes
        assert [own.name for own in images] == ["crop_flip"] * ("crops" in name)
        assert CONSTANTS.get(spec.name, {}).items() <= spec.hyperparameters.items()
        assert method.training.rounds == 200 and method.training.batch_size == 50 and method.training.drop_last
        assert optimizer.learning_rate == {"fashion_mnist": 0.01, "cifar10": 0.02}[method.dataset.name]
        assert optimizer.weight_decay == 5e-4
        assert optimizer.parameters["momentum"] == (0.0 if spec.name == "scaffold" else 0.5)
        assert method.training.local_epochs == 5 or "figure9" in name
        if "table3" in name:
            assert method.selection.clients_per_round * 10 == method.partition.clients
            assert method.availability.name == "always"
        else:
            assert method.selection.clients_per_round == method.partition.clients
            assert method.partition.parameters["samples_per_client"] == 1000


def test_rebafl_tables_and_sweeps_are_whole():
    ten = ["fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedrs", "fedbabu", "fedlc", "balanced_softmax", "rebafl"]
    for name in REBAFL:
        if Path(name).stem.startswith(("table1", "figure3", "figures4_5", "figure9", "figure10")):
            assert all(_recipes(methods_of(config)) == ten for config in configs_of(name))
    table3 = configs_of("papers/rebafl/table3_c10.yaml")
    assert all(_recipes(methods_of(config)) == [n for n in ten if n != "fedlc"] for config in table3)
    assert [config.partition.clients for config in table3] == [100, 200, 500]
    epochs = [methods_of(config) for config in configs_of("papers/rebafl/figure9_c10.yaml")]
    assert [{method.training.local_epochs for method in own} for own in epochs] == [{1}, {2}, {5}, {10}, {20}]
    crops = configs_of("papers/rebafl/table1_c10_crops.yaml")
    for config, clients in zip(crops, (20, 50), strict=True):
        (plain,) = configs_of(f"papers/rebafl/table1_c10_m{clients}.yaml")
        assert config.model_copy(update={"name": plain.name, "methods": plain.methods}) == plain
        assert [method.name for method in config.methods] == [method.name for method in plain.methods]
    for data in ("c10", "fmnist"):
        present = [config.availability.parameters for config in configs_of(f"papers/rebafl/figure3_{data}.yaml")]
        assert present == [{"p": 0.1}, {"p": 0.3}]
        pairs = [_of(method, "epsilon", "mu") for method in _methods("rebafl", f"figure8_{data}")]
        assert pairs[:5] == [(epsilon, 0.0) for epsilon in (1e-4, 1e-3, 1e-2, 0.1, 0.2)]
        assert pairs[5:] == [(0.01, mu) for mu in (0.1, 0.5, 1.0, 5.0)]
    periods = [config.availability.parameters for config in configs_of("papers/rebafl/figure10_c10.yaml")]
    assert periods == [{"p": 0.5, "period": period} for period in (2, 5, 10, 20)]
    for stem in ("table2_c10", "figure6_fmnist"):
        half, clustered = configs_of(f"papers/rebafl/{stem}.yaml")
        assert [_of(m, "epsilon", "mu") for m in methods_of(half)[1:]] == [(0.01, 0.0), (1.0, 0.1), (0.01, 0.1)]
        assert (half.partition.parameters["classes_per_client"], half.availability.parameters) == (2, {"p": 0.5})
        figures4_5 = configs_of(f"papers/rebafl/figures4_5_{stem.rpartition('_')[2]}_clustered.yaml")[0]
        assert (clustered.partition, clustered.availability) == (figures4_5.partition, figures4_5.availability)


@pytest.mark.parametrize("name", IWDS)
def test_iwds_constants(name):
    for method in all_methods(name):
        first, sampler, *images = method.recipes
        assert sampler.name == "iwds"
        assert [own.name for own in images] == ["crop_flip", "cutout"] * ("cutout" in name)
        assert {"beta_0": 0.9999, "beta_m": 0.8, "rho": 0.992}.items() <= sampler.hyperparameters.items()
        assert first.name != "fedprox" or first.hyperparameters["mu"] == 0.1
        assert method.training.optimizer.parameters["momentum"] == (0.9 if first.name == "fednova" else 0.0)
        assert (method.partition.clients, method.selection.clients_per_round) == (10, 5)
        assert method.training.optimizer.learning_rate == 0.01 and method.training.batch_size == 32
        assert method.model.name == {"fashion_mnist": "fedavg_cnn", "cifar10": "vgg9"}[method.dataset.name]
    lda, llt = ("dirichlet", 0.1), ("long_tail", 0.9)
    wanted = {"figure2_c10": [lda, llt], "fmnist_llt0.9": [llt]}
    panels = [(config.partition.scheme, config.partition.parameters["alpha"]) for config in configs_of(name)]
    assert panels == wanted.get(Path(name).stem, [lda, ("dirichlet", 0.5), llt, ("long_tail", 0.99)])


@pytest.mark.parametrize("name", ASTRAEA)
def test_astraea_constants(name):
    for method in all_methods(name):
        (spec,), data, training = method.recipes, method.dataset.name, method.training
        values = spec.hyperparameters
        assert spec.name in ("fedavg", "astraea")
        assert spec.name == "fedavg" or (values["mode"], values["resched"]) == ("floor", "per_round")
        assert spec.name == "fedavg" or (values["max_copies"] is None) == (values["alpha"] != 2)
        sizes = {"emnist_astraea": 500, "labels_47": 500, "fashion_mnist": 100, "cifar10": 100, "cinic10": 100}
        assert method.partition.clients == (1 if "central" in name else sizes[data])
        scheme = "normal_density" if data in ("cifar10", "cinic10") else "astraea"
        assert method.partition.scheme == scheme
        if data == "labels_47":
            continue
        assert training.batch_size == (50 if scheme == "normal_density" else 20) and not training.drop_last
        assert (training.optimizer.name, training.optimizer.learning_rate) == ("adam", 0.001)
        assert training.optimizer.parameters["eps"] == 1e-7
        assert method.model.name == ("keras_cifar10" if scheme == "normal_density" else "astraea_cnn")


def test_astraea_sets():
    for data, totals, cohort in (("emnist", [117_500] * 4 + [230_752], 25), ("fmnist", [9_750] * 4 + [19_500], 10)):
        sets = _methods("astraea", f"figure1_{data}")
        assert [m.partition.parameters["variant"] for m in sets] == ["BAL1", "BAL2", "INS", "LTRF1", "LTRF2"]
        assert [m.partition.parameters["total"] for m in sets] == totals
        assert {(m.selection.clients_per_round, m.training.local_epochs) for m in sets} == {(cohort, 10)}


def test_astraea_centrally():
    (method,) = _methods("astraea", "central_emnist")
    assert (method.training.rounds, method.training.local_epochs, method.selection.clients_per_round) == (1, 20, 1)
    assert method.partition.parameters["variant"] == "BAL1" and method.partition.parameters["total"] == 117_500


def _mediated(stem):
    """Clients a round and local epochs of each method; for Astraea mediator size, mediator epochs and alpha too."""
    for method in _methods("astraea", stem):
        asked = () if method.recipes[0].name == "fedavg" else _of(method, "size", "mediator_epochs", "alpha")
        yield (method.selection.clients_per_round, method.training.local_epochs, *asked)


ALPHAS = (0.33, 0.67, 0.83, 1.0)


@pytest.mark.parametrize(("data", "cohort", "size", "few"), [("emnist", 50, 10, 10), ("fmnist", 20, 5, 5)])
def test_astraea_methods(data, cohort, size, few):
    wanted = {
        "figure4a": [(cohort, 5), *((cohort, 5, 1, 1, alpha) for alpha in (*ALPHAS, 2.0))],
        "figures4b_9": [(cohort, 5), *((cohort, 1, size, 2, alpha) for alpha in (None, *ALPHAS, 2.0))],
        "figure6": [(c, 1, g, 2, 0.67) for c in (cohort, 2 * cohort) for g in (size // 2, size, 2 * size)],
        "figure8": [(cohort, local, size, passes, 0.67) for local in (1, 5, 10) for passes in (1, 2, 3)],
        "table3": [(few, 20), *((cohort, 1, size, passes, 0.67) for passes in (1, 2, 3, 4))],
    }
    for stem, methods in wanted.items():
        assert list(_mediated(f"{stem}_{data}")) == methods
    traffic = {(m.evaluation.traffic, m.evaluation.every) for m in _methods("astraea", f"table3_{data}")}
    assert traffic == {("paper", 1)}


def test_astraea_on_colour_images():
    fedavg = (50, 1)
    alone = [(50, 1, 1, 1, alpha) for alpha in (*ALPHAS, 2.0)]
    together = [(50, 1, 10, 2, alpha) for alpha in (None, *ALPHAS)]
    assert list(_mediated("figure5a_cinic10")) == [fedavg, *alone]
    assert list(_mediated("figure5b_cinic10")) == [fedavg, *together]
    assert list(_mediated("figure5_cifar10")) == [fedavg, *alone, *together]


@pytest.mark.parametrize("name", FLCIR)
def test_flcir_constants(name):
    for method in all_methods(name):
        (spec, images), training = method.recipes, method.training
        assert (images.name, images.hyperparameters) == ("crop_flip", {"pad": 4, "flip": True})
        assert spec.name == "flcir" and spec.hyperparameters["rho"] == 0.99
        assert (training.local_epochs, training.batches_per_epoch, training.batch_size) == (5, 10, 10)
        assert (training.optimizer.learning_rate, training.optimizer.weight_decay) == (0.1, 5e-4)
        assert (method.auxiliary.per_class, method.auxiliary.source) == (32, "train")
        assert (method.partition.clients, method.model.name, training.rounds) == (100, "flcir_cnn", 3150)


def test_flcir_figures_are_whole():
    schemes, numbers, alphas = map(all_methods, FLCIR)
    assert [_of(m, "choose")[0] for m in schemes] == ["random", "greedy", "cucb", "random"]
    assert [m.partition.scheme for m in schemes] == ["flcir_realworld"] * 3 + ["iid"]
    assert [m.selection.clients_per_round for m in numbers] == [10, 20, 30, 40, 50]
    assert {_of(m, "choose", "alpha") for m in numbers} == {("cucb", 0.2)}
    assert [_of(m, "choose", "alpha") for m in alphas] == [("cucb", a) for a in (0.0125, 0.05, 0.2, 0.8, 3.2)]
    assert {m.selection.clients_per_round for m in (*schemes, *alphas)} == {20}


BIG = [name for name in CBFL if "small" not in name]
SMALL = [name for name in CBFL if "small" in name]
SHORT = {"cifar10": "c10", "cifar100": "c100", "cinic10": "cinic10"}
CODE = {"teacher": "snapshot", "generator_rate": 0.003}
"""The constants of the authors' code where they aren't the paper's, with those of each data set."""
CODE_OF = {"cifar10": {"interval": 3, "iterations": 1000, "gamma": 3.0}, "cifar100": {"interval": 7}}
AXES = {
    "table8_c100": ("weight", [0.01, 0.1, 1.0, 5.0, 10.0]),
    "table9_c100": ("attention", [0.0, 200.0, 400.0, 600.0, 800.0]),
    "figure9_c10": ("warm_up", list(range(0, 1000, 100))),
}
"""Ablations that are sweeps: the hyperparameter, and its values in order."""
VARIED = AXES | {
    "table4_c10": ("labels", ["uniform", "balanced"]),
    "table6_cinic10": ("rarest", [2, 4, 6, 8, None]),
    "table7_c10": ("learn", ["cross_entropy", "distillation"]),
} | {f"table5_{data}": ("generator", ["gaussian", "shared"]) for data in SHORT.values()}  # fmt: skip
"""The same for all ablations; those that are no sweeps compare with FedAvg too."""
CLIENTS = {"table10_c10": [150, 200, 250, 300], "table11_c10": [5, 16]}
NETWORKS = {f"table{table}": ["resnet20", "mobilenetv2"] for table in (1, 5, 12)}
FOUR = ["fedavg", "fedprox", "fednova", "cbfl"]
COMPARED = {"c10_resnet20_a0.1": ["fedavg", "fedprox", "late_control_variates", "fednova", "cbfl"]}
COMPARED |= {f"table1_{data}": COMPARED["c10_resnet20_a0.1"] for data in SHORT.values()}
COMPARED |= {f"table1_{data}_code": ["fedavg", "cbfl"] for data in ("c10", "c100")}
COMPARED |= {f"table2_{data}": FOUR for data in SHORT.values()} | dict.fromkeys(("table10_c10", "table12_c100"), FOUR)
COMPARED |= {"table11_c10": ["fedavg", "fedprox", "fednova", "late_control_variates", "cbfl"], "table13_c100": FOUR}
COMPARED |= {f"inaturalist_{network}": FOUR for network in ("resnet18", "mobilenetv2")}
"""The methods of each table that compares CBFL with others."""


@pytest.mark.parametrize("name", BIG)
def test_cbfl_training(name):
    for method in all_methods(name):
        (spec, images), training, optimizer = method.recipes, method.training, method.training.optimizer
        natural = method.dataset.name == "inaturalist2019"
        assert (images.name, images.hyperparameters) == ("crop_flip", {"pad": 28 if natural else 4, "flip": True})
        assert (training.local_epochs, training.batch_size, training.drop_last) == (5, 50, False)
        assert training.rounds == (2000 if "table12" in name else 1000)
        assert (training.batches_per_epoch, training.batch_statistics, training.lone_rows) == (None, "average", "auto")
        slow = spec.name in ("late_control_variates", "fednova")
        assert (optimizer.learning_rate, optimizer.decay) == ((0.01, 1.0) if slow else (0.1, 0.996))
        assert (optimizer.name, optimizer.parameters["momentum"], optimizer.weight_decay) == ("sgd", 0.9, 1e-4)
        assert method.evaluation.every == 1 and method.availability.name == method.delivery.name == "always"
        if spec.name != "cbfl":
            wanted = {"fedprox": {"mu": 0.001}, "late_control_variates": {"clip": None}}
            wanted |= {"fednova": {"mu": 0.0}, "cbfl_dcgan": {"fakes": 70, "width": 128, "latent": 100, "pool": 256}}
            assert wanted.get(spec.name, {}).items() <= spec.hyperparameters.items()


@pytest.mark.parametrize("name", BIG)
def test_cbfl_constants(name):
    varied = VARIED.get(Path(name).stem, ("", []))[0]
    for method in all_methods(name):
        data, spec = method.dataset.name, method.recipes[0]
        if spec.name != "cbfl":
            continue
        warm_up = {"cifar10": 700, "cifar100": 800, "cinic10": 500}.get(data, 700)
        begin = warm_up + name.endswith("_code.yaml")  # their code's fakes come a round after the warm-up
        wanted = {"warm_up": begin, "interval": 1, "teacher": "current", "generator": "shared", "labels": "balanced"}
        wanted |= {"rarest": None, "learn": "distillation", "fakes": 70, "weight": 1.0, "attention": 400.0}
        wanted |= {"temperature": 5.0, "direction": "teacher_student", "gamma": 10.0, "layers": "mean"}
        wanted |= {"iterations": 2000, "generator_batch": 256, "generator_rate": 0.001, "width": 128, "latent": 100}
        wanted |= CODE | CODE_OF[data] if name.endswith("_code.yaml") else {}
        free = {varied, "labels" if varied == "rarest" else varied}
        kept = {key: value for key, value in wanted.items() if key not in free}
        assert {key: spec.hyperparameters[key] for key in kept} == kept


@pytest.mark.parametrize("name", BIG)
def test_cbfl_clients(name):
    stem, configs = Path(name).stem, configs_of(name)
    natural = "inaturalist" in stem
    clients = CLIENTS.get(stem, [2295 if natural else 100] * len(configs))
    assert [config.partition.clients for config in configs] == clients
    alphas = [0.07, 0.05, 0.03, 0.01] if "table2" in stem else [0.1] * len(configs)
    assert [config.partition.parameters["alpha"] for config in configs] == alphas
    for config in configs:
        share = 1 if "table11" in stem else 10
        assert config.selection.clients_per_round == config.partition.clients // share
        assert (config.partition.scheme, config.partition.seed) == ("dirichlet", 7777)
        assert config.partition.parameters["form"] == ("balanced" if natural else "cbfl")
        for method in methods_of(config):
            assert (method.partition, method.selection) == (config.partition, config.selection)


@pytest.mark.parametrize("stem", VARIED)
def test_cbfl_ablations_are_whole(stem):
    (key, values), arms = VARIED[stem], _methods("cbfl", stem)
    fedavg = arms[0]
    if stem not in AXES:
        fedavg, *arms = arms
        assert fedavg.recipes[0].name == "fedavg"
    if stem.startswith("table5"):
        assert arms.pop(1).recipes[0].name == "cbfl_dcgan"
    assert [_of(arm, key)[0] for arm in arms] == values
    if key == "rarest":
        assert [_of(arm, "labels")[0] for arm in arms] == ["rarest"] * 4 + ["balanced"]
    wanted = {"table5": "mobilenetv2"}.get(stem[:6], "resnet20")
    assert {(arm.model.name, SHORT[arm.dataset.name]) for arm in arms} == {(wanted, stem.rpartition("_")[2])}
    assert {arm.evaluation.local_test_images for arm in (fedavg, *arms)} == {1_000 * (stem == "table7_c10")}


def test_cbfl_comparisons_are_whole():
    assert {Path(name).stem for name in BIG} == COMPARED.keys() | VARIED.keys()
    for stem, recipes in COMPARED.items():
        configs, own = configs_of(f"papers/cbfl/{stem}.yaml"), stem.split("_")
        assert all([method.recipes[0].name for method in config.methods] == recipes for config in configs)
        one = [next((net for net in ("mobilenetv2", "resnet18") if net in stem), "resnet20")] * len(configs)
        assert [config.model.name for config in configs] == NETWORKS.get(own[0], one)
        (short,) = {SHORT.get(config.dataset.name, "inaturalist") for config in configs}
        assert short in own
        figure_6 = "late_control_variates" in recipes and own[0] != "table11"
        locals_too = figure_6 or own[0] == "table12"  # the latter for Figure 10
        assert {config.evaluation.local_test_images for config in configs} == {1_000 * locals_too}
        targets = [config.evaluation.target_accuracy for config in configs]
        assert targets == ([0.6, 0.66] if own[0] == "table12" else [None] * len(configs))


@pytest.mark.parametrize("name", SMALL)
def test_small_cbfl_files_differ_in_their_methods_alone(name):
    (reference,) = configs_of("papers/cbfl/small_cifar10.yaml")
    for config in configs_of(name):
        assert (
            config.model_copy(update={"name": reference.name, "methods": reference.methods, "plugins": {}}) == reference
        )
    key, values = next((value for stem, value in VARIED.items() if stem.split("_")[0] in name), ("", []))
    arms = [method for method in all_methods(name) if method.recipes[0].name == "cbfl"]
    ours = next(arm for arm in methods_of(reference) if arm.name == "cbfl").recipes[0].hyperparameters
    free = {key, "labels"}
    if key:
        for arm in arms:
            found = arm.recipes[0].hyperparameters
            assert {k: v for k, v in found.items() if k not in free} == {k: ours[k] for k in found if k not in free}
        assert [_of(arm, key)[0] for arm in arms] == (list(range(0, 101, 20)) if key == "warm_up" else values)


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


def test_a_papers_setting_is_no_part_of_what_a_run_is():
    short, long = load_config(PAPER, ["rounds=2"]), load_config(PAPER, ["rounds=3"])
    assert continues(long, short) and run_digest(short) == run_digest(load_config(PAPER))


def test_changes_of_a_papers_sweep_are_noted_and_its_own_axes_are_not():
    of = lambda *changes: [point.config.paper.setting for point in load_sweep(ALL[f"{CROPS}.yaml"], changes).points]
    assert of() == [{}, {}] and of("rounds=7") == [{"training.rounds": 200}] * 2
