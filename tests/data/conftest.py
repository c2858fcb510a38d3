import contextlib
import gzip
import io
import struct
import sys
import tracemalloc
import types

import numpy as np
import pytest
from PIL import Image


def png(pixels, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", **options)
    return stream.getvalue()


@contextlib.contextmanager
def most_memory(most):
    """Checks that no more is allocated at any time; what was imported before isn't counted."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


@pytest.fixture(scope="session")
def to_png():
    """Bytes of a PNG file of pixels."""
    return png


@pytest.fixture
def fake_tfds(monkeypatch):
    """TensorFlow Datasets with the splits in `sets`, (name, split) -> examples; it notes in `asked` what it gave.

    `prepared` says whether it has them on disk already.
    """
    module = types.ModuleType("tensorflow_datasets")
    module.decode = types.SimpleNamespace(SkipDecoding=lambda: "as stored")
    module.sets, module.asked, module.prepared = {}, [], True

    def builder(name, data_dir, file_format):
        assert (data_dir, file_format) == (None, "array_record")

        def as_data_source(split, decoders):
            assert decoders == {"image": "as stored"}
            module.asked.append((name, split))
            return module.sets[name, split]

        split = types.SimpleNamespace(filepaths=[])
        return types.SimpleNamespace(
            info=types.SimpleNamespace(splits={"train": split, "test": split}), is_prepared=lambda: module.prepared,
            download_and_prepare=lambda: None, as_data_source=as_data_source,
        )  # fmt: skip

    module.builder = builder
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return module


def idx_bytes(array, magic=None, shape=None):
    shape = array.shape if shape is None else shape
    magic = bytes([0, 0, 8, len(shape)]) if magic is None else magic
    return magic + b"".join(struct.pack(">I", size) for size in shape) + array.astype(np.uint8).tobytes()


@pytest.fixture(scope="session")
def to_idx():
    """Bytes of an idx file of an array; `magic` and `shape` override what the header says."""
    return idx_bytes


@pytest.fixture
def grey_folder(tmp_path):
    """A function that writes the four idx files of a small grey data set."""

    def write(folder="", dotted=False, compressed=False, seed=0):
        rng = np.random.default_rng(seed)
        target = tmp_path / folder
        target.mkdir(parents=True, exist_ok=True)
        arrays = []
        for half, count in (("train", 12), ("t10k", 5)):
            images, labels = rng.integers(0, 256, (count, 28, 28)), np.arange(count) % 10
            for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                name = f"{half}-{kind}-ubyte".replace("-idx", ".idx" if dotted else "-idx")
                content = idx_bytes(array)
                path = target / (name + (".gz" if compressed else ""))
                path.write_bytes(gzip.compress(content) if compressed else content)
                arrays.append(array)
        return tmp_path, arrays

    return write
