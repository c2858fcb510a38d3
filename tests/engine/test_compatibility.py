"""The test set of a simulation meets the federation's names."""

import numpy as np
import pytest

from fedjax_bal import data, models, recipes, simulate
from fedjax_bal.engine.host.compatibility import checked_test

RNG = np.random.default_rng(0)
LABELS = np.array([0, 1, 2] * 4)
KINDS = np.array(["u", "v", "w"])[LABELS]
AGE = RNG.normal(size=12) + 3 * (LABELS == 1)
ZIP = RNG.normal(size=12) + 3 * (LABELS == 2)
TRAIN = {"age": AGE, "zip": ZIP, "kind": KINDS}
TEST = {"zip": ZIP[:7] / 3, "kind": KINDS[:7], "age": AGE[:7] / 3}


def made(train=TRAIN, test=TEST, **options):
    dataset = data.from_pandas(train, "kind", test=test, **options)
    return dataset, data.federate(dataset, [np.arange(6), np.arange(6, 12)])


def same(test, dataset, federation):
    inputs, labels = checked_test(test, federation)
    np.testing.assert_array_equal(inputs, dataset.test_images)
    np.testing.assert_array_equal(labels, dataset.test_labels)


def test_frames_data_sets_and_names_of_classes_are_taken_by_name():
    dataset, federation = made()
    arrays = dataset.test_images, dataset.test_labels
    for test in (arrays, dataset, (TEST, TEST["kind"]), (TEST, dataset.test_labels), (arrays[0], list(TEST["kind"]))):
        same(test, dataset, federation)
    # Another order of columns and of classes, and one class fewer.
    turned = {"zip": ZIP, "age": AGE, "kind": KINDS}
    few = {name: values[TEST["kind"] != "u"] for name, values in TEST.items()}
    other, _ = made(turned, few)
    assert other.input_names == ("zip", "age")
    inputs, labels = checked_test(other, federation)
    np.testing.assert_array_equal(inputs, other.test_images[:, ::-1])
    assert labels.tolist() == other.test_labels.tolist()
    same(dataset._replace(class_names=("w", "v", "u"), test_labels=2 - dataset.test_labels), dataset, federation)
    fewer = data.from_arrays((few["age"][:, None], few["kind"]), 0.5)
    assert fewer.class_names == ("v", "w")
    bare = data.federate(dataset._replace(input_names=None), [np.arange(12)])
    assert checked_test(fewer, bare)[1].tolist() == (1 + fewer.test_labels).tolist()


def test_frames_of_pandas_are_taken_by_name():
    pandas = pytest.importorskip("pandas")
    dataset, federation = made()
    frame = pandas.DataFrame(TEST, index=range(7, 0, -1))
    same((frame, frame.kind), dataset, federation)
    same((frame[["zip", "age"]], frame.kind.astype("category")), dataset, federation)


@pytest.mark.parametrize("kind", [int, float, str])
def test_integers_beside_a_frame_are_names_where_classes_have_integers_as_names(kind):
    train = TRAIN | {"kind": LABELS + 1}
    test = TEST | {"kind": LABELS[:7] + 1}
    dataset, federation = made(train, test)
    assert dataset.class_names == ("1", "2", "3")
    same((test, test["kind"].astype(kind)), dataset, federation)
    same((dataset.test_images, dataset.test_labels), dataset, federation)
    with pytest.raises(ValueError, match="test labels: received '0'"):
        checked_test((test, dataset.test_labels), federation)


def test_integers_beside_an_array_that_may_be_names_or_numbers_are_refused():
    dataset, federation = made(TRAIN | {"kind": LABELS + 1}, TEST | {"kind": LABELS[:7] + 1})
    inputs = dataset.test_images[:2]
    for labels, numbers in (([0, 2], [0, 2]), (["1", "2"], [0, 1]), ([2, 3], [2, 3])):  # simulate refuses a number 3
        assert checked_test((inputs, np.array(labels)), federation)[1].tolist() == numbers
    with pytest.raises(
        ValueError, match="received the integers 1, 2 beside an array, which may be names or numbers of"
    ):
        checked_test((inputs, np.array([1, 2])), federation)
    dataset, federation = made(TRAIN | {"kind": LABELS}, TEST | {"kind": LABELS[:7]})
    assert checked_test((inputs, np.array([1, 2])), federation)[1].tolist() == [1, 2]  # where both are the same


def test_names_that_only_one_side_has_are_refused():
    dataset, federation = made()
    arrays = data.federate(dataset.train_images, dataset.train_labels, [np.arange(12)], 3)
    with pytest.raises(ValueError, match="test: received a dict"):
        checked_test((TEST, dataset.test_labels), arrays)
    with pytest.raises(ValueError, match="test labels: received names of classes"):
        checked_test((dataset.test_images, list(TEST["kind"])), arrays)
    with pytest.raises(ValueError, match="test: received a data set"):
        checked_test(dataset, arrays)
    with pytest.raises(ValueError, match="test: received a data set"):
        checked_test(dataset._replace(input_names=None), federation)
    with pytest.raises(ValueError, match="test labels: received names of classes"):
        checked_test(dataset._replace(input_names=None), arrays)
    with pytest.raises(ValueError, match=r"test: has no column 'zip' \("):
        checked_test(({"Zip": ZIP[:7], "age": AGE[:7]}, TEST["kind"]), federation)
    with pytest.raises(ValueError, match="test labels: received 'U'"):
        checked_test((TEST, np.char.upper(TEST["kind"])), federation)


@pytest.mark.slow
def test_a_simulation_is_the_same_with_a_frame_in_another_order():
    dataset, federation = made()
    model = models.build("mlp", 3, (2,), hidden=[3])
    tests = ((dataset.test_images, dataset.test_labels), (TEST, TEST["kind"]), dataset)
    found = [simulate(recipes.fedavg(), model, federation, test, rounds=2, seed=0).history for test in tests]
    assert found[0] == found[1] == found[2]
