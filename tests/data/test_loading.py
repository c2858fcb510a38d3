import errno
import hashlib
import logging
import re
import subprocess
import sys

import numpy as np
import pytest
from data import make_embedded as making

from fedjax_bal.data import DATASETS, DataError, inventory_digest, load, prepared_status
from fedjax_bal.data.sources import embedded, tfds
from fedjax_bal.types import Dataset

# SHA-256 of the pixels and labels of each half of the embedded set
TRAIN = "bc33df19f3d86636c053443a5cbfb93ae9f21a23722eeab863fdbd5da7a806b0"
TEST = "b5113fcb134061cb5184a25e2adf5547678dd63630219fe1d7233c6def78b0da"


def digest(images, labels):
    return hashlib.sha256(images.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()


def test_embedded_set():
    dataset = load("fashion_mnist_small")
    assert dataset.train_images.shape == (10000, 28, 28, 1)
    assert dataset.test_images.shape == (2000, 28, 28, 1)
    assert dataset.train_images.dtype == dataset.test_images.dtype == np.uint8
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32
    assert np.bincount(dataset.train_labels).tolist() == [1000] * 10
    assert np.bincount(dataset.test_labels).tolist() == [200] * 10
    assert digest(dataset.train_images, dataset.train_labels) == TRAIN
    assert digest(dataset.test_images, dataset.test_labels) == TEST
    both = np.concatenate([dataset.train_images, dataset.test_images]).reshape(12000, -1)
    assert len(np.unique(both, axis=0)) == 12000


def test_the_digest_of_a_data_set_never_changes():
    image, label = np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int32)
    assert inventory_digest(Dataset(image, label, image, label, ("a",))).startswith("374708ff")


def test_damaged_embedded_set_is_named(monkeypatch, tmp_path):
    (tmp_path / "fashion_mnist_small.npz").write_bytes(b"PK\x03\x04nothing")
    monkeypatch.setattr(embedded.importlib.resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"fashion_mnist_small\.npz.*install fedjax_bal again"):
        load("fashion_mnist_small")


def test_stratified_rows():
    labels = np.array([3, 1, 3, 1, 3, 1, 1])
    rows = making.stratified_rows(labels, 2, seed=5)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert np.bincount(labels[rows]).tolist() == [0, 2, 0, 2]
    words = np.random.PCG64(5).random_raw(7)
    first = [sorted(np.flatnonzero(labels == c), key=words.item)[:2] for c in (1, 3)]
    assert rows.tolist() == sorted(np.concatenate(first))


def test_making_the_embedded_set_is_reproducible(monkeypatch, tmp_path, grey_folder):
    monkeypatch.setattr(making, "TRAIN_PER_CLASS", 1)
    monkeypatch.setattr(making, "TEST_PER_CLASS", 1)
    folder, (images, *_) = grey_folder()
    first = making.make(folder, tmp_path / "one.npz")
    assert making.make(folder, tmp_path / "two.npz") == first
    content = (tmp_path / "one.npz").read_bytes()
    assert content == (tmp_path / "two.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == first
    with np.load(tmp_path / "one.npz", allow_pickle=False) as archive:
        assert archive["train_labels"].tolist().count(4) == 1
        known = {image.astype(np.uint8).tobytes() for image in images}
        assert {image.tobytes() for image in archive["train_images"]} <= known


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("own_folder", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_idx_sets_in_all_spellings(grey_folder, name, own_folder, dotted, compressed):
    folder, (images, labels, test_images, test_labels) = grey_folder(name if own_folder else "", dotted, compressed)
    dataset = load(name, str(folder))
    np.testing.assert_array_equal(dataset.train_images[..., 0], images)
    np.testing.assert_array_equal(dataset.train_labels, labels)
    np.testing.assert_array_equal(dataset.test_images[..., 0], test_images)
    np.testing.assert_array_equal(dataset.test_labels, test_labels)
    assert dataset.train_labels.dtype == np.int32
    assert dataset.class_names == DATASETS[name].class_names


def test_missing_idx_file_names_what_was_looked_for(grey_folder):
    folder, _ = grey_folder("mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte \(each may end in .gz\) in .*mnist, "):
        load("mnist", folder)


def test_idx_files_of_two_data_sets_are_not_mixed(grey_folder):
    folder, (_, labels, *_) = grey_folder("", seed=1)
    grey_folder("mnist", compressed=True)
    for name in ("train-labels-idx1", "t10k-images-idx3"):
        (folder / "mnist" / f"{name}-ubyte.gz").unlink()
    (folder / "train-labels-idx1-ubyte").write_bytes((folder / "train-labels-idx1-ubyte").read_bytes()[:-1] + b"\7")
    assert load("mnist", folder).train_labels.tolist() == [*labels[:-1], 7]
    (folder / "train-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"looked for train-images-idx3-ubyte, .* in one of these folders"):
        load("mnist", folder)


def test_unknown_name_and_folder(tmp_path):
    with pytest.raises(ValueError, match="'fashionmnist'"):
        load("fashionmnist")
    several = "'emnist_balanced' or 'emnist_bymerge' or 'emnist_byclass' or 'emnist_astraea'"
    with pytest.raises(ValueError, match=rf"did you mean {several}\?"):
        load("emnist", tmp_path)
    with pytest.raises(ValueError, match="'zzz'"):
        load("zzz")
    with pytest.raises(DataError, match="is not a folder"):
        load("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match="aaaa: is not a folder"):
        load("mnist", "a" * 300)
    with pytest.raises(DataError, match="there is no aaaa"):
        load("npz", path="a" * 300)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_a_folder_without_permission_is_named(tmp_path, monkeypatch, name):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    with pytest.raises(DataError, match=rf"{tmp_path}/.*: can't be read \(Permission denied\); check the path"):
        load(name, tmp_path)
    assert prepared_status(name, tmp_path).startswith(f"can't be used: {tmp_path}")


def test_tensorflow_datasets_is_asked_without_a_folder(fake_tfds, to_png):
    images = [to_png(np.full((32, 32, 3), i, np.uint8)) for i in (0, 1)]
    examples = [{"image": image, "label": np.int64(90 + i), "coarse_label": 1} for i, image in enumerate(images)]
    fake_tfds.sets = {("cifar100", "train"): examples, ("cifar100", "test"): examples[1:]}
    dataset = load("cifar100")
    assert fake_tfds.asked == [("cifar100", "train"), ("cifar100", "test")]
    assert dataset.train_images[:, 0, 0, 0].tolist() == [0, 1]
    assert dataset.train_labels.tolist() == [90, 91]
    assert dataset.test_labels.tolist() == [91]
    assert dataset.train_images.dtype == np.uint8
    assert dataset.train_labels.dtype == np.int32
    assert dataset.train_clients is None


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_tensorflow_datasets_can_not_provide(fake_tfds, name, caplog):
    def builder(name, **options):
        logging.getLogger("absl").warning("Variant folder has no features.json")
        raise RuntimeError("no network" + "!" * 10000)

    fake_tfds.builder = builder
    with pytest.raises(DataError, match=r"RuntimeError: no network.*--data-dir") as caught:
        load(name)
    wanted = "train-images-idx3-ubyte" if name == "mnist" else "data_batch_1.bin"
    assert wanted in str(caught.value)
    assert len(str(caught.value)) < 1000 and caplog.messages == []
    logging.getLogger("absl").warning("from elsewhere")
    assert caplog.messages == ["from elsewhere"]


@pytest.mark.parametrize("proxies", [{}, {"no": "localhost"}])
def test_no_network_is_told_at_once(fake_tfds, monkeypatch, proxies):
    def unknown(host, port):
        raise OSError("Name or service not known")

    monkeypatch.setattr(tfds.socket, "getaddrinfo", unknown)
    monkeypatch.setattr(tfds, "getproxies", lambda: proxies)
    fake_tfds.prepared = False
    with pytest.raises(DataError, match=r"ConnectionError: no network: \S+ and \S+ can't be looked up.*--data-dir"):
        load("cifar10")
    assert fake_tfds.asked == []


@pytest.mark.parametrize(("prepared", "proxies"), [(True, {}), (False, {"https": "http://proxy:3128"})])
def test_the_network_is_no_matter_where_data_lie_or_a_proxy_stands(fake_tfds, monkeypatch, prepared, proxies):
    monkeypatch.setattr(tfds.socket, "getaddrinfo", None)
    monkeypatch.setattr(tfds, "getproxies", lambda: proxies)
    fake_tfds.prepared = prepared
    with pytest.raises(DataError, match="lacks .'cifar10', 'train'"):  # it was asked, and holds nothing
        load("cifar10")
    assert fake_tfds.asked == [("cifar10", "train")]


def test_tensorflow_datasets_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataError, match=r"Error: .*tensorflow_datasets.*--data-dir"):
        load("mnist")


def test_the_catalogue():
    for name, reader in DATASETS.items():
        assert len(set(reader.class_names)) == reader.num_classes
        kinds = re.search(rf"\b{reader.num_classes:,} (classes|species)\b", reader.description)
        assert reader.origin == "own" or kinds or name == "synthetic"
        assert len(reader.mean) == len(reader.std) and len(reader.mean) in (0, *reader.image_shape[-1:])
        assert "\n" not in reader.description
        assert bool(reader.files) == bool(reader.home) == (reader.origin == "official")
        for count in reader.counts if name != "labels_47" else ():
            assert f"{count:,}" in reader.description
    same = ("mean", "std", "image_shape", "class_names")
    assert all(getattr(DATASETS["emnist_astraea"], key) == getattr(DATASETS["emnist_bymerge"], key) for key in same)
    assert DATASETS["cinic10"].class_names == DATASETS["cifar10"].class_names
    assert [DATASETS[name].num_classes for name in ("emnist_byclass", "femnist", "cifar100")] == [62, 62, 100]


def test_labels_alone_need_no_files():
    dataset = load("labels_47")
    assert np.bincount(dataset.train_labels).tolist() == [16_000] * 47
    assert np.bincount(dataset.test_labels).tolist() == [10] * 47
    assert dataset.train_images.shape == (752_000, 1, 1, 1) and not dataset.train_images.any()


@pytest.mark.slow
def test_import_is_light():
    heavy = ("tensorflow_datasets", "matplotlib", "PIL")
    code = (
        "import sys; from fedjax_bal import data; data.load('labels_47'); data.prepared_status('mnist', None); "
        f"print([module for module in {heavy} if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
