"""The configurations that come with the package: each loads, can be set up, and runs on a small copy of its data."""

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_bal.config import load_config
from fedjax_bal.config.sections import to_plain
from fedjax_bal.data import DATASETS, partition
from fedjax_bal.data.readers.cifar import LAYOUTS
from fedjax_bal.experiments.plan import load_sweep
from fedjax_bal.experiments.setup import set_up

ROOT = Path(__file__).parents[2] / "configs"
ALL = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.rglob("*.yaml"))}
SWEEPS = {name: file for name, file in ALL.items() if name.startswith("sweeps/")}
FILES = {name: file for name, file in ALL.items() if name not in SWEEPS}
REBAFL = [name for name in FILES if name.startswith("papers/rebafl/")]
IWDS = [name for name in FILES if name.startswith("papers/iwds/")]
ASTRAEA = [name for name in FILES if name.startswith("papers/astraea/")]
FLCIR = [name for name in FILES if name.startswith("papers/flcir/")]
CBFL = [name for name in FILES if name.startswith("papers/cbfl/")]

ROWS = {name: [rows] * 10 for name, rows in (("fashion_mnist", 6000), ("cifar10", 5000), ("fashion_mnist_small", 1000))}
ROWS |= {"cinic10": [9000] * 10, "labels_47": [16_000] * 47, "cifar100": [500] * 100}
ROWS |= {f"inaturalist2019{size}": np.linspace(25, 500, 1010).astype(int).tolist() for size in ("", "_32")}
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
    for data, bytes_of_labels in (("cifar10", 1), ("cifar100", 2)):
        layout, classes = LAYOUTS[data], DATASETS[data].num_classes
        (folder / layout.folder).mkdir()
        for file in (*layout.train, layout.test):
            records = rng.integers(0, 256, (500, 3072 + bytes_of_labels), dtype=np.uint8)
            records[:, :bytes_of_labels] = (np.arange(500) % classes)[:, None] // np.array([10, 1])[-bytes_of_labels:]
            (folder / layout.folder / file).write_bytes(records.tobytes())
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


def methods_of(config):
    """Each method's own configuration."""
    return [config.for_method(index) for index in range(len(config.methods))]


def small(name, *overrides):
    """A file's configuration with little data of the same shape."""
    config = load_config(FILES[name])
    changes = ["training.batch_size=5", "seeds=[0]", *overrides]
    if config.dataset.name == "fashion_mnist":
        changes.append("dataset.name=fashion_mnist_small")
    if config.dataset.name == "emnist_astraea" and "partition.clients=10" not in changes:
        changes.append("partition.clients=100")
    if "samples_per_client" in config.partition.parameters:
        changes.append("partition.samples_per_client=60")
    if config.partition.parameters.get("total"):
        changes += [f"{place}.total=1500" for place in changed(config, "partition", "total")]
    if config.evaluation.local_test_images:
        changes.append("evaluation.local_test_images=5")
    if name in CBFL:
        changes += fewer_fakes(config)
    if config.dataset.name.startswith("inaturalist2019") and "partition.clients=10" not in changes:
        changes += ["partition.clients=10", "selection.clients_per_round=5"]
    return load_config(FILES[name], changes)


def fewer_fakes(config):
    """Changes that make generators as small as can be, all of them at work from the second round on."""
    sizes = {"warm_up": 1, "iterations": 1, "generator_batch": 4, "width": 4, "latent": 3, "fakes": 4}
    dcgans = {"dcgan_iterations": 1, "dcgan_pool": 2}
    changes = []
    for index, method in enumerate(config.methods):
        if method.recipes[0].name == "cbfl":
            asked = sizes | (dcgans if method.recipes[0].hyperparameters["generator"] == "dcgan" else {})
            changes += [f"methods.{index}.recipe.0.{key}={value}" for key, value in asked.items()]
    return changes


def changed(config, section, key):
    """Where a key of a section stands: in the section itself and in the methods that change it."""
    own = [index for index, method in enumerate(config.methods) if key in method.overrides.get(section, {})]
    return [section, *(f"methods.{index}.{section}" for index in own)]


def tiny(name):
    """A small configuration whose programs are small: ten clients, three rounds, one epoch, a perceptron."""
    config = load_config(FILES[name])
    changes = ["partition.clients=10", "training.rounds=3", "model.name=mlp", "evaluation.every=1"]
    changes += [
        "training.batch_size=20",
        "training.drop_last=true",
        "execution.rounds_per_dispatch=3",
        "execution.devices=1",
    ]
    changes += [f"{place}.local_epochs=1" for place in changed(config, "training", "local_epochs")]
    for place, asked in zip(changed(config, "selection", "clients_per_round"), cohorts(config), strict=True):
        changes.append(f"{place}.clients_per_round={min(5, asked)}")
    if config.partition.scheme == "astraea":
        changes += ["partition.total=1500", "partition.least=20"]
    if any(spec.name == "flcir" for method in config.methods for spec in method.recipes):
        changes.append("execution.rounds_per_dispatch=1")
    if name in CBFL:
        changes.append("model.name=tiny_bn")
    return small(name, *changes)


def cohorts(config):
    """Clients a round, of the section and of the methods that change it."""
    own = [method.overrides.get("selection", {}).get("clients_per_round") for method in config.methods]
    return [config.selection.clients_per_round, *(asked for asked in own if asked)]


def unseen(config, seen, key_of):
    """The configuration with those methods alone whose key no file before had."""
    kept = []
    for method, whole in zip(config.methods, methods_of(config), strict=True):
        key = json.dumps(key_of(to_plain(whole)), sort_keys=True)
        if key not in seen:
            seen.add(key)
            kept.append(method)
    return config.model_copy(update={"methods": tuple(kept)})


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
    kind = first["hyperparameters"].get("generator") if first["name"] == "cbfl" else None
    return kind if kind in ("shared", "dcgan") else None


def program_of(method):
    """What decides which program is compiled: numbers are values that it gets, but those of mediators shape it.

    Astraea has no hand in local steps, so one optimizer is enough for it.
    """
    recipes = []
    for spec in method["recipes"]:
        values = spec["hyperparameters"]
        words = {k: v for k, v in values.items() if isinstance(v, bool | str)}
        recipes.append([spec["name"], words, [values.get(key, 1) > 1 for key in ("size", "mediator_epochs")]])
    optimizer = method["training"]["optimizer"]
    steps = [optimizer["name"], optimizer.get("momentum", 0) > 0] if recipes[0][0] != "astraea" else []
    flags = [method["evaluation"][metric] for metric in ("update_diversity", "local_accuracy")]
    return [recipes, steps, flags]


SET_UP: set[str] = {json.dumps(None)}
RAN: set[str] = {json.dumps(None)}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_methods_can_be_set_up(name, small_data):
    config = unseen(small(name), SET_UP, plain_setting_of if name in CBFL else setting_of)
    if not config.methods:
        return
    comparison = set_up(config, small_data)
    assert [method.name for method in comparison.methods] == [method.name for method in config.methods]
    for method, simulation in zip(comparison.methods, comparison.simulations, strict=True):
        assert simulation.federation.num_clients == method.partition.clients
        assert simulation.setting.model.name.startswith(method.model.name)
        assert (np.diff(simulation.federation.offsets) > 0).all() or may_be_empty(method.partition)


def may_be_empty(split):
    """Whether clients may come out without images, as they do in CBFL's code."""
    return split.parameters.get("form") == "cbfl"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_three_rounds_of_a_small_copy(name, small_data):
    config = unseen(tiny(name), RAN, fakes_of if name in CBFL else program_of)
    if not config.methods:
        return
    comparison = set_up(config, small_data)
    for method, simulation in zip(comparison.methods, comparison.simulations, strict=True):
        records = three_rounds(simulation)
        assert [record["round"] for record in records] == [1, 2, 3]
        for record in records:
            assert np.isfinite([record["test_loss"], record["train_loss"]]).all(), method.name
            assert record["bytes_up"] > 0 and record["clients"] > 0
            for metric in ("update_diversity", "local_accuracy"):
                assert (record.get(metric) is not None) == getattr(method.evaluation, metric)


def three_rounds(simulation):
    records, snapshot = [], simulation.init(0)
    while snapshot.round < 3:
        after = simulation.advance(0, snapshot)
        records, snapshot = records + after.records, after.snapshot
    return records


@functools.cache
def _full_partition(name, kept, text):
    labels = np.repeat(np.arange(len(ROWS[name])), np.array(ROWS[name]) - kept)
    return labels, partition.draw(labels, **json.loads(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_partition_exists_at_full_size(name):
    for method in methods_of(load_config(FILES[name])):
        wanted, data, auxiliary = method.partition, method.dataset.name, method.auxiliary
        assert DATASETS[data].num_classes == len(ROWS[data])
        kept = auxiliary.per_class if auxiliary.source == "train" else 0
        labels, parts = _full_partition(data, kept, json.dumps(wanted.drawing, sort_keys=True))
        assert len(parts) == wanted.clients
        assert all(len(rows) for rows in parts) or may_be_empty(wanted)
        rows = np.concatenate(parts)
        if wanted.scheme == "pathological":
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
    if name.startswith("papers/"):
        order = ["Command", "Paper", "Expect", "Time", "Machine"]
        assert [entry for entry in entries[1:] if entry in order] == order


def test_run_folders_do_not_collide():
    names = [load_config(file).name for file in FILES.values()] + [load_sweep(file).name for file in SWEEPS.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", REBAFL)
def test_rebafl_constants(name):
    for method in methods_of(load_config(FILES[name])):
        optimizer, (spec,) = method.training.optimizer, method.recipes
        assert CONSTANTS.get(spec.name, {}).items() <= spec.hyperparameters.items()
        assert method.training.rounds == 200 and method.training.batch_size == 50 and method.training.drop_last
        assert optimizer.learning_rate == {"fashion_mnist": 0.01, "cifar10": 0.02}[method.dataset.name]
        assert optimizer.weight_decay == 5e-4
        plain = spec.name == "scaffold" and spec.hyperparameters["variant"] == "official"
        assert optimizer.parameters["momentum"] == (0.0 if plain else 0.5)
        assert method.training.local_epochs == 5 or "figure9" in name
        if "table3" in name:
            assert method.selection.clients_per_round * 10 == method.partition.clients
            assert method.availability.name == "always"
        else:
            assert method.selection.clients_per_round == method.partition.clients
            assert method.partition.parameters["samples_per_client"] == 1000


def test_rebafl_tables_and_sweeps_are_whole():
    shown = {name: methods_of(load_config(FILES[f"papers/rebafl/{name}.yaml"])) for name in _rebafl_stems()}
    ten = ["fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedrs", "fedbabu", "fedlc", "balanced_softmax", "rebafl"]
    for name in shown:
        if name.startswith(("table1", "figure3", "figures4_5", "figure10")):
            assert list(dict.fromkeys(method.recipes[0].name for method in shown[name])) == ten
    for clients in (100, 200, 500):
        table = shown[f"table3_c10_m{clients}"]
        assert [n for n in ten if n != "fedlc"] == list(dict.fromkeys(method.recipes[0].name for method in table))
        assert table[0].partition.clients == clients
    assert {method.training.local_epochs for method in shown["figure9_c10"]} == {1, 2, 5, 10, 20}
    sweep = [tuple(m.recipes[0].hyperparameters[key] for key in ("epsilon", "mu")) for m in shown["figure8_c10"]]
    assert {pair for pair in sweep if pair[1] == 0} == {(e, 0.0) for e in (1e-4, 1e-3, 1e-2, 0.1, 0.2)}
    assert {mu for epsilon, mu in sweep if epsilon == 0.01} == {0.0, 0.1, 0.5, 1.0, 5.0}
    for period in (2, 5, 10, 20):
        assert shown[f"figure10_c10_s{period}"][0].availability.parameters == {"p": 0.5, "period": period}


def _rebafl_stems():
    return [Path(name).stem for name in REBAFL]


@pytest.mark.parametrize("name", IWDS)
def test_iwds_constants(name):
    for method in methods_of(load_config(FILES[name])):
        first, sampler = method.recipes
        assert sampler.name == "iwds"
        assert {"beta_0": 0.9999, "beta_m": 0.8, "rho": 0.992}.items() <= sampler.hyperparameters.items()
        assert first.name != "fedprox" or first.hyperparameters["mu"] == 0.1
        assert method.training.optimizer.parameters["momentum"] == (0.9 if first.name == "fednova" else 0.0)
        assert (method.partition.clients, method.selection.clients_per_round) == (10, 5)
        assert method.training.optimizer.learning_rate == 0.01 and method.training.batch_size == 32
        assert method.model.name == {"fashion_mnist": "fedavg_cnn", "cifar10": "vgg9"}[method.dataset.name]
        scheme = {"lda": "dirichlet", "llt": "long_tail"}[Path(name).stem.rpartition("_")[2][:3]]
        assert method.partition.scheme == scheme
        assert method.partition.parameters["alpha"] == float(Path(name).stem.rpartition("_")[2][3:])


@pytest.mark.parametrize("name", ASTRAEA)
def test_astraea_constants(name):
    for method in methods_of(load_config(FILES[name])):
        (spec,), data, training = method.recipes, method.dataset.name, method.training
        values = spec.hyperparameters
        assert spec.name in ("fedavg", "astraea")
        assert spec.name == "fedavg" or (values["mode"], values["resched"]) == ("floor", "per_round")
        assert spec.name == "fedavg" or (values["max_copies"] is None) == (values["alpha"] != 2)
        sizes = {"emnist_astraea": 500, "labels_47": 500, "fashion_mnist": 100, "cifar10": 100, "cinic10": 100}
        assert method.partition.clients == sizes[data]
        scheme = "normal_density" if data in ("cifar10", "cinic10") else "astraea"
        assert method.partition.scheme == scheme
        if data == "labels_47":
            continue
        assert training.batch_size == (50 if scheme == "normal_density" else 20) and not training.drop_last
        assert (training.optimizer.name, training.optimizer.learning_rate) == ("adam", 0.001)
        assert training.optimizer.parameters["eps"] == 1e-7
        assert method.model.name == ("keras_cifar10" if scheme == "normal_density" else "astraea_cnn")


def _astraea(stem):
    return methods_of(load_config(FILES[f"papers/astraea/{stem}.yaml"]))


def _of(method, *keys):
    return tuple(method.recipes[0].hyperparameters[key] for key in keys)


def test_astraea_figures_and_tables_are_whole():
    both = [f"{figure}_{data}" for figure in _stems("1 4a 4b 6 8 9", "table3") for data in ("emnist", "fmnist")]
    rest = ["figure5a_cinic10", "figure5b_cinic10", "figure5_cifar10", "fmnist_ltrf", "kld"]
    assert sorted(Path(name).stem for name in ASTRAEA) == sorted(both + rest)
    for data, totals, cohort in (("emnist", [117_500] * 4 + [230_752], 25), ("fmnist", [9_750] * 4 + [19_500], 10)):
        sets = _astraea(f"figure1_{data}")
        assert [m.partition.parameters["variant"] for m in sets] == ["BAL1", "BAL2", "INS", "LTRF1", "LTRF2"]
        assert [m.partition.parameters["total"] for m in sets] == totals
        assert {(m.selection.clients_per_round, m.training.local_epochs) for m in sets} == {(cohort, 10)}


def _stems(figures, *more):
    return [*(f"figure{number}" for number in figures.split()), *more]


@pytest.mark.parametrize(("data", "cohort", "size"), [("emnist", 50, 10), ("fmnist", 20, 5)])
def test_astraea_methods(data, cohort, size):
    for stem, local_epochs, shape in (("figure4a", 5, (1, 1)), ("figure4b", 1, (size, 2)), ("figure9", 1, (size, 2))):
        fedavg, *others = _astraea(f"{stem}_{data}")
        assert fedavg.recipes[0].name == "fedavg" and fedavg.training.local_epochs == 5
        assert {_of(m, "size", "mediator_epochs") for m in others} == {shape}
        assert {m.training.local_epochs for m in others} == {local_epochs}
        assert {m.selection.clients_per_round for m in (fedavg, *others)} == {cohort}
        alphas = [0.33, 0.67, 0.83, 1.0]
        wanted = {"figure4a": [*alphas, 2.0], "figure4b": [None, *alphas], "figure9": [None, *alphas, 2.0]}[stem]
        assert [_of(m, "alpha")[0] for m in others] == wanted
    pairs = [(m.selection.clients_per_round, *_of(m, "size", "mediator_epochs")) for m in _astraea(f"figure6_{data}")]
    sizes = [size // 2, size, 2 * size]
    assert pairs == [(clients, gamma, 2) for clients in (cohort, 2 * cohort) for gamma in sizes]
    epochs = [(m.training.local_epochs, *_of(m, "mediator_epochs", "size")) for m in _astraea(f"figure8_{data}")]
    assert epochs == [(local, passes, size) for local in (1, 5, 10) for passes in (1, 2, 3)]
    fedavg, *mediated = _astraea(f"table3_{data}")
    assert (fedavg.selection.clients_per_round, fedavg.training.local_epochs) == (cohort // 5 if size == 10 else 5, 20)
    assert [_of(m, "size", "mediator_epochs", "alpha") for m in mediated] == [(size, n, 0.67) for n in (1, 2, 3, 4)]
    assert {(m.training.local_epochs, m.evaluation.traffic, m.evaluation.every) for m in mediated} == {(1, "paper", 1)}


def test_astraea_on_colour_images():
    alone, together, here = (_astraea(f"figure5{stem}") for stem in ("a_cinic10", "b_cinic10", "_cifar10"))
    for methods in (alone, together, here):
        assert methods[0].recipes[0].name == "fedavg"
        assert {(m.selection.clients_per_round, m.training.local_epochs) for m in methods} == {(50, 1)}
    assert {_of(m, "size", "mediator_epochs") for m in alone[1:]} == {(1, 1)}
    assert {_of(m, "size", "mediator_epochs") for m in together[1:]} == {(10, 2)}
    assert {(10, 2, None), (10, 2, 0.67), (1, 1, 1.0)} <= {_of(m, "size", "mediator_epochs", "alpha") for m in here[1:]}
    assert {(alpha,) for alpha in (None, 0.67)} <= {_of(m, "alpha") for m in together[1:]}
    assert {(1.0,), (2.0,)} <= {_of(m, "alpha") for m in alone[1:]}


@pytest.mark.parametrize("name", FLCIR)
def test_flcir_constants(name):
    for method in methods_of(load_config(FILES[name])):
        (spec, images), training = method.recipes, method.training
        assert (images.name, images.hyperparameters) == ("crop_flip", {"pad": 4, "flip": True})
        assert spec.name == "flcir" and spec.hyperparameters["rho"] == 0.99
        assert (training.local_epochs, training.batches_per_epoch, training.batch_size) == (5, 10, 10)
        assert (training.optimizer.learning_rate, training.optimizer.weight_decay) == (0.1, 5e-4)
        assert (method.auxiliary.per_class, method.auxiliary.source) == (32, "train")
        assert (method.partition.clients, method.model.name, training.rounds) == (100, "flcir_cnn", 3150)


def test_flcir_figures_are_whole():
    assert sorted(Path(name).stem for name in FLCIR) == ["cifar10", "figure3_cifar10", "figure4_cifar10"]
    schemes, numbers, alphas = (methods_of(load_config(FILES[name])) for name in FLCIR)
    assert [_of(m, "choose")[0] for m in schemes] == ["random", "greedy", "cucb", "random"]
    assert [m.partition.scheme for m in schemes] == ["flcir_realworld"] * 3 + ["iid"]
    assert [m.selection.clients_per_round for m in numbers] == [10, 20, 30, 40, 50]
    assert {_of(m, "choose", "alpha") for m in numbers} == {("cucb", 0.2)}
    assert [_of(m, "choose", "alpha") for m in alphas] == [("cucb", a) for a in (0.0125, 0.05, 0.2, 0.8, 3.2)]
    assert {m.selection.clients_per_round for m in (*schemes, *alphas)} == {20}


def _cbfl(stem):
    return methods_of(load_config(FILES[f"papers/cbfl/{stem}.yaml"]))


BIG = [name for name in CBFL if "small" not in name]
SMALL = [name for name in CBFL if "small" in name]
SHORT = {"cifar10": "c10", "cifar100": "c100", "cinic10": "cinic10"}
CODE = {"teacher": "snapshot", "generator_rate": 0.003}
"""The constants of the authors' code where they aren't the paper's, with those of each data set."""
CODE_OF = {"cifar10": {"interval": 3, "iterations": 1000, "gamma": 3.0}, "cifar100": {"interval": 7}}
VARIED = {
    "table4_c10": ("labels", ["uniform", "balanced"]),
    "table6_cinic10": ("rarest", [2, 4, 6, 8, None]),
    "table7_c10": ("learn", ["cross_entropy", "distillation"]),
    "table8_c100": ("weight", [0.01, 0.1, 1.0, 5.0, 10.0]),
    "table9_c100": ("attention", [0.0, 200.0, 400.0, 600.0, 800.0]),
    "figure9_c10": ("warm_up", list(range(0, 1000, 100))),
} | {f"table5_{data}": ("generator", ["gaussian", "dcgan", "shared"]) for data in SHORT.values()}
"""Tables and a figure about CBFL itself: what is varied, and its values in order."""


def _stem(name):
    return Path(name).stem


@pytest.mark.parametrize("name", BIG)
def test_cbfl_training(name):
    for method in methods_of(load_config(FILES[name])):
        (spec, images), training, optimizer = method.recipes, method.training, method.training.optimizer
        natural = method.dataset.name == "inaturalist2019"
        assert (images.name, images.hyperparameters) == ("crop_flip", {"pad": 28 if natural else 4, "flip": True})
        assert (training.local_epochs, training.batch_size, training.drop_last) == (5, 50, False)
        assert training.rounds == (2000 if "table12" in name else 1000)
        assert (training.batches_per_epoch, training.batch_statistics, training.lone_rows) == (None, "average", "auto")
        slow = spec.name in ("scaffold", "fednova")
        assert (optimizer.learning_rate, optimizer.decay) == ((0.01, 1.0) if slow else (0.1, 0.996))
        assert (optimizer.name, optimizer.parameters["momentum"], optimizer.weight_decay) == ("sgd", 0.9, 1e-4)
        assert method.evaluation.every == 1 and method.availability.name == method.delivery.name == "always"
        if spec.name != "cbfl":
            wanted = {"fedprox": {"mu": 0.001}, "scaffold": {"variant": "cbfl_code"}, "fednova": {"mu": 0.0}}
            assert wanted.get(spec.name, {}).items() <= spec.hyperparameters.items()


@pytest.mark.parametrize("name", BIG)
def test_cbfl_constants(name):
    varied = VARIED.get(_stem(name), ("", []))[0]
    for method in methods_of(load_config(FILES[name])):
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
    (method, *others), stem = methods_of(load_config(FILES[name])), _stem(name)
    assert all((other.partition, other.selection) == (method.partition, method.selection) for other in others)
    natural, few = "inaturalist" in stem, "table11" in stem
    clients = int(stem.rpartition("_k")[2]) if "_k" in stem else 2295 if natural else 100
    assert method.partition.clients == clients
    assert method.selection.clients_per_round == (clients if few else clients // 10)
    assert (method.partition.scheme, method.partition.seed) == ("dirichlet", 7777)
    alpha = float(stem.removesuffix("_code").rpartition("_a")[2]) if stem[0] == "c" else 0.1
    assert method.partition.parameters["alpha"] == alpha
    assert method.partition.parameters["form"] == ("balanced" if natural else "cbfl")


@pytest.mark.parametrize("stem", VARIED)
def test_cbfl_ablations_are_whole(stem):
    key, values = VARIED[stem]
    fedavg, *arms = _cbfl(stem)
    if key in ("weight", "attention", "warm_up"):
        arms = [fedavg, *arms]
    else:
        assert fedavg.recipes[0].name == "fedavg"
    assert [_of(arm, key)[0] for arm in arms] == values
    if key == "rarest":
        assert [_of(arm, "labels")[0] for arm in arms] == ["rarest"] * 4 + ["balanced"]
    wanted = {"table5": "mobilenetv2"}.get(stem[:6], "resnet20")
    assert {(arm.model.name, SHORT[arm.dataset.name]) for arm in arms} == {(wanted, stem.rpartition("_")[2])}
    assert {arm.evaluation.local_test_images for arm in (fedavg, *arms)} == {1_000 * (stem == "table7_c10")}


def test_cbfl_comparisons_are_whole():
    four = ["fedavg", "fedprox", "fednova", "cbfl"]
    five = ["fedavg", "fedprox", "scaffold", "fednova", "cbfl"]
    wanted = {f"{data}_{net}_a0.1": five for data in SHORT.values() for net in ("resnet20", "mobilenetv2")}
    wanted |= {f"{stem}_code": ["fedavg", "cbfl"] for stem in wanted if "cinic10" not in stem}
    wanted |= {f"{data}_resnet20_a{alpha}": four for data in SHORT.values() for alpha in (0.07, 0.05, 0.03, 0.01)}
    wanted |= {f"inaturalist_{net}": four for net in ("resnet18", "mobilenetv2")}
    wanted |= {f"table10_c10_k{clients}": four for clients in (150, 200, 250, 300)}
    wanted |= {f"table11_c10_k{clients}": ["fedavg", "fedprox", "fednova", "scaffold", "cbfl"] for clients in (5, 16)}
    wanted |= {f"table12_c100_{net}": four for net in ("resnet20", "mobilenetv2")} | {"table13_c100": four}
    assert sorted(map(_stem, BIG)) == sorted([*wanted, *VARIED])
    for stem, recipes in wanted.items():
        methods = _cbfl(stem)
        assert [method.recipes[0].name for method in methods] == recipes
        net = next((net for net in ("mobilenetv2", "resnet18") if net in stem), "resnet20")
        assert {method.model.name for method in methods} == {net}
        short = {SHORT.get(method.dataset.name, "inaturalist") for method in methods}
        assert len(short) == 1 and short < set(stem.split("_"))
        locals_too = net != "resnet18" and "inaturalist" not in stem and stem.endswith("_a0.1")  # Figure 6
        assert {method.evaluation.local_test_images for method in methods} == {1_000 * locals_too}
    targets = {stem: _cbfl(stem)[0].evaluation.target_accuracy for stem in wanted}
    found = {stem: target for stem, target in targets.items() if target is not None}
    assert found == {"table12_c100_resnet20": 0.6, "table12_c100_mobilenetv2": 0.66}


@pytest.mark.parametrize("name", SMALL)
def test_small_cbfl_files_differ_in_their_methods_alone(name):
    reference, here = (FILES[file].read_text() for file in ("papers/cbfl/small_cifar10.yaml", name))
    common, found = (text[text.index("\ndataset:") : text.index("\nmethods:")] for text in (reference, here))
    assert common == found
    large, (key, values) = next((item for item in VARIED.items() if item[0].split("_")[0] in name), (None, ("", [])))
    arms = [method for method in methods_of(load_config(FILES[name])) if method.recipes[0].name == "cbfl"]
    ours = next(arm for arm in _cbfl("small_cifar10") if arm.name == "cbfl").recipes[0].hyperparameters
    free = {key, "labels", "dcgan_iterations", "dcgan_pool"}
    if large is not None:
        for arm in arms:
            assert {k: v for k, v in arm.recipes[0].hyperparameters.items() if k not in free} == {
                k: v for k, v in ours.items() if k not in free
            }
    if key not in ("", "warm_up"):
        assert [_of(arm, key)[0] for arm in arms] == values
    if key == "warm_up":
        assert [_of(arm, key)[0] for arm in arms] == list(range(0, 101, 20))
