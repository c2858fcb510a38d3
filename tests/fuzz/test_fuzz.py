"""Damaged input of users': whatever reads a file succeeds, or says what is wrong with it.

    FUZZ_EXAMPLES=2000 pytest --all --nightly tests/fuzz  (for each reader; otherwise 8, and 40 with --nightly)

Hypothesis changes valid files as bytes and as trees. No reader may end with a traceback.
"""

import copy
import functools
import itertools
import json
import operator
import os
import shutil
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import quick
import yaml
from fuzz import material
from fuzz.values import NUMBERS, TEXTS, YAML_TEXTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedjax_bal
from fedjax_bal.config import load_config
from fedjax_bal.data import federate, load, partition
from fedjax_bal.lab.sweep_plan import load_sweep
from fedjax_bal.selection.speed import table
from fedjax_bal.selection.trace import trace

PACKAGE = str(Path(fedjax_bal.__file__).parent)
OF_PYTHON = ("Exceeds the limit (", "embedded null", "invalid literal", "could not convert")
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


def read_or_say(read, folder):
    """Reads, or ends with a message: a `ValueError` that the package raises in words of its own."""
    with warnings.catch_warnings(action="ignore"):
        try:
            read(folder)
        except ValueError as error:
            last = traceback.extract_tb(error.__traceback__)[-1].filename
            own = last.startswith(PACKAGE) and not isinstance(error, UnicodeError)
            if not own or str(error).startswith(OF_PYTHON):
                raise


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
    "tfds": (material.prepared, lambda folder: load("mnist", folder)),
    "traces": (material.traces, each(lambda file: (table if file.name.startswith("speed") else trace)(file))),
}
"""What prepares valid files in a folder, and what reads them."""


@pytest.mark.parametrize("name", quick.only(READERS, "config", "partition", "traces"))
def test_a_reader_succeeds_or_says_what_is_wrong(name, tmp_path):
    valid, case, (prepare, read) = tmp_path / "valid", tmp_path / "case", READERS[name]
    valid.mkdir()
    prepare(valid)
    files = sorted(path.relative_to(valid) for path in valid.rglob("*") if path.is_file())
    read(valid)
    for file, kind in itertools.product(files[:3], NO_FILES):
        shutil.copytree(valid, case)
        put_no_file(case / file, kind)
        read_or_say(read, case)
        shutil.rmtree(case)

    @bounded
    @given(st.sampled_from(files), st.data())
    def cases(file, data):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(valid, case)
        change(data.draw, case / file)
        read_or_say(read, case)

    cases()
