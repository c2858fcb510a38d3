"""Damaged and hostile files: everything that reads files succeeds, or says what is wrong.

    FUZZ_EXAMPLES=2000 pytest --all tests/fuzz      (for each reader; otherwise 25)

Hypothesis changes valid files as bytes and as trees. No reader may end with a traceback, hang, take memory that the
file doesn't have, unpickle anything, or write outside of its folder.
"""

import contextlib
import copy
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import quick
import yaml
from fuzz import material
from fuzz.guard import LONGEST, attempt
from fuzz.pages import check_page
from fuzz.values import NUMBERS, TEXTS, YAML_TEXTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_bal import load_run
from fedjax_bal.config import load_config
from fedjax_bal.config.load import build_config, read_layers
from fedjax_bal.config.problems import Problem, raise_all
from fedjax_bal.data import federate, load, partition
from fedjax_bal.experiments.plan import load_sweep
from fedjax_bal.report import build
from fedjax_bal.report.comparison import build_comparison
from fedjax_bal.report.page import page_of_run
from fedjax_bal.report.published import beside_of_run
from fedjax_bal.report.sweep_page import build_sweep
from fedjax_bal.report.tables import summarise_group
from fedjax_bal.runs import RunFolder, SweepFolder, checkpoint, verify
from fedjax_bal.selection.speed import table
from fedjax_bal.selection.trace import trace

bounded = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", 25)), deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck), print_blob=False,
)  # fmt: skip
DEEPEST = json.loads("[" * 900 + "]" * 900)
PIECES = st.sampled_from(
    [b"", b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"1e999", b"NaN", b"9" * 5000,
     b"-1", b"[" * 2000, b'"', b"\n", b"\x80\x04N."]
)  # fmt: skip
"""What takes the place of bytes: sizes that claim, numbers that overflow, what ends or begins something, a pickle."""

anything = st.one_of(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
        | st.sampled_from(TEXTS + NUMBERS),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=8,
    ),
    st.just(DEEPEST),
)


@st.composite
def damaged(draw, content):
    """A file's bytes with one to three pieces replaced, most of them near its ends, where headers are."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        from_start = draw(st.integers(0, min(len(data), 64)) | st.integers(0, len(data)))
        at = from_start if draw(st.booleans()) else len(data) - from_start
        data[at : at + draw(st.sampled_from([0, 1, 4, 100, len(data)]))] = draw(PIECES | st.binary(max_size=8))
    return bytes(data)


def paths(tree, path=()):
    """Where something stands in a tree; of a list's items only the first, for they are alike."""
    if path:
        yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*path, key))
    elif isinstance(tree, list) and tree:
        yield from paths(tree[0], (*path, 0))


def replaced(tree, path, value):
    """A tree with another value in a place."""
    tree = copy.deepcopy(tree)
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return tree


def change(draw, file):
    """Damages a file as bytes, or as what it holds; now and then puts something in its place that is no file."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return put_no_file(draw, file)
    if kind < 5 and file.suffix == ".json":
        tree = json.loads(file.read_text())
        return file.write_text(json.dumps(replaced(tree, draw(st.sampled_from([*paths(tree)])), draw(anything))))
    if kind < 5 and file.suffix == ".jsonl":
        first, *others = file.read_text().splitlines(keepends=True)
        tree = json.loads(first)
        tree = replaced(tree, draw(st.sampled_from([*paths(tree)])), draw(anything))
        return file.write_text("".join([json.dumps(tree), "\n", *others]))
    if kind < 5 and file.suffix == ".yaml":
        return file.write_bytes(draw(changed_yaml(file.read_text())))
    if kind < 5 and file.suffix == ".npz":
        return damage_member(draw, file)
    return file.write_bytes(draw(damaged(file.read_bytes())))


def put_no_file(draw, file):
    file.unlink()
    kind = draw(st.sampled_from(["nothing", "folder", "pipe", file.name, "/etc/passwd", "/dev/zero", "/proc/self/mem"]))
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind != "nothing":
        file.symlink_to(kind)


def damage_member(draw, file):
    """Damages an array of an archive whose checksums are right: its header is what is believed."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = draw(st.sampled_from(list(members)))
    members[chosen] = draw(damaged(members[chosen]))
    with zipfile.ZipFile(file, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@st.composite
def changed_yaml(draw, text):
    """A configuration's text with another value, or with a line of YAML's darker corners."""
    if draw(st.booleans()):
        tree = yaml.safe_load(text)
        tree = replaced(tree, draw(st.sampled_from([*paths(tree)])), draw(anything))
        try:
            return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
        except (yaml.YAMLError, ValueError, RecursionError):  # what YAML can't say
            return repr(tree).encode("utf-8", "surrogatepass")
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines)))
    return "".join([*lines[:at], draw(st.sampled_from(YAML_TEXTS)), *lines[at:]]).encode("utf-8", "surrogatepass")


class Reader(NamedTuple):
    """Something that reads files: it prepares valid ones in a folder, and reads them; what it may write lies there."""

    prepare: Callable[[Path], object]
    read: Callable[[Path], object]


def each(read):
    """Reads every file of a folder by itself, and raises the first message."""

    def read_all(folder):
        problems = []
        for file in sorted(folder.iterdir()):
            try:
                read(file)
            except ValueError as error:
                problems.append(error)
        if problems:
            raise problems[0]

    return read_all


def read_tokens(file):
    dataset = load("npz", path=str(file))
    federate(dataset, [np.arange(len(dataset.train_labels))])


def read_partition(file):
    for holds in ("rows", "counts"):
        partition.file(np.random.default_rng(0), np.arange(40) % 4, 3, file, holds)


@contextlib.contextmanager
def files_named():
    """Takes an `OSError` that names its file for a message, as the command line does with those of run folders."""
    try:
        yield
    except OSError as error:
        if not error.filename:
            raise
        raise_all("folder", [Problem((), str(error))])


def read_checkpoints(folder):
    for file in checkpoint.generations(folder):
        with files_named():
            checkpoint.load(file, material.checkpoint_tree())


def write_config(folder):
    shutil.copy(material.CONFIGS / "combined.yaml", folder / "config.yaml")


def read_config(folder):
    config = load_config(folder / "config.yaml")
    for index in range(len(config.methods)):
        config.for_method(index)


def write_sweep(folder):
    shutil.copy(material.CONFIGS / "sweeps" / "learning_rate.yaml", folder / "sweep.yaml")
    text = (folder / "sweep.yaml").read_text()
    shutil.copy(material.CONFIGS / "quickstart.yaml", folder / "base.yaml")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | {"base": "base.yaml"}, sort_keys=False))


def write_remains(folder):
    material.run_folder(folder)
    material.sweep_folder(folder)
    (folder / "personalised").mkdir()
    (folder / "personalised" / "method-0-seed-0.json").write_text('{"accuracy": [0.5]}')
    (folder / "execution.json").write_text('{"format": 1, "devices": 2, "settings": {"jax_enable_x64": "False"}}')


def read_remains(folder):
    """What a run or a sweep that goes on reads of what was there."""
    run = RunFolder(folder)
    with files_named():
        for read in (run.read_metrics, run.read_summary, run.read_execution):
            read()
        run.read_leaks(0, 0)
        run.read_personalised(0, 0)
        SweepFolder(folder).read_costs()


def write_verified(folder):
    run, config = RunFolder(folder), load_config(None)
    run.begin(config, fresh=False)
    run.save(0, 0, 5, material.Saved(np.arange(6.0), checkpoint.owner(config, 0, 0)))
    line = {"method": "fedavg", "seed": 0, "test_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1, "wall_s": 1.0}
    run.write_metrics([{**line, "round": number} for number in range(1, 6)])
    run.write_summary({"runs": [line]})


def read_verified(folder):
    list(verify(folder))


def write_trained(folder):
    import small_run

    data = folder.parent / "data-of-trained"
    data.mkdir(exist_ok=True)
    material.npz(data)
    changes = [f"dataset={{name: npz, path: {json.dumps(str(data / 'mine.npz'))}}}", "methods=[{recipe: fedavg}]"]
    changes += ["partition={scheme: iid, clients: 2, seed: 0}", "seeds=[0]", "training.rounds=1"]
    changes += ["selection.clients_per_round=1"]
    small_run.run(folder, small_run.config(data, *changes))


def read_trained(folder):
    run = load_run(folder)
    with files_named():
        run.metrics()
        run.export(kind="npz")


def write_two_runs(folder):
    for name in ("one", "other"):
        (folder / name).mkdir()
        material.small_run(folder / name)


def compare(folder):
    check_page(build_comparison([folder / "one", folder / "other"], folder / "comparison.html"))


READERS = {
    "config": Reader(write_config, read_config),
    "sweep": Reader(write_sweep, lambda folder: load_sweep(folder / "sweep.yaml")),
    "idx": Reader(material.grey, lambda folder: load("mnist", folder)),
    "cifar": Reader(material.cifar, lambda folder: load("cifar10", folder)),
    "svhn": Reader(material.svhn, lambda folder: load("svhn", folder)),
    "npz": Reader(material.npz, each(lambda file: load("npz", path=str(file)))),
    "tokens": Reader(material.tokens, each(read_tokens)),
    "partition": Reader(material.partitions, each(read_partition)),
    "leaf": Reader(material.leaf, lambda folder: load("femnist", folder)),
    "images": Reader(material.images, lambda folder: load("image_folder", path=str(folder))),
    "images, scaled": Reader(material.images, lambda folder: load("image_folder", path=str(folder), side=8)),
    "cinic": Reader(material.cinic, lambda folder: load("cinic10", folder)),
    "inaturalist": Reader(material.inaturalist, lambda folder: load("inaturalist2019_32", folder)),
    "tfds": Reader(material.prepared, lambda folder: load("mnist", folder)),
    "traces": Reader(material.traces, each(lambda file: (table if file.name.startswith("speed") else trace)(file))),
    "checkpoint": Reader(material.checkpoints, read_checkpoints),
    "remains of a run": Reader(write_remains, read_remains),
    "verified": Reader(write_verified, read_verified),
    "trained": Reader(write_trained, read_trained),
    "report": Reader(material.small_run, lambda folder: check_page(build(folder))),
    "comparison": Reader(write_two_runs, compare),
    "report of a sweep": Reader(material.sweep_folder, lambda folder: check_page(build_sweep(folder))),
}
QUICK = [name for name in READERS if name not in ("tfds", "trained", "report", "comparison", "report of a sweep")]


@pytest.mark.parametrize("name", quick.only(READERS, *QUICK))
def test_a_reader_succeeds_or_says_what_is_wrong(name, tmp_path):
    valid, case, reader = tmp_path / "valid", tmp_path / "case", READERS[name]
    valid.mkdir()
    reader.prepare(valid)
    files = sorted(path.relative_to(valid) for path in valid.rglob("*") if path.is_file())
    assert (
        attempt(lambda: reader.read(shutil.copytree(valid, tmp_path / "copy")), (tmp_path / "copy",)).kind == "success"
    )

    @bounded
    @given(st.sampled_from(files), st.data())
    def cases(file, data):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(valid, case)
        change(data.draw, case / file)
        outcome = attempt(lambda: reader.read(case), (case,))
        assert not outcome.bad, (file, outcome)

    cases()


@bounded
@given(st.lists(st.tuples(st.sampled_from([*paths(read_layers(material.CONFIGS / "combined.yaml").merged)]), anything)))
def test_overrides_can_be_anything(pairs):
    words = [f"{'.'.join(map(str, path))}={value}" for path, value in pairs]
    outcome = attempt(lambda: load_config(None, words))
    assert not outcome.bad, (words, outcome)


@bounded
@given(st.data())
def test_every_key_of_a_configuration_can_be_anything(data):
    tree = read_layers(material.CONFIGS / "combined.yaml").merged
    path, value = data.draw(st.sampled_from([*paths(tree)])), data.draw(anything)
    outcome = attempt(lambda: build_config(replaced(tree, path, value), [], "mine.yaml"))
    assert not outcome.bad, (path, outcome)


@pytest.mark.slow
def test_every_field_of_a_run_can_be_anything(tmp_path):
    material.run_folder(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    trees = {
        "summary.json": json.loads((tmp_path / "summary.json").read_text()),
        "metrics.jsonl": json.loads(lines[-1]),
    }
    places = [(name, path) for name, tree in trees.items() for path in paths(tree)]
    assert len(places) > 75

    def page():
        run = RunFolder(tmp_path).read()
        return page_of_run(run, [], beside_of_run(run.config, summarise_group(run.summary["runs"]))).html()

    @bounded
    @given(st.sampled_from(places), anything)
    def cases(place, value):
        name, path = place
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text(json.dumps(replaced(trees[name], path, value)) + "\n")
        outcome = attempt(page)
        (tmp_path / name).write_bytes(before)
        assert not outcome.bad, (name, path, outcome)

    cases()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda folder: 1 / 0, "traceback"),
        (lambda folder: int("x"), "traceback"),
        (lambda folder: (folder / "kept").write_text(""), "success"),
        (lambda folder: (folder.parent / "elsewhere").write_text(""), "success"),
        (lambda folder: __import__("pickle").loads(b"\x80\x04N."), "success"),
        (lambda folder: bytearray(2**60), "memory"),
    ],
)
def test_the_guard_sees_what_it_is_for(call, kind, tmp_path):
    (tmp_path / "own").mkdir()
    outcome = attempt(lambda: call(tmp_path / "own"), (tmp_path / "own",))
    assert outcome.kind == kind
    assert outcome.bad == (not (tmp_path / "own" / "kept").exists())
    assert bool(outcome.outside) == (tmp_path / "elsewhere").exists()


def test_the_guard_ends_what_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.guard.PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    assert attempt(lambda: (tmp_path / "pipe").read_bytes()).kind == "hang"
    assert LONGEST == 10
