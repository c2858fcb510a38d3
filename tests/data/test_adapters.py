"""Data sets from arrays, and from data frames where their libraries are installed."""

import inspect

import numpy as np
import pytest

from fedjax_bal import data

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 2, 0, 2])


def same(dataset, images=IMAGES, labels=LABELS):
    np.testing.assert_array_equal(dataset.train_images, images)
    np.testing.assert_array_equal(dataset.test_images, images[:4])
    assert (dataset.train_labels.tolist(), dataset.test_labels.tolist()) == (labels.tolist(), labels[:4].tolist())
    assert dataset.train_labels.dtype == np.int32


def test_arrays():
    same(data.from_arrays((IMAGES, LABELS), (IMAGES[:4], LABELS[:4])))
    floats = IMAGES / 8
    same(data.from_arrays((floats.tolist(), LABELS.tolist()), (floats[:4].tolist(), LABELS[:4])), floats)
    grey = data.from_arrays((IMAGES[..., 0], LABELS), (IMAGES[:2, ..., 0], LABELS[:2]), ["a", "b", "c"], list("uvwuvw"))
    assert grey.train_images.shape == (6, 4, 5, 1) and grey.class_names == ("a", "b", "c")
    assert grey.train_clients.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_share_of_each_class_may_be_held_out():
    labels = np.repeat([0, 1], [10, 5])
    rows = np.arange(15.0)[:, None]
    dataset = data.from_arrays((rows, labels), 0.2, clients=rows[:, 0].astype(int))
    assert np.bincount(dataset.test_labels).tolist() == [2, 1] and dataset.test_share == 0.2
    taken = [*dataset.train_images.ravel(), *dataset.test_images.ravel()]
    assert sorted(taken) == list(range(15))
    np.testing.assert_array_equal(labels[dataset.train_images.ravel().astype(int)], dataset.train_labels)
    assert dataset.train_clients.tolist() == list(range(12))  # numbered in the order of the rows that are left
    assert data.from_arrays((rows, labels), 0.2, test_seed=3).test_images.tolist() != dataset.test_images.tolist()
    with pytest.raises(ValueError, match="from_arrays: test: received 3"):
        data.from_arrays((rows, labels), 3)


def test_clients_of_both_halves_have_one_number_each(tmp_path):
    test = {"test_images": IMAGES[:3], "test_labels": LABELS[:3]}
    for names, kind in ((["10", "9", "7", "8", "30"], str), ([9, 10, 12, 11, 7], int)):
        train_clients = np.array([names[row] for row in (1, 0, 1, 2, 2, 0)])
        test_clients = np.array([names[row] for row in (4, 0, 3)])
        np.savez(
            tmp_path / "mine.npz",
            train_images=IMAGES,
            train_labels=LABELS,
            train_clients=train_clients,
            test_clients=test_clients,
            **test,
        )
        dataset = data.load("npz", path=tmp_path / "mine.npz")
        known = sorted(names[:3], key=int)  # as in a table: 9 comes before 10
        assert dataset.client_names == (*map(str, known), *map(str, sorted(names[3:], key=int)))
        assert dataset.train_clients.dtype == dataset.test_clients.dtype == np.int32
        assert [dataset.client_names[client] for client in dataset.train_clients] == [*map(str, train_clients)]
        assert [dataset.client_names[client] for client in dataset.test_clients] == [*map(str, test_clients)]
        assert set(dataset.train_clients.tolist()) == {0, 1, 2} and dataset.test_users == 0, kind
        for changes, message in (
            ({"train_clients": None}, "test_clients are given without train_clients"),
            ({"test_clients": test_clients[:2]}, "test_clients is 2 of .*; expected 3 integers or texts, one for each"),
            ({"train_clients": np.arange(6), "test_clients": np.array(["a"] * 3)}, "train_clients are integers .* and"),
            ({"test_images": None, "test_labels": None}, "test_clients are given without test inputs"),
        ):
            arrays = {"train_images": IMAGES, "train_labels": LABELS, **test}
            arrays |= {"train_clients": train_clients, "test_clients": test_clients, **changes}
            np.savez(tmp_path / "mine.npz", **{key: value for key, value in arrays.items() if value is not None})
            with pytest.raises(data.DataError, match=message):
                data.load("npz", path=tmp_path / "mine.npz")


def test_held_out_rows_keep_their_clients():
    rows = np.arange(12.0)[:, None]
    dataset = data.from_arrays((rows, np.arange(12) % 2), 0.4, clients=[f"u{row:02}" for row in range(12)])
    names = np.array(dataset.client_names)
    assert names[dataset.train_clients].tolist() == [f"u{row:02.0f}" for row in dataset.train_images[:, 0]]
    assert names[dataset.test_clients].tolist() == [f"u{row:02.0f}" for row in dataset.test_images[:, 0]]
    assert dataset.test_users == len(dataset.test_labels) and dataset.test_clients.min() == len(dataset.train_labels)


LOOK_ALIKE = {
    "normal forms": ("caf\u00e9", "cafe\u0301"),
    "a zero-width space": ("owl", "owl\u200b"),
    "a byte-order mark": ("owl", "\ufeffowl"),
    "a soft hyphen": ("barn owl", "barn\u00ad owl"),
    "a variation selector": ("\u2665", "\u2665\ufe0f"),
    "a no-break space": ("barn owl", "barn\u00a0owl"),
    "two spaces": ("barn owl", "barn  owl"),
}


@pytest.mark.parametrize("kind", LOOK_ALIKE)
def test_names_that_look_the_same_are_refused(kind):
    names = np.array([*LOOK_ALIKE[kind], "bee"])
    with pytest.raises(data.DataError, match="from_arrays: classes .* and .* look the same"):
        data.from_arrays((IMAGES, names[LABELS]), (IMAGES[:4], names[LABELS[:4]]))
    with pytest.raises(data.DataError, match="from_arrays: clients .* and .* look the same"):
        data.from_arrays((IMAGES, LABELS), (IMAGES[:4], LABELS[:4]), clients=names[LABELS])
    others = ["m2", "m\u00b2", "\u0645\u06cc\u200c\u062e"]  # they look different, and a joiner may belong to a word
    assert data.from_arrays((IMAGES, LABELS), (IMAGES[:4], LABELS[:4]), others).class_names == tuple(others)


def test_texts_are_classes_and_clients_also_as_pandas_keeps_them():
    words, owners = np.array(["cat", "owl", "bee"], object)[LABELS], np.array(list("uvwuvw"), object)
    sorted_names = data.from_arrays((IMAGES, words), (IMAGES[:4], words[:4]), clients=owners)
    assert sorted_names.class_names == ("bee", "cat", "owl")
    assert sorted_names.train_labels.tolist() == [("bee", "cat", "owl").index(word) for word in words]
    assert sorted_names.train_clients.tolist() == [0, 1, 2, 0, 1, 2]
    names = np.array(["cat", "owl", "bee", "ant"], object)
    given = data.from_arrays((IMAGES, words.tolist()), (IMAGES[:4], words[:4]), names)
    same(given)
    assert given.class_names == ("cat", "owl", "bee", "ant")
    numbers = data.from_arrays((IMAGES, LABELS.astype(object)), (IMAGES[:4], LABELS[:4].tolist()))
    same(numbers)
    stored = np.array(["cat", "owl", "bee"], "S")[LABELS]  # as TensorFlow has texts
    for texts in (stored, stored.astype(object)):
        assert data.from_arrays((IMAGES, texts), (IMAGES[:4], texts[:4])).class_names == ("bee", "cat", "owl")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (((IMAGES, LABELS[:5]), (IMAGES, LABELS)), "from_arrays: train_labels is 5 of int64"),
        (((IMAGES, LABELS), (IMAGES[:, :2], LABELS)), "training images are 4x5x3 and test images 2x5x3"),
        (((np.zeros((6, 2)) * np.nan, LABELS), (IMAGES, LABELS)), r"train_images\[0\] holds .*that are finite"),
        ((([[1], [1, 2]], [0, 1]), (IMAGES, LABELS)), "lists of one length: data.pad makes one array"),
        (((IMAGES, list("abcabc")), (IMAGES, list("abcabd")), ["a", "b", "c"]), "test_labels holds 'd'"),
        (((IMAGES, list("abcabc")), (IMAGES, LABELS)), "test_labels are integers without names, .* a, b, c"),
        (((IMAGES, list("abcabc")), (IMAGES, ["a", "b", "c", "a", "b", "\u200bc"])), "look the same"),
        (((IMAGES, LABELS), (IMAGES, LABELS - 1)), "test_labels holds -1 in row 0"),
        (((IMAGES, np.eye(3, dtype=int)[LABELS]), (IMAGES, LABELS)), "train_labels is 6x3 of int64"),
        (((IMAGES, np.ma.masked_equal(LABELS, 0)), (IMAGES, LABELS)), "train_labels: received masked values"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    with pytest.raises(ValueError, match=message):
        data.from_arrays(*arrays)


def test_arrays_that_are_no_pairs():
    for halves in ((IMAGES, LABELS), ((IMAGES, LABELS), None), ((IMAGES,), (IMAGES,))):
        with pytest.raises(data.DataError, match="needs pairs of inputs and labels"):
            data.from_arrays(*halves)


def test_labels_of_one_element():
    same(data.from_arrays((IMAGES, LABELS[:, None]), (IMAGES[:4], LABELS[:4, None].tolist())))
    texts = np.array(list("abc"))[LABELS]
    same(data.from_arrays((IMAGES, texts[:, None]), (IMAGES[:4], texts[:4])))


def test_labels_that_are_true_or_false_are_texts():
    dataset = data.from_arrays((IMAGES, LABELS > 1), (IMAGES[:4], ["True", "False", "False", "True"]))
    assert dataset.class_names == ("False", "True") and dataset.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert dataset.test_labels.tolist() == [1, 0, 0, 1]


MISSING = {
    "a list with NaN": ["a", "b", float("nan"), "a", "b", "a"],  # NumPy makes it the text nan
    "an array of texts": np.array(["a", "b", "nan", "a", "b", "a"]),
    "objects": np.array(["a", "b", None, "a", "b", "a"], object),
    "floats": [1.0, 2.0, float("nan"), 1.0, 2.0, 1.0],
    "an empty text": ["a", "b", " ", "a", "b", "a"],
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_labels_and_clients_are_named(kind):
    with pytest.raises(data.DataError, match="train_labels holds .* in row 2, .* missing value, in 1 of 6 rows"):
        data.from_arrays((IMAGES, MISSING[kind]), 0.5)
    with pytest.raises(data.DataError, match="train_clients holds .* in row 2, .* missing value"):
        data.from_arrays((IMAGES, LABELS), (IMAGES, LABELS), clients=MISSING[kind])


def test_a_name_that_is_given_may_look_like_a_missing_value():
    texts = np.array(["none", "some", "all"])[LABELS]
    same(data.from_arrays((IMAGES, texts), (IMAGES[:4], texts[:4]), ["none", "some", "all"]))
    with pytest.raises(data.DataError, match="train_labels holds 'none' in row 0"):
        data.from_arrays((IMAGES, texts), (IMAGES[:4], texts[:4]))


def test_labels_and_clients_of_other_types():
    halves = (IMAGES, LABELS.astype(float)), (IMAGES[:4], LABELS[:4].astype(np.float32))
    same(data.from_arrays(*halves))
    with pytest.raises(data.DataError, match="train_labels holds 0.5 in row 0"):
        data.from_arrays((IMAGES, LABELS + 0.5), 0.5)
    with pytest.raises(data.DataError, match="train_labels holds 9007199254740992.0 in row 0"):  # 2**53 + 1 as well
        data.from_arrays((IMAGES, LABELS + 2.0**53), 0.5)
    with pytest.raises(
        data.DataError, match="train_clients holds 16777216.0 in row 0, which float32 doesn't tell from"
    ):
        data.from_arrays(*halves, clients=np.float32(2**24 + LABELS))
    with pytest.raises(data.DataError, match="train_labels holds values of type int, str"):
        data.from_arrays((IMAGES, ["a", 1, "b", "a", 1, "b"]), 0.5)
    wrong: list = [{0: "a", 1: "b", 2: "c"}, "abc", [0, 1, 2], ["a", "b", "a"]]
    for names in wrong:
        with pytest.raises(data.DataError, match="class_names is .* expected different texts in a list"):
            data.from_arrays((IMAGES, list("abcabc")), 0.5, names)
    users = data.from_arrays(
        (IMAGES, LABELS), (IMAGES[:4], LABELS[:4]), clients=(LABELS + 8.0)[:, None], test_clients=["10", "9"] * 2
    )
    assert users.client_names == ("8", "9", "10") and users.test_clients.tolist() == [2, 1, 2, 1]
    assert users.train_clients.tolist() == LABELS.tolist()
    with pytest.raises(data.DataError, match="train_clients are integers .* and test_clients are texts .u, .* one way"):
        data.from_arrays(*halves, clients=LABELS, test_clients=list("uvuv"))


@pytest.mark.parametrize("clients", [["10", "9", "1"], [" b", "c ", "a"], ["007", "10", "9"], ["1.0", "+2", "10"]])
def test_all_doors_number_classes_and_clients_alike(clients, tmp_path):
    pandas = pytest.importorskip("pandas")
    datasets = pytest.importorskip("datasets")
    rows = {"f": [0.5, 1.5, 2.5] * 4, "y": ["11", "2", "2"] * 4, "who": [name for name in clients for _ in range(4)]}
    pandas.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    inputs = np.array(rows["f"], np.float32)[:, None]
    np.savez(tmp_path / "t.npz", train_images=inputs, train_labels=rows["y"], train_clients=rows["who"])
    frame = pandas.DataFrame(rows)
    made = [
        data.from_pandas(frame, "y", "who"),
        data.load("csv", path=tmp_path / "t.csv", label="y", clients="who"),
        data.from_huggingface(datasets.Dataset.from_dict(rows), 0.2, inputs=["f"], label="y", clients="who"),
        data.from_arrays((frame[["f"]], frame["y"]), 0.2, clients=frame["who"]),
        data.load("npz", path=tmp_path / "t.npz"),
    ]
    for dataset in made:
        assert dataset.class_names == ("2", "11")
        assert dataset.client_names == made[0].client_names
        for name in ("train_images", "train_labels", "test_labels", "train_clients", "test_clients"):
            np.testing.assert_array_equal(getattr(dataset, name), getattr(made[0], name), name)


def test_lazy_frames_and_tables_of_arrow():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [3.0, 4.0, 5.0, 6.0], "size": [1, 2, 3, 4]})
    labels = [0, 1, 0, 1]
    swapped = frame.select("size", "age")
    for train, test in ((frame.lazy(), swapped.lazy()), (frame.to_arrow(), swapped.to_arrow())):
        dataset = data.from_arrays((train, labels), (test, labels))
        assert dataset.input_names == ("age", "size")
        assert dataset.train_images.tolist() == dataset.test_images.tolist() == [[3, 1], [4, 2], [5, 3], [6, 4]]
    with pytest.raises(data.DataError, match="from_arrays: test: .*size"):
        data.from_arrays((frame.lazy(), labels), (frame.lazy().select("age"), labels))


def test_test_clients():
    dataset = data.from_arrays(
        (IMAGES, LABELS), (IMAGES[:3], LABELS[:3]), None, list("yyxxzz"), test_clients=list("zax")
    )
    assert dataset.client_names == ("x", "y", "z", "a") and dataset.test_clients.tolist() == [2, 3, 0]


def test_class_names_are_those_of_integers_without_names():
    names = ["a", "b", "c"]
    texts = np.array(names)[LABELS]
    same(data.from_arrays((IMAGES, LABELS), (IMAGES[:4], texts[:4]), names))
    same(data.from_arrays((IMAGES, texts), (IMAGES[:4], LABELS[:4]), names))


ROWS = {"age": [1.0, 2, 3, 4], "zip": [50, 60, 70, 80], "sex": [True, False, True, False]}
KINDS = list("abab")


def frames():
    """Constructors of data frames by library; a mapping of columns needs none."""
    return [pytest.param(lambda columns: columns, id="mapping"), *(pytest.param(name, id=name) for name in LIBRARIES)]


LIBRARIES = ("pandas", "polars")


@pytest.fixture(params=frames())
def frame(request):
    return request.param if callable(request.param) else pytest.importorskip(request.param).DataFrame


def test_columns_of_frames_are_compared_by_name(frame):
    table = np.array([ROWS["age"], ROWS["zip"], ROWS["sex"]], np.float32).T
    shuffled = frame({name: ROWS[name] for name in ("sex", "age", "zip")} | {"other": list("pqrs")})
    for test in (frame(ROWS), shuffled):
        dataset = data.from_arrays((frame(ROWS), KINDS), (test, KINDS))
        assert dataset.input_names == ("age", "zip", "sex") and dataset.train_images.dtype == np.float32
        np.testing.assert_array_equal(dataset.train_images, table)
        np.testing.assert_array_equal(dataset.test_images, table)
    held_out = data.from_arrays((frame(ROWS), KINDS), 0.5)
    assert held_out.input_names == ("age", "zip", "sex") and held_out.test_images.shape == (2, 3)
    less = frame({name: ROWS[name] for name in ("zip", "sex")})
    for test, message in (
        (less, "from_arrays: test: inputs lack the columns age, and have zip, sex"),
        (table, "train inputs have the columns age, zip, sex, and test inputs have no names"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_arrays((frame(ROWS), KINDS), (test, KINDS))
    with pytest.raises(
        data.DataError, match="test inputs have the columns age, zip, sex, and train inputs have no names"
    ):
        data.from_arrays((table, KINDS), (frame(ROWS), KINDS))


def test_categories_are_no_quantities():
    pandas = pytest.importorskip("pandas")
    colours = pandas.DataFrame({"x": [0.5, 1.5, 2.5, 3.5], "colour": pandas.Categorical([0, 2, 0, 2])})
    with pytest.raises(data.DataError, match="column 'colour' is categorical"):
        data.from_arrays((colours, [0, 1, 0, 1]), 0.5)


@pytest.mark.parametrize("kind", ["arrays", "examples"])
def test_bytes_beside_numbers_of_another_scale_are_refused(kind):
    images = [np.full((2, 2, 1), 200, np.uint8), np.full((2, 2, 1), 0.7)] * 2
    with pytest.raises(data.DataError, match="uint8.*: give all one type"):
        if kind == "arrays":
            data.from_arrays((images, [0, 1, 0, 1]), 0.5)
        else:
            data.from_torch(list(zip(images, [0, 1, 0, 1], strict=True)), 0.5)


def test_columns_that_are_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    dataset = data.from_arrays((frame, KINDS), (frame.to_numpy(), KINDS))
    assert dataset.input_names is None and dataset.test_images.tolist() == frame.to_numpy().tolist()
    with pytest.raises(data.DataError, match="test inputs have the columns 1, 0, and train inputs have no names"):
        data.from_arrays((frame, KINDS), (frame[[1, 0]], KINDS))


@pytest.mark.parametrize("library", LIBRARIES)
def test_categories_are_the_names_of_classes(library):
    module = pytest.importorskip(library)
    labels = {
        "pandas": lambda texts, names: module.Series(module.Categorical(texts, categories=names)),
        "polars": lambda texts, names: module.Series(texts, dtype=module.Enum(names)),
    }[library]
    train, test = ["low", "high", "low", "mid", "low", "low"], ["mid", "high", "low"]
    names = ("low", "mid", "high", "none")
    columns = {
        "the same": labels(test, names),
        "another order": labels(test, ["high", "low", "mid"]),
        "texts": test,
        "a column of objects": np.array(test, object),
    }
    for column in columns.values():
        dataset = data.from_arrays((IMAGES, labels(train, names)), (IMAGES[:3], column))
        assert dataset.class_names == names
        assert dataset.train_labels.tolist() == [0, 2, 0, 1, 0, 0] and dataset.test_labels.tolist() == [1, 2, 0]
    by_texts = data.from_arrays((IMAGES, train), (IMAGES[:3], columns["another order"]))
    assert [by_texts.class_names[label] for label in by_texts.test_labels] == test
    given = data.from_arrays((IMAGES, labels(train, names)), (IMAGES[:3], [1, 2, 0]), ["none", "low", "mid", "high"])
    assert given.train_labels.tolist() == [1, 3, 1, 2, 1, 1] and given.test_labels.tolist() == [1, 2, 0]
    with pytest.raises(
        data.DataError, match="test_labels are integers without names, and train_labels have .* low, mid"
    ):
        data.from_arrays((IMAGES, labels(train, names)), (IMAGES[:3], [1, 2, 0]))
    with pytest.raises(data.DataError, match="test_labels holds 'hihg'"):
        data.from_arrays(
            (IMAGES, labels(train, names)), (IMAGES[:3], labels(["mid", "hihg", "low"], ["mid", "hihg", "low"]))
        )


def test_numbers_that_numpy_lacks():
    types = pytest.importorskip("ml_dtypes")
    halves = np.arange(12.0).reshape(6, 2) / 4
    for kind in (types.bfloat16, types.float8_e4m3fn):
        dataset = data.from_arrays((halves.astype(kind), LABELS), (halves[:4].astype(kind), LABELS[:4]))
        np.testing.assert_array_equal(dataset.train_images, halves)
        assert dataset.train_images.dtype == np.float32


@pytest.mark.slow
def test_tensors_and_lists_of_them():
    torch = pytest.importorskip("torch")
    halves = torch.arange(12.0).reshape(6, 2) / 4
    for inputs in (halves.requires_grad_(), halves.bfloat16(), list(halves)):
        dataset = data.from_arrays((inputs, torch.tensor(LABELS)), (inputs[:4], LABELS[:4]))
        np.testing.assert_array_equal(dataset.train_images, halves.detach())
    with pytest.raises(data.DataError, match="train_images .*tensor of torch.float32 and torch.sparse_coo.*to_dense"):
        data.from_arrays((halves.detach().to_sparse(), LABELS), 0.5)


@pytest.mark.parametrize(
    ("door", "wrong", "right"),
    [
        (data.from_pandas, "labels", "label"),
        (data.from_pandas, "target", "label"),
        (data.from_huggingface, "labels", "label"),
        (data.from_huggingface, "users", "clients"),
        (data.from_arrays, "train_clients", "clients"),
        (data.from_arrays, "test_size", "test"),
        (data.from_torch, "class_name", "class_names"),
        (data.from_tf_data, "labels", "label"),
        (data.find_reader("csv").read, "labels", "label"),
        (data.find_reader("npz").read, "test_share", "test"),
        (data.find_reader("image_folder").read, "tset", "test"),
    ],
)
def test_another_name_of_an_argument(door, wrong, right):
    with pytest.raises(TypeError, match=f"'{wrong}'; did you mean '{right}'"):
        door(None, **{wrong: None})


def test_all_doors_call_the_same_arguments_by_one_name():
    doors = [data.from_pandas, data.from_huggingface, data.from_arrays, data.from_torch, data.from_tf_data]
    doors += [data.find_reader(name).read for name in ("csv", "npz", "image_folder", "huggingface")]
    taken = [set(inspect.signature(door).parameters) for door in doors]
    known = {"label", "clients", "test", "test_seed", "test_by", "inputs", "categories", "class_names", "test_clients"}
    assert set.union(*taken) - known == {"frame", "train", "path", "split", "config", "delimiter", "side", "channels"}
    assert all({"test", "test_seed"} <= names for names in taken)
