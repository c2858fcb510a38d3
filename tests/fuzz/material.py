"""Valid input, small: what the targets change."""

import csv
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from data.conftest import idx_bytes, png
from data.sources import test_cifar, test_inaturalist, test_leaf
from PIL import Image
from report.conftest import add_cohorts, write_run

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


def cinic(folder: Path) -> None:
    """CINIC-10 with an image for each class."""
    from fedjax_bal.data import DATASETS

    for half in ("train", "test"):
        for name in DATASETS["cinic10"].class_names:
            (folder / half / name).mkdir(parents=True)
            (folder / half / name / "1.png").write_bytes(picture("PNG"))


def inaturalist(folder: Path) -> None:
    """The annotations of iNaturalist 2019 and an image for each half."""
    for half in ("train", "val"):
        name = f"train_val2019/Birds/7/{half}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture("JPEG", size=(40, 30)))
        tree = test_inaturalist.annotations(half, [name, name], [7, 14])
        (folder / f"{half}2019.json").write_text(json.dumps(tree))


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


def checkpoint_tree() -> dict[str, Any]:
    """A state of a run, as checkpoints hold it."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    return {"w": weights, "b": {"n": np.zeros(3, np.int32), "f": np.ones(2, bool)}}


def checkpoints(folder: Path) -> None:
    """A checkpoint."""
    from fedjax_bal.lab.checkpoint import save

    save(folder, 5, checkpoint_tree())


def run_folder(folder: Path) -> None:
    """A run's folder as `report` reads it, with all that a run can leave."""
    write_run(folder, classes=3, clients=4, rounds=3, seeds=(0, 1))
    add_cohorts(folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["batches"] = [{"methods": ["rebafl"], "kl_before": 0.5, "kl_after": 0.25}]
    summary["runs"][0] |= {"balanced_accuracy": 0.5, "worst_class_accuracy": 0.25, "stopped_early": 2}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "pictures").mkdir()
    pixels = np.zeros((3, 2, 4, 4, 1), np.uint8)
    shown = {"real": pixels, "generated": pixels}
    np.savez_compressed(folder / "pictures" / "fedavg-seed-0.npz", **shown)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["paper"] = {"source": "a paper", "accuracy": {"fedavg": 0.7}, "which": "best"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def small_run(folder: Path) -> None:
    """A run's folder with a single figure, for drawing takes longer than all else."""
    run_folder(folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"partitions": [], "batches": []}
    for run in summary["runs"]:
        run.pop("composition", None)
    (folder / "summary.json").write_text(json.dumps(summary))
    kept = ("method", "seed", "round", "test_accuracy")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{key: line[key] for key in kept} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "pictures" / "fedavg-seed-0.npz").unlink()


def sweep_folder(folder: Path) -> None:
    """A sweep's folder as `report` reads it."""
    sheet = yaml.safe_load((CONFIGS / "sweeps" / "learning_rate.yaml").read_text())
    sheet.pop("base", None)
    sheet["sweep"] = [{"training.optimizer.learning_rate": [0.01, 0.1]}, {"partition.seed": [0, 1]}]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sheet))
    heads = ["point", "training.optimizer.learning_rate", "partition.seed", "method", "seed", "status", "failure"]
    heads += ["last5_accuracy", "best_accuracy", "client_updates_per_s", "wall_s"]
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(heads)
    for rate in (0.01, 0.1):
        for seed in (0, 1):
            for place, method in enumerate(("fedavg", "rebafl")):
                point = [f"lr={rate},seed={seed}", rate, seed, method, 0, "done", ""]
                writer.writerow([*point, 0.5 + place / 10 + rate, 0.9, 100, 1])
    (folder / "results.csv").write_text(table.getvalue())
    (folder / "costs.json").write_text(
        json.dumps({"format": 1, "runs": [{"point": "a", "method": "b", "seed": 0, "wall_s": 1.0}]})
    )
