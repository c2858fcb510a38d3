"""The files that a configuration names: what a run records of them, and what it refuses."""

import hashlib
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import small_run
import small_sweep
from fedjax_bal.lab.recorder import Recorder

from fedjax_bal import export_model, models
from fedjax_bal.config import Config, load_config, resolved_yaml, run_digest
from fedjax_bal.lab import RunFolder, SharedInputs, SweepFolder, load_sweep, set_up
from fedjax_bal.lab.named_files import content_digest, named_files
from fedjax_bal.lab.summary import Cost
from fedjax_bal.lab.verification import verify
from fedjax_bal.report.markup import reproduction

MLP = models.build("mlp", 10, (28, 28, 1), hidden=[64])


def write_weights(file: Path, seed: int = 3) -> str:
    """Writes weights to a file; returns its SHA-256, as `sha256sum` prints it."""
    export_model(file, MLP, MLP.init(jax.random.key(seed)))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_data(file: Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % 3
    images = rng.integers(0, 256, (60, 4, 4), np.uint8)
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)


@pytest.fixture
def started(tmp_path):
    """A run that has begun, with weights for all methods and others for one; its configuration and folder."""
    digests = [write_weights(tmp_path / "w.npz"), write_weights(tmp_path / "mine/w.npz", 4)]
    methods = "methods=[fedavg, {recipe: scaffold, model: {weights: mine/w.npz}}]"
    config = small_run.config(tmp_path, f"model.weights={tmp_path}/w.npz", methods.replace("mine", f"{tmp_path}/mine"))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    begin(config, folder, fresh=True)
    return config, folder, digests


@pytest.fixture(autouse=True)
def folders(tmp_path):
    (tmp_path / "mine").mkdir()


def begin(config: Config, folder: RunFolder, data_dir: Path | None = None, **options) -> Recorder:
    return Recorder(config, folder, print, SharedInputs(data_dir, 1), **options)


def reproduced(folder: RunFolder, empty: Path) -> Config:
    """The configuration of a page's command, with the copies of the run's folder in an empty one."""
    text = _shown(folder)
    shutil.copytree(folder.path / "files", empty / "files")
    (empty / "config.yaml").write_text(text)
    return load_config(empty / "config.yaml")


def _shown(folder: RunFolder) -> str:
    folder.write_summary(
        {
            **dict.fromkeys(("device", "client_updates_per_s", "samples_per_s", "target_accuracy")),
            "versions": {},
            "command": {"plugins": [], "data_dir": None},
            "cost": Cost()._asdict(),
            **{key: [] for key in ("partitions", "batches", "runs", "class_names")},
            "name": "small",
            "finished": False,
            "compile_s": 0.0,
            "wall_s": 0.0,
        }
    )
    (folder.path / "metrics.jsonl").touch()
    return folder.read().config_text


def test_a_run_records_its_weights_and_is_repeated_from_copies(started, tmp_path):
    config, folder, digests = started
    paths = [f"{tmp_path}/w.npz", f"{tmp_path}/mine/w.npz"]
    assert named_files(config) == dict(zip(["model.weights", "methods.1.model.weights"], paths, strict=True))
    assert folder.recorded_files() == dict(zip(paths, digests, strict=True))
    copies = {f"files/{digest[:8]}/w.npz" for digest in digests}
    assert copies < {*folder.files.covered_names()}

    page = reproduction("run", "config.yaml", folder.read_configuration().__dict__, None, _shown(folder))[1]
    assert all(f"<dt>files/{digest[:8]}/w.npz</dt><dd>{digest}</dd>" in page for digest in digests)
    assert "holds the configuration below and a copy of the folder files." in page and str(tmp_path) not in page

    for path in paths:
        Path(path).unlink()
    again = reproduced(folder, tmp_path / "empty")
    assert run_digest(again) == run_digest(folder.read_configuration())
    comparison = set_up(again, SharedInputs(devices=1))
    for simulation, seed in zip(comparison.simulations, (3, 4), strict=True):
        start = simulation.setting.model.init(jax.random.key(0))
        jax.tree.map(np.testing.assert_array_equal, start, MLP.init(jax.random.key(seed)))


@pytest.mark.slow
def test_a_run_goes_on_with_its_weights_alone(started, tmp_path):
    config, folder, _ = started
    name, key = "mine/w.npz", "methods.1.model.weights"
    assert begin(config, folder).config.files == folder.recorded_files()
    (tmp_path / "config.yaml").write_bytes((folder.path / "config.yaml").read_bytes())
    set_up(load_config(tmp_path / "config.yaml"), SharedInputs(devices=1))

    for seed in (3, 5):  # not even the other ones of the run
        other = write_weights(tmp_path / name, seed)
        with pytest.raises(ValueError, match=f"^{key}: .*{name} has the SHA-256 {other}, recorded was .*put back the"):
            begin(config, folder)
        with pytest.raises(ValueError, match=f"^{key}: .*{name} has the SHA-256 {other}, .*leave the key files out"):
            set_up(load_config(tmp_path / "config.yaml"), SharedInputs(devices=1))
    set_up(load_config(tmp_path / "config.yaml", ["files={}"]), SharedInputs(devices=1))
    begin(config, folder, fresh=True)  # starts over
    assert folder.recorded_files()[str(tmp_path / name)] == other


def test_data_that_a_configuration_names_are_recorded_but_not_copied(tmp_path):
    write_data(tmp_path / "mine.npz")
    changes = ["dataset={name: npz, path: mine.npz}", "partition={scheme: iid, clients: 4}", "methods=[fedavg]"]
    config = small_run.config(tmp_path, *changes)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    begin(config, folder, fresh=True, data_dir=tmp_path)
    assert folder.recorded_files() == {f"{tmp_path}/mine.npz": content_digest(f"{tmp_path}/mine.npz")}
    assert not (folder.path / "files").exists()
    again = load_config(folder.path / "config.yaml")
    set_up(again, SharedInputs(tmp_path, 1))

    write_data(tmp_path / "mine.npz", 1)
    for attempt in (lambda: set_up(again, SharedInputs(tmp_path, 1)), lambda: begin(config, folder, data_dir=tmp_path)):
        with pytest.raises(ValueError, match="dataset.path: .*mine.npz has the SHA-256"):
            attempt()
    # Another data set has no file.
    small = ["dataset=fashion_mnist_small", "partition={scheme: iid, clients: 4}"]
    set_up(load_config(folder.path / "config.yaml", small), SharedInputs(devices=1))


def test_the_test_file_of_a_table_is_recorded_too(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    rows = "".join(f"{row / 4},{row % 3}\n" for row in range(60))
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text(f"a,y\n{rows}")
    table = "{name: csv, path: train.csv, test: test.csv, label: y}"
    changes = ["partition={scheme: iid, clients: 4}", "methods=[fedavg]"]
    config = small_run.config(tmp_path, f"dataset={table}", *changes)
    named = named_files(config, folder)
    assert named == {"dataset.path": f"{folder}/train.csv", "dataset.test": f"{folder}/test.csv"}
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    begin(config, run, fresh=True, data_dir=folder)
    again = load_config(run.path / "config.yaml")
    (folder / "test.csv").write_text(f"a,y\n{rows}9,1\n")
    for attempt in (lambda: set_up(again, SharedInputs(folder, 1)), lambda: begin(config, run, data_dir=folder)):
        with pytest.raises(ValueError, match="dataset.test: .*test.csv has the SHA-256"):
            attempt()
    assert not (run.path / "files").exists()
    share = small_run.config(tmp_path, f"dataset={table.replace('test.csv', '0.2')}", *changes)
    assert set(named_files(share, folder)) == {"dataset.path"}


def test_a_folder_is_its_files_and_their_names(tmp_path):
    folder = tmp_path / "mine"
    (folder / "train").mkdir()
    (folder / "train/a.png").write_bytes(b"1")
    first = content_digest(str(folder))
    (folder / ".DS_Store").write_bytes(b"2")
    assert content_digest(str(folder)) == first
    (folder / "train/a.png").rename(folder / "train/b.png")
    assert content_digest(str(folder)) != first


def test_runs_without_such_files_record_nothing():
    assert "files" not in resolved_yaml(load_config(None)).split("\n")
    assert named_files(load_config(None)) == {}


@pytest.mark.slow
def test_a_sweep_over_weights_records_them_all(tmp_path):
    digests = [write_weights(tmp_path / name, seed) for seed, name in enumerate(("a.npz", "b.npz"))]
    config = tmp_path / "swept.yaml"
    axes = "sweep: [{model.weights: [a.npz, b.npz]}]"
    config.write_text(small_run.TEXT.split("methods:")[0] + f"methods: [fedavg]\nseeds: [0]\n{axes}\n")
    folder = SweepFolder(tmp_path / "sweep")

    session = lambda path, place: small_sweep.carry(load_sweep(path), place.path)[0]
    rows = session(config, folder)
    assert [row["status"] for row in rows] == ["done", "done"]
    assert [*folder.recorded_files().values()] == digests
    assert not any((point.path / "files").exists() for point in folder.points())
    assert not [finding for finding in verify(folder.path) if finding.damage]
    session(config, folder)

    text = folder.read_sheet()[1]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/sweep.yaml").write_text(text)
    shutil.copytree(folder.path / "files", tmp_path / "empty/files")
    accuracy = [row["final_accuracy"] for row in rows]
    again = session(tmp_path / "empty/sweep.yaml", SweepFolder(tmp_path / "again"))
    assert [row["final_accuracy"] for row in again] == accuracy

    write_weights(tmp_path / "b.npz", 5)
    with pytest.raises(ValueError, match=r"model.weights: .*b.npz has the SHA-256 .*another folder with --out"):
        session(config, folder)
