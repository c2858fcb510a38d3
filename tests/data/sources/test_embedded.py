"""The embedded tables: that they are the official ones, and that their files are made from files of that format."""

import hashlib

import numpy as np
import pytest
from data import make_embedded as making
from rounding import FORMULA

from fedjax_bal.data import DATASETS, federate, load, partition

LETTERS = "2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2"
"""SHA-256 of the official letter-recognition.data."""


def rows_of(dataset):
    """All rows in the order of the official files, and their labels."""
    rows = np.concatenate([dataset.train_images, dataset.test_images]).astype(int)
    return rows.tolist(), np.concatenate([dataset.train_labels, dataset.test_labels]).tolist()


def test_letters_are_the_official_file_to_the_byte():
    rows, labels = rows_of(load("letter"))
    lines = [f"{chr(65 + label)},{','.join(map(str, row))}\n" for row, label in zip(rows, labels, strict=True)]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == LETTERS


def test_shuttle_has_the_published_rows_and_classes():
    dataset = load("shuttle")
    assert (dataset.train_images.shape, dataset.test_images.shape) == ((43_500, 9), (14_500, 9))
    train, test = (np.bincount(labels).tolist() for labels in (dataset.train_labels, dataset.test_labels))
    assert train == [34_108, 37, 132, 6_748, 2_458, 6, 11] and test == [11_478, 13, 39, 2_155, 809, 4, 2]
    both = np.add(train, test)
    assert both.max() / both.min() == pytest.approx(4559, abs=1)
    # The first line of each of the official files.
    assert dataset.train_images[0].tolist() == [50, 21, 77, 0, 28, 0, 27, 48, 22] and dataset.train_labels[0] == 1
    assert dataset.test_images[0].tolist() == [55, 0, 81, 0, -6, 11, 25, 88, 64] and dataset.test_labels[0] == 3
    rows = np.array(rows_of(dataset)[0])
    assert rows.min(0).tolist() == [27, -4821, 21, -3939, -188, -26739, -48, -353, -356]
    assert rows.max(0).tolist() == [126, 5075, 149, 3830, 436, 15164, 105, 270, 266]


@pytest.mark.parametrize(("name", "features", "classes"), [("shuttle", 9, 7), ("letter", 16, 26)])
def test_features_are_normalised_one_by_one_with_the_training_rows(name, features, classes):
    dataset = load(name)
    assert dataset.train_images.dtype == dataset.test_images.dtype == np.float32
    assert dataset.train_images.flags.c_contiguous and dataset.train_labels.dtype == np.int32
    assert len(dataset.class_names) == classes == DATASETS[name].num_classes
    assert DATASETS[name].image_shape == (features,) == dataset.train_images.shape[1:]
    exact = dataset.train_images.astype(np.float64)
    np.testing.assert_allclose(dataset.mean, exact.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dataset.std, exact.std(0), rtol=1e-9)
    federation = federate(dataset, partition.iid(np.random.default_rng(0), dataset.train_labels, 5))
    np.testing.assert_allclose(federation.mean, dataset.mean, rtol=FORMULA)


def test_shuttle_is_made_from_the_official_files(tmp_path):
    (tmp_path / "shuttle.trn").write_text("50 21 77 0 28 0 27 48 22 2\n55 0 92 0 0 26 36 -92 56 4\n")
    (tmp_path / "shuttle.tst").write_text("55 0 81 0 -6 -26739 25 88 64 7\n37 0 79 0 42 -13 43 42 0 1\n")
    digest = making.make_shuttle(tmp_path, tmp_path / "one.npz")
    assert making.make_shuttle(tmp_path, tmp_path / "two.npz") == digest
    assert hashlib.sha256((tmp_path / "one.npz").read_bytes()).hexdigest() == digest
    with np.load(tmp_path / "one.npz", allow_pickle=False) as archive:
        assert archive["train_images"].tolist() == [
            [50, 21, 77, 0, 28, 0, 27, 48, 22],
            [55, 0, 92, 0, 0, 26, 36, -92, 56],
        ]
        assert archive["test_images"][0].tolist() == [55, 0, 81, 0, -6, -26739, 25, 88, 64]
        assert (archive["train_labels"].tolist(), archive["test_labels"].tolist()) == ([1, 3], [6, 0])
        assert (archive["train_images"].dtype, archive["train_labels"].dtype) == (np.int16, np.uint8)


def test_letters_are_made_from_the_official_file(monkeypatch, tmp_path):
    monkeypatch.setattr(making, "LETTERS_TRAINED", 2)
    lines = ("T,2,8,3,5,1,8,13,0,6,6,10,8,0,8,0,8", "I,5,12,3,7,2,10,5,5,4,13,3,9,2,8,4,10")
    last = "A,4,11,6,8,6,10,6,2,6,10,3,7,3,7,3,15"
    (tmp_path / "letter-recognition.data").write_text("\n".join([*lines, last, ""]))
    making.make_letter(tmp_path, tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz", allow_pickle=False) as archive:
        assert (archive["train_labels"].tolist(), archive["test_labels"].tolist()) == ([19, 8], [0])
        assert archive["train_images"][0].tolist() == [2, 8, 3, 5, 1, 8, 13, 0, 6, 6, 10, 8, 0, 8, 0, 8]
        assert archive["test_images"].tolist() == [[4, 11, 6, 8, 6, 10, 6, 2, 6, 10, 3, 7, 3, 7, 3, 15]]
        assert archive["train_images"].dtype == np.uint8
