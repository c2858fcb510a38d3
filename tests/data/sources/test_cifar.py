import numpy as np
import pytest

from fedjax_bal.data import DataError, load
from fedjax_bal.data.reading import MissingError
from fedjax_bal.data.sources.cifar import read_records

FILES10 = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def records(count, label_bytes, seed):
    """Images `[count, 32, 32, 3]`, labels, and the bytes of the file, written value by value."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10 if label_bytes == 1 else 100, count)
    content = bytearray()
    for image, label in zip(images, labels, strict=True):
        content += bytes([label]) if label_bytes == 1 else bytes([label // 5, label])
        for channel in range(3):
            for line in range(32):
                content += bytes(image[line, :, channel].tolist())
    return images, labels, bytes(content)


@pytest.fixture
def folder10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for seed, file in enumerate(FILES10):
        (folder / file).write_bytes(records(2, 1, seed)[2])
    return folder


@pytest.mark.parametrize("inside", [True, False])
def test_cifar10(folder10, inside):
    dataset = load("cifar10", folder10 if inside else folder10.parent)
    assert dataset.train_images.dtype == np.uint8
    assert dataset.train_labels.dtype == np.int32
    for seed in range(5):
        images, labels, _ = records(2, 1, seed)
        np.testing.assert_array_equal(dataset.train_images[2 * seed : 2 * seed + 2], images)
        np.testing.assert_array_equal(dataset.train_labels[2 * seed : 2 * seed + 2], labels)
    np.testing.assert_array_equal(dataset.test_images, records(2, 1, 5)[0])
    assert dataset.class_names[3] == "cat"


@pytest.mark.parametrize("where", ["cifar-100-binary", "."])
def test_cifar100_takes_the_fine_labels(tmp_path, where):
    (tmp_path / where).mkdir(exist_ok=True)
    for seed, file in enumerate(("train.bin", "test.bin")):
        (tmp_path / where / file).write_bytes(records(4, 2, seed)[2])
    dataset = load("cifar100", tmp_path)
    np.testing.assert_array_equal(dataset.train_images, records(4, 2, 0)[0])
    np.testing.assert_array_equal(dataset.train_labels, records(4, 2, 0)[1])
    np.testing.assert_array_equal(dataset.test_labels, records(4, 2, 1)[1])
    assert len(dataset.class_names) == 100


def test_damage(folder10):
    good = (folder10 / "data_batch_3.bin").read_bytes()
    for content, message in (
        (good[:-1], "whole number of records of 3073 bytes.*found 6145 bytes"),
        (good + b"\0", "found 6147 bytes"),
        (b"", "found 0 bytes"),
        (good[:3073], "expected 2 records, as the other training files have, found 1"),
        (good[:3073] + bytes([10]) + good[3074:], r"label 10 in record 1, expected 0\.\.9"),
    ):
        (folder10 / "data_batch_3.bin").write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            load("cifar10", folder10)
        assert "data_batch_3.bin" in str(caught.value)


def test_a_file_of_the_other_cifar(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(records(3, 1, 0)[2])
    with pytest.raises(DataError, match="other CIFAR"):
        read_records(path, 2, 100)


def test_missing_files(folder10, tmp_path):
    (folder10 / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin lacks data_batch_2\.bin") as told:
        load("cifar10", tmp_path)
    assert not isinstance(told.value, MissingError)  # for which a prepared copy would be read
    with pytest.raises(DataError, match=r"looked for train\.bin, test\.bin in .*cifar-100-binary, "):
        load("cifar100", tmp_path)


def test_pickles_are_never_opened(tmp_path):
    for file in ("data_batch_1", "test_batch"):
        (tmp_path / file).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(
        DataError, match=r"a pickle can run any code, so it is never opened. Get cifar-10-binary\.tar\.gz"
    ):
        load("cifar10", tmp_path)
