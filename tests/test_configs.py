"""The configurations that come with the package: each loads, can be set up, and runs on a small copy of its data."""

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_bal.config import load_config
from fedjax_bal.config.sections import plain
from fedjax_bal.data import DATASETS, partition
from fedjax_bal.data.cifar import LAYOUTS
from fedjax_bal.experiment.setup import set_up

ROOT = Path(__file__).parents[1] / "configs"
FILES = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.rglob("*.yaml"))}
REBAFL = [name for name in FILES if name.startswith("papers/rebafl/")]
IWDS = [name for name in FILES if name.startswith("papers/iwds/")]
ASTRAEA = [name for name in FILES if name.startswith("papers/astraea/")]
FLCIR = [name for name in FILES if name.startswith("papers/flcir/")]

ROWS = {name: [rows] * 10 for name, rows in (("fashion_mnist", 6000), ("cifar10", 5000), ("fashion_mnist_small", 1000))}
ROWS |= {"cinic10": [9000] * 10, "labels_47": [16_000] * 47}
ROWS["emnist_astraea"] = [34_000] * 10 + np.linspace(2_500, 17_000, 37).astype(int).tolist()
"""Training images of each class; those of EMNIST ByMerge are about as uneven as the real ones."""

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

    CIFAR-10 with 2,500 + 500 of them, CINIC-10 with 600 + 10, EMNIST with 4,700 for training as of ByMerge and 47 for
    testing as of Balanced.
    """
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    layout = LAYOUTS["cifar10"]
    for file in (*layout.train, layout.test):
        records = rng.integers(0, 256, (500, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(500) % 10
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
    return load_config(FILES[name], changes)


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
    return small(name, *changes)


def cohorts(config):
    """Clients a round, of the section and of the methods that change it."""
    own = [method.overrides.get("selection", {}).get("clients_per_round") for method in config.methods]
    return [config.selection.clients_per_round, *(asked for asked in own if asked)]


def unseen(config, seen, key_of):
    """The configuration with those methods alone whose key no file before had."""
    kept = []
    for method, whole in zip(config.methods, methods_of(config), strict=True):
        key = json.dumps(key_of(plain(whole)), sort_keys=True)
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


SET_UP: set[str] = set()
RAN: set[str] = set()


@pytest.mark.parametrize("name", FILES)
def test_methods_can_be_set_up(name, small_data):
    config = unseen(small(name), SET_UP, setting_of)
    if not config.methods:
        return
    comparison = set_up(config, small_data)
    assert [method.name for method in comparison.methods] == [method.name for method in config.methods]
    for method, simulation in zip(comparison.methods, comparison.simulations, strict=True):
        assert simulation.federation.num_clients == method.partition.clients
        assert simulation.setting.model.name.startswith(method.model.name)
        assert (np.diff(simulation.federation.offsets) > 0).all()


@pytest.mark.parametrize("name", FILES)
def test_three_rounds_of_a_small_copy(name, small_data):
    config = unseen(tiny(name), RAN, program_of)
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
    records, progress = [], simulation.init(0)
    while progress.round < 3:
        after = simulation.advance(0, progress)
        records, progress = records + after.records, after.progress
    return records


@functools.cache
def _full_partition(name, kept, text):
    wanted = json.loads(text)
    labels = np.repeat(np.arange(len(ROWS[name])), np.array(ROWS[name]) - kept)
    scheme, clients, seed = (wanted.pop(key) for key in ("scheme", "clients", "seed"))
    parts = partition.SCHEMES[scheme](np.random.default_rng(seed), labels, clients, **wanted)
    return labels, parts


@pytest.mark.parametrize("name", FILES)
def test_the_partition_exists_at_full_size(name):
    for method in methods_of(load_config(FILES[name])):
        wanted, data, auxiliary = method.partition, method.dataset.name, method.auxiliary
        assert DATASETS[data].num_classes == len(ROWS[data])
        kept = auxiliary.per_class if auxiliary.source == "train" else 0
        labels, parts = _full_partition(data, kept, json.dumps(wanted.model_dump(mode="json")))
        assert len(parts) == wanted.clients
        assert all(len(rows) for rows in parts)
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
        else:
            np.testing.assert_array_equal(np.sort(rows), np.arange(len(labels)))


@pytest.mark.parametrize("name", FILES)
def test_the_header_says_how_to_run_the_file_and_what_to_expect(name):
    header = FILES[name].read_text().partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") and len(line) <= 120 for line in header)
    entries = [line.split()[1] for line in header if line.startswith("# ") and line[2] != " " and len(line) > 11]
    assert {"Command", "Expect", "Time", "Machine"} <= set(entries)
    assert any(f"fedjax-bal run configs/{name}" in line for line in header)
    if name.startswith("papers/"):
        order = ["Command", "Paper", "Expect", "Time", "Machine"]
        assert [entry for entry in entries[1:] if entry in order] == order


def test_run_folders_do_not_collide():
    names = [load_config(file).name for file in FILES.values()]
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
