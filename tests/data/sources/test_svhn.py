import io
import struct

import numpy as np
import pytest
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


def saved(**arrays):
    def write(path):
        savemat(path, arrays)

    return write


def packed(images=5):
    stream = io.BytesIO()
    savemat(stream, {"X": pixels(images), "y": DIGITS[:images]}, do_compression=True)
    return stream.getvalue()


WHOLE = packed()
BAD = {
    "a web page": (b"<!DOCTYPE html>" * 100, "Unknown mat file type"),
    "half": (WHOLE[: len(WHOLE) // 2], "train_32x32.mat: "),
    "another bit": (WHOLE[:9000] + bytes([WHOLE[9000] ^ 1]) + WHOLE[9001:], "train_32x32.mat: "),
    "header alone": (WHOLE[:128], "lacks 'X'"),
    "version 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(400), "v7.3"),
    "no images": (saved(y=DIGITS), "lacks 'X'"),
    "a label more": (saved(X=pixels(4), y=DIGITS), "expected 4 labels y, found 5x1 of uint8"),
    "another size": (saved(X=np.zeros((28, 28, 3, 5), np.uint8), y=DIGITS), "found 28x28x3x5 of uint8"),
    "label 11": (saved(X=pixels(5), y=DIGITS + (DIGITS == 10)), "label 11"),
    "half a label": (saved(X=pixels(5), y=DIGITS / 2), r"label 0.5"),
    "complex labels": (saved(X=pixels(5), y=DIGITS * 1j), "expected 5 labels y, found 5x1 of complex128"),
}


@pytest.mark.parametrize("kind", BAD)
def test_foreign_and_damaged_files_are_named(tmp_path, kind):
    content, message = BAD[kind]
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with pytest.raises(DataError, match=message) as caught:
        read_digits(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_missing_files_are_named(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"X": pixels(5), "y": DIGITS})
    with pytest.raises(DataError, match=r"looked for train_32x32.mat, test_32x32.mat in .*/svhn, .*/SVHN, .*format 2"):
        load("svhn", tmp_path)
    with pytest.raises(DataError, match=r"can't be read \(No such file"):
        read_digits(tmp_path / "nowhere.mat")
