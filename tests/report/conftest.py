"""Synthetic run folders."""

import json

import numpy as np
import pytest
import yaml

from fedjax_bal.lab import RunFolder

FASHION = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip


NOT_MEASURED = ("balanced_accuracy", "macro_f1", "worst_class_accuracy", "train_loss", "update_diversity")
UNKNOWN = dict.fromkeys(NOT_MEASURED)


def write_run(
    folder,
    *,
    methods=("fedavg", "rebafl"),
    seeds=(0, 1, 2),
    classes=10,
    clients=20,
    rounds=20,
    finished=True,
    gain=0.03,
):
    """A run folder with made-up numbers: later methods are a little better, seeds differ."""
    rng = np.random.default_rng(7)
    names = FASHION if classes == 10 else [f"class {number}" for number in range(classes)]
    lines, runs, matrices = [], [], {}
    for place, method in enumerate(methods):
        for seed in seeds:
            final = 0.70 + gain * place + 0.01 * seed + 0.004 * ((place * seed) % 3)
            per_class = np.clip(final + rng.normal(0, 0.12, classes), 0, 1)
            for at in range(1, rounds + 1):
                share = 1 - np.exp(-at / (0.2 * rounds))
                accuracy = final if at == rounds else round(float(final * share + rng.normal(0, 0.01)), 4)
                lines.append({
                    "method": method, "seed": seed, "round": at, "test_accuracy": accuracy,
                    "test_loss": float(2 - share), "per_class_accuracy": [float(x * share) for x in per_class],
                    "clients": 5, "dropped": 0, "bytes_up": 1_000_000 * (1 + place % 3), "bytes_down": 1_000_000,
                    "wall_s": 0.1, **UNKNOWN,
                })  # fmt: skip
            off = rng.dirichlet(np.full(classes, 0.3), classes) * (1 - per_class[:, None])
            matrix = np.round(100 * (off + np.diag(per_class))).astype(int)
            runs.append({
                "method": method, "seed": seed, "rounds": rounds, "evaluations": rounds, "final_accuracy": final,
                "best_accuracy": final + 0.01, "last5_accuracy": final - 0.005,
                "rounds_to_target": 8 + seed if seed < 2 else None,
                "traffic_bytes": (2 + place % 3) * 1_000_000 * rounds, "failure": None,
                "broken_clients": None,
            })  # fmt: skip
            matrices[method, seed] = matrix
    counts = (rng.dirichlet(np.full(classes, 0.3), clients) * 200).astype(int)
    summary = {
        "format": 1, "name": "synthetic", "finished": finished, "device": "cpu: 2 cores",
        "versions": {"fedjax_bal": "0.1.0", "jax": "0.10.2", "python": "3.11.7"}, "compile_s": 12.34, "wall_s": 101.0,
        "client_updates_per_s": 321.0, "samples_per_s": 16050.0, "target_accuracy": 0.6, "class_names": names,
        "command": {"plugins": [], "data_dir": None}, "batches": [],
        "cost": {"compile_s": 12.34, "train_s": 80.0, "client_updates": 25680, "samples": 1284000},
        "partitions": [
            {
                "methods": list(methods), "clients": clients, "shown": list(range(clients)),
                "class_counts": counts.tolist(), "samples": counts.sum(0).tolist(), "data": "", "mean": [], "std": [],
            }
        ],
        "runs": runs,
    }  # fmt: skip
    config = {
        "name": "synthetic",
        "dataset": {"name": "fashion_mnist_small"},
        "partition": {"scheme": "pathological", "clients": clients, "classes_per_client": 2, "seed": 0},
        "model": {"name": "rebafl_fmnist"},
        "training": {
            "rounds": rounds, "local_epochs": 1, "batch_size": 50,
            "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.5},
        },
        "selection": {"name": "uniform", "clients_per_round": 10},
        "methods": [{"recipe": "fedavg", "name": method} for method in methods],
        "seeds": list(seeds),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    RunFolder(folder).write_confusion(matrices)
    return folder


def edit_summary(folder, change):
    """Changes the content of a folder's summary."""
    file = folder / "summary.json"
    summary = json.loads(file.read_text())
    change(summary)
    file.write_text(json.dumps(summary))


def add_cohorts(folder, *, even=("rebafl",), estimating=("rebafl",), augmented=True):
    """Adds made-up cohorts to a run folder: methods that choose evenly, that estimate compositions; augmentation."""
    rng = np.random.default_rng(3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    classes = len(summary["class_names"])
    for line in lines:
        drawn = np.random.default_rng([line["seed"], line["round"]])
        values = np.sort(np.log(classes) * drawn.beta(4, 2, 10) * (0.4 if line["method"] in even else 1.0)).round(4)
        line |= {"chain_kl": float(values.mean())}
    for run in summary["runs"]:
        run |= {"traffic_to_target_bytes": None}
        if run["rounds_to_target"] is not None:
            run["traffic_to_target_bytes"] = run["traffic_bytes"] * run["rounds_to_target"] // run["rounds"]
        if run["method"] in estimating:
            clients = summary["partitions"][0]["clients"]
            run["composition"] = {"clients": clients, "rank_correlation": 0.71 + 0.02 * run["seed"]}
    if augmented:
        before = np.sort(rng.lognormal(6, 0.8, classes).astype(int))[::-1]
        before = before[rng.permutation(classes)]
        copies = np.maximum((before.mean() / before) ** 0.67, 1).astype(int) - 1
        extra = int((before * copies).sum())
        summary["partitions"][0]["augmentation"] = {
            "before": before.tolist(), "after": (before * (1 + copies)).tolist(), "extra_rows": extra,
            "extra_bytes": 784 * extra,
        }  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make_run():
    return write_run


@pytest.fixture(scope="session")
def make_cohorts():
    return add_cohorts
