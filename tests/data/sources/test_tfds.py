"""Sets that TensorFlow Datasets prepared, written here by builders that need no TensorFlow."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from fedjax_bal.data import DataError, find_reader, load, prepared_status
from fedjax_bal.data.inventory import prepare as prepare_files
from fedjax_bal.data.sources.tfds import find_tfds

COUNTS = {"train": 30, "test": 7}
tfds.disable_progress_bar()


def prepare(folder, name, arrays, to_png, version="3.0.1", config=None, shape=(28, 28, 1), file_format="array_record"):
    """Writes a set as the published builders do: keys are running numbers, and examples are shuffled."""

    class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)
        code_path = None
        BUILDER_CONFIGS = [] if config is None else [tfds.core.BuilderConfig(name=config)]

        def _info(self):
            features = {"image": tfds.features.Image(shape=shape), "label": tfds.features.ClassLabel(num_classes=62)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(*arrays[:2]), "test": self._generate_examples(*arrays[2:])}

        def _generate_examples(self, images, labels):
            for row, (image, label) in enumerate(zip(images, labels, strict=True)):
                yield row, {"image": to_png(image), "label": int(label)}

    Prepared.name = name
    builder = Prepared(data_dir=str(folder), file_format=file_format)
    builder.download_and_prepare(download_dir=str(folder / "downloads"))
    return Path(builder.data_dir)


def arrays(seed=0, classes=10):
    rng = np.random.default_rng(seed)
    halves = [(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, classes, n)) for n in COUNTS.values()]
    return [array for half in halves for array in half]


@pytest.fixture
def fashion(tmp_path, to_png):
    """A folder in which TensorFlow Datasets prepared Fashion-MNIST, and the folder of that version."""
    return tmp_path, prepare(tmp_path, "fashion_mnist", arrays(), to_png)


def stored(folder, half):
    """Images and labels in the order in which a folder stores them, read without its features."""
    source = tfds.builder_from_directory(folder).as_data_source(half)
    return [example["image"][..., 0] for example in source], [example["label"] for example in source]


def test_rows_are_in_the_order_of_the_folder(fashion, monkeypatch):
    data_dir, folder = fashion
    dataset = load("fashion_mnist", data_dir)
    for half, images, labels in (
        ("train", dataset.train_images, dataset.train_labels),
        ("test", dataset.test_images, dataset.test_labels),
    ):
        expected = stored(folder, half)
        np.testing.assert_array_equal(images[..., 0], expected[0])
        np.testing.assert_array_equal(labels, expected[1])
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    rows = {image.tobytes(): label for image, label in zip(*arrays()[:2], strict=True)}  # each with its own label
    assert rows == dict(zip(map(np.ndarray.tobytes, dataset.train_images), dataset.train_labels.tolist(), strict=True))
    made = prepare_files("fashion_mnist", data_dir)
    assert made.kind == "TensorFlow Datasets' folder"
    monkeypatch.setattr("fedjax_bal.data.sources.tfds.read_tfds", None)
    again = load("fashion_mnist", data_dir)
    np.testing.assert_array_equal(again.train_images, dataset.train_images)
    assert (dataset.official_order, again.official_order) == (False, False)
    assert "tensorflow" not in sys.modules


def test_images_of_emnist_are_turned(tmp_path, to_png):
    folders = {
        config: prepare(tmp_path, "emnist", arrays(seed, classes=47), to_png, "3.1.0", config)
        for seed, config in enumerate(("balanced", "bymerge"))
    }
    dataset, both = load("emnist_balanced", tmp_path), load("emnist_astraea", tmp_path)
    for train, test, own in (("balanced", "balanced", dataset), ("bymerge", "balanced", both)):
        images, labels = stored(folders[train], "train")
        np.testing.assert_array_equal(own.train_images[..., 0], np.swapaxes(images, 1, 2))
        np.testing.assert_array_equal(own.train_labels, labels)
        np.testing.assert_array_equal(own.test_images[..., 0], np.swapaxes(stored(folders[test], "test")[0], 1, 2))
    with pytest.raises(DataError, match="emnist_byclass was not found"):
        load("emnist_byclass", tmp_path)


def test_folders_of_other_sets_and_versions(tmp_path, to_png):
    prepare(tmp_path, "mnist", arrays(), to_png, "1.0.0")
    assert find_tfds(find_reader("mnist"), tmp_path)
    assert not any(find_tfds(find_reader(name), tmp_path) for name in ("fashion_mnist", "npz", "femnist"))
    with pytest.raises(DataError, match=rf"{tmp_path}/mnist: .* than 3.*prepare it again"):
        load("mnist", tmp_path)


def test_official_files_come_first(fashion, grey_folder):
    data_dir, _ = fashion
    _, (images, *_) = grey_folder("fashion_mnist")
    np.testing.assert_array_equal(load("fashion_mnist", data_dir).train_images[..., 0], images)
    assert "official files" in prepared_status("fashion_mnist", data_dir)


def edit(name, change):
    def act(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return act


def outside(content):
    content["splits"][0]["filepathTemplate"] = "../../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def claims(content):
    content["splits"][0]["shardLengths"] = ["1000000000000"]


def a_few_more(content):
    content["splits"][0]["shardLengths"] = ["33"]


def shard(change):
    def act(folder):
        (path,) = folder.glob("fashion_mnist-train*")
        content = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change(content))

    return act


def nested(content):
    content["splits"][0]["filepathTemplate"] = "inner/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def nested_pipe(folder):
    edit("dataset_info.json", nested)(folder)
    (folder / "inner").mkdir()
    os.mkfifo(folder / "inner" / "fashion_mnist-train.array_record-00000-of-00001")


BAD = {
    "another format": (edit("dataset_info.json", lambda c: c.update(fileFormat="tfrecord")), "TFRECORD"),
    "files elsewhere": (edit("dataset_info.json", outside), "No such file"),
    "no test images": (edit("dataset_info.json", lambda c: c["splits"].pop()), "split 'test'"),
    "a trillion images": (edit("dataset_info.json", claims), "train: 1000000000000 images .* need"),
    "a few images more": (edit("dataset_info.json", a_few_more), "prepare it again"),
    "no json": (lambda folder: (folder / "dataset_info.json").write_text("{"), "prepare it again"),
    "a pipe for a shard in a folder": (nested_pipe, "inner/fashion_mnist-train.*is a pipe"),
    "no shard": (shard(None), "fashion_mnist-train.*No such file"),
    "half a shard": (shard(lambda content: content[: len(content) // 2]), "prepare it again"),
    "other bytes": (shard(lambda content: content[:200] + bytes(400) + content[600:]), "prepare it again"),
}


@pytest.mark.parametrize("kind", BAD)
def test_damaged_folders_are_named(fashion, kind):
    data_dir, folder = fashion
    act, message = BAD[kind]
    act(folder)
    with pytest.raises(DataError, match=message) as caught:
        load("fashion_mnist", data_dir)
    assert "fashion_mnist" in str(caught.value) and len(str(caught.value)) < 700


def test_contents_that_do_not_fit_are_named(tmp_path, to_png):
    small = arrays()
    prepare(tmp_path / "a", "mnist", [small[0][:, :20], *small[1:]], to_png)
    with pytest.raises(DataError, match=r"train image 0: expected .* 28x28 .* found 28x20"):
        load("mnist", tmp_path / "a")
    prepare(tmp_path / "b", "mnist", arrays(classes=62), to_png)
    with pytest.raises(DataError, match=r"train: .* labels in 0\.\.9"):
        load("mnist", tmp_path / "b")


@pytest.mark.parametrize("text", [None, "[]", '{"pythonClassName": "antigravity.Image"}'])
def test_features_of_the_folder_are_never_read(fashion, text):
    data_dir, folder = fashion
    expected = load("fashion_mnist", data_dir)
    (folder / "features.json").unlink()
    if text:
        (folder / "features.json").write_text(text)
    np.testing.assert_array_equal(load("fashion_mnist", data_dir).train_images, expected.train_images)
    assert "antigravity" not in sys.modules
