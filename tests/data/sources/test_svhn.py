import struct

import numpy as np
import pytest
from data.conftest import most_memory
from scipy.io import savemat

from fedjax_bal.data import DataError, load
from fedjax_bal.data.sources.svhn import read_digits

DIGITS = np.array([[10], [1], [9], [10], [5]], np.uint8)


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)


@pytest.mark.parametrize("folder", ["", "svhn", "SVHN"])
@pytest.mark.parametrize("packed", [True, False])
def test_files_are_read_wherever_they_lie(tmp_path, folder, packed):
    (tmp_path / folder).mkdir(exist_ok=True)
    savemat(tmp_path / folder / "train_32x32.mat", {"X": pixels(5), "y": DIGITS}, do_compression=packed)
    labels = DIGITS[:2].astype(np.float64)  # MATLAB's own kind of number
    savemat(tmp_path / folder / "test_32x32.mat", {"X": pixels(2, 1), "y": labels}, do_compression=packed)
    dataset = load("svhn", tmp_path)
    for row in range(5):
        np.testing.assert_array_equal(dataset.train_images[row], pixels(5)[:, :, :, row])
    np.testing.assert_array_equal(dataset.test_images[1], pixels(2, 1)[..., 1])
    assert (dataset.train_labels.tolist(), dataset.test_labels.tolist()) == ([0, 1, 9, 0, 5], [0, 1])
    assert (dataset.train_images.dtype, dataset.train_labels.dtype) == (np.uint8, np.int32)
    assert dataset.train_images.flags.c_contiguous
    assert dataset.class_names == tuple("0123456789")


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(name, shape, content, claimed=None):
    """An uncompressed array of bytes, written by hand; its data may claim another length."""
    flags, dims = element(6, struct.pack("<II", 9, 0)), element(5, struct.pack(f"<{len(shape)}i", *shape))
    data = struct.pack("<II", 2, len(content) if claimed is None else claimed) + content + bytes(-len(content) % 8)
    body = flags + dims + element(1, name.encode()) + data
    return struct.pack("<II", 14, len(body)) + body


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
WHOLE = HEADER + matrix("X", (32, 32, 3, 2), pixels(2).tobytes(order="F")) + matrix("y", (2, 1), bytes([3, 10]))
HUGE = HEADER + matrix("X", (32, 32, 3, 2**31 - 1), bytes(8)) + matrix("y", (2**31 - 1, 1), bytes(8))


def test_a_file_written_by_hand(tmp_path):
    (tmp_path / "a.mat").write_bytes(WHOLE)
    images, labels = read_digits(tmp_path / "a.mat")
    np.testing.assert_array_equal(images, pixels(2).transpose(3, 0, 1, 2))
    assert labels.tolist() == [3, 0]


def saved(**arrays):
    def write(path):
        savemat(path, arrays)

    return write


BAD = {
    "empty": (b"", "is not a MATLAB file"),
    "a web page": (b"<!DOCTYPE html>" * 100, "is not a MATLAB file"),
    "half": (WHOLE[: len(WHOLE) // 2], "train_32x32.mat: "),
    "header alone": (HEADER, "expected images X .* found nothing"),
    "no end": (WHOLE[:-20], "train_32x32.mat: "),
    "a trillion bytes": (HUGE, "shape, 32x32x3x2147483647"),
    "an array that claims more": (
        HEADER + matrix("X", (32, 32, 3, 1), bytes(3072), claimed=2**31) + matrix("y", (1, 1), b"\1"),
        "2147483648 bytes",
    ),
    "version 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(400), "version 7.3"),
    "no images": (saved(y=DIGITS), "expected images X .* found nothing"),
    "no labels": (saved(X=pixels(5)), "expected 5 labels y, found nothing"),
    "a label more": (saved(X=pixels(4), y=DIGITS), "expected 4 labels y, found 5x1 of uint8"),
    "another size": (saved(X=np.zeros((28, 28, 3, 5), np.uint8), y=DIGITS), "found 28x28x3x5 of uint8"),
    "floats": (saved(X=np.zeros((32, 32, 3, 5)), y=DIGITS), "found 32x32x3x5 of float64"),
    "label 0": (saved(X=pixels(5), y=DIGITS * 0), r"label 0, expected 1..10"),
    "label 11": (saved(X=pixels(5), y=DIGITS + (DIGITS == 10)), "label 11"),
    "half a label": (saved(X=pixels(5), y=DIGITS / 2), r"label 0.5"),
    "complex labels": (saved(X=pixels(5), y=DIGITS * 1j), "expected 5 labels y, found nothing"),
    "no number": (saved(X=pixels(1), y=np.array([[np.nan]])), "label nan"),
    "a cell array": (saved(X=pixels(2), y=np.array([["a"], ["b"]], object)), "expected 2 labels y, found nothing"),
    "an unknown type": (WHOLE[:-16] + struct.pack("<II", 0x402, 2) + WHOLE[-8:], "an array of the unknown type 1026"),
}


@pytest.mark.parametrize("kind", BAD)
def test_foreign_and_damaged_files_are_named(tmp_path, kind):
    content, message = BAD[kind]
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with most_memory(2**22), pytest.raises(DataError, match=message) as caught:
        read_digits(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_missing_files_are_named(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"X": pixels(5), "y": DIGITS})
    with pytest.raises(DataError, match=r"looked for train_32x32.mat, test_32x32.mat in .*/svhn, .*/SVHN, .*format 2"):
        load("svhn", tmp_path)
    with pytest.raises(DataError, match=r"can't be read \(No such file"):
        read_digits(tmp_path / "nowhere.mat")
