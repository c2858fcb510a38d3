"""New rows meet names: columns of a table in another order, and labels by the names of the classes."""

import numpy as np
import pytest

from fedjax_bal import data
from fedjax_bal.data import class_numbers, columns_by_name, is_frame

AGES = [31, 52, 47]
WEIGHTS = [0.1, 1 / 3, 1e-3]
ROWS = np.array([AGES, WEIGHTS], np.float32).T


class Frame:
    """A table of a library that the package doesn't know."""

    def __init__(self, columns):
        self.columns = list(columns)
        self.values = columns

    def __getitem__(self, name):
        return self.values[name]


def columns(**changes):
    """The columns in another order than the model's, among others."""
    return {"kind": ["a", "b", "a"], "weight": WEIGHTS, "hospital": [1, 2, 1], "age": AGES, **changes}


def rows(frame):
    assert is_frame(frame)
    return columns_by_name("inputs", frame, ("age", "weight"))


@pytest.mark.parametrize("make", [dict, Frame])
def test_columns_are_taken_by_name_and_others_are_ignored(make):
    assert rows(make(columns())).tobytes() == ROWS.tobytes()
    smoker = columns_by_name("inputs", make(columns(smoker=[True, False, True])), ["smoker", "weight"])
    assert smoker[:, 0].tolist() == [1, 0, 1]


def test_frames_of_pandas_have_the_types_that_training_takes():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns(), index=[7, 3, 5])
    for types in ({}, {"age": "Int64", "weight": "Float64"}, {"age": object}, {"age": "float32"}, {"kind": "category"}):
        assert rows(frame.astype(types)).tobytes() == ROWS.tobytes(), types
    dummies = pandas.get_dummies(frame[["age", "weight", "kind"]])
    wanted = data.from_pandas(
        frame[["age", "weight"]].assign(y=[0, 1, 0], **dummies[["kind_a"]]), "y", test=dummies.assign(y=[0, 1, 0])
    )
    names = wanted.input_names
    np.testing.assert_array_equal(columns_by_name("inputs", dummies[dummies.columns[::-1]], names), wanted.test_images)
    with pytest.raises(ValueError, match="inputs: column 'age' has 1 missing value in 3 rows, the first in row 1"):
        rows(frame.assign(age=pandas.array([31, None, 47], "Int64")))


def test_frames_of_polars():
    polars = pytest.importorskip("polars")
    assert rows(polars.DataFrame(columns())).tobytes() == ROWS.tobytes()
    assert rows(polars.LazyFrame(columns())).tobytes() == ROWS.tobytes()


def test_tables_of_arrow_and_records():
    assert rows(np.array(list(zip(AGES, WEIGHTS, strict=True)), [("age", int), ("weight", float)])).shape == (3, 2)
    arrow = pytest.importorskip("pyarrow")
    assert rows(arrow.table(columns())).tobytes() == ROWS.tobytes()


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"inputs: has no column 'age' \("):
        columns_by_name("inputs", {"Age": AGES, "weight": WEIGHTS}, ["age", "weight", "height"])
    with pytest.raises(ValueError, match="inputs: column 'weight' holds 'x' in row 1, "):
        rows(columns(weight=[1.5, "x", 2.5]))
    with pytest.raises(ValueError, match="inputs: column 'age' holds 31"):
        rows({"age": 31, "weight": 0.5})
    with pytest.raises(ValueError, match="inputs: column 'age' is empty"):
        rows({"age": [], "weight": []})


def test_categories_are_taken_from_the_column_that_they_are_of():
    names = ["sex=F", "age", "sex=M"]
    frame = {"age": AGES, "sex": ["M", "F", " M"]}
    assert columns_by_name("inputs", frame, names).tolist() == [[0, AGES[0], 1], [1, AGES[1], 0], [0, AGES[2], 1]]
    ready = {"age": AGES, "sex=F": [0, 1, 0], "sex=M": [1, 0, 1]}
    np.testing.assert_array_equal(columns_by_name("inputs", ready, names), columns_by_name("inputs", frame, names))
    for column, value in {"sex": "D", "sex ": None}.items():
        with pytest.raises(
            ValueError, match=f"inputs: column 'sex' holds '{value}' in row 2" if value else "no column 'sex' "
        ):
            columns_by_name("inputs", {"age": AGES, column: ["M", "F", value or "M"]}, names)
    with pytest.raises(ValueError, match="inputs: column 'sex' has 1 missing value"):
        columns_by_name("inputs", frame | {"sex": ["M", "F", None]}, names)


def test_what_has_no_columns_is_no_frame():
    pandas = pytest.importorskip("pandas")
    for value in (ROWS, ROWS.tolist(), pandas.Series(AGES), None, 3.5, "age"):
        assert not is_frame(value)
    assert is_frame(np.zeros(2, [("age", float), ("weight", float)]))


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["dog", " cat"], ("cat", "dog"), [1, 0]),
        (np.array(["dog", "cat"], object), ("cat", "dog"), [1, 0]),
        ([7, 3], ("3", "7"), [1, 0]),
        ([7.0, 3.0], ("3", "7"), [1, 0]),
        ([True, False], ("False", "True"), [1, 0]),
        (["b"], ("a", "b", "c"), [1]),
    ],
)
def test_labels_are_names_of_classes(labels, names, numbers):
    found = class_numbers("test labels", labels, names)
    assert found.tolist() == numbers and found.dtype == np.int32


def test_unknown_and_missing_labels_are_named():
    with pytest.raises(ValueError, match="test labels: received 'hihg'"):
        class_numbers("test labels", ["low", "hihg"], ("high", "low"))
    with pytest.raises(ValueError, match="test labels: .* 1 missing value"):
        class_numbers("test labels", np.array(["low", None], object), ("high", "low"))
    with pytest.raises(ValueError, match="test labels: received '0'"):
        class_numbers("test labels", [0, 1], ("1", "2"))


def test_a_frame_is_no_array_of_inputs():
    with pytest.raises(ValueError, match="images: received a dict, .*data.from_pandas"):
        data.federate({"age": AGES, "weight": WEIGHTS}, np.array([0, 1, 0]), [np.arange(3)], 2)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="images: received a DataFrame, .*data.from_pandas"):
        data.federate(pandas.DataFrame({"age": AGES}), np.array([0, 1, 0]), [np.arange(3)], 2)
