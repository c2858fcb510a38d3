"""Valid input, small: what the targets change."""

import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from data.conftest import idx_bytes, png
from data.sources import test_cifar, test_leaf
from PIL import Image

CONFIGS = Path(__file__).parents[2] / "configs"


def config(folder: Path) -> None:
    """A configuration."""
    shutil.copy(CONFIGS / "combined.yaml", folder / "config.yaml")


def sweep(folder: Path) -> None:
    """A sweep and its base."""
    shutil.copy(CONFIGS / "quickstart.yaml", folder / "base.yaml")
    tree = yaml.safe_load((CONFIGS / "sweeps" / "learning_rate.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump(tree | {"base": "base.yaml"}, sort_keys=False))


def grey(folder: Path) -> None:
    """The four files of MNIST, two of them packed."""
    rng = np.random.default_rng(0)
    for half, count in (("train", 6), ("t10k", 3)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), np.arange(count)
        (folder / f"{half}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (folder / f"{half}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def cifar(folder: Path) -> None:
    """The files of CIFAR-10's binary version."""
    for seed, name in enumerate(test_cifar.FILES10):
        (folder / name).write_bytes(test_cifar.records(2, 1, seed)[2])


def svhn(folder: Path) -> None:
    """SVHN's two MATLAB files."""
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        pixels = rng.integers(0, 256, (32, 32, 3, 2)).astype(np.uint8)
        savemat(folder / name, {"X": pixels, "y": np.array([[10], [3]], np.uint8)}, do_compression=True)


def npz_arrays() -> dict[str, Any]:
    """What one's own npz file holds."""
    images = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)
    return {
        "train_images": images, "train_labels": np.array([0, 2, 1]), "test_images": images[:2],
        "test_labels": np.array([1, 1]), "class_names": np.array(["cat", "dog", "<b>"]),
        "train_clients": np.array([5, 5, 7]),
    }  # fmt: skip


def npz(folder: Path) -> None:
    """One's own npz files: images, token ids and feature vectors, packed and not."""
    arrays, tokens = npz_arrays(), np.arange(15, dtype=np.int32).reshape(3, 5)
    np.savez(folder / "mine.npz", **arrays)
    np.savez(folder / "tokens.npz", **arrays | {"train_images": tokens, "test_images": tokens[:2]})
    features = tokens.astype(np.float32) / 7
    np.savez_compressed(folder / "features.npz", **arrays | {"train_images": features, "test_images": features[:2]})


def tables(folder: Path) -> None:
    """One's own CSV files."""
    rows = "".join(f"{row},{row / 7},user {row % 2},{'ab'[row % 3 == 0]}\n" for row in range(12))
    (folder / "mine.csv").write_text(f"x,z,who,y\n{rows}")
    (folder / "quoted.csv").write_text('"x","z","who","y"\n1,2,"a, b",3\n"2",4,"a, b",3\n5,6,c,4\n7,8,c,4\n')


def partitions(folder: Path) -> None:
    """Which client has which rows, or how many of each class: small numbers are either."""
    lists = [[1, 0, 2, 3], [3, 1], [0]]
    (folder / "lists.json").write_text(json.dumps(lists))
    (folder / "printed.txt").write_text(repr(dict(enumerate(lists))))
    (folder / "lines.csv").write_text("1, 0, 2\n3 1\n0\n")
    np.savez(folder / "arrays.npz", *map(np.array, lists))


def leaf(folder: Path) -> None:
    """FEMNIST as LEAF writes it."""
    for half in ("train", "test"):
        (folder / half).mkdir()
        (folder / half / f"{half}_0.json").write_text(json.dumps(test_leaf.leaf({"f0_1": 3, "f0_2": 3})))


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (32, 32)) -> bytes:
    """An image file."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind)
    return stream.getvalue()


def images(folder: Path) -> None:
    """A folder of one's own images."""
    for half in ("train", "test"):
        for name in ("cat", "dog"):
            (folder / half / name).mkdir(parents=True)
            for number, (kind, mode) in enumerate((("PNG", "RGB"), ("PNG", "P"), ("JPEG", "L"), ("JPEG", "CMYK"))):
                (folder / half / name / f"{number}.{kind.lower()}").write_bytes(picture(kind, mode))


def prepared(folder: Path) -> None:
    """MNIST as TensorFlow Datasets keeps it."""
    from data.sources import test_tfds

    test_tfds.prepare(folder, "mnist", test_tfds.arrays(), png)


def traces(folder: Path) -> None:
    """Who is there, and how fast: CSV and npz."""
    (folder / "trace.csv").write_text("round,client,available\n0,0,1\n0,2,1\n1,1,1\n3,2,0\n")
    (folder / "pairs.csv").write_text("round,client\n0,0\n0,2\n1,1\n")
    np.savez(folder / "trace.npz", available=np.eye(4, dtype=np.int8), other=np.zeros(2))
    (folder / "speed.csv").write_text("client,steps_per_s\n0,1.5\n1,2\n2,0.25\n")
    np.savez_compressed(folder / "speed.npz", np.array([1.0, 2.0, 3.0]))
