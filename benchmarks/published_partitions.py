r"""Generates the clients' images as published code does, for `partition: {scheme: file}`.

    python benchmarks/published_partitions.py fedvls DIR
    python benchmarks/published_partitions.py flower DIR
    python benchmarks/published_partitions.py rebafl DIR

DIR holds the official idx files, of MNIST for fedvls and of Fashion-MNIST for flower, directly or in folders of these
names.

fedvls writes DIR/fedvls/mnist.npz, and next to it clients_0.5.npz, clients_0.1.npz and clients_0.05.npz, one per alpha.
FedVLS's code (github.com/krumpguo/FedVLS, system/data/generate_mnist.py) joins the 60,000 and the 10,000 images, keeps
a random quarter of them for testing, and always seeds NumPy with 1, whatever the network's seed is, so there is one
partition per alpha.

flower writes DIR/flower/clients_42.npz: two classes per client with the seed of Flower's baselines/niid_bench,
dataset_preparation.py.

rebafl needs no images. It writes DIR/rebafl/clients_20.json: the two classes that ReBaFL's code
(github.com/JianXu95/ReBaFL, ReBaFL/data_loader.py, cifar_noniid_ss) gives each of 20 clients, with 500 images of each.
With 50 clients that code uses images of some classes twice. To train on it:

    fedjax-bal run papers/rebafl/table1_fmnist_m20 rounds=30 seeds=1 "methods=[fedavg, balanced_softmax, rebafl]" \
        "partition={scheme: file, file: DIR/rebafl/clients_20.json, holds: counts, clients: 20}" --data-dir DIR

Some seconds on one core.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fedjax_bal import data
from fedjax_bal.types import Dataset

CLIENTS, CLASSES = 10, 10
ALPHAS, LEAST, FEDVLS_SEED = (0.5, 0.1, 0.05), 256, 1
OWN_CLASSES, FLOWER_SEED = 2, 42
REBAFL_CLIENTS, REBAFL_IMAGES, REBAFL_SEED = 20, 1000, 2022


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whose", choices=("fedvls", "flower", "rebafl"))
    parser.add_argument("dir", type=Path, help="the folder of the data set")
    wanted = parser.parse_args()
    if wanted.whose == "rebafl":
        file = wanted.dir / "rebafl" / f"clients_{REBAFL_CLIENTS}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(draw_rebafl().tolist()))
        print(f"written: {file}")
        return
    try:
        images = data.load("mnist" if wanted.whose == "fedvls" else "fashion_mnist", wanted.dir)
    except ValueError as error:
        parser.error(str(error))
    out = wanted.dir / wanted.whose
    out.mkdir(exist_ok=True)
    (write_fedvls if wanted.whose == "fedvls" else write_flower)(images, out)
    print(f"written: {out}")


def write_fedvls(mnist: Dataset, out: Path) -> None:
    """Writes FedVLS's images, and its clients for each alpha."""
    images = np.concatenate([mnist.train_images, mnist.test_images])
    labels = np.concatenate([mnist.train_labels, mnist.test_labels])
    for alpha in ALPHAS:
        train, test, clients = draw_fedvls(labels, alpha)
        np.savez(out / f"clients_{alpha}.npz", *clients)
        print(f"alpha {alpha}: clients of {sizes(clients)} images")
    np.savez(
        out / "mnist.npz",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )


def write_flower(fashion_mnist: Dataset, out: Path) -> None:
    """Writes Flower's clients."""
    clients = draw_flower(fashion_mnist.train_labels, FLOWER_SEED)
    np.savez(out / f"clients_{FLOWER_SEED}.npz", *clients)
    print(f"seed {FLOWER_SEED}: clients of {sizes(clients)} images")


def draw_fedvls(labels: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Draws rows for training and testing, and for each client its positions among the training rows; `Int` arrays."""
    rng = np.random.RandomState(FEDVLS_SEED)
    order = rng.permutation(len(labels))
    held_out = len(labels) // 4
    train, test = order[held_out:], order[:held_out]
    clients = [np.empty(0, int)]
    while min(map(len, clients)) < LEAST:
        clients = deal(rng, labels[train], alpha)
    return train, test, clients


def deal(rng: np.random.RandomState, labels: np.ndarray, alpha: float) -> list[np.ndarray]:
    """Assigns each class by Dirichlet shares; a client that has an even share of all rows gets no further classes."""
    clients: list[np.ndarray] = [np.empty(0, int)] * CLIENTS
    for label in range(CLASSES):
        rows = np.flatnonzero(labels == label)
        rng.shuffle(rows)
        shares = rng.dirichlet(np.full(CLIENTS, alpha)) * [len(own) < len(labels) / CLIENTS for own in clients]
        ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
        clients = [np.append(own, more) for own, more in zip(clients, np.split(rows, ends), strict=True)]
    return clients


def draw_flower(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """Draws rows by client: client i has class i and one other class; a class is split evenly over its clients."""
    rng = np.random.default_rng(seed)
    owned = [{client} for client in range(CLIENTS)]
    for own in owned:
        while len(own) < OWN_CLASSES:
            own.add(int(rng.choice(CLASSES, 1)[0]))
    clients: list[np.ndarray] = [np.empty(0, int)] * CLIENTS
    for label in range(CLASSES):
        rows = np.flatnonzero(labels == label)
        rng.shuffle(rows)
        owners = [client for client in range(CLIENTS) if label in owned[client]]
        for owner, more in zip(owners, np.array_split(rows, len(owners)), strict=True):
            clients[owner] = np.append(clients[owner], more)
    return clients


def draw_rebafl() -> np.ndarray:
    """Draws each client's number of images by class, `Int[N, C]`."""
    rng = np.random.RandomState(REBAFL_SEED)
    counts = np.zeros((REBAFL_CLIENTS, CLASSES), int)
    for client in counts:
        client[rng.choice(CLASSES, OWN_CLASSES, replace=False)] = REBAFL_IMAGES // OWN_CLASSES
    return counts


def sizes(clients: list[np.ndarray]) -> str:
    return ", ".join(str(len(rows)) for rows in clients)


if __name__ == "__main__":
    main()
