"""The configurations that come with the package: each loads, can be set up, and runs on a small copy of its data."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from fedjax_bal.config import load_config
from fedjax_bal.config.sections import plain
from fedjax_bal.data import DATASETS, partition
from fedjax_bal.data.cifar import LAYOUTS
from fedjax_bal.experiment.setup import set_up

ROOT = Path(__file__).parents[1] / "configs"
FILES = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.rglob("*.yaml"))}
REBAFL = [name for name in FILES if name.startswith("papers/rebafl/")]
IWDS = [name for name in FILES if name.startswith("papers/iwds/")]

ROWS = {"fashion_mnist": 6000, "cifar10": 5000, "fashion_mnist_small": 1000}
"""Training images of each class."""

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
    """A folder with a balanced CIFAR-10 of 2,500 + 500 random images in the official format."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    layout = LAYOUTS["cifar10"]
    for file in (*layout.train, layout.test):
        records = rng.integers(0, 256, (500, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(500) % 10
        (folder / file).write_bytes(records.tobytes())
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
    if "samples_per_client" in config.partition.parameters:
        changes.append("partition.samples_per_client=60")
    return load_config(FILES[name], changes)


def tiny(name):
    """A small configuration whose programs are small: ten clients, three rounds, one epoch, a perceptron."""
    config = load_config(FILES[name])
    changes = ["partition.clients=10", f"selection.clients_per_round={min(5, config.selection.clients_per_round)}"]
    changes += ["training.rounds=3", "training.local_epochs=1", "model.name=mlp"]
    changes += [
        "training.batch_size=20",
        "training.drop_last=true",
        "execution.rounds_per_dispatch=3",
        "execution.devices=1",
    ]
    for index, method in enumerate(config.methods):
        if "local_epochs" in method.overrides.get("training", {}):
            changes.append(f"methods.{index}.training.local_epochs=1")
    return small(name, *changes)


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
    """All but who is there and how it is tested and executed."""
    return [method[part] for part in ("recipes", "dataset", "auxiliary", "partition", "model", "training")]


def program_of(method):
    """What decides which program is compiled: numbers are values that it gets."""
    recipes = [
        (spec["name"], {k: v for k, v in spec["hyperparameters"].items() if isinstance(v, bool | str)})
        for spec in method["recipes"]
    ]
    optimizer = method["training"]["optimizer"]
    flags = [method["evaluation"][metric] for metric in ("update_diversity", "local_accuracy")]
    return [recipes, optimizer["name"], optimizer["momentum"] > 0, flags]


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
        records = simulation.advance(0, simulation.init(0)).records
        assert [record["round"] for record in records] == [1, 2, 3]
        for record in records:
            assert np.isfinite([record["test_loss"], record["train_loss"]]).all(), method.name
            assert record["bytes_up"] > 0 and record["clients"] > 0
            for metric in ("update_diversity", "local_accuracy"):
                assert (record.get(metric) is not None) == getattr(method.evaluation, metric)


@functools.cache
def _full_partition(rows, text):
    wanted = json.loads(text)
    labels = np.repeat(np.arange(10), rows)
    scheme, clients, seed = (wanted.pop(key) for key in ("scheme", "clients", "seed"))
    parts = partition.SCHEMES[scheme](np.random.default_rng(seed), labels, clients, **wanted)
    return labels, parts


@pytest.mark.parametrize("name", FILES)
def test_the_partition_exists_at_full_size(name):
    for method in methods_of(load_config(FILES[name])):
        wanted = method.partition
        assert DATASETS[method.dataset.name].num_classes == 10
        labels, parts = _full_partition(ROWS[method.dataset.name], json.dumps(wanted.model_dump(mode="json")))
        assert len(parts) == wanted.clients
        assert all(len(rows) for rows in parts)
        if wanted.scheme == "pathological":
            cycle = np.resize(wanted.parameters["classes_per_client"], wanted.clients)
            assert [len(np.unique(labels[rows])) for rows in parts] == cycle.tolist()
            assert {len(rows) for rows in parts} == {wanted.parameters["samples_per_client"] or len(labels) // 50}
        else:
            rows = np.concatenate(parts)
            np.testing.assert_array_equal(np.sort(rows), np.arange(len(labels)))


@pytest.mark.parametrize("name", FILES)
def test_the_header_says_how_to_run_the_file_and_what_to_expect(name):
    header = FILES[name].read_text().partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") and len(line) <= 120 for line in header)
    entries = [line.split()[1] for line in header if line.startswith("# ") and line[2] != " " and len(line) > 11]
    assert {"Command", "Expect", "Time", "Machine"} <= set(entries)
    assert any(f"fedjax-bal run configs/{name}" in line for line in header)


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
