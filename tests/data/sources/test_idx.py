import gzip
import re

import numpy as np
import pytest

from fedjax_bal.data import DataError
from fedjax_bal.data.sources.idx import read_idx, read_labelled

ARRAY = np.arange(24).reshape(2, 3, 4)


def written(tmp_path, content, name="file"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_reads_plain_and_compressed_whatever_the_name(tmp_path, to_idx, name, compress):
    array = read_idx(written(tmp_path, compress(to_idx(ARRAY)), name), 3)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, ARRAY)


DAMAGE = {
    "truncated": (lambda b, to_idx: b[:-1], "2x3x4 = 24 bytes.*23"),
    "trailing": (lambda b, to_idx: b + b"\0", "24 bytes, found 25"),
    "empty": (lambda b, to_idx: b"", "found nothing"),
    "short magic": (lambda b, to_idx: b[:3], "found 00 00 08"),
    "short header": (lambda b, to_idx: b[:9], "and 3 sizes, found 00 00 08 03 00"),
    "web page": (lambda b, to_idx: b"<!DOCTYPE html>" + b, "found 3c 21 44 4f.*not a web page"),
    "labels for images": (lambda b, to_idx: to_idx(np.arange(30)), "00 00 08 03.*found 00 00 08 01.*swapped"),
    "other type": (lambda b, to_idx: to_idx(ARRAY, magic=bytes([0, 0, 13, 3])), "found 00 00 0d 03"),
    "header too large": (lambda b, to_idx: to_idx(ARRAY, shape=(3, 3, 4)), "3x3x4 = 36 bytes"),
    "header too small": (lambda b, to_idx: to_idx(ARRAY, shape=(1, 3, 4)), "1x3x4 = 12 bytes, found 24"),
}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(tmp_path, to_idx, kind, compress):
    damage, message = DAMAGE[kind]
    path = written(tmp_path, compress(damage(to_idx(ARRAY), to_idx)))
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:20], lambda b: b[:15] + b"\xff" * 9 + b[24:]])
def test_damaged_gzip(tmp_path, to_idx, damage):
    path = written(tmp_path, damage(gzip.compress(to_idx(ARRAY))))
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*fetch it again"):
        read_idx(path, 3)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="can't be read"):
            read_idx(path, 1)


def test_labelled_pair(tmp_path, to_idx):
    images = written(tmp_path, to_idx(ARRAY), "images")
    labels = written(tmp_path, to_idx(np.array([9, 0])), "labels")
    pixels, classes = read_labelled(images, labels, (3, 4), 10)
    np.testing.assert_array_equal(pixels[..., 0], ARRAY)
    assert pixels.shape == (2, 3, 4, 1)
    assert classes.dtype == np.int32
    assert classes.tolist() == [9, 0]


@pytest.mark.parametrize(
    ("pixels", "labels", "size", "message"),
    [
        (ARRAY, np.array([1]), (3, 4), "holds 2 images.*holds 1 labels"),
        (ARRAY, np.array([1, 10]), (3, 4), r"label 10 at position 1, expected 0\.\.9"),
        (ARRAY, np.array([1, 2]), (28, 28), "expected images of 28x28 pixels, found 3x4"),
        (ARRAY[:0], np.array([]), (3, 4), "at least one"),
    ],
)
def test_pairs_that_do_not_fit(tmp_path, to_idx, pixels, labels, size, message):
    images = written(tmp_path, to_idx(pixels), "images")
    with pytest.raises(DataError, match=message):
        read_labelled(images, written(tmp_path, to_idx(labels), "labels"), size, 10)
