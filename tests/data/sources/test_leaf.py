import json

import numpy as np
import pytest

from fedjax_bal.data import DataError, federate, inventory, load, partition
from fedjax_bal.data.sources.leaf import read_writers

COUNTS = {"f0_a": 12, "f1_b": 0, "f2_c": 9, "f3_d": 30}


def sample(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 62, count)


def leaf(counts, first=0):
    """A file as LEAF writes it."""
    data = {}
    for seed, (name, count) in enumerate(counts.items(), first):
        images, labels = sample(count, seed)
        data[name] = {"x": [[int(v) / 255 for v in image.ravel()] for image in images], "y": labels.tolist()}
    return {"users": list(counts), "num_samples": list(counts.values()), "user_data": data}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("folder", ["", "femnist", "femnist/data", "data"])
def test_all_data_are_divided_by_writer(tmp_path, folder):
    names = list(COUNTS)
    halves = [{name: COUNTS[name] for name in own} for own in (names[:2], names[2:])]
    write(tmp_path / folder / "all_data" / "all_data_0.json", leaf(halves[0]))
    write(tmp_path / folder / "all_data" / "all_data_1.json", leaf(halves[1], first=2))
    dataset = load("femnist", tmp_path)
    samples = [sample(count, seed) for seed, count in enumerate(COUNTS.values()) if count]
    code = lambda images, labels: [(image.tobytes(), label) for image, label in zip(images, labels, strict=True)]
    train = code(dataset.train_images, dataset.train_labels.tolist())
    test = code(dataset.test_images, dataset.test_labels.tolist())
    # Of each writer's images a tenth, rounded down; the others in their order.
    for held, (images, labels) in zip((1, 0, 3), samples, strict=True):
        kept, own = len(labels) - held, code(images, labels.tolist())
        assert [item for item in own if item not in test[:held]] == train[:kept]
        assert set(test[:held]) < set(own)
        train, test = train[kept:], test[held:]
    assert not train and not test
    assert dataset.train_clients.tolist() == [0] * 11 + [1] * 9 + [2] * 27
    assert dataset.client_names == ("f0_a", "f2_c", "f3_d")  # f1_b has no image
    assert dataset.test_clients.tolist() == [0] + [2] * 3
    assert (dataset.train_images.dtype, dataset.train_labels.dtype) == (np.uint8, np.int32)
    assert len(dataset.class_names) == 62 and dataset.class_names[36] == "a"


def test_images_for_testing_are_of_all_classes_though_leaf_writes_class_after_class(tmp_path):
    content = leaf({"f0_a": 200})
    content["user_data"]["f0_a"]["y"] = np.repeat([0, 1], 100).tolist()
    write(tmp_path / "all_data" / "all_data_0.json", content)
    held = np.bincount(load("femnist", tmp_path).test_labels, minlength=2)
    assert held.sum() == 20
    assert held.min() >= 3  # of ten expected; fewer come by chance once in a thousand


def test_what_leaf_divided_stays_divided(tmp_path):
    write(tmp_path / "train" / "part_9.json", leaf({"f0_a": 3, "f1_b": 2}))
    write(tmp_path / "test" / "part_9.json", leaf({"a9_n": 1, "f1_b": 2, "f0_a": 1}, first=4))
    write(tmp_path / "all_data" / "all_data_0.json", leaf({"f9_z": 20}))
    dataset = load("femnist", tmp_path)
    np.testing.assert_array_equal(dataset.train_images[3:, ..., 0], sample(2, 1)[0])
    labels = np.concatenate([sample(1, 4)[1], sample(2, 5)[1], sample(1, 6)[1]])
    np.testing.assert_array_equal(dataset.test_labels, labels)
    assert dataset.train_clients.tolist() == [0, 0, 0, 1, 1]
    # A writer with test images only comes last.
    assert dataset.client_names == ("f0_a", "f1_b", "a9_n")
    assert dataset.test_clients.tolist() == [2, 1, 1, 0]


def test_a_prepared_file_keeps_the_writers_and_their_order(tmp_path):
    write(tmp_path / "train" / "part.json", leaf({"z0": 3, "a1": 2}))
    write(tmp_path / "test" / "part.json", leaf({"m2": 1, "a1": 2, "z0": 1}, first=4))
    official = load("femnist", tmp_path)
    assert inventory.prepare("femnist", tmp_path).file is not None
    prepared = inventory.read_prepared("femnist", tmp_path, None)
    assert prepared is not None and prepared.client_names == official.client_names == ("z0", "a1", "m2")
    for name in ("train_clients", "test_clients", "train_images", "test_labels"):
        np.testing.assert_array_equal(getattr(prepared, name), getattr(official, name))
        assert getattr(prepared, name).dtype == getattr(official, name).dtype
    rows = partition.natural(np.random.default_rng(0), prepared.train_labels, None, prepared.train_clients)
    federation = federate(prepared, rows)
    assert federation.client_names == ("z0", "a1")
    assert federation.tests is not None and np.diff(federation.tests.offsets).tolist() == [1, 2]


def test_half_of_a_division_is_not_enough(tmp_path):
    write(tmp_path / "train" / "part.json", leaf({"f0_a": 3}))
    with pytest.raises(
        DataError, match=r"femnist was not found: looked for train/\*.json with test/\*.json .*preprocess"
    ):
        load("femnist", tmp_path)
    write(tmp_path / "test" / "part.json", leaf({"f0_a": 0}))
    with pytest.raises(DataError, match="no images for training or none for testing"):
        load("femnist", tmp_path)
    write(tmp_path / "train" / "part.json", leaf({}))
    with pytest.raises(DataError, match="no images for training or none for testing"):
        load("femnist", tmp_path)


def changed(**keys):
    return lambda content: content.update(keys)


def own(key, value):
    return lambda content: content["user_data"]["f0_a"].update({key: value})


def pixel(value):
    return lambda content: content["user_data"]["f0_a"]["x"][1].__setitem__(5, value)


def label(value):
    return lambda content: content["user_data"]["f0_a"]["y"].__setitem__(1, value)


BAD = {
    "no users": (lambda content: content.pop("users"), "lacks 'users'"),
    "a user without data": (changed(users=["f0_a", "f1_b", "f2_c"]), "different writers"),
    "no pixels": (own("x", None), "writer f0_a: "),
    "no mapping": (lambda content: content["user_data"].update(f0_a=[]), "writer f0_a: "),
    "an image less": (lambda content: content["user_data"]["f0_a"]["x"].pop(), "lists x and y of one length"),
    "short images": (own("x", [[0.5] * 783] * 3), "writer f0_a: .*784"),
    "infinity": (pixel(float("inf")), "pixels from 0 to 1, found 0.0.* to inf"),
    "a word": (pixel("black"), "writer f0_a: .*black"),
    "bytes for pixels": (pixel(255), "pixels from 0 to 1, found .* to 255.0"),
    "label 62": (label(62), r"labels in 0\.\.61"),
    "half a label": (label(0.5), r"labels in 0\.\.61"),
}


@pytest.mark.parametrize("kind", BAD)
def test_contents_that_do_not_fit_are_named(tmp_path, kind):
    change, message = BAD[kind]
    content = leaf({"f0_a": 3, "f1_b": 2})
    change(content)
    path = tmp_path / "all_data_0.json"
    write(path, content)
    with pytest.raises(DataError, match=message) as caught:
        load("femnist", tmp_path)
    assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, '{"users": ' + "9" * 5000, "{}", "3"])
def test_damaged_files_are_named(tmp_path, text):
    (tmp_path / "all_data_0.json").write_text(text)
    with pytest.raises(DataError, match="all_data_0.json: "):
        load("femnist", tmp_path)


def test_a_writer_in_two_files_is_refused(tmp_path):
    paths = [tmp_path / f"all_data_{number}.json" for number in range(2)]
    for path in paths:
        write(path, leaf({"f0_a": 1}))
    with pytest.raises(DataError, match=r"all_data_1.json: writer f0_a: comes twice"):
        read_writers(paths)
