"""Sets that TensorFlow Datasets prepared, written here by builders that need no TensorFlow."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from fedjax_bal.data import DATASETS, DataError, find_reader, load
from fedjax_bal.data.inventory import inventory_digest
from fedjax_bal.data.inventory import prepare as prepare_files
from fedjax_bal.data.readers.npz import read_npz
from fedjax_bal.data.readers.tfds import find_tfds, original_order

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


def same(one, other):
    for name, first, second in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(first, second, err_msg=name)
        assert getattr(first, "dtype", None) == getattr(second, "dtype", None)


@pytest.fixture
def fashion(tmp_path, to_png):
    """A folder in which TensorFlow Datasets prepared Fashion-MNIST, and the folder of that version."""
    return tmp_path, prepare(tmp_path, "fashion_mnist", arrays(), to_png)


def test_idx_files_and_a_prepared_folder_give_the_same_arrays(fashion, grey_folder, to_idx):
    data_dir, _ = fashion
    files = data_dir / "idx"
    files.mkdir()
    names = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]
    for name, array in zip(names, arrays(), strict=True):
        (files / f"{name}-ubyte").write_bytes(to_idx(array))
    expected = load("fashion_mnist", files)
    np.testing.assert_array_equal(expected.train_images[..., 0], arrays()[0])
    same(load("fashion_mnist", data_dir), expected)
    made = [prepare_files("fashion_mnist", folder) for folder in (files, data_dir)]
    assert [one.kind for one in made] == ["official files", "TensorFlow Datasets' folder"]
    assert inventory_digest(made[0].dataset) == inventory_digest(made[1].dataset)
    same(read_npz(made[0].file), read_npz(made[1].file))
    same(load("fashion_mnist", data_dir), expected)  # from what was written
    assert "tensorflow" not in sys.modules


def test_images_of_emnist_are_turned(tmp_path, to_png):
    images, labels, test_images, test_labels = arrays(1, classes=47)
    prepare(tmp_path, "emnist", [images, labels, test_images, test_labels], to_png, "3.1.0", "balanced")
    merged = arrays(2, classes=47)
    prepare(tmp_path, "emnist", merged, to_png, "3.1.0", "bymerge")
    dataset = load("emnist_balanced", tmp_path)
    np.testing.assert_array_equal(dataset.train_images[..., 0], images.transpose(0, 2, 1))
    np.testing.assert_array_equal(dataset.train_labels, labels)
    both = load("emnist_astraea", tmp_path)
    np.testing.assert_array_equal(both.train_images[..., 0], merged[0].transpose(0, 2, 1))
    np.testing.assert_array_equal(both.test_images, dataset.test_images)
    with pytest.raises(DataError, match="emnist_byclass was not found"):
        load("emnist_byclass", tmp_path)


def test_the_latest_version_is_found_from_any_folder(tmp_path, to_png):
    old, new = (prepare(tmp_path, "mnist", arrays(s), to_png, f"3.0.{v}") for s, v in ((0, 9), (1, 10)))
    for folder in (tmp_path, tmp_path / "mnist", new):
        assert [str(place) for place in find_tfds(find_reader("mnist"), folder)] == [str(new)] * 2
    assert str(find_tfds(find_reader("mnist"), old)[0]) == str(old)
    assert all(find_tfds(find_reader(name), tmp_path) is None for name in ("fashion_mnist", "npz"))
    np.testing.assert_array_equal(load("mnist", tmp_path).test_labels, arrays(1)[3])


def test_official_files_come_first(fashion, grey_folder):
    data_dir, _ = fashion
    _, (images, *_) = grey_folder("fashion_mnist")
    np.testing.assert_array_equal(load("fashion_mnist", data_dir).train_images[..., 0], images)


def test_several_shards_keep_their_order(monkeypatch, tmp_path, to_png):
    from tensorflow_datasets.core.utils import shard_utils

    monkeypatch.setattr(shard_utils.ShardConfig, "get_number_shards", lambda *_: 4)
    folder = prepare(tmp_path, "mnist", arrays(), to_png)
    assert len(list(folder.glob("mnist-train*"))) == 4
    np.testing.assert_array_equal(load("mnist", tmp_path).train_labels, arrays()[1])


def test_the_original_order_is_a_permutation_known_from_the_hash():
    from tensorflow_datasets.core.hashing import Hasher

    for split in COUNTS:
        hasher = Hasher(split)
        expected = sorted(range(200), key=hasher.hash_key)
        assert original_order(split, 200).tolist() == expected
    assert original_order("train", 5, shuffled=False).tolist() == [0, 1, 2, 3, 4]


def edit(name, change):
    def act(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return act


def foreign(content):
    content["featuresDict"]["features"]["image"]["pythonClassName"] = "antigravity.Image"


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


def pipe(folder):
    (path,) = folder.glob("fashion_mnist-train*")
    path.unlink()
    os.mkfifo(path)


def nested(content):
    content["splits"][0]["filepathTemplate"] = "inner/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def nested_pipe(folder):
    edit("dataset_info.json", nested)(folder)
    (folder / "inner").mkdir()
    os.mkfifo(folder / "inner" / "fashion_mnist-train.array_record-00000-of-00001")


BAD = {
    "a foreign class": (edit("features.json", foreign), "names 'antigravity.Image', which is no feature"),
    "another format": (edit("dataset_info.json", lambda c: c.update(fileFormat="tfrecord")), "in the format tfrecord"),
    "files elsewhere": (edit("dataset_info.json", outside), "is a link that leads out of|can't read its train images"),
    "no features": (lambda folder: (folder / "features.json").unlink(), "features.json: can't be read"),
    "a deep list": (
        lambda folder: (folder / "features.json").write_text("[" * 900 + "]" * 900),
        "can't read its train",
    ),
    "a list": (lambda folder: (folder / "features.json").write_text("[]"), "can't read its train images"),
    "no json": (lambda folder: (folder / "features.json").write_text("{"), "is no JSON file"),
    "no test images": (edit("dataset_info.json", lambda c: c["splits"].pop()), "can't read its test images"),
    "a trillion images": (edit("dataset_info.json", claims), "1000000000000 images .* need|can't read its train"),
    "a few images more": (edit("dataset_info.json", a_few_more), "can't read its train images"),
    "a pipe of names": (lambda folder: os.mkfifo(folder / "label.labels.txt"), "is a pipe: .*label.labels.txt"),
    "a pipe for a shard in a folder": (nested_pipe, "is a pipe: .*inner/fashion_mnist-train"),
    "a device beside": (lambda folder: (folder / "x").symlink_to("/dev/zero"), "x: is a link that leads out of"),
    "a pipe for a shard": (pipe, "is a pipe: .*fashion_mnist-train"),
    "no shard": (shard(None), "can't read its train images"),
    "an empty shard": (shard(lambda content: b""), "can't read its train images"),
    "half a shard": (shard(lambda content: content[: len(content) // 2]), "train image"),
    "other bytes": (shard(lambda content: content[:200] + bytes(400) + content[600:]), "can't read its train|image"),
}


@pytest.mark.parametrize("kind", BAD)
def test_damaged_folders_are_named(fashion, kind):
    data_dir, folder = fashion
    act, message = BAD[kind]
    act(folder)
    with pytest.raises(DataError, match=message) as caught:
        load("fashion_mnist", data_dir)
    assert str(folder) in str(caught.value) and len(str(caught.value)) < 700
    assert "antigravity" not in sys.modules


def test_contents_that_do_not_fit_are_named(tmp_path, to_png):
    small = arrays()
    prepare(tmp_path / "a", "mnist", [small[0][:, :20], *small[1:]], to_png)
    with pytest.raises(DataError, match=r"train image 0: expected an image of 28x28 pixels, found 28x20"):
        load("mnist", tmp_path / "a")
    prepare(tmp_path / "b", "mnist", arrays(classes=62), to_png)
    with pytest.raises(DataError, match=r"train: found labels in .*, expected labels in 0\.\.9; prepare it again"):
        load("mnist", tmp_path / "b")


def test_memory_is_counted_before_an_image_is_read(fashion, monkeypatch):
    monkeypatch.setattr("fedjax_bal.data.memory.available_bytes", lambda: 30 * 784 - 1)
    with pytest.raises(DataError, match="30 images of 28x28 pixels need"):
        load("fashion_mnist", fashion[0])


def femnist(folder):
    (folder / "all_data").mkdir()
    rng, data = np.random.default_rng(0), {}
    for name, count in (("f0", 11), ("f1", 20)):
        images = rng.integers(0, 256, (count, 784))
        data[name] = {"x": (images / 255).tolist(), "y": rng.integers(0, 62, count).tolist()}
    content = {"users": list(data), "num_samples": [11, 20], "user_data": data}
    (folder / "all_data" / "all_data_0.json").write_text(json.dumps(content))


def cinic10(folder):
    from PIL import Image

    rng = np.random.default_rng(0)
    for half in ("train", "test"):
        for name in DATASETS["cinic10"].class_names:
            (folder / half / name).mkdir(parents=True)
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / half / name / "a.png")


def inaturalist2019(folder):
    from PIL import Image

    rng = np.random.default_rng(0)
    for half, count in (("train", 5), ("val", 2)):
        images, annotations = [], []
        for row in range(count):
            pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((60 + row, 50)).save(folder / f"{half}{row}.jpg")
            holder = {} if half == "val" else {"rights_holder": "BABAC"[row]}
            images.append({"id": row, "file_name": f"{half}{row}.jpg"} | holder)
            annotations.append({"image_id": row, "category_id": 1000 - row})
        (folder / f"{half}2019.json").write_text(json.dumps({"images": images, "annotations": annotations}))


@pytest.mark.parametrize("write", [femnist, cinic10, inaturalist2019])
def test_own_builders_write_what_their_files_hold(tmp_path, write):
    from fedjax_bal.data.readers.tfds_builders import build

    name, files = write.__name__, tmp_path / "files"
    files.mkdir()
    write(files)
    expected = {alias: load(alias, files) for alias, reader in DATASETS.items() if reader.tfds.train == name}
    assert len(expected) == (2 if name == "inaturalist2019" else 1)
    folder = build(name, files, tmp_path / "out")
    shutil.rmtree(files)
    assert folder.parent == tmp_path / "out" / name
    for alias, dataset in expected.items():
        same(load(alias, tmp_path / "out"), dataset)
    if name != "cinic10":
        assert len(set(expected[name].train_clients.tolist())) == (3 if name == "inaturalist2019" else 2)
    assert "tensorflow" not in sys.modules


def test_a_builder_without_its_files_says_what_it_needs(tmp_path):
    from fedjax_bal.data.readers.tfds_builders import BUILDERS, build

    assert all("manual_dir holds" in builder.MANUAL_DOWNLOAD_INSTRUCTIONS for builder in BUILDERS.values())
    with pytest.raises(DataError, match="femnist was not found"):
        build("femnist", tmp_path, tmp_path)
