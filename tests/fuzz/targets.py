"""What is fuzzed: for each target how a case is made, and what reads it."""

import contextlib
import csv
import io
import json
import os
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from fuzz import material
from fuzz.mutate import HOSTILE_TEXTS, as_json, hostile_value, mutated_bytes, mutated_tree
from fuzz.pages import check_page

_YAML_TEXTS = (
    "a: &x [1, 2]\nb: *x\n",
    "a: &a [x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n",
    "a: &a [*a]\n",
    "!!python/object/apply:os.system ['touch outside']\n",
    "name: !!python/name:os.system ''\n",
    "name: !!binary aGVsbG8=\n",
    "a: !!set {x, y}\n",
    "? [a, b]\n: c\n",
    "? {a: b}\n: c\n",
    "<<: {name: a}\nname: b\n",
    "name: a\nname: b\n",
    "when: 2001-12-14t21:59:43.10-05:00\n",
    "when: 2001-99-99\n",
    "a: 190:20:30\n",
    "a: 0x" + "f" * 6000 + "\n",
    "a: " + "9" * 100_000 + "\n",
    "a: 1e" + "9" * 50 + "\n",
    "[" * 5000,
    "{a: " * 5000,
    "- " * 5000 + "a\n",
    "a: |\n" + "  x\n" * 5000,
    "%YAML 9.9\n---\na: b\n",
    "--- a\n--- b\n",
    "\t a: b\n",
    'a: "\\ud800"\n',
    'a: "\\0"\n',
    'a: "\\U00110000"\n',
    'a: "%zz"\n',
    "a: !<tag:yaml.org,2002:int> x\n",
    "a: !!int x\n",
    "a: !!float y\n",
    "a: !!timestamp z\n",
    "a: ''\n" * 3,
    "\ufeffname: a\n",
    "a: \x07\n",
    "base: config.yaml\n",
    "base: ../in/./config.yaml\n",
    "base: /dev/zero\n",
    "base: /etc/passwd\n",
    "base: .\n",
    "base: [quickstart]\n",
    "base: quickstart\nrounds: 9\n",
)


class Target(NamedTuple):
    """Something that reads what others wrote.

    Attributes:
        prepare: writes valid input into a folder, once.
        make: makes a case in a folder of its own, from the valid input's.
        read: reads it; raises what the reader raises.
        share: how many of a thousand cases.
        writes: whether it may write below the case's folder `in`.
    """

    prepare: Callable[[Path], object]
    make: Callable[[random.Random, Path, Path], object]
    read: Callable[[Path], object]
    share: int
    writes: bool = False


def _copied(valid: Path, case: Path) -> Path:
    shutil.copytree(valid, case / "in", symlinks=True)
    return case / "in"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _bytes_changed(rng: random.Random, valid: Path, case: Path) -> None:
    """One file of the valid ones with its bytes changed; now and then something else in its place."""
    folder = _copied(valid, case)
    file = rng.choice(_files(folder))
    if rng.random() < 0.08:
        _odd(rng, case, file)
    else:
        file.write_bytes(mutated_bytes(rng, file.read_bytes()))


def _odd(rng: random.Random, case: Path, file: Path) -> None:
    """Something in place of a file that is none."""
    file.unlink()
    kind = rng.randrange(8)
    if kind == 0:
        file.mkdir()
    elif kind == 1:
        os.mkfifo(file)
    elif kind == 2:
        file.symlink_to(file.name)
    elif kind == 3:
        file.symlink_to("/etc/passwd")
    elif kind == 4:
        file.symlink_to("/dev/zero")
    elif kind == 5:
        file.symlink_to(case / "outside" / "missing")
    elif kind == 6:
        file.symlink_to("/proc/self/mem")


def _json_changed(names: tuple[str, ...]) -> Callable[[random.Random, Path, Path], None]:
    """JSON files changed as trees, or as bytes."""

    def make(rng: random.Random, valid: Path, case: Path) -> None:
        if rng.random() < 0.4:
            return _bytes_changed(rng, valid, case)
        folder = _copied(valid, case)
        file = rng.choice([path for path in _files(folder) if path.name.endswith(names)])
        text = file.read_text()
        if file.suffix == ".jsonl":
            lines = [json.loads(line) for line in text.splitlines()]
            file.write_bytes(b"\n".join(map(_json_of, mutated_tree(rng, lines, 2))) + b"\n")
        else:
            file.write_bytes(_json_of(mutated_tree(rng, json.loads(text))))
        return None

    return make


def _json_of(tree: Any) -> bytes:
    text = as_json(tree)
    return text.replace(b"Infinity", b"1e999") if len(text) % 2 else text


def _yaml_text(rng: random.Random, tree: Any) -> bytes:
    """YAML of a tree; mutated trees can hold what YAML can't say."""
    try:
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=bool(rng.randrange(2)))
    except (yaml.YAMLError, ValueError, RecursionError):
        text = repr(tree)
    return text.encode("utf-8", "surrogatepass")


def _yaml_changed(rng: random.Random, text: str) -> bytes:
    kind = rng.randrange(10)
    if kind < 5:
        return _yaml_text(rng, mutated_tree(rng, yaml.safe_load(text)))
    if kind < 8:
        return mutated_bytes(rng, text.encode())
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines) + 1)
    extra = rng.choice(_YAML_TEXTS)
    return "".join([*lines[:at], extra, *lines[at:]]).encode("utf-8", "surrogatepass") if kind == 8 else extra.encode()


# Configurations.


def _no_material(folder: Path) -> None:
    del folder


def _make_config(rng: random.Random, valid: Path, case: Path) -> None:
    source = rng.choice(_CONFIGS if not rng.randrange(3) else _FEW_CONFIGS)
    text = source.read_text()
    (case / "in").mkdir()
    for base in source.parent.glob("*.yaml") if "base:" in text else ():
        shutil.copy(base, case / "in")
    file = case / "in" / "config.yaml"
    file.write_bytes(_yaml_changed(rng, text))
    if rng.random() < 0.02:
        _odd(rng, case, file)


_CONFIGS = sorted((material.CONFIGS / "papers").rglob("*.yaml"))
_FEW_CONFIGS = [material.CONFIGS / "quickstart.yaml", material.CONFIGS / "combined.yaml"]


def _read_config(case: Path) -> None:
    from fedjax_bal.config import load_config

    config = load_config(case / "in" / "config.yaml")
    for index in range(len(config.methods)):
        config.for_method(index)


_KEYS = (
    "name", "seeds", "methods", "methods.0", "methods.0.recipe", "methods.0.name", "methods.2.mu",
    "methods.9.mu", "dataset", "dataset.name", "partition", "partition.scheme", "partition.clients",
    "partition.alpha", "model", "model.name", "training", "training.rounds", "training.batch_size",
    "training.optimizer", "training.optimizer.name", "training.optimizer.learning_rate", "training.schedule",
    "selection", "selection.name", "selection.clients_per_round", "availability", "availability.name",
    "availability.p", "availability.file", "delivery.name", "evaluation", "evaluation.every",
    "evaluation.target_accuracy", "execution", "execution.devices", "execution.strategy",
    "execution.rounds_per_dispatch", "partition_seeds", "paper", "paper.accuracy", "auxiliary", "speed", "speed.name",
    "speed.file", "dataset.path", "base", "rounds", "lr", "clients", "partition.file", "partition.imbalance_factor",
    "execution.broken_clients", "evaluation.shots", "auxiliary.per_class", "nonsense", ".", "..", "training..rounds",
)  # fmt: skip


def _make_overrides(rng: random.Random, valid: Path, case: Path) -> None:
    def value() -> str:
        kind = rng.randrange(6)
        if kind == 0:
            return rng.choice(_YAML_TEXTS)
        if kind == 1:
            return str(rng.choice(HOSTILE_TEXTS))
        return _yaml_text(rng, hostile_value(rng)).decode("utf-8", "surrogatepass").removesuffix("...\n").strip()

    keys = [
        rng.choice(_KEYS) if rng.random() < 0.9 else str(rng.choice(HOSTILE_TEXTS)) for _ in range(rng.randrange(1, 5))
    ]
    (case / "in").mkdir()
    (case / "in" / "overrides.json").write_text(json.dumps([f"{key}={value()}" for key in keys]))


def _read_overrides(case: Path) -> None:
    from fedjax_bal.config import load_config

    load_config(None, json.loads((case / "in" / "overrides.json").read_text()))


def _make_sweep(rng: random.Random, valid: Path, case: Path) -> None:
    (case / "in").mkdir()
    quick = (material.CONFIGS / "quickstart.yaml").read_text()
    (case / "in" / "base.yaml").write_text(quick)
    sheet: dict[str, Any] = {
        "base": "base.yaml",
        "name": "small",
        "sweep": [
            {"training.optimizer.learning_rate": {"from": 0.01, "to": 0.1, "steps": 2, "scale": "log"}},
            {"partition.clients": [50, 60], "selection.clients_per_round": [5, 6]},
        ],
    }
    if rng.random() < 0.3:
        sheet.pop("base")
        sheet |= yaml.safe_load(quick)
    (case / "in" / "sweep.yaml").write_bytes(_yaml_changed(rng, yaml.safe_dump(sheet)))


def _read_sweep(case: Path) -> None:
    from fedjax_bal.experiments.plan import load_sweep

    load_sweep(case / "in" / "sweep.yaml")


# Data sets.


def _load(name: str) -> Callable[[Path], None]:
    def read(case: Path) -> None:
        from fedjax_bal.data import load

        load(name, case / "in")

    return read


def _npz_changed(made: Callable[[], dict[str, Any]]) -> Callable[[random.Random, Path, Path], None]:
    """An npz file with its bytes, an array or the archive changed."""

    def make(rng: random.Random, valid: Path, case: Path) -> None:
        kind = rng.randrange(3)
        if kind == 0:
            return _bytes_changed(rng, valid, case)
        (case / "in").mkdir()
        arrays = made()
        if kind == 1:
            name = rng.choice(list(arrays))
            arrays[name] = _odd_array(rng, arrays[name])
            with open(case / "in" / "mine.npz", "wb") as stream:
                rng.choice((np.savez, np.savez_compressed))(stream, **arrays)
            return None
        _write_archive(rng, case / "in" / "mine.npz", arrays)
        return None

    return make


_CLAIMS = (0, -1, 1, -5, 10**12, 2**63)


def _odd_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    return rng.choice(
        (
            lambda: array.astype(object),
            lambda: (
                array.astype(rng.choice(("f8", "i1", "u8", "U3", "S2", "c16", "?", ">i4", "f2")))
                if array.dtype.kind != "U"
                else array.astype("S9")
            ),
            lambda: array[:0],
            lambda: array[..., None, None],
            lambda: np.asfortranarray(array[::-1]),
            lambda: np.array(7),
            lambda: np.zeros((3, 0), array.dtype),
            lambda: np.zeros(3, [("a", "i4"), ("b", "O")]),
            lambda: np.array(["2001-01-01"] * 3, "M8[D]"),
            lambda: np.array([2**63, 0, 1], np.uint64),
            lambda: np.array(["a", "a", "\ud800"]),
        )
    )()


def _write_archive(rng: random.Random, file: Path, arrays: dict[str, np.ndarray]) -> None:
    """An archive by hand: names that lead elsewhere, headers that claim, members twice, other compressions."""
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", kind) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, array in arrays.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, array)
            content = stream.getvalue()
            if rng.random() < 0.3:
                old = str(array.shape).encode()
                new = str(tuple(rng.choice(_CLAIMS) for _ in array.shape)).encode()
                content = content.replace(old, new, 1) if rng.random() < 0.5 else mutated_bytes(rng, content)
            archive.writestr(f"{name}.npy", content)
            if rng.random() < 0.1:
                archive.writestr(
                    rng.choice(("../x.npy", "/tmp/x.npy", "a/../../b", "data.pkl", "x" * 3000, "\u202e")), content
                )


def _read_npz(case: Path) -> None:
    from fedjax_bal.data import load

    for file in sorted((case / "in").iterdir()):
        load("npz", path=str(file))


def _read_tokens(case: Path) -> None:
    """Token ids and numbers that are no images, up to the clients that own them."""
    from fedjax_bal.data import federate, load

    for file in sorted((case / "in").iterdir()):
        dataset = load("npz", path=str(file))
        federate(dataset, [np.arange(len(dataset.train_labels))])


def _read_partition(case: Path) -> None:
    from fedjax_bal.data import partition

    for file in sorted((case / "in").iterdir()):
        for holds in ("rows", "counts"):
            partition.file(np.random.default_rng(0), np.arange(40) % 4, 3, file, holds)


def _read_images(case: Path) -> None:
    from fedjax_bal.data import load

    load("image_folder", path=str(case / "in"), side=8 if (case / "in" / "scaled").exists() else None)


def _make_images(rng: random.Random, valid: Path, case: Path) -> None:
    if rng.random() < 0.8:
        _bytes_changed(rng, valid, case)
        if rng.random() < 0.5:
            (case / "in" / "scaled").touch()
        return
    folder = _copied(valid, case)
    place = rng.choice([folder, folder / "train", folder / "train" / "cat", folder / "test"])
    name = rng.choice(
        ("loop", "out", "<script>", "a\nb", b"\xff\xfe".decode("utf-8", "surrogateescape"), "1.png", ".x")
    )
    match rng.randrange(4):
        case 0:
            os.symlink(rng.choice((name, "..", "/etc", "/", "../train")), place / (name + ".link"))
        case 1:
            os.symlink(rng.choice(("/etc/passwd", "/dev/zero", "x.png", "../../../..")), place / "x.png")
        case 2:
            (place / (name + "d")).mkdir()
        case _:
            os.mkfifo(place / "pipe.png")
    return


def _read_traces(case: Path) -> None:
    from fedjax_bal.selection.speed import table
    from fedjax_bal.selection.trace import trace

    first: ValueError | None = None
    for file in sorted((case / "in").iterdir()):
        try:
            (table if file.name.startswith("speed") else trace)(file)
        except ValueError as error:
            first = first or error
            if type(error) is not ValueError:
                raise
    if first is not None:
        raise first


# What runs leave.


def _read_checkpoint(case: Path) -> None:
    from fedjax_bal.runs.checkpoint import generations, load

    for file in generations(case / "in"):
        with _messages_of_files():
            load(file, material.checkpoint_tree())


def _make_checkpoint(rng: random.Random, valid: Path, case: Path) -> None:
    if rng.random() < 0.6:
        return _bytes_changed(rng, valid, case)
    import hashlib

    folder = _copied(valid, case)
    file = next(folder.iterdir())
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    sums = json.loads(members.pop("manifest.json"))
    for name in members:
        if rng.random() < 0.5:
            members[name] = mutated_bytes(rng, members[name])
        sums["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
    tree = mutated_tree(rng, sums) if rng.random() < 0.5 else sums
    with zipfile.ZipFile(
        file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    ) as archive:
        archive.writestr("manifest.json", as_json(tree))
        for name, content in members.items():
            archive.writestr(name, content)
    return None


def _prepare_leavings(folder: Path) -> None:
    material.run_folder(folder)
    material.sweep_folder(folder)
    (folder / "pictures" / "method-0-seed-0.json").write_text('{"nearest": {}}')
    (folder / "personalised").mkdir()
    (folder / "personalised" / "method-0-seed-0.json").write_text('{"accuracy": [0.5]}')
    (folder / "tracking.json").write_text('{"wandb": {"method-0-seed-0": "0f"}}')
    (folder / "execution.json").write_text('{"format": 1, "devices": 2, "settings": {"jax_enable_x64": "False"}}')
    (folder / "wandb").mkdir()
    (folder / "wandb" / "fedjax-bal-id").write_text("0123abcd")


def _read_leavings(case: Path) -> None:
    """What a run or a sweep that goes on reads of what was there."""
    from fedjax_bal.contrib.trackers.wandb import WeightsAndBiases
    from fedjax_bal.runs import RunFolder, SweepFolder

    run, sweep = RunFolder(case / "in"), SweepFolder(case / "in")
    with _messages_of_files():
        run.read_metrics()
    run.read_summary()
    for read in (
        run.read_devices,
        run.read_tracking,
        lambda: run.read_leaks(0, 0),
        lambda: run.read_personalised(0, 0),
    ):
        read()
    tracker = object.__new__(WeightsAndBiases)  # as if its package were there
    tracker._root = case / "in" / "wandb"
    with _messages_of_files():
        assert len(tracker._token()) == 8
    sweep.read_costs()
    sweep.begin((case / "in" / "sweep.yaml").read_bytes().decode("utf-8", "replace") if not _special(case) else "", {})


@contextlib.contextmanager
def _messages_of_files() -> Iterator[None]:
    """Takes an error that names a file for a message, as the command line does."""
    try:
        yield
    except OSError as error:
        if not error.filename:
            raise
        raise _message(str(error)) from error


class _Saved(NamedTuple):
    state: Any
    owner: Any


def _prepare_verified(folder: Path) -> None:
    from fedjax_bal.config import load_config, run_digest
    from fedjax_bal.runs import RunFolder, SweepFolder, checkpoint, write_model

    run, sweep, config = RunFolder(folder), SweepFolder(folder / "sweep"), load_config(None)
    run.begin(config, fresh=False)
    run.save(0, 0, 5, _Saved(np.arange(6.0), checkpoint.owner(config, 0, 0)))
    line = {"method": "fedavg", "seed": 0, "test_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1, "wall_s": 1.0}
    run.write_metrics([{**line, "round": round} for round in range(1, 6)])
    run.write_summary({"runs": [line]})
    run.write_pictures(0, 0, {"real": np.zeros((3, 2, 4, 4, 1), np.uint8)})
    about = {"method": "fedavg", "seed": 0, "run_sha256": run_digest(config)}
    for kind in ("npz", "safetensors"):
        write_model(kind, run.export_file(f"fedavg-seed-0.{kind}"), {"w/b": np.arange(6.0).reshape(2, 3)}, about)
    sweep.path.mkdir()
    sweep.begin("name: a\nsweep: [{seeds: [[0], [1]]}]\n", {})
    sweep.write_results([{"point": "a", "method": "b", "status": "done", "failure": None}])
    sweep.write_costs({("a", "b", 0): {"compile_s": 1.0}})
    sweep.seal()


def _read_verified(case: Path) -> None:
    from fedjax_bal.runs import verify

    found = [own for folder in (case / "in", case / "in" / "sweep") for own in verify(folder)]
    damaged = [f"{own.place}: {own.damage}" for own in found if own.damage]
    if damaged:
        raise _message(damaged[0])


def _special(case: Path) -> bool:
    return not (case / "in" / "sweep.yaml").is_file() or (case / "in" / "sweep.yaml").is_symlink()


_change_run = _json_changed((".json", ".jsonl"))


def _make_run(rng: random.Random, valid: Path, case: Path) -> None:
    slim = case / "slim"
    shutil.copytree(valid, slim)
    _slim(rng, slim)
    if rng.random() < 0.75:
        _change_run(rng, slim, case)
    else:
        folder = _copied(slim, case)
        (folder / "config.yaml").write_bytes(_yaml_changed(rng, (folder / "config.yaml").read_text()))
    shutil.rmtree(slim)
    if rng.random() < 0.1:
        _lead_out(rng, case)


def _slim(rng: random.Random, folder: Path) -> None:
    """Leaves most figures without data: one takes longer to draw than all else."""
    summary = json.loads((folder / "summary.json").read_text())
    for part in rng.sample(("partitions", "batches", "target_accuracy"), 2):
        summary.pop(part)
    for key in rng.sample(("composition", "leaks", "chosen"), 2):
        for run in summary["runs"]:
            run.pop(key, None)
    (folder / "summary.json").write_text(json.dumps(summary))
    if rng.random() < 0.8:
        shutil.rmtree(folder / "pictures")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for key in rng.sample(("test_accuracy", "per_class_accuracy", "chain_kls", "bytes_up"), 3):
        for line in lines:
            line.pop(key)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _lead_out(rng: random.Random, case: Path) -> None:
    """A link out of the folder where something will be written."""
    outside = case / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "precious").write_text("mine")
    names = ("report.html", ".report.html.part", "plots", "plots/accuracy.svg", "plots/.accuracy.svg.part", ".lock")
    names += ("sweep.html", ".sweep.html.part", ".metrics.jsonl.part", "comparison.html", "tables.csv", "curves.csv")
    name = rng.choice(names)
    (case / "in" / name).parent.mkdir(exist_ok=True)
    if not os.path.lexists(case / "in" / name):
        (case / "in" / name).symlink_to(outside if name == "plots" else outside / "precious")


def _read_run(case: Path) -> None:
    from fedjax_bal.report import build

    check_page(build(case / "in"))


def _read_comparison(case: Path) -> None:
    from fedjax_bal.report.comparison import build_comparison

    check_page(build_comparison([case / "in", case / "other"], case / "in" / "comparison.html"))


def _make_comparison(rng: random.Random, valid: Path, case: Path) -> None:
    _make_run(rng, valid, case)
    shutil.copytree(valid, case / "other")


def _make_swept(rng: random.Random, valid: Path, case: Path) -> None:
    folder = _copied(valid, case)
    kind = rng.randrange(10)
    if kind < 3:
        (folder / "sweep.yaml").write_bytes(_yaml_changed(rng, (folder / "sweep.yaml").read_text()))
    elif kind < 5:
        shutil.rmtree(folder)
        _bytes_changed(rng, valid, case)
    else:
        rows = list(csv.reader(io.StringIO((folder / "results.csv").read_text())))
        text = io.StringIO()
        try:
            csv.writer(text).writerows(mutated_tree(rng, rows))
        except (csv.Error, ValueError):
            text = io.StringIO(str(rows))
        (folder / "results.csv").write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))
    if rng.random() < 0.1:
        _lead_out(rng, case)


def _read_swept(case: Path) -> None:
    from fedjax_bal.report.sweep_page import build_sweep

    check_page(build_sweep(case / "in"))


def _prepare_trained(folder: Path) -> None:
    """A run that has been trained, on data that stay where they are: the case's folder holds the run alone."""
    import small_run

    data = folder.parent / "data-of-trained"
    data.mkdir(exist_ok=True)
    material.npz(data)
    file = data / "mine.npz"
    changes = [f"dataset={{name: npz, path: {json.dumps(str(file))}}}", "partition={scheme: iid, clients: 2, seed: 0}"]
    changes += ["methods=[{recipe: fedavg}]", "seeds=[0]", "training.rounds=1", "selection.clients_per_round=1"]
    small_run.run(folder, small_run.config(data, *changes))


def _make_trained(rng: random.Random, valid: Path, case: Path) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        folder = _copied(valid, case)
        (folder / "config.yaml").write_bytes(_yaml_changed(rng, (folder / "config.yaml").read_text()))
    elif kind == 1:
        _json_changed((".json", ".jsonl"))(rng, valid, case)
    else:
        _bytes_changed(rng, valid, case)
    (case / "format").write_text(rng.choice(("npz", "safetensors")))
    if rng.random() < 0.1:
        (case / "outside").mkdir(exist_ok=True)
        (case / "outside" / "precious").write_text("mine")
        (case / "in" / "exports").symlink_to(case / "outside")


def _read_trained(case: Path) -> None:
    """Loads a run, and reads what it exports as other programs do."""
    from fedjax_bal import load_run

    run, kind = load_run(case / "in"), (case / "format").read_text()
    with _messages_of_files():
        run.metrics()
        file = run.export(kind=kind)
    if kind == "npz":
        with np.load(file, allow_pickle=False) as arrays:
            assert json.loads(str(arrays["about"]))["method"] == run.methods[0]
        return
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    assert json.loads(header.pop("__metadata__")["about"])["method"] == run.methods[0]
    assert max(place for one in header.values() for place in one["data_offsets"]) == len(content) - end


# Plug-ins, which are code: what is wrong about them has to be told, not prevented.


_KINDS = ("recipe", "part", "model", "selector", "partitioner", "dataset", "metric", "recipes", "", 7, None)
_PARAMETERS = (
    "", "mu: float = 1.0", "mu", "mu=1", "*args", "**options", "name: str = 'a'", "mu: 'Nowhere' = 1", "mu: object = 1",
    "num_classes, input_shape", "rng, labels, num_clients", "clients_per_round", "result", "result, other",
    "rng, labels, num_clients, alpha: float = 0.1, name: int = 3", "mu: float = float('nan')",
)  # fmt: skip
_BODIES = (
    "return None", "return 1.0", "return recipes.fedprox(0.1)", "raise KeyError('mu')", "return object()", "return []",
    "raise SystemExit(3)", "return '<script>'", "yield 1", "return [[0]] * 99",
)  # fmt: skip
_TOPS = (
    "", "", "", "", "raise SystemExit(0)\n", "import nowhere_at_all\n", "1 / 0\n", "from . import sibling\n", "def\n",
    "x = '\\ud800'.encode()\n", "assert False\n", "import fedjax_bal.nowhere\n", "\0\n",
)  # fmt: skip


def _make_plugin(rng: random.Random, valid: Path, case: Path) -> None:
    (case / "in").mkdir()
    text = f"from fedjax_bal import recipes, register\n{rng.choice(_TOPS)}"
    for number in range(rng.choice((1, 1, 2))):
        name = rng.choice(("mine", "mine", "fedavg", "test_loss", "round", *HOSTILE_TEXTS[:12]))
        citation = rng.choice(
            ("", "", ", citation='@article{a, title={b}}'", f", citation={rng.choice(HOSTILE_TEXTS)!r}")
        )
        kind, parameters, body = rng.choice(_KINDS), rng.choice(_PARAMETERS), rng.choice(_BODIES)
        if rng.random() < 0.3:
            name, kind, parameters, body = "mine", "recipe", "mu: float = 1.0", _BODIES[2]
        text += f"\n@register({kind!r}, {name!r}{citation})\ndef own{number}({parameters}):\n"
        text += f"    {rng.choice(('', repr('About it.') + '; '))}{body}\n"
    content = text.encode("utf-8", "surrogatepass")
    file = case / "in" / rng.choice(("mine.py", "mine.py", "mine.py", "os.py", "my ne.py", "mine.txt", "mine"))
    file.write_bytes(mutated_bytes(rng, content) if rng.random() < 0.2 else content)
    if rng.random() < 0.08:
        _odd(rng, case, file)


def _read_plugin(case: Path) -> None:
    """Loads a plug-in, and names what it registers."""
    import registered

    from fedjax_bal.config import load_config
    from fedjax_bal.plugins import load_plugins

    try:
        load_plugins(str(file) for file in sorted((case / "in").iterdir()))
        load_config(None, ["methods=[{recipe: mine}]"])
    finally:
        registered.forget()


# The command line.


_TEXTS_OF_COMMANDS = {
    "guide": (["guide"], ("sweeps", "../guide/sweeps", "sweep")),
    "explain": (["config", "explain"], ("lr", "partition.alpha", "methods.0.mu", "training.optimizer", "a.b.c")),
    "list": (["list"], ("recipes", "models", "configs", "nothing")),
    "list one": (["list", "recipes"], ("fedavg", "rebafl", "nothing")),
    "list with": (["list", "recipes", "--plugin"], ("mine.py", "json", "fedjax_bal", "a.b.c")),
    "export": (["export"], ("nowhere", ".")),
    "prepare": (["data", "prepare"], ("nothing", "npz", "fashion_mnist_small")),
    "bench": (["bench"], ("nothing", "nowhere.yaml")),
}
"""Commands that take a text, with some that they know or nearly know."""


def _make_command(rng: random.Random, valid: Path, case: Path) -> None:
    which = rng.choice(("run", "describe", "picture", "dry", "report", "figures", "export", *_TEXTS_OF_COMMANDS))
    config = case / "in" / "config.yaml"
    if which in ("report", "figures", "export"):
        _make_run(rng, valid, case)
        arguments = ["export" if which == "export" else "report", str(case / "in")]
        if which == "figures":
            width = rng.choice(("3.25", "1.5", "0", "-1", "nan", "inf", "1e9", "x", ""))
            arguments += ["--figures", str(case / "out" / rng.choice(("", "a", "a/b", "\u202e"))), "--width", width]
    elif which in _TEXTS_OF_COMMANDS:
        start, known = _TEXTS_OF_COMMANDS[which]
        text = rng.choice(known if rng.random() < 0.4 else HOSTILE_TEXTS)
        arguments = [*start, str(text).replace("\0", "0")]
    elif which == "dry":
        _make_sweep(rng, valid, case)
        arguments = ["sweep", str(case / "in" / "sweep.yaml"), "--dry-run", "--out", str(case / "out")]
    else:
        _make_config(rng, valid, case)
        arguments = ["data", "describe", str(config), "--data-dir", str(case / "in")]  # or else it may download
        if which == "picture":
            arguments += ["--out", str(case / "out" / rng.choice(("a.svg", "a.png", "a.txt", "", "x" * 300 + ".svg")))]
            (case / "out").mkdir(exist_ok=True)
        if which == "run":  # an override that no configuration passes with, so that nothing is trained
            arguments = ["run", str(config), "training.rounds=0", "--out", str(case / "out"), "--plain"]
    if rng.random() < 0.2:
        arguments.insert(rng.randrange(1, len(arguments) + 1), rng.choice(HOSTILE_TEXTS).replace("\0", "0") or "x")
    (case / "command.json").write_text(json.dumps(arguments))


def _read_command(case: Path) -> None:
    from typer.testing import CliRunner

    from fedjax_bal.cli.app import app

    (case / "out").mkdir(exist_ok=True)
    with contextlib.chdir(case / "out"):  # a relative path may become a folder to write to
        result = CliRunner().invoke(app, json.loads((case / "command.json").read_text()))
    if result.exit_code not in (0, 2):
        raise result.exception or AssertionError(f"exit code {result.exit_code}: {result.output[-500:]}")
    if result.exit_code == 2:
        if not result.output.strip() or "Traceback" in result.output:
            raise AssertionError(f"no message: {result.output[-500:]}")
        raise _message(result.output)


def _message(text: str) -> ValueError:
    from fedjax_bal.config.problems import ConfigError, Problem, raise_all

    try:
        raise_all("command", [Problem((), text)])
    except ConfigError as error:
        return error
    return ValueError(text)


TARGETS = {
    "config": Target(_no_material, _make_config, _read_config, 130),
    "overrides": Target(_no_material, _make_overrides, _read_overrides, 100),
    "sweep": Target(_no_material, _make_sweep, _read_sweep, 50),
    "idx": Target(material.grey, _bytes_changed, _load("mnist"), 80),
    "cifar": Target(material.cifar, _bytes_changed, _load("cifar10"), 40),
    "svhn": Target(material.svhn, _bytes_changed, _load("svhn"), 50),
    "npz": Target(material.npz, _npz_changed(material.npz_arrays), _read_npz, 90),
    "tokens": Target(material.tokens, _npz_changed(material.token_arrays), _read_tokens, 40),
    "partition": Target(material.partitions, _bytes_changed, _read_partition, 60),
    "leaf": Target(material.leaf, _json_changed((".json",)), _load("femnist"), 50),
    "images": Target(material.images, _make_images, _read_images, 80),
    "cinic": Target(material.cinic, _bytes_changed, _load("cinic10"), 30),
    "inaturalist": Target(material.inaturalist, _json_changed((".json",)), _load("inaturalist2019_32"), 40),
    "tfds": Target(material.prepared, _json_changed((".json",)), _load("femnist"), 30),
    "traces": Target(material.traces, _bytes_changed, _read_traces, 70),
    "checkpoint": Target(material.checkpoints, _make_checkpoint, _read_checkpoint, 60),
    "leavings": Target(_prepare_leavings, _change_run, _read_leavings, 40, writes=True),
    "trained": Target(_prepare_trained, _make_trained, _read_trained, 20, writes=True),
    "plugin": Target(_no_material, _make_plugin, _read_plugin, 60, writes=True),
    "verified": Target(_prepare_verified, _json_changed((".json", ".jsonl")), _read_verified, 30),
    "report": Target(material.run_folder, _make_run, _read_run, 30, writes=True),
    "comparison": Target(material.run_folder, _make_comparison, _read_comparison, 10, writes=True),
    "swept": Target(material.sweep_folder, _make_swept, _read_swept, 15, writes=True),
    "command": Target(material.run_folder, _make_command, _read_command, 40, writes=True),
}
"""Name -> target."""
