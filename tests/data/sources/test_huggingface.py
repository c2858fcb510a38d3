"""Data sets of Hugging Face from folders; what becomes of their columns is in ../test_huggingface.py."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_bal.config import load_config
from fedjax_bal.data import DataError, load

PICTURES = np.random.default_rng(0).integers(0, 256, (8, 4, 5, 3), dtype=np.uint8)
TABLE = {
    "age": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "sex": list("FMFMFM"),
    "hospital": ["Jena", "Jena", "Kassel", "Kassel", "Mainz", "Mainz"],
    "kind": list("aababb"),
}
COLUMNS = {"label": "kind", "clients": "hospital", "categories": ["sex"]}


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets")


@pytest.fixture
def halves(hub, monkeypatch, tmp_path):
    """Splits of a table, written as a `DatasetDict`, in the current folder; the cache is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train = hub.Dataset.from_dict(TABLE)
    splits = hub.DatasetDict(train=train, test=train.select([1, 2]))
    splits.save_to_disk("disk")
    return splits


def check_table(dataset):
    assert dataset.input_names == ("age", "sex=F", "sex=M") and dataset.client_names == ("Jena", "Kassel", "Mainz")
    sexes = np.array(TABLE["sex"])
    np.testing.assert_array_equal(dataset.train_images, np.stack([TABLE["age"], sexes == "F", sexes == "M"], 1))
    np.testing.assert_array_equal(dataset.test_images, dataset.train_images[[1, 2]])
    assert dataset.test_labels.tolist() == [0, 1] and dataset.test_clients.tolist() == [0, 1]


@pytest.mark.slow
def test_what_save_to_disk_writes(hub, halves):
    check_table(load("huggingface", path="disk", **COLUMNS))
    halves["train"].save_to_disk("single")
    single = load("huggingface", path="single", **COLUMNS, test=0.34)
    assert single.test_share == 0.34 and len(single.test_labels) == 2
    with pytest.raises(DataError, match="single: split: received 'train'"):
        load("huggingface", path="single", **COLUMNS, split="train")
    features = hub.Features({"img": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog"])})
    hub.Dataset.from_dict({"img": list(PICTURES), "label": [0, 1] * 4}, features).save_to_disk("pictures")
    pictures = load("huggingface", path="pictures", test=0.25)
    assert pictures.class_names == ("cat", "dog") and pictures.train_images.shape == (6, 4, 5, 3)
    assert {row.tobytes() for row in pictures.train_images} < {row.tobytes() for row in PICTURES}


@pytest.mark.slow
def test_a_file_that_was_cut_short(halves, tmp_path):
    (file,) = (tmp_path / "disk" / "test").glob("*.arrow")
    content = file.read_bytes()
    for length in range(0, len(content) - 8, len(content) // 7):
        file.write_bytes(content[:length])
        with pytest.raises(DataError, match="disk: "):
            load("huggingface", path="disk", **COLUMNS)


@pytest.mark.slow
def test_a_folder_of_parquet_files(halves, tmp_path):
    (tmp_path / "mine").mkdir()
    for name, half in halves.items():
        half.to_parquet(tmp_path / "mine" / f"{name}-00000.parquet")
    check_table(load("huggingface", path="mine", **COLUMNS))
    check_table(load("huggingface", tmp_path, path="mine", **COLUMNS))
    with pytest.raises(DataError, match="train-00000.parquet: is a file"):
        load("huggingface", path="mine/train-00000.parquet", label="kind")
    (tmp_path / "mine" / "train-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="mine: "):
        load("huggingface", path="mine", **COLUMNS)


@pytest.mark.slow
def test_a_name_on_the_hub_goes_to_load_dataset(hub, halves, monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **options: asked.append((args, options)) or halves)
    check_table(load("huggingface", path="someone/patients", config="de", **COLUMNS))
    check_table(load("huggingface", "nowhere", path="patients", **COLUMNS))
    assert asked == [(("someone/patients", "de"), {}), (("patients", None), {})]
    for path in ("/no/such/folder", "./patients", "a/b/c"):
        with pytest.raises(DataError, match=f"{path.lstrip('.')}: there is no such folder"):
            load("huggingface", path=path, **COLUMNS)
    assert len(asked) == 2


def test_a_hub_that_cannot_be_reached_and_a_library_that_is_absent(monkeypatch):
    def unreachable(path, config):
        raise ConnectionError(f"Couldn't reach {path!r} on the Hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=unreachable))
    with pytest.raises(DataError, match="nobody/nothing: .*no such folder here.*huggingface.co"):
        load("huggingface", path="nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="nobody/nothing: .*pip install datasets"):
        load("huggingface", path="nobody/nothing")


def test_keys_of_a_configuration():
    given = "dataset={name: huggingface, path: mine, label: kind, clients: hospital, split: train, categories: [sex]}"
    options = load_config(None, [given, "methods=fedavg"]).dataset.parameters
    assert options["path"] == "mine" and options["categories"] == ("sex",) and options["test"] is None
    for test in (0.25, "validation"):
        assert load_config(None, [given, "methods=fedavg", f"dataset.test={test}"]).dataset.parameters["test"] == test
