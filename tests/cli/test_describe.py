"""The command `fedjax-bal data describe`."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.data import load, partition

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


def describe(*arguments):
    return CliRunner().invoke(app, ["data", "describe", *map(str, arguments)])


def lines_of(*arguments):
    result = describe(*arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_data_set_alone(here):
    first, counts, _, head, *classes = lines_of("fashion_mnist_small")
    assert (first, counts) == ("fashion_mnist_small", "10,000 training and 2,000 test samples")
    assert head.split() == ["class", "training", "test"]
    assert [line.split()[:3] for line in classes[1:3]] == [["Trouser", "1,000", "200"], ["Pullover", "1,000", "200"]]
    assert len(classes) == 10


def test_a_partition_of_a_data_set(here):
    lines = lines_of(
        "fashion_mnist_small", "--partition", "noniid-labeldir", "alpha=0.3", "clients=6", "seed=2",
        "partition.imbalance_factor=10", "--out", "all.png",
    )  # fmt: skip
    assert lines[0] == "fashion_mnist_small: dirichlet, 6 clients, imbalance_factor=10, alpha=0.3, seed=2"
    labels = load("fashion_mnist_small").train_labels
    parts = partition.draw(labels, "dirichlet", 6, 2, {"alpha": 0.3}, imbalance_factor=10)
    held = np.bincount(labels[np.concatenate(parts)], minlength=10)
    assert [line.split()[-1] for line in lines[4:14]] == [f"{count:,}" for count in held]
    sizes = np.array([len(rows) for rows in parts])
    text = "\n".join(lines)
    assert f"samples of a client: {sizes.min():,} to {sizes.max():,}" in text
    assert f"samples that no client has: {10_000 - sizes.sum():,}" in text
    shares = held / held.sum()
    assert f"MID {(shares * np.log(10 * shares)).sum() / np.log(10):.3f}" in text
    assert lines[-1] == "picture: all.png"
    assert (here / "all.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_configuration_its_auxiliary_rows_and_methods_of_their_own(here):
    lines = lines_of("tiny.yaml", "--out", "tiny.svg")
    assert lines[0] == "fashion_mnist_small: iid, 4 clients, seed=0"
    assert [line.split()[-1] for line in lines[4:14]] == ["990"] * 10
    assert "methods with other data: fedprox" in lines
    assert "<svg" in (here / "tiny.svg").read_text()
    assert {entry.name for entry in here.iterdir()} == {"tiny.yaml", "tiny.svg"}
    again = lines_of("tiny.yaml", "clients=5", "--partition", "quantity", "sizes=power", "dataset.name=labels_47")
    assert again[0] == "labels_47: quantity, 5 clients, sizes=power, seed=0"
    assert "... 37 classes in between" in again


def test_rows_that_several_clients_have_are_told(here):
    arguments = ("--partition", "pathological", "classes_per_client=2", "clients=50")
    (line,) = (line for line in lines_of("fashion_mnist_small", *arguments) if "counted again" in line)
    assert int(line.split()[-1].replace(",", "")) > 0


BAD = [
    (
        ("mnst",),
        "there is no file 'mnst', and no data set or built-in configuration of that name; did you mean 'mnist'?",
    ),
    (("nowhere.yaml",), "nowhere.yaml: there is no such file"),
    (("a", "b"), "received 2 names (a, b)"),
    (("clients=3",), "received 0 names (none)"),
    (("fashion_mnist_small", "alpha=1"), "no partition; give one with --partition SCHEME"),
    (("fashion_mnist_small", "--partition", "dirichlet"), "partition.alpha: missing"),
    (("fashion_mnist_small", "--partition", "dirichlt"), "did you mean 'dirichlet'?"),
    (("fashion_mnist_small", "--partition", "iid", "clients=20000"), "partition: 20000 clients for 10000 rows"),
    (("fashion_mnist_small", "--partition", "iid", "alpha=1"), "unknown key for iid"),
    (("tiny.yaml", "auxiliary.per_class=9000"), "auxiliary: per_class=9000"),
    (("tiny.yaml", "--out", "a.pdf"), "--out: received 'a.pdf', must end in .png or .svg"),
    (("mnist", "--out", "a.png"), "--out: received 'a.png', but a picture shows a partition"),
    (("tiny.yaml", "--out", "no/a.png"), "--out: there is no folder 'no'"),
    (("mnist", "--data-dir", "."), "mnist was not found"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gives_a_message(here, arguments, message):
    result = describe(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert {entry.name for entry in here.iterdir()} == {"tiny.yaml"}
