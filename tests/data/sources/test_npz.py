import io
import pickle
import re
import zipfile

import numpy as np
import pytest
from rounding import DOUBLE

from fedjax_bal.data import DataError, load, memory, normalisation
from fedjax_bal.data.sources.npz import read_npz

RNG = np.random.default_rng(0)
WHOLE = {
    "train_images": RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8),
    "train_labels": np.array([0, 2, 1, 2, 0, 2]),
    "test_images": RNG.integers(0, 256, (2, 5, 4, 3), dtype=np.uint8),
    "test_labels": np.array([1, 3], np.uint8),
}


def canary():
    return pickle.dumps({"train_images": 1})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    save(tmp_path / "mine.npz", **WHOLE)
    dataset = load("npz", path=tmp_path / "mine.npz")
    for name, array in WHOLE.items():
        np.testing.assert_array_equal(getattr(dataset, name), array)
    assert (dataset.train_labels.dtype, dataset.test_labels.dtype) == (np.int32, np.int32)
    assert (dataset.class_names, dataset.train_clients) == (("0", "1", "2", "3"), None)


def test_grey_images_in_any_order_and_byte_order(tmp_path):
    train, test = np.asfortranarray(WHOLE["train_images"][..., 0]), WHOLE["test_images"][..., 1]
    grey = {"train_images": train, "test_images": test}
    labels = WHOLE["train_labels"].astype(">i8")
    np.savez(tmp_path / "mine.npz", **WHOLE | grey | {"train_labels": labels})
    dataset = load("npz", tmp_path, path="mine.npz")
    np.testing.assert_array_equal(dataset.train_images, WHOLE["train_images"][..., :1])
    assert dataset.train_labels.tolist() == labels.tolist()
    assert dataset.train_images.flags.c_contiguous


@pytest.mark.parametrize(("given", "kept"), [(">f8", "f4"), (">f2", "f2"), ("f4", "f4"), (">i8", "i4"), ("u2", "i4")])
def test_numbers_of_any_type(tmp_path, given, kept):
    inputs = {name: RNG.integers(0, 99, (count, 5)).astype(given) for name, count in (("train", 6), ("test", 2))}
    np.savez(tmp_path / "mine.npz", **WHOLE | {f"{name}_images": array for name, array in inputs.items()})
    dataset = load("npz", path=tmp_path / "mine.npz")
    assert dataset.train_images.dtype == dataset.test_images.dtype == np.dtype(kept)
    np.testing.assert_array_equal(dataset.train_images, inputs["train"])
    own = (inputs["train"].mean(0, float), inputs["train"].std(0, dtype=float)) if "f" in given else ([0], [1])
    np.testing.assert_allclose((dataset.mean, dataset.std), own)


def test_names_of_classes_and_clients(tmp_path):
    names, clients = np.array(["a", "b", "c", "d", "e"]), np.array(["Zoe", "Abe", "Zoe", "Bo", "Abe", "Bo"])
    np.savez(tmp_path / "mine.npz", **WHOLE, class_names=names, train_clients=clients)
    dataset = read_npz(tmp_path / "mine.npz")
    assert dataset.class_names == ("a", "b", "c", "d", "e")
    assert dataset.train_clients.tolist() == [2, 0, 2, 1, 0, 1] and dataset.train_clients.dtype == np.int32
    np.savez(tmp_path / "mine.npz", **WHOLE, train_clients=np.array([7, 7, -3, 7, 9, 9]))
    assert read_npz(tmp_path / "mine.npz").train_clients.tolist() == [1, 1, 0, 1, 2, 2]


def test_texts_are_classes_and_a_share_is_held_out_where_there_is_no_test_set(tmp_path):
    labels = np.array(["cat", "owl", "bee"])[np.arange(30) % 3]
    arrays = {"train_images": np.arange(30.0)[:, None], "train_labels": labels, "train_clients": np.arange(30) // 10}
    np.savez(tmp_path / "mine.npz", **arrays)
    dataset = load("npz", path=tmp_path / "mine.npz")
    assert dataset.class_names == ("bee", "cat", "owl") and dataset.test_share == 0.2
    assert np.bincount(dataset.test_labels).tolist() == [2, 2, 2]
    rows = dataset.train_images.ravel().astype(int)
    assert dataset.train_clients.tolist() == (rows // 10).tolist()
    assert np.array(dataset.class_names)[dataset.train_labels].tolist() == labels[rows].tolist()
    assert len(load("npz", path=tmp_path / "mine.npz", test=0.5).test_labels) == 15
    np.savez(tmp_path / "whole.npz", **WHOLE)
    with pytest.raises(DataError, match="whole.npz: has a test set"):
        load("npz", path=tmp_path / "whole.npz", test=0.5)


def test_constants_come_from_the_training_images():
    images = WHOLE["train_images"].copy()
    images[..., 2] = 9
    mean, std = normalisation("npz", images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 1, 2)), rtol=DOUBLE)
    np.testing.assert_allclose(std[:2], (images[..., :2] / 255).std(axis=(0, 1, 2)), rtol=DOUBLE)
    assert std[2] == 1
    many = np.repeat(images, 1000, axis=0)
    np.testing.assert_allclose(normalisation("npz", many)[0], mean, rtol=DOUBLE)


# What is wrong with arrays as such is in ../test_inputs.py and ../test_adapters.py.
FITTING = {
    "classes from 1": (
        {name: WHOLE[name] + 1 for name in ("train_labels", "test_labels")},
        "train_labels are from 1 on, and none is 0: number classes from 0, or give class_names",
    ),
    "another array": (
        {"test_inputs": np.zeros(3)},
        "has an array 'test_inputs'.* The names are train_images, .*rename it",
    ),
    "an array less": ({"test_labels": None}, "lacks test_labels; write it with numpy.savez"),
    "floats and bytes": ({"train_images": WHOLE["train_images"] / 255}, "are of float32 and test images of uint8"),
    "no images": ({"test_images": np.zeros((0, 5, 4, 3), np.uint8)}, "test_images is 0x5x4x3"),
    "one-hot labels": ({"train_labels": np.eye(6, dtype=int)}, "train_labels is 6x6 of int64"),
    "a huge label": ({"test_labels": np.array([0, 2**31])}, "test_labels lie in 0..2147483648"),
    "few names": ({"class_names": np.array(["a", "b", "c"])}, "class_names .* at least 4, since there is label 3"),
    "equal names": ({"class_names": np.array(["a", "b", "c", "c"])}, "expected different texts"),
    "numbers for names": ({"class_names": np.arange(4)}, "class_names is 4 of int64"),
    "a client less": ({"train_clients": np.arange(5)}, "train_clients is 5 of int64; expected 6"),
    "float clients": ({"train_clients": np.full(6, 1.5)}, "train_clients holds 1.5 in row 0; expected integers or"),
    "objects": ({"train_images": np.array([[1], None], object)}, "train_images: .*never opened"),
    "no text": ({"class_names": np.array([2**32 - 1, 1, 2, 3], "<u4").view("<U1")}, "mine.npz: "),
    "fields": ({"train_labels": np.zeros(6, [("a", int)])}, "train_labels is 6 of"),
}


@pytest.mark.parametrize("kind", FITTING)
def test_arrays_that_do_not_fit_are_named(tmp_path, kind):
    changes, message = FITTING[kind]
    arrays = {name: array for name, array in (WHOLE | changes).items() if array is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load("npz", path=tmp_path / "mine.npz")
    assert str(caught.value).startswith(f"{tmp_path / 'mine.npz'}: ")


def member(header=None, content=None):
    """An array as its file has it, with another header or content."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, WHOLE["train_images"])
    whole = stream.getvalue()
    if header is not None:
        text = header.encode().ljust(117) + b"\n"
        whole = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + whole[128:]
    return whole if content is None else whole[:128] + content


def shape(text):
    return member("{'descr': '|u1', 'fortran_order': False, 'shape': " + text + "}")


DAMAGED = {
    "a trillion": shape("(1000000, 1000000)"),
    "too few": shape("(5, 5, 4, 3)"),
    "negative": shape("(-6, -60)"),
    "a truth for a length": shape("(True, 360)"),
    "a type of several": member("{'descr': '(3,)|u1', 'fortran_order': False, 'shape': (120,)}"),
    "no shape": shape("'abc'"),
    "code": member("__import__('os').system('exit 1')"),
    "no array": b"nothing",
    "short": member(content=bytes(300)),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_arrays_are_named(tmp_path, kind):
    np.savez(tmp_path / "mine.npz", **{name: array for name, array in WHOLE.items() if name != "train_images"})
    with zipfile.ZipFile(tmp_path / "mine.npz", "a") as archive:
        archive.writestr("train_images.npy", DAMAGED[kind])
    with pytest.raises(DataError, match="mine.npz: train_images: "):
        read_npz(tmp_path / "mine.npz")


def test_a_damaged_archive_is_named(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **WHOLE)
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(b"test_labels"))
    path.write_bytes(content[:at])
    with pytest.raises(DataError, match="cut short"):
        read_npz(path)
    first = bytearray(content)
    first[200] ^= 1
    path.write_bytes(bytes(first))
    with pytest.raises(DataError, match="mine.npz: train_images: .*CRC"):
        read_npz(path)


def test_memory_is_counted_before_it_is_taken(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", **WHOLE)
    monkeypatch.setattr(memory, "available_bytes", lambda: 400)
    with pytest.raises(DataError, match="arrays need 0.0 GiB"):
        read_npz(tmp_path / "mine.npz")


def torch_like(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", canary())


def save_one(path):
    with open(path, "wb") as stream:
        np.save(stream, WHOLE["train_images"])


PICKLES = {
    "a.pkl": lambda path: path.write_bytes(canary()),
    "a.npz": lambda path: path.write_bytes(canary()),
    "a.pt": torch_like,
    "old.pt": lambda path: path.write_bytes(b"cos\nsystem\n"),
    "a.npy": save_one,
    "a.html": lambda path: path.write_bytes(b"<html>"),
    "b.npz": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_never_opened(tmp_path, name, monkeypatch):
    PICKLES[name](tmp_path / name)
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    monkeypatch.setattr(pickle, "loads", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(DataError, match=rf"{name}: (is not an npz file|lacks train_images).*numpy.savez"):
        load("npz", path=tmp_path / name)


def test_missing_files_and_wrong_options_are_named(tmp_path):
    with pytest.raises(DataError, match=rf"dataset.path: there is no {re.escape(str(tmp_path))}/no.npz; .*--data-dir"):
        load("npz", tmp_path, path="no.npz")
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))}/no.npz: can't be read \(No such file"):
        load("npz", path=tmp_path / "no.npz")
    with pytest.raises(ValueError, match="npz needs its path"):
        load("npz", tmp_path)
    with pytest.raises(ValueError, match="npz takes path, .*, received 'side'"):
        load("npz", path="a.npz", side=3)
    with pytest.raises(ValueError, match="mnist takes no options, received path"):
        load("mnist", tmp_path, path="a.npz")
