import gzip

import numpy as np
import pytest

from fedjax_bal.data import DATASETS, DataError, load

HALVES = {"train": 47, "test": 9}


@pytest.fixture
def emnist(tmp_path, to_idx):
    """A function that writes the four files of a set, pixels column by column, and says what they show."""

    def write(split, folder="", ending=".gz"):
        rng, shown = np.random.default_rng(len(split)), []
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for half, count in HALVES.items():
            images, labels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count)[::-1] % 47
            shown += [images, labels]
            for kind, array in (("images-idx3", images.transpose(0, 2, 1)), ("labels-idx1", labels)):
                content = to_idx(np.ascontiguousarray(array))
                path = tmp_path / folder / f"emnist-{split}-{half}-{kind}-ubyte{ending}"
                path.write_bytes(gzip.compress(content, 1) if ending else content)
        return tmp_path, shown

    return write


@pytest.mark.parametrize("split", ["balanced", "bymerge", "byclass"])
@pytest.mark.parametrize("folder", ["", "emnist", "gzip", "own"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_images_are_upright_wherever_the_files_lie(emnist, split, folder, ending):
    name = f"emnist_{split}"
    data_dir, (images, labels, test_images, test_labels) = emnist(split, name if folder == "own" else folder, ending)
    dataset = load(name, data_dir)
    np.testing.assert_array_equal(dataset.train_images[..., 0], images)
    np.testing.assert_array_equal(dataset.test_images[..., 0], test_images)
    assert dataset.train_images.flags.c_contiguous and dataset.train_images.dtype == np.uint8
    np.testing.assert_array_equal(dataset.train_labels, labels)
    np.testing.assert_array_equal(dataset.test_labels, test_labels)
    assert dataset.train_labels.dtype == np.int32
    assert dataset.class_names == DATASETS[name].class_names
    assert (dataset.class_names[0], dataset.class_names[10]) == ("0", "A")
    assert dataset.class_names[-1] == ("z" if split == "byclass" else "t")


@pytest.mark.parametrize("folder", ["", "emnist", "gzip", "emnist_astraea"])
def test_astraea_trains_on_bymerge_and_tests_on_balanced(emnist, folder):
    _, (_, _, balanced, balanced_labels) = emnist("balanced", folder)
    data_dir, (merged, merged_labels, other, _) = emnist("bymerge", folder)
    dataset = load("emnist_astraea", data_dir)
    np.testing.assert_array_equal(dataset.train_images[..., 0], merged)
    np.testing.assert_array_equal(dataset.train_labels, merged_labels)
    np.testing.assert_array_equal(dataset.test_images[..., 0], balanced)
    np.testing.assert_array_equal(dataset.test_labels, balanced_labels)
    assert not np.array_equal(balanced, other)
    assert dataset.class_names == DATASETS["emnist_balanced"].class_names


def test_astraea_needs_no_other_files(emnist):
    emnist("balanced")
    data_dir, _ = emnist("bymerge")
    for file in (*data_dir.glob("emnist-balanced-train-*"), *data_dir.glob("emnist-bymerge-test-*")):
        file.unlink()
    assert len(load("emnist_astraea", data_dir).test_images) == HALVES["test"]
    (data_dir / "emnist-balanced-test-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"emnist_astraea was not found: looked for .*emnist-balanced-test-labels"):
        load("emnist_astraea", data_dir)


def test_missing_files_are_named_with_all_folders(emnist):
    data_dir, _ = emnist("balanced", "gzip")
    places = rf"in {data_dir}/emnist, {data_dir}/gzip, {data_dir}/emnist_bymerge, {data_dir};"
    with pytest.raises(DataError, match=rf"emnist-bymerge-train-images-idx3-ubyte, .*\.gz.* {places}"):
        load("emnist_bymerge", data_dir)


def test_damage_is_named(emnist, to_idx):
    data_dir, _ = emnist("balanced")
    labels = data_dir / "emnist-balanced-test-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(to_idx(np.array([*range(8), 47]))))
    with pytest.raises(DataError, match=r"test-labels.*label 47 at position 8, expected 0\.\.46"):
        load("emnist_balanced", data_dir)
    images = data_dir / "emnist-balanced-train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: .*fetch it again"):
        load("emnist_balanced", data_dir)
