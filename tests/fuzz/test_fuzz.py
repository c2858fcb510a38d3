"""Damaged and hostile files: everything that reads files succeeds, or says what is wrong.

    FUZZ_EXAMPLES=2000 pytest --all --nightly tests/fuzz  (for each reader; otherwise 8, and 40 with --nightly)

Hypothesis changes valid files as bytes and as trees. No reader may end with a traceback, hang, unpickle anything,
or write outside of its folder.
"""

import contextlib
import copy
import functools
import itertools
import json
import operator
import os
import shutil
import zipfile

import numpy as np
import pytest
import quick
import yaml
from fuzz import material
from fuzz.guard import attempt
from fuzz.pages import check_page
from fuzz.values import NUMBERS, TEXTS, YAML_TEXTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_bal import load_run
from fedjax_bal.config import load_config, read_command
from fedjax_bal.config.errors import Problem, raise_all
from fedjax_bal.data import federate, load, partition
from fedjax_bal.lab import RunFolder, SweepFolder, checkpoint
from fedjax_bal.lab.folder import PERSONALISED
from fedjax_bal.lab.sweep_plan import load_sweep
from fedjax_bal.report import write_run_page
from fedjax_bal.report.page import page_of_run, write_comparison_page
from fedjax_bal.report.reading import read_runs
from fedjax_bal.report.sweep_page import write_sweep_page
from fedjax_bal.selection.speed import table
from fedjax_bal.selection.trace import trace

bounded = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", settings().max_examples // 5)),
    deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck), print_blob=False,
)  # fmt: skip
DEEPEST = json.loads("[" * 900 + "]" * 900)
PIECES = st.sampled_from(
    [b"", b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"1e999", b"NaN", b"9" * 5000,
     b"-1", b"[" * 2000, b'"', b"\n", b"\x80\x04N."]
)  # fmt: skip
"""What takes the place of bytes: sizes that claim, numbers that overflow, what ends or begins something, a pickle."""

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = st.just(DEEPEST) | st.recursive(
    scalars | st.sampled_from(TEXTS + NUMBERS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
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


def replaced(draw, tree):
    """A tree with another value somewhere."""
    *above, last = draw(st.sampled_from([*paths(tree)]))
    tree = copy.deepcopy(tree)
    functools.reduce(operator.getitem, above, tree)[last] = draw(anything)
    return tree


NO_FILES = ("nothing", "folder", "pipe", "loop", "/etc/passwd", "/dev/zero", "/proc/self/mem")


def put_no_file(file, kind):
    file.unlink()
    made = {"nothing": lambda: None, "folder": file.mkdir, "pipe": lambda: os.mkfifo(file)}
    made.get(kind, lambda: file.symlink_to(file.name if kind == "loop" else kind))()


def change(draw, file):
    """Damages a file as bytes, or as what it holds."""
    as_bytes, content = draw(st.integers(0, 2)) > 0, file.read_bytes()
    if as_bytes:
        file.write_bytes(draw(damaged(content)))
    elif file.suffix in (".json", ".jsonl"):
        first, *others = [content] if file.suffix == ".json" else content.splitlines()
        file.write_bytes(b"\n".join([json.dumps(replaced(draw, json.loads(first))).encode(), *others]))
    elif file.suffix == ".yaml":
        file.write_bytes(draw(changed_yaml(content.decode())))
    elif file.suffix == ".npz":
        # An array of an archive whose checksums are right: its header is what is believed.
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        chosen = draw(st.sampled_from(list(members)))
        members[chosen] = draw(damaged(members[chosen]))
        with zipfile.ZipFile(file, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
            for name, member in members.items():
                archive.writestr(name, member)
    else:
        file.write_bytes(draw(damaged(content)))


@st.composite
def changed_yaml(draw, text):
    """A configuration's text with another value, or with a line of YAML's darker corners."""
    if draw(st.booleans()):
        tree = replaced(draw, yaml.safe_load(text))
        try:
            return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
        except (yaml.YAMLError, ValueError, RecursionError):  # what YAML can't say
            return repr(tree).encode("utf-8", "surrogatepass")
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines)))
    return "".join([*lines[:at], draw(st.sampled_from(YAML_TEXTS)), *lines[at:]]).encode("utf-8", "surrogatepass")


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


def read_npz(file):
    dataset = load("npz", path=str(file))
    federate(dataset, [np.arange(len(dataset.train_labels))])


def read_partition(file):
    for holds in ("rows", "counts", "shares"):
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


def write_remains(folder):
    material.run_folder(folder)
    material.sweep_folder(folder)
    (folder / "personalised").mkdir()
    (folder / "personalised" / "fedavg-seed-0.json").write_text('{"format": 1, "accuracy": [0.5]}')
    (folder / "execution.json").write_text('{"format": 1, "devices": 2, "settings": {"jax_enable_x64": "False"}}')


def read_remains(folder):
    """What a run or a sweep that goes on reads of what was there."""
    run = RunFolder(folder)
    with files_named():
        for read in (run.read_metrics, run.read_summary, run.read_execution):
            read()
        run.read_analysis(PERSONALISED, "fedavg", 0)
        SweepFolder(folder).read_costs()


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


def read_page(folder):
    page_of_run(read_runs([folder]), []).html()


def write_two_runs(folder):
    for name in ("one", "other"):
        (folder / name).mkdir()
        material.small_run(folder / name)


def compare(folder):
    check_page(write_comparison_page([folder / "one", folder / "other"], folder / "comparison.html"))


READERS = {
    "config": (material.config, lambda folder: load_config(folder / "config.yaml")),
    "sweep": (material.sweep, lambda folder: load_sweep(folder / "sweep.yaml")),
    "idx": (material.grey, lambda folder: load("mnist", folder)),
    "cifar": (material.cifar, lambda folder: load("cifar10", folder)),
    "svhn": (material.svhn, lambda folder: load("svhn", folder)),
    "npz": (material.npz, each(read_npz)),
    "csv": (material.tables, each(lambda file: load("csv", path=file, label="y", clients="who"))),
    "partition": (material.partitions, each(read_partition)),
    "leaf": (material.leaf, lambda folder: load("femnist", folder)),
    "images": (material.images, lambda folder: load("image_folder", path=str(folder))),
    "images, scaled": (material.images, lambda folder: load("image_folder", path=str(folder), side=8)),
    "cinic": (material.cinic, lambda folder: load("cinic10", folder)),
    "inaturalist": (material.inaturalist, lambda folder: load("inaturalist2019_32", folder)),
    "tfds": (material.prepared, lambda folder: load("mnist", folder)),
    "traces": (material.traces, each(lambda file: (table if file.name.startswith("speed") else trace)(file))),
    "checkpoint": (material.checkpoints, read_checkpoints),
    "remains of a run": (write_remains, read_remains),
    "trained": (write_trained, read_trained),
    "report": (material.small_run, lambda folder: check_page(write_run_page(folder))),
    "page without figures": (material.run_folder, read_page),
    "comparison": (write_two_runs, compare),
    "report of a sweep": (material.sweep_folder, lambda folder: check_page(write_sweep_page(folder))),
}
"""What prepares valid files in a folder, and what reads them; it may write there."""
QUICK = ("config", "partition", "checkpoint", "traces")


@pytest.mark.parametrize("name", quick.only(READERS, *QUICK))
def test_a_reader_succeeds_or_says_what_is_wrong(name, tmp_path):
    valid, case, (prepare, read) = tmp_path / "valid", tmp_path / "case", READERS[name]
    valid.mkdir()
    prepare(valid)
    files = sorted(path.relative_to(valid) for path in valid.rglob("*") if path.is_file())
    shutil.copytree(valid, case)
    assert attempt(lambda: read(case), (case,)).kind == "success"
    for file, kind in itertools.product(files[:3], NO_FILES):
        shutil.rmtree(case)
        shutil.copytree(valid, case)
        put_no_file(case / file, kind)
        outcome = attempt(lambda: read(case), (case,))
        assert not outcome.bad, (file, kind, outcome)

    @bounded
    @given(st.sampled_from(files), st.data())
    def cases(file, data):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(valid, case)
        change(data.draw, case / file)
        outcome = attempt(lambda: read(case), (case,))
        assert not outcome.bad, (file, outcome)

    cases()


@pytest.mark.slow
@bounded
@given(
    st.lists(st.tuples(st.sampled_from([*paths(read_command(material.CONFIGS / "combined.yaml").stated)]), anything))
)
def test_overrides_can_be_anything(pairs):
    words = [f"{'.'.join(map(str, path))}={value}" for path, value in pairs]
    outcome = attempt(lambda: load_config(None, words))
    assert not outcome.bad, (words, outcome)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (lambda folder: int("x"), "ValueError"),
        (lambda folder: (folder / "kept").write_text(""), "success"),
        (lambda folder: (folder.parent / "elsewhere").write_text(""), "success"),
        (lambda folder: __import__("pickle").loads(b"\x80\x04N."), "success"),
        (lambda folder: bytearray(2**60), "MemoryError"),
    ],
)
def test_the_guard_sees_what_it_is_for(call, kind, tmp_path):
    (tmp_path / "own").mkdir()
    outcome = attempt(lambda: call(tmp_path / "own"), (tmp_path / "own",))
    assert outcome.kind == kind
    assert outcome.bad == (not (tmp_path / "own" / "kept").exists())


def test_the_guard_ends_what_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.guard.PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    assert attempt(lambda: (tmp_path / "pipe").read_bytes()).kind == "Hang"
