"""Data sets of other libraries, by stand-ins with their interface, and by the libraries where they are installed."""

import sys
import types

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
    dataset = data.from_arrays((rows, labels), 0.2, train_clients=rows[:, 0].astype(int))
    assert np.bincount(dataset.test_labels).tolist() == [2, 1] and dataset.test_share == 0.2
    taken = [*dataset.train_images.ravel(), *dataset.test_images.ravel()]
    assert sorted(taken) == list(range(15))
    np.testing.assert_array_equal(labels[dataset.train_images.ravel().astype(int)], dataset.train_labels)
    assert dataset.train_clients.tolist() == list(range(12))  # numbered in the order of the rows that are left
    pairs = [(row, ["no", "yes"][label]) for row, label in zip(rows, labels, strict=True)]
    for other in (data.from_torch(pairs, 0.2), data.from_tf_data(TfData(pairs), 0.2)):
        np.testing.assert_array_equal(other.test_images, dataset.test_images)
        assert other.class_names == ("no", "yes")
    assert data.from_arrays((rows, labels), 0.2, test_seed=3).test_images.tolist() != dataset.test_images.tolist()
    with pytest.raises(ValueError, match="from_arrays: test: received 3, must be"):
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
        known = sorted(names[:3])
        assert dataset.client_names == (*map(str, known), *map(str, sorted(names[3:])))
        assert dataset.train_clients.dtype == dataset.test_clients.dtype == np.int32
        assert [dataset.client_names[client] for client in dataset.train_clients] == [*map(str, train_clients)]
        assert [dataset.client_names[client] for client in dataset.test_clients] == [*map(str, test_clients)]
        assert set(dataset.train_clients.tolist()) == {0, 1, 2} and dataset.test_users == 0, kind
        for changes, message in (
            ({"train_clients": None}, "test_clients are given without train_clients"),
            ({"test_clients": test_clients[:2]}, "test_clients is 2 of .*; expected 3 integers or texts, one for each"),
            ({"test_clients": np.array([1, 2, 3] if kind is str else ["a"] * 3)}, "train_clients are of .* and test_"),
            ({"test_images": None, "test_labels": None}, "test_clients are given without test inputs"),
        ):
            arrays = {"train_images": IMAGES, "train_labels": LABELS, **test}
            arrays |= {"train_clients": train_clients, "test_clients": test_clients, **changes}
            np.savez(tmp_path / "mine.npz", **{key: value for key, value in arrays.items() if value is not None})
            with pytest.raises(data.DataError, match=message):
                data.load("npz", path=tmp_path / "mine.npz")


def test_held_out_rows_keep_their_clients():
    rows = np.arange(12.0)[:, None]
    dataset = data.from_arrays((rows, np.arange(12) % 2), 0.4, train_clients=[f"u{row:02}" for row in range(12)])
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
    with pytest.raises(data.DataError, match="from_arrays: classes .* and .* look the same, but differ in characters"):
        data.from_arrays((IMAGES, names[LABELS]), (IMAGES[:4], names[LABELS[:4]]))
    with pytest.raises(data.DataError, match="from_arrays: clients .* and .* look the same"):
        data.from_arrays((IMAGES, LABELS), (IMAGES[:4], LABELS[:4]), train_clients=names[LABELS])
    others = ["m2", "m\u00b2", "\u0645\u06cc\u200c\u062e"]  # they look different, and a joiner may belong to a word
    assert data.from_arrays((IMAGES, LABELS), (IMAGES[:4], LABELS[:4]), others).class_names == tuple(others)


def test_texts_are_classes_and_clients_also_as_pandas_keeps_them():
    words, owners = np.array(["cat", "owl", "bee"], object)[LABELS], np.array(list("uvwuvw"), object)
    sorted_names = data.from_arrays((IMAGES, words), (IMAGES[:4], words[:4]), train_clients=owners)
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
        (((IMAGES, LABELS[:5]), (IMAGES, LABELS)), "from_arrays: train_labels is 5 of int64; expected 6"),
        (((IMAGES, LABELS), (IMAGES[:, :2], LABELS)), "training images are 4x5x3 and test images 2x5x3"),
        (((IMAGES, LABELS), (IMAGES / 255, LABELS)), "of uint8 and test images of float32; expected one type"),
        (((np.zeros((6, 2)) * np.nan, LABELS), (IMAGES, LABELS)), r"train_images\[0\] holds .*that are finite"),
        ((([[1], [1, 2]], [0, 1]), (IMAGES, LABELS)), "lists of one length: data.pad makes one array"),
        (((IMAGES, list("abcabc")), (IMAGES, list("abcabd")), ["a", "b", "c"]), "test_labels holds 'd', which is none"),
        (((IMAGES, list("abcabc")), (IMAGES, LABELS)), "train_labels is 6 of <U1; expected 6 integers"),
        (((IMAGES, np.ma.masked_equal(LABELS, 0)), (IMAGES, LABELS)), "train_labels: received masked values"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    with pytest.raises(ValueError, match=message):
        data.from_arrays(*arrays)


class Tensor:
    """PyTorch's tensor, as far as it is used."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def numpy(self, *, force=False):
        assert force  # else it fails on an accelerator, or with a gradient
        return self.array

    def __array__(self, *_, **__):
        raise TypeError("can't convert a tensor on a device")


class MapStyle:
    """A data set of PyTorch's: by position, and without an end."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, place):
        return self.pairs[place % len(self.pairs)]


class Iterable(MapStyle):
    """One that has no positions, or a loader."""

    def __iter__(self):
        return iter(self.pairs)

    def __getitem__(self, place):
        raise NotImplementedError


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))


def test_tensors_have_their_channels_moved_to_the_end(torch):
    scaled = (IMAGES / 255).astype(np.float32)
    channels_first = np.moveaxis(scaled, -1, 1)
    pairs = [(Tensor(image), int(label)) for image, label in zip(channels_first, LABELS, strict=True)]
    same(data.from_torch(MapStyle(pairs), MapStyle(pairs[:4])), scaled)
    same(data.from_torch(Iterable(pairs), pairs[:4]), scaled)
    batch = lambda *rows: [Tensor(channels_first[slice(*rows)]), Tensor(LABELS[slice(*rows)])]
    same(data.from_torch(Iterable([batch(0, 4), batch(4, 6)]), Iterable([batch(0, 4)])), scaled)


def test_what_is_no_tensor_of_an_image_stays_as_it_is(torch):
    pairs = list(zip(IMAGES, LABELS, strict=True))
    same(data.from_torch(MapStyle(pairs), MapStyle(pairs[:4])))
    vectors = [(Tensor(image.reshape(-1).astype(np.int64)), Tensor(label)) for image, label in pairs]
    same(data.from_torch(MapStyle(vectors), MapStyle(vectors[:4])), IMAGES.reshape(6, -1))


def test_no_library_is_imported():
    pairs, before = list(zip(IMAGES, LABELS, strict=True)), set(sys.modules)
    same(data.from_torch(pairs, pairs[:4]))
    same(data.from_tf_data(TfData(pairs), TfData(pairs[:4])))
    assert not {"torch", "tensorflow", "datasets"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "received no example"),
        ([IMAGES[0]], r"an example of type ndarray, must be \(input, label\)"),
        ([(IMAGES[0], 0), (IMAGES[0, :2], 1)], r"of shapes \(4, 5, 3\) and \(2, 5, 3\), must be of one shape"),
        ([(IMAGES[0], 0), (IMAGES[0, ..., 0], 1)], r"shapes \(4, 5, 3\) and \(4, 5\), .*image.convert\('RGB'\)"),
        ([(IMAGES[0], [0, 1])], "expected"),
    ],
)
def test_examples_that_can_not_be_stacked(examples, message):
    with pytest.raises(ValueError, match=message):
        data.from_torch(examples, examples)


def test_arrays_that_are_no_pairs():
    for halves in ((IMAGES, LABELS), ((IMAGES, LABELS), None), ((IMAGES,), (IMAGES,))):
        with pytest.raises(data.DataError, match="needs pairs of inputs and labels"):
            data.from_arrays(*halves)


class TfData:
    """A data set of tf.data's, as far as it is used."""

    def __init__(self, examples):
        self.examples = examples

    def as_numpy_iterator(self):
        return iter(self.examples)


def test_tf_data():
    pairs = list(zip(IMAGES, LABELS, strict=True))
    same(data.from_tf_data(TfData(pairs), TfData(pairs[:4])))
    dicts = [{"x": image, "label": label, "id": 0} for image, label in pairs]
    same(data.from_tf_data(TfData(dicts), TfData(dicts[:4]), inputs="x"))
    batches = [(IMAGES[:4], LABELS[:4]), (IMAGES[4:], LABELS[4:])]
    same(data.from_tf_data(TfData(batches), TfData(batches[:1])))


@pytest.mark.slow
def test_the_real_tf_data():
    tensorflow = pytest.importorskip("tensorflow")
    halves = [tensorflow.data.Dataset.from_tensor_slices((IMAGES[:end], LABELS[:end])) for end in (6, 4)]
    same(data.from_tf_data(*halves))
    same(data.from_tf_data(*(half.batch(4) for half in halves)))


@pytest.mark.slow
def test_the_real_torch():
    torch = pytest.importorskip("torch")
    tensors = torch.tensor(np.moveaxis(IMAGES, -1, 1)), torch.tensor(LABELS)
    halves = [torch.utils.data.TensorDataset(*(tensor[:end] for tensor in tensors)) for end in (6, 4)]
    same(data.from_torch(*halves))
    same(data.from_torch(*(torch.utils.data.DataLoader(half, batch_size=4) for half in halves)))


class HuggingFace:
    """A split of Hugging Face's data sets, as far as it is used."""

    def __init__(self, columns, names=None):
        self.columns = columns
        self.features = {name: types.SimpleNamespace() for name in columns}
        if names:
            self.features["label"] = types.SimpleNamespace(names=names)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        return {name: column[rows] for name, column in self.columns.items()}


def test_hugging_face():
    halves = [HuggingFace({"image": IMAGES[:end], "label": LABELS[:end]}, ["a", "b", "c"]) for end in (6, 4)]
    dataset = data.from_huggingface(*halves)
    same(dataset)
    assert dataset.class_names == ("a", "b", "c")
    ids = np.arange(12).reshape(6, 2)
    halves = [HuggingFace({"input_ids": list(ids[:end]), "y": LABELS[:end]}) for end in (6, 4)]
    same(data.from_huggingface(*halves, inputs="input_ids", labels="y"), ids)


def test_columns_of_hugging_face():
    columns = {"x": np.arange(6), "y": np.arange(6) / 2, "who": list("aabbcc"), "label": list("nynyny")}
    train, test = (HuggingFace({name: column[:end] for name, column in columns.items()}) for end in (6, 4))
    dataset = data.from_huggingface(train, test, inputs=["y", "x"], clients="who")
    assert dataset.train_images.tolist() == [[row / 2, row] for row in range(6)] and dataset.test_images.shape == (4, 2)
    assert dataset.class_names == ("n", "y") and dataset.train_clients.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.input_names == ("y", "x")
    by_class = data.from_huggingface(train, test, inputs=["x"], clients="label")  # the test split has this column, too
    assert by_class.train_clients.tolist() == [0, 1, 0, 1, 0, 1]
    del test.columns["who"]  # the users of test rows aren't used
    assert data.from_huggingface(train, test, inputs=["x"], clients="who").train_clients is not None
    assert sorted(data.from_huggingface(train, 1 / 3, inputs=["x"]).test_labels) == [0, 1]
    with pytest.raises(ValueError, match="has x, y, who, label, but no 'z'"):
        data.from_huggingface(train, test, inputs=["x", "z"])
    with pytest.raises(ValueError, match="from_huggingface: column 'who' holds 'a' in row 0, and inputs are numbers"):
        data.from_huggingface(train, train, inputs=["x", "who"])


def test_keys_that_are_missing():
    dicts = TfData([{"img": IMAGES[0], "label": 0}])
    with pytest.raises(ValueError, match=r"has img, label, but no 'image'; name the right ones with inputs="):
        data.from_tf_data(dicts, dicts)
    half = HuggingFace({"image": IMAGES, "fine_label": LABELS})
    with pytest.raises(ValueError, match=r"has image, fine_label, but no 'label'"):
        data.from_huggingface(half, half)


def test_what_is_no_split_of_hugging_face():
    half = HuggingFace({"x": np.arange(6), "label": np.array(list("nynyn?"))})
    for wrong, message in (
        ({"train": half, "test": half}, r"received splits 'train', 'test', must be one: give dataset\['train'\]"),
        (iter([half]), "received list_iterator, which can't be indexed: load it without streaming=True"),
        (half, r"column 'label' has 1 missing value \('\?'\) in 6 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_huggingface(wrong, 0.5, inputs=["x"])
        with pytest.raises(ValueError, match=message):
            data.from_huggingface(wrong, 0.5, inputs="x")


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
