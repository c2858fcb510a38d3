"""`fedjax-bal data list | prepare | describe`: what a user sees, and what is written."""

import errno
import gzip
import os
import re
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.data import DATASETS, DataError, inventory, load, partition
from fedjax_bal.data.inventory import inventory_digest, prepare, prepared_status

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@pytest.fixture
def idx(tmp_path):
    """A folder with the four idx files of a small mnist, and their arrays."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), np.arange(40, dtype=np.uint8) % 7]
    arrays += [arrays[0][:5], arrays[1][:5]]
    (tmp_path / "mnist").mkdir()
    for name, array in zip(NAMES, arrays, strict=True):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
        (tmp_path / "mnist" / f"{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return tmp_path, arrays


def invoke(*arguments):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result


def test_prepare_writes_through_no_link_and_several_at_once_leave_a_whole_file(idx, tmp_path_factory):
    folder, outside = idx[0], tmp_path_factory.mktemp("outside")
    (outside / "mnist.npz").write_text("mine")
    (folder / "fedjax_bal").symlink_to(outside)
    result = invoke("prepare", "mnist", "--data-dir", folder)
    assert result.exit_code == 2 and "fedjax_bal is a link" in result.output
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("mnist.npz", "mine")]
    (folder / "fedjax_bal").unlink()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: prepare("mnist", folder), range(16)))
    assert [file.name for file in (folder / "fedjax_bal").iterdir()] == ["mnist.npz"]
    np.testing.assert_array_equal(load("mnist", folder).train_images[..., 0], idx[1][0])


def test_prepare_says_what_it_found_and_writes_what_is_loaded(idx):
    folder, (images, labels, *_) = idx
    result = invoke("prepare", "mnist", "--data-dir", folder)
    assert result.exit_code == 0, result.output
    for line in (
        f"mnist: official files in {folder}/mnist",
        "train 40 rows of 28x28x1 images, 0.0 MiB; 5 to 6 in each of 7 classes",
        "test 5 rows of 28x28x1 images, 0.0 MiB; 1 in each of 5 classes",
        "4 6 1",
        "5 5 0",
        f"prepared: {folder}/fedjax_bal/mnist.npz",
    ):
        assert line in " ".join(result.output.split())
    assert [path.name for path in (folder / "fedjax_bal").iterdir()] == ["mnist.npz"]
    first = load("mnist", folder)
    assert inventory_digest(first) in result.output
    np.testing.assert_array_equal(first.train_images[..., 0], images)
    np.testing.assert_array_equal(first.train_labels, labels)
    assert first.class_names == DATASETS["mnist"].class_names and first.train_labels.dtype == np.int32


def test_it_is_passed_over_once_its_files_have_changed(idx):
    folder, _ = idx
    prepare("mnist", folder)
    assert prepared_status("mnist", folder).endswith("/mnist, prepared")
    file = folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(file.read_bytes()))
    content[-1] = 9
    before = file.stat()
    file.write_bytes(gzip.compress(bytes(content)))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load("mnist", folder).test_labels[-1] == 9
    assert prepared_status("mnist", folder).endswith("/mnist")
    prepare("mnist", folder)
    assert prepared_status("mnist", folder).endswith("/mnist, prepared")


def test_it_is_enough_where_its_files_are_gone(idx):
    folder, _ = idx
    expected = prepare("mnist", folder).dataset
    for file in (folder / "mnist").iterdir():
        file.unlink()
    (folder / "mnist").rmdir()
    assert inventory_digest(load("mnist", folder)) == inventory_digest(expected)
    assert "without the files that it was made from" in prepared_status("mnist", folder)
    result = invoke("prepare", "mnist", "--data-dir", folder)
    assert result.exit_code == 2 and "mnist was not found" in result.output


def test_a_damaged_one_is_named(idx):
    folder, _ = idx
    file = prepare("mnist", folder).file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"mnist.npz: train_images: .*CRC"):
        load("mnist", folder)
    file.write_bytes(b"\x80\x04")
    with pytest.raises(DataError, match=r"mnist.npz: is not an npz file"):
        load("mnist", folder)
    prepare("mnist", folder)
    assert len(load("mnist", folder).train_images) == 40


@pytest.mark.parametrize("told", [DataError, KeyboardInterrupt])
def test_a_file_that_is_written_in_part_replaces_nothing(idx, monkeypatch, told):
    folder, _ = idx
    file = prepare("mnist", folder).file
    before = file.read_bytes()

    def stop(stream, **arrays):
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "Disk full") if told is DataError else KeyboardInterrupt

    monkeypatch.setattr("fedjax_bal.data.inventory.np.savez", stop)
    with pytest.raises(told):
        prepare("mnist", folder)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


BAD = {
    "an unknown name": (["mnst"], ["no data set is called 'mnst'", "did you mean 'mnist'?"]),
    "no folder given": (["svhn"], ["--data-dir is missing", "train_32x32.mat and test_32x32.mat", "housenumbers"]),
    "no such folder": (["mnist", "--data-dir", "nowhere"], ["nowhere: is not a folder"]),
    "nothing there": (
        ["femnist", "--data-dir", "."],
        [
            "femnist was not found",
            "It needs train/*.json",
            "They come from https://github.com/TalwalkarLab/leaf",
        ],
    ),
    "a wrong option": (["image_folder", "path=a", "side=x"], ["dataset.side: received 'x', must be"]),
    "an option too many": (["mnist", "path=a"], ["mnist takes no options, received path=a"]),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_gives_one_message_and_exit_code_2(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    arguments, fragments = BAD[kind]
    result = invoke("prepare", *arguments)
    assert result.exit_code == 2
    for fragment in fragments:
        assert fragment in result.output
    assert not list(tmp_path.rglob("*.npz"))


def test_own_files_are_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 1, 1])
    own = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez("mine.npz", **own, train_clients=np.array(["Abe", "Bo", "Bo", "Bo"]))
    result = invoke("prepare", "npz", "path=mine.npz")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "train 4 rows of 8x8x3 images, 0.0 MiB; 1 to 3 in each of 2 classes" in text
    assert "writers or users 2, with 1 to 3 training rows" in text
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


def test_a_split_is_said(tmp_path):
    (tmp_path / "mine.csv").write_text("a,y\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    result = invoke("prepare", "csv", f"path={tmp_path}/mine.csv", "label=y", "test=0.3")
    text = " ".join(result.output.split())
    assert "test set 0.3 of each class, held out" in text
    assert "train 14 rows of 1 numbers, 0.0 MiB; 7 in each of 2 classes" in text


def test_list_says_what_is_there(idx):
    folder, _ = idx
    (folder / "cifar10.txt").write_text("")
    result = invoke("list", "--data-dir", folder)
    assert result.exit_code == 0
    text = re.sub(r"\s+", "", result.output)
    assert all(name in text for name in DATASETS)
    assert f"foundofficialfilesin{folder}/mnist" in text
    official = sum(reader.origin == "official" for reader in DATASETS.values())
    assert text.count("notfound") == official - 1  # all but mnist
    assert "fromhttps://github.com/TalwalkarLab/leaf" in text and "52.3MiBinmemory" in text
    assert text.index(f"foundofficialfilesin{folder}/mnist") < text.index("notfound")
    alone = re.sub(r"\s+", "", invoke("list").output)
    assert alone.count("needsitsfiles,see--data-dir") == official
    assert invoke("list", "--data-dir", folder / "nowhere").exit_code == 2


CONFIG = """
name: tiny
dataset: {name: fashion_mnist_small}
partition: {scheme: iid, clients: 4, seed: 0}
auxiliary: {per_class: 10}
model: {name: mlp}
training: {rounds: 1, local_epochs: 1, batch_size: 10, optimizer: {learning_rate: 0.1}}
selection: {clients_per_round: 2}
methods:
  - {recipe: fedavg}
  - {recipe: fedprox, partition: {scheme: shards}}
seeds: [0]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a configuration, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def lines_of(*arguments):
    result = invoke("describe", *arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_a_partition_of_a_data_set(here):
    lines = lines_of(
        "auxiliary.per_class=0",
        "partition={scheme: noniid-labeldir, alpha: 0.3, clients: 6, seed: 2, imbalance_factor: 10}",
        "--out",
        "all.png",
    )
    assert lines[0] == "fashion_mnist_small: dirichlet, 6 clients, imbalance_factor=10.0, alpha=0.3, seed=2"
    labels = load("fashion_mnist_small").train_labels
    parts = partition.draw(labels, "dirichlet", 6, 2, {"alpha": 0.3}, imbalance_factor=10)
    held = np.bincount(labels[np.concatenate(parts)], minlength=10)
    assert [line.split()[-1] for line in lines[2:12]] == [f"{count:,}" for count in held]
    sizes = np.array([len(rows) for rows in parts])
    text = "\n".join(lines)
    assert f"samples per client {sizes.min():,} to {sizes.max():,}" in text
    assert f"samples that no client has {10_000 - sizes.sum():,}" in text
    shares = held / held.sum()
    assert f"MID (0 even, 1 a single class) {(shares * np.log(10 * shares)).sum() / np.log(10):.3f}" in text
    laws = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in parts]
    hellinger = np.mean([np.sqrt(1 - np.sqrt(own * shares).sum()) for own in laws])
    assert re.search(rf"Hellinger distance, client to all 0\.\d{{3}} to 0\.\d{{3}}, mean {hellinger:.3f}", text)
    assert lines[-1] == "picture: all.png"
    assert (here / "all.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_configuration_its_auxiliary_rows_and_methods_of_their_own(here):
    lines = lines_of("tiny.yaml", "--out", "tiny.svg")
    assert lines[0] == "fashion_mnist_small: iid, 4 clients, seed=0"
    assert [line.split()[-1] for line in lines[2:12]] == ["990"] * 10
    assert "methods with different data fedprox" in lines
    assert "<svg" in (here / "tiny.svg").read_text()
    assert {entry.name for entry in here.iterdir()} == {"tiny.yaml", "tiny.svg"}
    again = lines_of("tiny.yaml", "clients=5", "partition=quantity", "sizes=power", "dataset=labels_47")
    assert again[0] == "labels_47: quantity, 5 clients, sizes=power, seed=0"
    assert "... 37 more" in again


BAD_DESCRIPTIONS = [
    (("mnst",), "'mnst': is neither a file nor"),
    (
        ("my.csv",),
        "these are data and not a configuration; load them by 'dataset={name: csv, path: my.csv, label: COLUMN}'",
    ),
    (("dataset=fashion_mnist_small", "partition=iid", "clients=20000"), "partition: 20000 clients for"),
    (("tiny.yaml", "--out", "a.pdf"), "--out: received 'a.pdf', must end in .png or .svg"),
    (("tiny.yaml", "--out", "no/a.png"), "--out: the folder 'no' doesn't exist"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_DESCRIPTIONS, ids=[" ".join(arguments) for arguments, _ in BAD_DESCRIPTIONS]
)
def test_what_can_not_be_described_gives_a_message(here, arguments, message):
    result = invoke("describe", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert {entry.name for entry in here.iterdir()} == {"tiny.yaml"}


def test_who_wrote_what_is_kept(idx):
    folder, _ = idx
    dataset = load("mnist", folder)._replace(train_clients=np.arange(40, dtype=np.int32) // 3)
    file = inventory._write_prepared("mnist", folder, dataset, [folder / "mnist"])
    kept = inventory.read_prepared("mnist", folder, [folder / "mnist"])
    assert kept.train_clients.tolist() == dataset.train_clients.tolist() and file.is_file()
    assert inventory.read_prepared("mnist", folder, [folder]) is None
