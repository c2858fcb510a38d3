"""Tables, from data frames and from CSV files, become data sets in the same way."""

import re
import types
from pathlib import Path

import numpy as np
import pytest
from rounding import FORMULA

from fedjax_bal import data

KINDS = np.array(["dog"] * 10 + ["cat"] * 20)
USERS = np.arange(30) % 4
COLUMNS = {
    "f0": np.arange(30) / 4,
    "user": np.array(["Zoe", "Abe", "Bo", "Cy"])[USERS],
    "f1": np.arange(30),
    "kind": KINDS,
    "f2": np.arange(30) % 2 == 0,
}
INPUTS = np.stack([COLUMNS[name] for name in ("f0", "f1", "f2")], 1)


class Frame:
    """A data frame, as far as it is used: it isn't a mapping."""

    def __init__(self, columns):
        self.columns, self.held = list(columns), columns

    def __getitem__(self, name):
        return self.held[name]


def frame(**changes):
    """The table with some columns in place of its own; None leaves a column out."""
    return Frame({name: column for name, column in (COLUMNS | changes).items() if column is not None})


def write_csv(file, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(params=["frame", "csv"])
def read(request, tmp_path):
    """Makes a data set of the table's columns by either way."""

    def by_frame(columns, test=0.2, **options):
        return data.from_pandas(Frame(columns), test=Frame(test) if isinstance(test, dict) else test, **options)

    def by_csv(columns, test=0.2, **options):
        write_csv(tmp_path / "mine.csv", columns)
        if isinstance(test, dict):
            write_csv(tmp_path / "other.csv", test)
            test = "other.csv"
        return data.load("csv", tmp_path, path="mine.csv", test=test, **options)

    return by_frame if request.param == "frame" else by_csv


NUMBERS = COLUMNS | {"kind": np.array([12, 9])[(KINDS == "cat").astype(int)], "user": USERS + 8}


def test_a_share_of_each_class_is_held_out_and_users_stay_with_their_rows(read):
    dataset = read(NUMBERS, label="kind", clients="user")
    assert dataset.class_names == ("9", "12") and dataset.test_share == 0.2
    assert np.bincount(dataset.test_labels).tolist() == [4, 2]
    rows = np.concatenate([dataset.train_images, dataset.test_images])[:, 1].astype(int)  # f1 is the row's number
    assert sorted(rows) == list(range(30)) and rows[:24].tolist() == sorted(rows[:24])
    np.testing.assert_array_equal(dataset.train_images, INPUTS[rows[:24]].astype(np.float32))
    assert dataset.train_labels.tolist() == (KINDS[rows[:24]] == "dog").astype(int).tolist()
    assert dataset.train_clients.tolist() == USERS[rows[:24]].tolist()  # 8, 9, 10, 11 in the order of numbers
    other = read(NUMBERS, label="kind", clients="user", test_seed=1)
    assert not np.array_equal(dataset.test_images, other.test_images)
    np.testing.assert_array_equal(dataset.test_images, read(NUMBERS, label="kind", clients="user").test_images)


def test_whole_users_may_be_held_out(read):
    options = {"label": "kind", "clients": "user", "test": 0.25, "test_by": "clients"}
    dataset = read(COLUMNS, **options)
    held = set(dataset.test_images[:, 1].astype(int) % 4)  # f1 is the row's number, and its remainder the user
    assert len(held) == 1 == dataset.test_users and dataset.test_share is None
    assert set(dataset.train_images[:, 1].astype(int) % 4) == set(range(4)) - held
    assert len(dataset.test_labels) + len(dataset.train_labels) == 30 and set(dataset.train_clients) == {0, 1, 2}
    others = [read(COLUMNS, **options, test_seed=seed).test_images.tolist() for seed in range(1, 9)]
    assert any(other != dataset.test_images.tolist() for other in others)
    for changes, message in (
        ({"clients": None, "inputs": ["f0"]}, "test_by: received 'clients', needs a column of users"),
        ({"test": COLUMNS}, "test_by: received 'clients', needs test to be a share"),
        ({"test_by": "users"}, "test_by: received 'users'"),
    ):
        with pytest.raises(ValueError, match=message):
            read(COLUMNS, **{name: value for name, value in (options | changes).items() if value is not None})
    kinds = np.where(USERS == 0, "cat", np.where(USERS == 1, "dog", np.where(USERS == 2, "owl", "bee")))
    with pytest.raises(data.DataError, match="1 of 4 classes have no rows but those of users held out .1 of 4."):
        read(COLUMNS | {"kind": kinds}, **options)


def test_another_table_may_be_the_test_set(read):
    kinds = np.array(["dog"] * 10 + ["cat"] * 10 + ["owl"] * 10)
    test = {"more": ["x", "y"], "f1": np.array([5, 6]), "kind": np.array(["owl", "cat"]), "f0": np.array([0.5, 1])}
    columns = {"f0": COLUMNS["f0"], "f1": COLUMNS["f1"], "kind": kinds}
    dataset = read(columns, test, label="kind")
    assert dataset.class_names == ("cat", "dog", "owl") and dataset.test_share is None
    assert dataset.train_images.shape == (30, 2) and dataset.train_clients is None
    assert dataset.test_images.tolist() == [[0.5, 5], [1, 6]] and dataset.test_labels.tolist() == [2, 0]
    for lacking in ("f0", "kind"):
        rest = {name: column for name, column in test.items() if name != lacking}
        with pytest.raises(data.DataError, match=f"(test|other.csv): has no column '{lacking}', but"):
            read(columns, rest, label="kind")


@pytest.mark.parametrize(
    ("trained", "tested", "message"),
    [
        (["low", "high"], ["high", "hihg", "hihg"], "holds 'hihg' in 2 rows, the first in (row 1|line 3), .*'high'"),
        ([1, 2], [3, 1, 4], "holds 3 in 1 row, the first in (row 0|line 2), .* nor 1 more"),
        (["True", "False"], ["True", "False", "Maybe"], "holds 'Maybe' in 1 row"),
        ([True, False], [1, 0, 1], "holds '1' in 2 rows"),
    ],
)
def test_a_class_of_test_rows_only_is_refused(read, trained, tested, message):
    columns = {"f0": COLUMNS["f0"], "kind": np.array(trained)[USERS % 2]}
    with pytest.raises(data.DataError, match=rf"(test|other.csv): column 'kind' {message}"):
        read(columns, {"f0": np.arange(3) / 2, "kind": np.array(tested)}, label="kind")


def test_users_of_another_table_are_known_if_it_has_their_column(read):
    users = {"user": np.array(["Cy", "Abe", "Al", "Cy"])}
    test = {"kind": KINDS[8:12], "f2": [0, 1, 0, 1], "f1": np.arange(4), "f0": np.arange(4) / 8}
    dataset = read(COLUMNS, test | users, label="kind", clients="user")
    assert dataset.client_names == ("Abe", "Bo", "Cy", "Zoe", "Al")
    assert dataset.test_clients.tolist() == [2, 0, 4, 2] and dataset.test_users == 0
    assert dataset.train_clients.tolist() == [[3, 0, 1, 2][user] for user in USERS]
    alone = read(COLUMNS, test, label="kind", clients="user")
    assert alone.test_clients is None and alone.client_names == ("Abe", "Bo", "Cy", "Zoe")
    numbers = read(
        NUMBERS, test | {"kind": [9, 12, 9, 12], "user": ["11", "9", "7", "9"]}, label="kind", clients="user"
    )
    assert numbers.client_names == ("8", "9", "10", "11", "7") and numbers.test_clients.tolist() == [3, 1, 4, 1]
    texts = NUMBERS | {"user": (USERS + 8).astype(str)}
    read_as_texts = read(texts, test | {"kind": [9, 12, 9, 12], "user": [11.0, 9, 7, 9]}, label="kind", clients="user")
    assert read_as_texts.client_names == numbers.client_names
    assert read_as_texts.test_clients.tolist() == numbers.test_clients.tolist()
    with pytest.raises(data.DataError, match="(test|other.csv): column 'user' has 1 missing value"):
        read(COLUMNS, test | {"user": np.array(["Cy", "Abe", "NA", "Cy"])}, label="kind", clients="user")
    held = read(NUMBERS, label="kind", clients="user")
    rows = held.test_images[:, 1].astype(int)  # f1 is the row's number
    assert [held.client_names[client] for client in held.test_clients] == [str(USERS[row] + 8) for row in rows]


def test_inputs_may_be_chosen(read):
    dataset = read(COLUMNS, label="kind", inputs=["f1", "f0"])
    assert dataset.train_images.shape == (24, 2)
    np.testing.assert_array_equal(dataset.train_images[:, 0] / 4, dataset.train_images[:, 1])


CATEGORIES = {
    "age": np.arange(12) / 4,
    "sex": np.array(["M", "F"] * 6),
    "stage": np.array([10, 9, 9] * 4),
    "kind": np.array(["ill", "ill", "ill", "well"] * 3),
}


def test_categories_are_inputs_of_0_and_1_with_names(read):
    dataset = read(CATEGORIES, label="kind", categories=["stage", "sex"], test=CATEGORIES)
    assert dataset.input_names == ("age", "sex=F", "sex=M", "stage=9", "stage=10")
    assert "inputs=float32[5] (age, sex=F, sex=M, ...), train=12, test=12, classes=2 (ill, well)" in repr(dataset)
    wanted = [CATEGORIES["age"], *((CATEGORIES["sex"] == sex) for sex in "FM")]
    wanted = np.stack([*wanted, *((CATEGORIES["stage"] == stage) for stage in (9, 10))], 1)
    assert dataset.train_images.dtype == np.float32
    np.testing.assert_array_equal(dataset.train_images, wanted)
    np.testing.assert_array_equal(dataset.test_images, wanted)
    chosen = read(CATEGORIES, label="kind", inputs=["sex", "age"], categories=["sex"], test=CATEGORIES)
    assert chosen.input_names == ("sex=F", "sex=M", "age")
    np.testing.assert_array_equal(chosen.train_images, wanted[:, [1, 2, 0]])


def test_categories_of_another_table_are_those_of_training(read):
    few = {name: column[1:2] for name, column in CATEGORIES.items()}
    options = {"label": "kind", "categories": ["sex", "stage"]}
    assert read(CATEGORIES, test=few, **options).test_images.tolist() == [[0.25, 1, 0, 1, 0]]
    with pytest.raises(data.DataError, match="column 'sex' holds 'X' in (row 0|line 2); .* F, M"):
        read(CATEGORIES, test=few | {"sex": np.array(["X"])}, **options)
    with pytest.raises(data.DataError, match="column 'stage' holds '?8'? in (row 0|line 2); .* 9, 10"):
        read(CATEGORIES, test=few | {"stage": np.array([8])}, **options)
    with pytest.raises(data.DataError, match="has no column 'sex'"):
        read(CATEGORIES, test={name: few[name] for name in ("age", "stage", "kind")}, **options)


@pytest.mark.parametrize(
    ("changes", "categories", "message"),
    [
        ({}, ["sexx"], "has no column 'sexx', .*did you mean 'sex'"),
        ({}, ["kind"], "categories include 'kind', which is no input"),
        ({"sex=F": np.zeros(12)}, ["sex"], "column 'sex=F' has a name as those of categories"),
        ({"a=b": CATEGORIES["sex"]}, ["a=b", "sex"], "column 'a=b' has a name as those of categories"),
        ({"sex": np.array(["F", "?"] * 6)}, ["sex"], r"column 'sex' has 6 missing values \('\?'\) .*is a category"),
        ({"sex": np.array(["F", "F\u200b"] * 6)}, ["sex"], "column 'sex' 'F' and 'F.u200b' look the same"),
        ({"age": np.arange(12) / 4 + 0.1}, ["age", "sex"], "column 'age' holds 0.1 in .*name of a category"),
    ],
)
def test_columns_that_cannot_be_categories(read, request, changes, categories, message):
    if "age" in changes and "csv" in request.node.name:
        pytest.skip("a file's numbers are texts, too")
    with pytest.raises(data.DataError, match=message):
        read(CATEGORIES | changes, label="kind", categories=categories)


def test_all_columns_of_texts_are_named_together(read):
    texts = {"smoker": np.array(["yes", "no", "no"] * 4), "day": np.array([f"2026-01-{day}" for day in range(10, 22)])}
    with pytest.raises(data.DataError, match=r"column 'sex' holds 'M' .*categories: \[sex, smoker\].* leave out day"):
        read(CATEGORIES | texts, label="kind")
    assert (
        "smoker=yes"
        in read(
            CATEGORIES | texts | {"day": KINDS[:12] == "cat"}, label="kind", categories=["sex", "smoker"]
        ).input_names
    )
    # A single typo is no reason for categories.
    with pytest.raises(data.DataError, match="column 'age' holds 'x'") as raised:
        read(CATEGORIES | {"age": np.array(["x", *range(11)]), "sex": np.zeros(12)}, label="kind")
    assert "categories" not in str(raised.value)


def test_both_ways_give_the_same(tmp_path):
    write_csv(tmp_path / "mine.csv", NUMBERS)
    loaded = data.load("csv", path=tmp_path / "mine.csv", label="kind", clients="user")
    made = data.from_pandas(Frame(NUMBERS), "kind", "user")
    for one, other in zip(loaded[:6], made[:6], strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_are_normalised_column_by_column(tmp_path):
    write_csv(tmp_path / "mine.csv", NUMBERS)
    dataset = data.load("csv", path=tmp_path / "mine.csv", label="kind", clients="user")
    np.testing.assert_allclose(dataset.mean, dataset.train_images.mean(0), rtol=FORMULA)
    np.testing.assert_allclose(dataset.std, dataset.train_images.std(0), rtol=FORMULA)
    assert dataset.train_images.dtype == np.float32  # integers would be token ids


def test_objects_and_whole_floats_are_taken_as_what_they_are():
    objects = frame(f1=np.arange(30).astype(object), kind=KINDS.astype(object), user=USERS.astype(float))
    dataset = data.from_pandas(objects, "kind", "user")
    assert dataset.class_names == ("cat", "dog") and sorted(set(dataset.train_clients.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("column", ["kind", "user"])
@pytest.mark.parametrize("mark", ["NA", "nan", "NULL", "None", "?", " n/a "])
def test_marks_of_missing_values_are_no_class_and_no_user(read, column, mark):
    texts = np.array([*COLUMNS[column][:28], mark, mark])
    what = {"kind": "a class", "user": "a client"}[column]
    message = rf"column '{column}' has 2 missing values \('{re.escape(mark.strip())}'\) in 30 .*'.* is {what}, write it"
    with pytest.raises(data.DataError, match=message):
        read(COLUMNS | {column: texts}, label="kind", clients="user")


def test_names_of_classes_are_the_same_in_a_frame_and_in_a_file(read):
    spaced = np.array(["dog ", "dog"] * 5 + ["cat"] * 20)
    assert read(COLUMNS | {"kind": spaced}, label="kind", clients="user").class_names == ("cat", "dog")
    for tens in (10.0, "10", "10.0"):
        kinds = np.array([tens] * 10 + [type(tens)(9)] * 20)
        assert read(COLUMNS | {"kind": kinds}, label="kind", clients="user").class_names == ("9", "10")


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        (["True", "true", "FALSE", "false"], ("False", "True")),
        (["+1", "1", "2", "+2"], ("1", "2")),
        (["1e0", "1", "1e1", "10."], ("1", "10")),
        (["-1", "+1", "-1.0", "1"], ("-1", "1")),
        (["4611686018427387905", "4611686018427387906"] * 2, ("4611686018427387905", "4611686018427387906")),
        (["9223372036854775806", "9223372036854775807"] * 2, ("9223372036854775806", "9223372036854775807")),
        (["12345678901234567890", "12345678901234567891"] * 2, ("12345678901234567890", "12345678901234567891")),
        (["007", "8", "9", "10"], ("007", "10", "8", "9")),
        (["401.9", "V27.0", "250.00", "1e9999"], ("1e9999", "250.00", "401.9", "V27.0")),
    ],
)
def test_texts_are_read_as_pandas_would_read_a_file_of_them(read, kinds, names):
    table = {"f0": COLUMNS["f0"][:24], "kind": np.repeat(kinds, 6), "user": np.repeat(kinds, 6)}
    dataset = read(table, label="kind", clients="user", test=0.1)
    assert dataset.class_names == dataset.client_names == names


def test_numbers_with_decimals_are_names_in_a_frame_of_texts():
    for kinds in (["1.5", "2", "2.5", "3"], ["0.1", "0.10000000000000000001", "1e-9999", "2"]):
        table = Frame({"f0": COLUMNS["f0"][:24], "kind": np.repeat(kinds, 6)})
        assert data.from_pandas(table, label="kind", test=0.1).class_names == tuple(kinds)


def test_a_number_written_in_two_ways_is_no_two_classes():
    table = Frame({"f0": COLUMNS["f0"][:24], "kind": np.repeat(["0.5", ".5", "1"], 8)})
    with pytest.raises(data.DataError, match="column 'kind' holds '0.5' and '.5'"):
        data.from_pandas(table, label="kind")


def test_integers_that_32_bits_round_are_refused_unless_they_are_listed(read):
    days = np.array([20200101, 20200102, 20200103])[np.arange(30) % 3]
    for column, message in (
        (days, "column 'f1' holds 20200101, which becomes 20200100"),
        (-days.astype(float), "column 'f1' holds -20200101, which becomes -20200100"),
        (days + (2**63 - 1 - 20200103), f"column 'f1' holds {2**63 - 3}, which becomes {2**63}"),
        (days * 0 + 2**60 + 1, f"column 'f1' holds {2**60 + 1}, which becomes {2**60}"),
        (days + 2**60, f"column 'f1' holds {20200101 + 2**60}, which becomes {2**60}"),
    ):
        with pytest.raises(data.DataError, match=message):
            read(COLUMNS | {"f1": column}, label="kind", clients="user")
        assert read(COLUMNS | {"f1": column}, label="kind", inputs=["f0", "f1"]).train_images.dtype == np.float32
    even = days * 2**30  # large, but exact in 32 bits: days themselves have 25
    assert read(COLUMNS | {"f1": even - even % 2**31}, label="kind", clients="user").train_images.shape == (24, 3)


def test_decimals_that_32_bits_destroy_are_refused_unless_they_are_listed(read):
    seconds = np.linspace(0, 60, 30) + 0.25
    for destroyed, message in (
        (seconds + 1.7e9, r"holds 17000000\d\d\.\d+, which becomes 1700000000.0 as an input"),  # since 1970
        (seconds / 86400 + 2460000.5, r"holds 2460000.5\d+, which becomes 2460000.5 as an input"),  # a Julian date
    ):
        with pytest.raises(data.DataError, match=f"column 'f1' {message}"):
            read(COLUMNS | {"f1": destroyed}, label="kind", clients="user")
    assert read(COLUMNS | {"f1": seconds + 1.7e9}, label="kind", inputs=["f1"]).input_names == ("f1",)
    for harmless in (seconds + 1e5, seconds * 1e-30, np.full(30, 0.1)):
        assert "f1" in read(COLUMNS | {"f1": harmless}, label="kind", clients="user").input_names


def test_arrays_whose_differences_32_bits_destroy_are_refused_unless_they_have_32_bits():
    labels, seconds = np.arange(30) % 2, np.linspace(0, 60, 30) + 1.7e9 + 0.25
    rows = np.stack([labels, seconds], 1)
    clips = np.stack([rows, rows], 1)  # [30, 2, 2]
    said = r"\[1\] holds 1700000002.3\d+ in column 1, which becomes 1700000000.0 in 32 bits"
    for inputs in (rows, clips):
        with pytest.raises(data.DataError, match=f"train_images{said}"):
            data.from_arrays((inputs, labels))
        with pytest.raises(ValueError, match=f"images{said}"):
            data.federate(inputs, labels, [np.arange(30)], 2)
        assert data.from_arrays((inputs.astype(np.float32), labels)).train_images.dtype == np.float32
    with pytest.raises(data.DataError, match=r"column 's' holds 1700000002.3.* pass the column in 32 bits"):
        data.from_arrays(({"l": labels, "s": seconds}, labels))
    for harmless in (rows - [0, 1.7e9], rows * [1, 0] + 0.1, clips[:, :, :1]):
        assert len(data.from_arrays((harmless, labels)).train_images) == 24


def test_numbers_of_a_categorical_type_are_no_quantities():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(COLUMNS | {"ward": pandas.Categorical(np.arange(30) % 3 * 50)})
    with pytest.raises(data.DataError, match=r"column 'ward' is categorical: categories: \[ward\] makes"):
        data.from_pandas(table, "kind", "user")
    dataset = data.from_pandas(table, "kind", "user", categories="ward")
    assert dataset.input_names[-3:] == ("ward=0", "ward=50", "ward=100")
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(data.DataError, match="column 'ward' is categorical"):
        data.from_pandas(arrow.Table.from_pandas(table), "kind", "user")


def test_marks_of_spreadsheets_are_missing_values(read):
    with pytest.raises(data.DataError, match=r"column 'f1' has 1 missing value .* column 'kind' has 1: fill"):
        read(COLUMNS | {"f1": with_text("#N/A"), "kind": [*KINDS[:29], "#N/A"]}, label="kind", clients="user")


def patients(rng, rows):
    """A table of patients: 12 numbers, two of them encoded texts, five diagnoses and nine hospitals."""
    sick = rng.integers(0, 5, rows)
    columns = {f"lab{place}": rng.normal(size=rows) + (sick == place) for place in range(6)}
    columns |= {"age": rng.integers(18, 95, rows), "weight": rng.integers(400, 1200, rows) / 10}
    columns |= {"income": rng.integers(0, 200, rows) * 10**7, "visits": rng.integers(0, 7, rows)}
    columns |= {"sex": rng.integers(0, 2, rows), "smoker": rng.random(rows) < 0.3}
    diagnoses = np.array(["asthma", "COPD", "flu", "healthy", "caf\u00e9-au-lait"])
    return columns | {
        "diagnosis": diagnoses[sick],
        "hospital": np.array([f"H{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 10)])[rng.integers(0, 9, rows)],
    }


def by_pandas(columns, file):
    return pytest.importorskip("pandas").DataFrame(columns)


def by_pandas_file(columns, file):
    write_csv(file, columns)
    return pytest.importorskip("pandas").read_csv(file)


def by_polars(columns, file):
    return pytest.importorskip("polars").DataFrame(columns)


def by_lazy(columns, file):
    return by_polars(columns, file).lazy()


def by_arrow(columns, file):
    return pytest.importorskip("pyarrow").table(columns)


def by_batch(columns, file):
    return by_arrow(columns, file).to_batches()[0]


def by_records(columns, file):
    return np.rec.fromarrays(list(columns.values()), names=list(columns))


def by_file(columns, file):
    write_csv(file, columns)
    return file


class Lazy:
    """A lazy frame, as far as it is used."""

    columns = ()

    def __init__(self, columns):
        self.held = columns

    def collect_schema(self):
        return list(self.held)

    def collect(self):
        return Frame(self.held)


class Arrow(Frame):
    """A table of Arrow, as far as it is used: `columns` are the arrays."""

    column_names = property(lambda self: list(self.held))

    def __init__(self, columns):
        self.columns, self.held = list(columns.values()), columns


WAYS = {
    "a mapping": lambda columns, file: dict(columns),
    "lists": lambda columns, file: {name: column.tolist() for name, column in columns.items()},
    "objects": lambda columns, file: {name: column.astype(object) for name, column in columns.items()},
    "a stand-in": lambda columns, file: Frame(columns),
    "a lazy stand-in": lambda columns, file: Lazy(columns),
    "a stand-in of Arrow": lambda columns, file: Arrow(columns),
    "records": by_records,
    "file": by_file,
}
LIBRARIES = {
    "pandas": by_pandas,
    "pandas_file": by_pandas_file,
    "polars": by_polars,
    "lazy": by_lazy,
    "arrow": by_arrow,
    "batch": by_batch,
}


@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=pytest.mark.slow) for way in LIBRARIES)])
def test_the_same_table_gives_the_same_data_set_by_every_way(way, tmp_path):
    rng = np.random.default_rng(0)
    train, test = patients(rng, 300), patients(rng, 90)
    train |= {"hospital": np.where(train["hospital"] == "H2", "H9", train["hospital"])}  # H2 has test rows only
    test |= {"diagnosis": np.where(test["diagnosis"] == "COPD", "flu", test["diagnosis"])}  # a class that it lacks
    shuffled = {name: test[name] for name in rng.permutation(list(test)).tolist()} | {"ward": np.arange(90)}
    inputs = [name for name in train if name not in ("diagnosis", "hospital")]
    make = (WAYS | LIBRARIES)[way]
    given, other = make(train, tmp_path / "train.csv"), make(shuffled, tmp_path / "test.csv")
    if way == "file":
        made = data.load("csv", path=given, test=other, label="diagnosis", clients="hospital")
    else:
        made = data.from_pandas(given, test=other, label="diagnosis", clients="hospital")
    assert made.input_names == tuple(inputs) and made.class_names == tuple(sorted(set(train["diagnosis"].tolist())))
    assert made.client_names == (*sorted(set(train["hospital"].tolist())), "H2")
    for half, columns in (("train", train), ("test", test)):
        rows = np.stack([columns[name] for name in inputs], 1).astype(np.float32)
        np.testing.assert_array_equal(getattr(made, f"{half}_images"), rows)
        labels, clients = getattr(made, f"{half}_labels"), getattr(made, f"{half}_clients")
        assert np.array(made.class_names)[labels].tolist() == columns["diagnosis"].tolist()
        assert np.array(made.client_names)[clients].tolist() == columns["hospital"].tolist()


class Column:
    """A column of a table elsewhere, which isn't an array."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


class Series:
    def to_frame(self):
        return self


class Reader:
    def read_all(self):
        return self


NO_TABLES = {
    "a single column": (Series(), r"received Series, must be .* columns by name: this is a single column"),
    "a reader": (Reader(), r"received Reader, must be .* columns by name: give the result of its .read_all\(\)"),
    "a path": (Path("a.csv"), "received PosixPath, must be .*pandas.read_csv"),
    "an empty frame": (Frame({}), "received Frame without columns, must be"),
    "a column elsewhere": (
        {"a": Column(TypeError("not implicit")), "y": [1, 2]},
        r"column 'a' is of type Column and doesn't become an array \(TypeError: not implicit\); give a table in memory",
    ),
    "an expression": ({"a": object(), "y": [1, 2]}, "column 'a' is of type object and doesn't become an array"),
    "columns of other lengths": ({"a": [1, 2, 3], "y": [1, 2]}, "column 'y' has 2 rows and column 'a' 3"),
}


@pytest.mark.parametrize("kind", NO_TABLES)
def test_what_is_no_table_is_refused_by_its_kind(kind):
    received, message = NO_TABLES[kind]
    with pytest.raises(data.DataError, match=f"^from_pandas: {message}"):
        data.from_pandas(received, "y")


def with_text(text, row=3):
    """A column of numbers and one text, as pandas has it after a cell was changed."""
    return np.array([text if place == row else place / 4 for place in range(30)], object)


GAP = np.where(np.arange(30) < 2, np.nan, 1.0)
WRONG = {
    "no such label": ({}, {"label": "knid"}, "has no column 'knid', but f0, user, f1, kind, f2; did you mean 'kind'"),
    "a name that looks the same": (
        {"gr\u00f6\u00dfe": np.arange(30) / 4},
        {"inputs": ["gro\u0308\u00dfe"]},
        r"'gr.xf6.xdfe' only looks like 'gro.u0308.xdfe'",
    ),
    "the label twice": ({}, {"clients": "kind"}, "column 'kind' is named for labels and for clients"),
    "the label as an input": ({}, {"inputs": ["f0", "kind"]}, "inputs include 'kind', the label"),
    "an input twice": ({}, {"inputs": ["f0", "f0"]}, "inputs name a column twice: f0, f0"),
    "texts": ({}, {"clients": None}, r"column 'user' holds 'Zoe' in row 0.*categories: \[user\].*inputs=\["),
    "dates": ({"f1": np.full(30, "2020-01-01", "M8[D]")}, {}, "column 'f1' holds .*2020.* in row 0, and inputs"),
    "gaps": ({"f1": GAP}, {}, "column 'f1' has 2 missing values in 30 rows, the first in row 0: fill them, or leave"),
    "gaps in several columns": (
        {"f1": GAP, "f2": np.where(np.arange(30) == 5, np.nan, 1), "kind": np.array([*KINDS[1:], "NA"])},
        {},
        "column 'f1' has 2 missing .* in row 0, column 'f2' has 1, column 'kind' has 1: fill .*; if 'NA' is a class",
    ),
    "a text among numbers": (
        {"f1": with_text("high")},
        {},
        "column 'f1' holds 'high' in row 3, and 29 of 30",
    ),
    "a comma among numbers": ({"f1": with_text("1,5")}, {}, "column 'f1' holds '1,5' in row 3.*read_csv, decimal=','"),
    "a mark among texts": (
        {"f1": with_text("?").astype(str)},
        {},
        r"column 'f1' holds '\?' in row 3, and 29 of 30.*pandas.to_numeric\(column, errors=",
    ),
    "numbers as texts": ({"f1": np.arange(30).astype(str)}, {}, "column 'f1' holds '0' in row 0, a number of type str"),
    "gaps of texts": ({"kind": np.array([*KINDS[1:], None])}, {}, "column 'kind' has 1 missing value .* row 29"),
    "gaps that are masked": ({"f1": np.ma.masked_equal(np.arange(30), 3)}, {}, "column 'f1': received masked values"),
    "infinite": ({"f1": np.arange(30) * 1e300}, {}, "column 'f1' holds 1e.300 in row 1; expected numbers that are"),
    "one class": ({"kind": np.full(30, 7)}, {}, "column 'kind' is 7 in every row"),
    "a class that is no class": ({"kind": np.arange(30) / 2}, {}, "column 'kind' holds 0.5 in row 1; expected texts"),
    "mixed classes": (
        {"kind": np.array([1, "a", *KINDS[2:]], object)},
        {},
        "column 'kind' holds values of type int, ",
    ),
    "a class for each row": ({"kind": np.arange(30)}, {}, "30 rows have 30 different labels"),
    "no inputs": ({"f0": None, "f1": None, "f2": None}, {}, "has no columns for inputs, only user, kind"),
    "an index": ({"Unnamed: 0": np.arange(30)}, {}, "column 6 has no name, as pandas .*index=False"),
    "arrays": ({"f1": np.zeros((30, 2))}, {}, r"column 'f1' holds arrays of shape \(2,\)"),
    "a share": ({}, {"test": 1.5}, "test: received 1.5, must be .* above 0 and below 1"),
    "no table": ({}, {"test": [1]}, "from_pandas: test: received list, must be a data frame"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named_with_its_column(kind):
    changes, options, message = WRONG[kind]
    with pytest.raises(ValueError, match=f"^from_pandas: .*{message.removeprefix('from_pandas: ')}"):
        data.from_pandas(frame(**changes), **{"label": "kind", "clients": "user"} | options)


def test_columns_of_one_name_are_refused():
    twice = types.SimpleNamespace(columns=["a", "a"])
    with pytest.raises(data.DataError, match="two columns of one name among a, a"):
        data.from_pandas(twice, "a")


@pytest.mark.slow
def test_the_real_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(COLUMNS)
    expected = data.from_pandas(Frame(COLUMNS), "kind", "user")
    variants = [
        table,
        table.sample(30, random_state=0).sort_index(),
        table.astype({"f1": "Int64", "kind": "category", "user": "string"}),
        pandas.read_csv(Path(table.to_csv(tmp_path / "mine.csv", index=False) or tmp_path / "mine.csv")),
    ]
    for variant in variants:
        made = data.from_pandas(variant, "kind", "user")
        assert made.class_names == expected.class_names
        for one, other in zip(made[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(made.train_clients, expected.train_clients)
    gaps = table.astype({"f1": "Int64"})
    gaps.loc[3, "f1"] = pandas.NA
    gaps.loc[5, "user"] = None
    with pytest.raises(data.DataError, match="column 'f1' has 1 missing value .* in row 3"):
        data.from_pandas(gaps, "kind", "user")
    with pytest.raises(data.DataError, match="column 'user' has 1 missing value .* in row 5"):
        data.from_pandas(gaps.drop(columns="f1"), "kind", "user")
