import numpy as np
import pytest

from fedjax_bal.data import DataError, inventory, load, prepared_status

CLASSES = {"dermamnist": 7, "pathmnist": 9, "bloodmnist": 8}


def arrays(classes, **changes):
    """The arrays of a file with two training images of each class, one for validation and three for testing."""
    rng = np.random.default_rng(0)
    halves = {"train": 2 * classes, "val": 1, "test": 3}
    whole = {f"{half}_images": rng.integers(0, 256, (rows, 28, 28, 3), np.uint8) for half, rows in halves.items()}
    whole |= {f"{half}_labels": (np.arange(rows) % classes)[:, None].astype(np.uint8) for half, rows in halves.items()}
    return {name: array for name, array in (whole | changes).items() if array is not None}


@pytest.mark.parametrize("folder", ["", "medmnist", ".medmnist"])
@pytest.mark.parametrize(("name", "classes"), CLASSES.items())
def test_training_and_test_images_are_read(tmp_path, name, classes, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    np.savez_compressed(tmp_path / folder / f"{name}.npz", **arrays(classes))
    dataset = load(name, tmp_path)
    np.testing.assert_array_equal(dataset.train_images, arrays(classes)["train_images"])
    np.testing.assert_array_equal(dataset.test_images, arrays(classes)["test_images"])
    assert dataset.train_labels.tolist() == 2 * list(range(classes)) and dataset.test_labels.tolist() == [0, 1, 2]
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32
    assert len(dataset.class_names) == len(set(dataset.class_names)) == classes
    assert (dataset.mean, dataset.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    place = tmp_path / folder / f"{name}.npz" if folder else tmp_path / f"{name}.npz"
    assert prepared_status(name, tmp_path) == f"found official files in {place.parent}"
    assert inventory.prepare(name, tmp_path).dataset.train_labels.tolist() == dataset.train_labels.tolist()
    assert prepared_status(name, tmp_path).endswith("prepared")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"dermamnist was not found: looked for dermamnist\.npz in .*medmnist, .*28x28"):
        load("dermamnist", tmp_path)
    with pytest.raises(DataError, match="TensorFlow Datasets doesn't have it"):
        load("dermamnist")


WRONG = {
    "no labels": (arrays(7, test_labels=None), "lacks 'test_labels'"),
    "larger images": (arrays(7, train_images=np.zeros((14, 64, 64, 3), np.uint8)), r"train_images has shape \(14, 64"),
    "floats": (arrays(7, test_images=np.zeros((3, 28, 28, 3))), "type float64, .*; expected .* of uint8"),
    "several labels": (arrays(7, test_labels=np.zeros((3, 14), np.uint8)), r"test_labels shape \(3, 14\)"),
    "another set's": (arrays(9), r"labels lie in 0\.\.8; expected 0\.\.6"),
    "negative": (arrays(7, test_labels=np.full((3, 1), -1)), r"test_labels holds -1 in row 0"),
    "a smaller set's": (arrays(4), r"train_labels lacks class 4 \(melanoma\)"),
    "objects": (arrays(7, test_labels=np.array([[1], [2], [None]])), "never opened"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_named(tmp_path, kind):
    content, message = WRONG[kind]
    np.savez(tmp_path / "dermamnist.npz", **content)
    with pytest.raises(DataError, match=message) as caught:
        load("dermamnist", tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "dermamnist.npz")) and len(str(caught.value)) < 400
