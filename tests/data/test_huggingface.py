"""Data sets of Hugging Face, by stand-ins with their interface, and by the library where it is installed."""

import types
from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedjax_bal import data

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 2, 0, 2])


def same(dataset, images=IMAGES, labels=LABELS):
    np.testing.assert_array_equal(dataset.train_images, images)
    np.testing.assert_array_equal(dataset.test_images, images[:4])
    assert (dataset.train_labels.tolist(), dataset.test_labels.tolist()) == (labels.tolist(), labels[:4].tolist())
    assert dataset.train_labels.dtype == np.int32


class HuggingFace:
    """A split of Hugging Face's data sets, as far as it is used; it notes in `read` the columns that were read."""

    def __init__(self, columns, names=None, read=None):
        self.columns = columns
        self.features = {name: types.SimpleNamespace() for name in columns}
        self.format = {"type": None, "format_kwargs": {}, "columns": list(columns)}
        self.read = [] if read is None else read
        if names:
            self.features["label"] = types.SimpleNamespace(names=names)

    def select_columns(self, names):
        return HuggingFace({name: self.columns[name] for name in names}, read=self.read)

    def with_format(self, kind, **_):
        assert kind == "numpy"
        return self

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        self.read += self.columns
        return {name: column[rows] for name, column in self.columns.items()}


def test_hugging_face():
    halves = [HuggingFace({"image": IMAGES[:end], "label": LABELS[:end]}, ["a", "b", "c"]) for end in (6, 4)]
    dataset = data.from_huggingface(*halves)
    same(dataset)
    assert dataset.class_names == ("a", "b", "c")
    ids = np.arange(12).reshape(6, 2)
    halves = [HuggingFace({"input_ids": list(ids[:end]), "y": LABELS[:end]}) for end in (6, 4)]
    same(data.from_huggingface(*halves, inputs="input_ids", label="y"), ids)


def test_names_of_both_splits():
    train = HuggingFace({"x": np.arange(4), "label": np.array([0, 1, 1, 0])}, ["cat", "dog"])
    test = HuggingFace({"x": np.arange(2), "label": np.array([0, 1])}, ["dog", "cat"])
    dataset = data.from_huggingface(train, test, inputs=["x"])
    assert dataset.class_names == ("cat", "dog") and dataset.test_labels.tolist() == [1, 0]
    texts = HuggingFace({"x": np.arange(2), "label": np.array(["dog", "cat"])})
    assert data.from_huggingface(train, texts, inputs=["x"]).test_labels.tolist() == [1, 0]
    with pytest.raises(data.DataError, match="from_huggingface: test_labels are integers without names.* cat, dog"):
        data.from_huggingface(train, HuggingFace(test.columns), inputs=["x"])


def test_columns_of_hugging_face():
    columns = {"x": np.arange(6), "y": np.arange(6) / 2, "who": list("aabbcc"), "label": list("nynyny")}
    train, test = (HuggingFace({name: column[:end] for name, column in columns.items()}) for end in (6, 4))
    dataset = data.from_huggingface(train, test, inputs=["y", "x"], clients="who")
    assert dataset.train_images.tolist() == [[row / 2, row] for row in range(6)] and dataset.test_images.shape == (4, 2)
    assert dataset.class_names == ("n", "y") and dataset.train_clients.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.input_names == ("y", "x")
    by_class = data.from_huggingface(train, test, inputs=["x"], clients="label")  # the test split has this column, too
    assert by_class.train_clients.tolist() == [0, 1, 0, 1, 0, 1]
    assert dataset.client_names == ("a", "b", "c") and dataset.test_clients.tolist() == [0, 0, 1, 1]
    del test.features["who"]  # the users of test rows may be unknown
    alone = data.from_huggingface(train, test, inputs=["x"], clients="who")
    assert alone.train_clients is not None and alone.test_clients is None
    assert sorted(data.from_huggingface(train, 1 / 3, inputs=["x"]).test_labels) == [0, 1]
    with pytest.raises(ValueError, match="has x, y, who, label, but no 'z'"):
        data.from_huggingface(train, test, inputs=["x", "z"])
    with pytest.raises(ValueError, match="from_huggingface: column 'who' holds 'a' in row 0, and inputs are numbers"):
        data.from_huggingface(train, train, inputs=["x", "who"])


def test_keys_that_are_missing():
    half = HuggingFace({"image": IMAGES, "fine_label": LABELS})
    with pytest.raises(ValueError, match="has image, fine_label"):
        data.from_huggingface(half, half)


def test_what_is_no_split_of_hugging_face():
    half = HuggingFace({"x": np.arange(6), "label": np.array(list("nynyn?"))})
    for wrong, message in (
        (iter([half]), "received list_iterator, which can't be indexed: load it without streaming=True"),
        (half, r"column 'label' has 1 missing value \('\?'\) in 6 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_huggingface(wrong, 0.5, inputs=["x"])
        with pytest.raises(ValueError, match=message):
            data.from_huggingface(wrong, 0.5, inputs="x")


def test_the_splits_of_a_mapping_are_used_as_they_are():
    def rows(start):
        return HuggingFace({"x": np.arange(start, start + 4), "label": np.array(list("abab"))})

    splits = {"train": rows(0), "validation": rows(4), "test": rows(8)}
    for options, train, test in (
        ({}, range(4), range(8, 12)),
        ({"test": "validation"}, range(4), range(4, 8)),
        ({"split": "validation"}, range(4, 8), range(8, 12)),
        ({"test": splits["train"], "split": "test"}, range(8, 12), range(4)),
    ):
        dataset = data.from_huggingface(splits, inputs=["x"], **options)
        assert dataset.train_images.ravel().tolist() == list(train)
        assert dataset.test_images.ravel().tolist() == list(test)
    for alone in (splits["train"], {"train": splits["train"]}):
        assert data.from_huggingface(alone, inputs=["x"]).test_share == 0.2
    assert sorted(data.from_huggingface(splits, 0.5, inputs=["x"]).train_images.ravel()) in (
        [0, 1],
        [2, 3],
        [0, 3],
        [1, 2],
    )


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["train", "validation"], {}, "splits train, validation, .*test=validation.*test=0.2"),
        (["train", "test"], {"test": "tset"}, "test: has the splits train, test, but no 'tset'"),
        (["training", "test"], {}, "split: has the splits training, test, but no 'train'"),
        (["train", "test"], {"split": "test", "test": "test"}, "test: received 'test', which is the split to train on"),
        ([], {"split": "test"}, "split: received 'test'"),
        ([], {"test": "test"}, "test: received 'test'"),
        ([], {"config": "en"}, "received config='en'"),
    ],
)
def test_splits_that_are_not_there(names, options, message):
    half = HuggingFace({"x": np.arange(4), "label": np.array(list("abab"))})
    with pytest.raises(data.DataError, match=message):
        data.from_huggingface(dict.fromkeys(names, half) or half, inputs=["x"], **options)


def test_inputs_by_default():
    columns = {"age": np.arange(6) / 4, "who": list("aabbcc"), "x": np.arange(6), "label": list("nynyny")}
    dataset = data.from_huggingface(HuggingFace(columns), clients="who")
    assert dataset.input_names == ("age", "x")
    pixels = HuggingFace({"photo": IMAGES, "label": LABELS, "age": np.arange(6)})
    pixels.features["photo"] = types.SimpleNamespace(shape=IMAGES.shape[1:])
    with pytest.raises(data.DataError, match="has the columns photo, age: name the inputs"):
        data.from_huggingface(pixels)
    with pytest.raises(data.DataError, match="inputs include 'label', the label"):
        data.from_huggingface(pixels, inputs=["age", "label"])


def test_categories_of_hugging_face():
    columns = {"age": np.arange(4) / 4, "sex": list("FMMF"), "ward": np.array([1, 0, 0, 1]), "label": list("abab")}
    train, test = HuggingFace(columns), HuggingFace({name: column[1:] for name, column in columns.items()})
    for half in (train, test):
        half.features["ward"] = types.SimpleNamespace(names=["north", "south"])
    dataset = data.from_huggingface(train, test, categories=["sex", "ward"])
    assert dataset.input_names == ("age", "sex=F", "sex=M", "ward=north", "ward=south")
    assert dataset.test_images.tolist() == [[0.25, 0, 1, 1, 0], [0.5, 0, 1, 1, 0], [0.75, 1, 0, 0, 1]]
    assert data.from_huggingface(train, test, inputs="sex", categories="sex").input_names == ("sex=F", "sex=M")
    with pytest.raises(data.DataError, match="categories include 'ward', which is no input"):
        data.from_huggingface(train, test, inputs="age", categories=["ward"])
    with pytest.raises(data.DataError, match=r"column 'sex' holds 'F' in row 0.*categories: \[sex\]"):
        data.from_huggingface(train, test)


@pytest.mark.slow
def test_the_real_hugging_face():
    datasets = pytest.importorskip("datasets")
    ids = np.arange(12).reshape(6, 2)
    halves = [datasets.Dataset.from_dict({"ids": ids[:end], "label": LABELS[:end]}) for end in (6, 4)]
    same(data.from_huggingface(*halves, inputs="ids"), ids)
    table = datasets.Dataset.from_dict(
        {"x": [1, 2, 3, 4], "y": [0.5, 1, None, 2], "u": list("abab"), "label": list("nnyy")}
    )
    dataset = data.from_huggingface(table, 0.5, inputs=["x"], clients="u")
    assert dataset.class_names == ("n", "y") and len(dataset.train_clients) == 2
    with pytest.raises(ValueError, match="column 'y' has 1 missing value"):
        data.from_huggingface(table, 0.5, inputs=["x", "y"])


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets")


def test_only_named_columns_are_read():
    half = HuggingFace({"x": np.arange(4), "label": list("abab"), "photo": [None] * 4})
    data.from_huggingface(half, 0.5, inputs=["x"])
    assert set(half.read) == {"x", "label"}


def test_a_damaged_column_that_is_not_named(hub):
    photos = [{"bytes": b"damaged", "path": None}] * 4
    features = hub.Features({"x": hub.Value("int64"), "label": hub.Value("string"), "photo": hub.Image()})
    split = hub.Dataset.from_dict({"x": range(4), "label": list("abab"), "photo": photos}, features=features)
    assert data.from_huggingface(split.filter(lambda x: x < 4, input_columns="x"), 0.5, inputs=["x"]).input_names == (
        "x",
    )


def labelled(hub, names, kinds, **columns):
    """A split whose input is the number of its row's letter."""
    feature = hub.Value("string") if names is None else hub.Value("int64")
    if names and not isinstance(names, int):
        feature = hub.ClassLabel(names=names)
        labels = [names.index(kind) for kind in kinds]
    else:
        labels = list(kinds) if names is None else [ord(kind) - ord("a") for kind in kinds]
    features = hub.Features({"x": hub.Value("float32"), "label": feature})
    return hub.Dataset.from_dict({"x": [ord(kind) for kind in kinds], "label": labels}, features=features)


def test_class_labels_are_compared_by_name(hub):
    train = labelled(hub, ["b", "a", "c"], "abcabb")
    for names in (["c", "b", "a"], ["a", "c"], None, ["d", "c", "b", "a"]):
        for first, second in ((train, labelled(hub, names, "aac")), (labelled(hub, names, "acaca"), train)):
            if names == ["a", "c"] and second is train:
                continue  # below
            if names is None and second is train:
                continue
            dataset = data.from_huggingface(first, second, inputs=["x"])
            for rows, labels in (
                (dataset.train_images, dataset.train_labels),
                (dataset.test_images, dataset.test_labels),
            ):
                assert [ord(dataset.class_names[label]) for label in labels] == rows[:, 0].tolist()
    for first, second, message in (
        (labelled(hub, ["a", "c"], "acac"), train, "test_labels holds 'b', which is none of the classes a, c"),
        (labelled(hub, None, "acac"), train, "test_labels holds 'b', which is none of the classes a, c"),
        (
            labelled(hub, 3, "abcabb"),
            train,
            "train_labels are integers without names, and test_labels have the names b, a, c",
        ),
        (train, labelled(hub, 3, "abc"), "test_labels are integers without names"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_huggingface(first, second, inputs=["x"])
    given = data.from_huggingface(labelled(hub, 3, "abcabb"), train, inputs=["x"], class_names=["a", "b", "c"])
    assert given.train_labels.tolist() == given.test_labels.tolist() == [0, 1, 2, 0, 1, 1]


def test_class_labels_in_lists_and_from_transforms_are_compared_by_name(hub):
    lists = []
    for names in (["a", "b"], ["b", "a"]):
        features = hub.Features({"x": hub.Value("float32"), "label": hub.List(hub.ClassLabel(names=names), length=1)})
        lists.append(hub.Dataset.from_dict({"x": [1, 2], "label": [[0], [1]]}, features=features))
    dataset = data.from_huggingface(*lists, inputs=["x"])
    assert dataset.class_names == ("a", "b") and dataset.test_labels.tolist() == [1, 0]

    halves = [labelled(hub, names, "aabb") for names in (["a", "b"], ["b", "a"])]
    renamed = [half.with_transform(lambda batch: {"y": batch["label"], "x": batch["x"]}) for half in halves]
    dataset = data.from_huggingface(*renamed, inputs=["x"], label="y")
    assert dataset.class_names == ("a", "b") and dataset.test_labels.tolist() == [0, 0, 1, 1]

    flip = lambda batch: {"x": batch["x"], "label": [1 - label for label in batch["label"]]}
    changed = [half.with_transform(flip) for half in halves]
    with pytest.raises(data.DataError, match="labels have no names, .* different classes, a, b and b, a: return texts"):
        data.from_huggingface(*changed, inputs=["x"])
    assert data.from_huggingface(changed[0], changed[0], inputs=["x"]).class_names == ("0", "1")
    assert data.from_huggingface(*changed, inputs=["x"], class_names=["p", "q"]).class_names == ("p", "q")


def test_users_of_a_class_label_have_its_names(hub):
    columns = {"x": [0.0, 1, 2, 3], "label": list("abab"), "who": [0, 1, 1, 2]}
    train, test, hidden = (
        hub.Dataset.from_dict({**columns, "who": who}).cast_column("who", hub.ClassLabel(names=names))
        for names, who in (("uvw", [0, 1, 1, 2]), ("wvu", [0, 1, 1, 2]), ("uvw", [0, 1, -1, 2]))
    )
    dataset = data.from_huggingface(train, test, inputs=["x"], clients="who")
    assert dataset.client_names == ("u", "v", "w") and dataset.test_clients.tolist() == [2, 1, 1, 0]
    with pytest.raises(data.DataError, match="test: column 'who' holds -1 in row 2"):
        data.from_huggingface(train, hidden, inputs=["x"], clients="who")


def test_splits_that_repeat_rows_are_refused(hub):
    split = labelled(hub, ["a", "b"], "ababab")
    interleaved = hub.interleave_datasets([split, split.select([0, 1])], stopping_strategy="all_exhausted")
    for repeated, message in (
        (split.select([0, 0, 1, 3]), "repeats 1 of 4 rows"),
        (interleaved, "repeats .* of 12 rows"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_huggingface(repeated, 0.5, inputs=["x"])
    for once in (split.shuffle(seed=0), split.filter(lambda row: row["x"] > 0), split.select([5, 2, 3, 4])):
        assert set(data.from_huggingface(once, split, inputs=["x"]).class_names) == {"a", "b"}


def test_what_fails_in_a_split_is_named(hub, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    features = hub.Features({"image": hub.Image(), "label": hub.Value("int64")})
    for file, message in (("a.png", "example 0: UnidentifiedImageError: .*a.png"), ("b.png", "b.png: can't be read")):
        split = hub.Dataset.from_dict({"image": [str(tmp_path / file)] * 2, "label": [0, 1]}, features=features)
        with pytest.raises(data.DataError, match=message):
            data.from_huggingface(split, split)
    features = hub.Features({"image": hub.List(hub.Image()), "label": hub.Value("int64")})
    lists = hub.Dataset.from_dict({"image": [[Image.new("L", (2, 2))]] * 2, "label": [0, 1]}, features=features)
    with pytest.raises(data.DataError, match="column 'image' has a list of pictures in each row"):
        data.from_huggingface(lists, lists)
    failing = labelled(hub, ["a", "b"], "abab").with_transform(lambda batch: {"x": batch["none"]})
    for inputs in ("x", ["x"]):
        with pytest.raises(data.DataError, match="from_huggingface.*none.*itself fails"):
            data.from_huggingface(failing, 0.5, inputs=inputs)


def test_hidden_labels_are_named(hub):
    features = hub.Features({"x": hub.Value("float32"), "label": hub.ClassLabel(names=["no", "yes"])})
    train, test = (
        hub.Dataset.from_dict({"x": [0, 1], "label": labels}, features=features) for labels in ([0, 1], [-1, -1])
    )
    with pytest.raises(data.DataError, match="test_labels holds -1 in row 0"):
        data.from_huggingface(train, test, inputs=["x"])


def test_columns_keep_all_their_bits(hub):
    """The library reads any float in 32 bits, in which these users and categories would be one."""
    many = np.repeat(1_600_000_000.0 + np.arange(3), 4)
    split = hub.Dataset.from_dict({"x": np.arange(12.0), "code": many, "who": many, "label": [0, 1] * 6})
    dataset = data.from_huggingface(split, 0.5, inputs=["x", "code"], categories=["code"], clients="who")
    assert dataset.client_names == ("1600000000", "1600000001", "1600000002")
    assert dataset.input_names == ("x", *(f"code={name}" for name in dataset.client_names))
    lists = hub.Dataset.from_dict({"x": many.reshape(6, 2).tolist(), "label": [0, 1] * 3})
    for given, message in (
        (split.remove_columns("who"), "column 'code' holds 1600000001, which becomes 1600000000"),
        (lists, r"train_images\[2\] holds 1600000001.0 in column 0, which becomes 1600000000.0"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_huggingface(given, 0.5)


def test_integers_name_classes_as_in_a_table(hub):
    split = hub.Dataset.from_dict({"x": np.arange(12.0) / 4, "label": [1, 2, 7, -1] * 3})
    dataset = data.from_huggingface(split, 1 / 3, inputs=["x"])
    assert dataset.class_names == ("-1", "1", "2", "7") and np.bincount(dataset.train_labels).tolist() == [2] * 4
    assert dataset.class_names[dataset.train_labels[0]] == str([1, 2, 7, -1][int(dataset.train_images[0, 0] * 4) % 4])
    with pytest.raises(data.DataError, match="test_labels holds '-1', which is none of the classes 1, 2"):
        data.from_huggingface(split.select([0, 1]), split, inputs=["x"])


def test_a_class_label_is_no_quantity(hub):
    features = hub.Features(
        {"x": hub.Value("float32"), "c": hub.ClassLabel(names=["r", "g"]), "label": hub.Value("int64")}
    )
    split = hub.Dataset.from_dict({"x": np.arange(4.0), "c": [0, 1] * 2, "label": [0, 1] * 2}, features=features)
    with pytest.raises(data.DataError, match=r"column 'c' is categorical: categories: \[c\] makes an input"):
        data.from_huggingface(split, 0.5)


def test_columns_that_a_format_leaves_out_are_no_inputs(hub):
    split = hub.Dataset.from_dict({"x": np.arange(4.0), "record": np.arange(4.0), "label": [0, 1] * 2})
    assert data.from_huggingface(split.with_format("numpy", columns=["x"]), 0.5).input_names == ("x",)


def test_labels_of_one_element(hub):
    split = hub.Dataset.from_dict({"x": [0.0, 1, 2, 3], "label": [[0], [1], [0], [1]]})
    assert data.from_huggingface(split, 0.5, inputs=["x"]).train_labels.tolist() == [0, 1]


TORCH = pytest.param("torch", marks=pytest.mark.slow)  # its import takes seconds
PIXELS = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)


@pytest.mark.parametrize("feature", ["Array2D", "lists", "numpy", TORCH])
def test_columns_of_bytes_are_pixels(hub, feature):
    if feature == "torch":
        pytest.importorskip("torch")
    kind = hub.List(hub.List(hub.Value("uint8"))) if feature == "lists" else hub.Array2D((3, 2), "uint8")
    features = hub.Features({"image": kind, "label": hub.Value("int64")})
    split = hub.Dataset.from_dict({"image": PIXELS.tolist(), "label": [0, 1, 0, 1]}, features=features)
    if feature == "numpy":
        split = split.with_format("numpy", dtype=np.uint8)
    elif feature == "torch":
        split = split.with_format("torch")
    dataset = data.from_huggingface(split, split)
    assert dataset.train_images.dtype == np.uint8
    np.testing.assert_array_equal(dataset.train_images, PIXELS[..., None])
    colours = np.stack([PIXELS] * 3, axis=-1)
    features["image"] = hub.Array3D((3, 2, 3), "uint8")
    split = hub.Dataset.from_dict({"image": list(colours), "label": [0, 1, 0, 1]}, features=features)
    np.testing.assert_array_equal(data.from_huggingface(split, split).train_images, colours)


def test_a_missing_array_of_bytes_is_named(hub):
    features = hub.Features({"image": hub.Array2D((3, 2), "uint8"), "label": hub.Value("int64")})
    split = hub.Dataset.from_dict({"image": [*PIXELS[:3].tolist(), None], "label": [0, 1, 0, 1]}, features=features)
    with pytest.raises(data.DataError, match=r"train_images\[3\] holds nan"):
        data.from_huggingface(split, split)


def test_a_transform_is_applied(hub):
    calls = []

    def double(batch, kept):
        calls.append(len(batch["x"]))
        return {"y": [np.array([2 * x, x]) for x in batch["x"]], **{name: batch[name] for name in kept}}

    for kept in ([], ["label"]):
        split = labelled(hub, ["b", "a"], "abab").with_transform(partial(double, kept=kept))
        dataset = data.from_huggingface(split, split, inputs="y")
        assert dataset.train_images.tolist() == [[194, 97], [196, 98]] * 2 and dataset.class_names == ("b", "a")
        assert dataset.train_labels.tolist() == [1, 0, 1, 0]
    assert sum(calls) == 16
    merged = labelled(hub, ["b", "a"], "abab").with_transform(lambda batch: {**batch, "label": [0] * len(batch["x"])})
    with pytest.raises(data.DataError, match="train_labels are integers without names"):
        data.from_huggingface(merged, labelled(hub, ["b", "a"], "ab"), inputs=["x"])
    with pytest.raises(data.DataError, match="the transform's result: has y, label"):
        data.from_huggingface(split, 0.5)


@pytest.mark.slow
def test_a_transform_to_tensors(hub):
    torch = pytest.importorskip("torch")
    features = hub.Features({"image": hub.Array3D((3, 2, 3), "uint8"), "label": hub.Value("int64")})
    colours = np.stack([PIXELS] * 3, axis=-1)
    split = hub.Dataset.from_dict({"image": list(colours), "label": [0, 1, 0, 1]}, features=features)
    to_tensor = lambda batch: {
        **batch,
        "image": [torch.tensor(image).permute(2, 0, 1) / 255 for image in batch["image"]],
    }
    images = data.from_huggingface(split.with_transform(to_tensor), 0.5).train_images
    np.testing.assert_array_equal(images[0], colours[0] / np.float32(255))


def test_pictures_that_are_missing_or_not_decoded(hub):
    image = Image.new("RGB", (2, 2))
    features = hub.Features({"image": hub.Image(), "label": hub.Value("int64")})
    split = hub.Dataset.from_dict({"image": [image, None, image, image], "label": [0, 1, 0, 1]}, features=features)
    with pytest.raises(data.DataError, match="from_huggingface: example 1 has an input that is None"):
        data.from_huggingface(split, 0.5)
    with pytest.raises(data.DataError, match="column 'image' holds files that aren't decoded: .*cast_column"):
        data.from_huggingface(split.cast_column("image", hub.Image(decode=False)), 0.5)


def test_users_of_test_rows(hub):
    columns = {"x": [0.0, 1, 2, 3], "label": list("abab"), "who": ["u", "v", "v", "w"]}
    train = hub.Dataset.from_dict(columns)
    test = hub.Dataset.from_dict({**columns, "who": ["t", "w", "t", "u"]})
    dataset = data.from_huggingface(train, test, inputs=["x"], clients="who")
    assert dataset.client_names == ("u", "v", "w", "t") and dataset.test_clients.tolist() == [3, 2, 3, 0]
    assert data.from_huggingface(train, test.remove_columns("who"), inputs=["x"], clients="who").test_clients is None


@pytest.mark.parametrize("kind", ["numpy", TORCH])
def test_formats_are_kept(hub, kind):
    """A format has another container, or another type, but no other axes."""
    library = pytest.importorskip(kind)
    images = [Image.fromarray(colours) for colours in np.stack([PIXELS] * 3, axis=-1)]
    features = hub.Features({"image": hub.Image(), "label": hub.Value("int64"), "x": hub.Array2D((3, 2), "int64")})
    columns = {"image": images, "label": [0, 1, 0, 1], "x": PIXELS.astype(int)}
    split = hub.Dataset.from_dict(columns, features=features)
    for options, dtype in (({}, np.uint8), ({"dtype": library.float32}, np.float32)):
        whole = split.with_format(kind, columns=["label"], **options)
        dataset = data.from_huggingface(whole, whole)
        assert dataset.train_images.dtype == dtype
        np.testing.assert_array_equal(dataset.train_images, np.stack([PIXELS] * 3, axis=-1))
        arrays = data.from_huggingface(whole, whole, inputs="x").train_images
        assert arrays.dtype == (np.float32 if options else np.int32)
        np.testing.assert_array_equal(arrays, PIXELS)
    for other in ("pandas", "arrow"):
        np.testing.assert_array_equal(data.from_huggingface(split.with_format(other), split, inputs="x")[0], PIXELS)
