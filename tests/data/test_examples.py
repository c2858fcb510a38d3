"""Data sets of PyTorch and tf.data, by stand-ins with their interface, and by the real ones where installed."""

import itertools
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


def test_tensors_with_their_channels_last_are_refused(torch):
    for shape in ((8, 9, 3), (8, 8, 1)):
        pairs = [(Tensor(np.zeros(shape)), label) for label in (0, 1)]
        with pytest.raises(data.DataError, match=r"example 0: received a tensor of shape \(8, ., .\), .*movedim"):
            data.from_torch(pairs, pairs)
    for shape in ((3, 8, 9), (1, 8, 8), (3, 5, 3), (8, 8, 9)):
        pairs = [(Tensor(np.zeros(shape)), label) for label in (0, 1)]
        assert data.from_torch(pairs, pairs).train_images.shape == (2, *shape[1:], shape[0])


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
        ([(IMAGES[0], 0), (IMAGES[0, :2], 1)], r"of shapes \(4, 5, 3\) and \(2, 5, 3\)"),
        ([(IMAGES[0], 0), (IMAGES[0, ..., 0], 1)], r"shapes \(4, 5, 3\) and \(4, 5\), .*image.convert\('RGB'\)"),
        ([(IMAGES[0], [0, 1])], r"example 0: received labels of shape \(2,\)"),
        ([(IMAGES[0], 0), (None, 1)], "example 1 has an input that is None"),
        ([(IMAGES[0], 0), (IMAGES[0], None)], "example 1 has a label that is None"),
        ([(IMAGES[0], "a"), (IMAGES[0], float("nan"))], "example 1 has nan as its label, and example 0 has a"),
        ([(IMAGES[0], 3), (IMAGES[0], "b")], "example 1 has b as its label, and example 0 has 3"),
        ([(IMAGES[0], 0.0), (IMAGES[0], float("nan"))], "train_labels holds 'nan' in row 1"),
        (
            ((IMAGES[row], 1 // row) for row in (1, 0)),
            "train: example 1: ZeroDivisionError: .*the data set itself",
        ),
    ],
)
def test_examples_that_can_not_be_stacked(examples, message):
    with pytest.raises(ValueError, match=message):
        data.from_torch(examples, examples)


class TfData:
    """A data set of tf.data's, as far as it is used."""

    def __init__(self, examples):
        self.examples = examples

    def as_numpy_iterator(self):
        return iter(self.examples)


def test_labels_of_tf_data():
    """Texts are bytes there, and Keras has floats for two classes."""
    texts = TfData([(image, b"abc"[label : label + 1]) for image, label in zip(IMAGES, LABELS, strict=True)])
    dataset = data.from_tf_data(texts, TfData([(IMAGES, LABELS)]), ["a", "b", "c"])
    assert dataset.train_labels.tolist() == dataset.test_labels.tolist() == LABELS.tolist()
    binary = TfData([(IMAGES[:4], np.array([[0], [1], [1], [0]], np.float32))])
    assert data.from_tf_data(binary, binary).train_labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(data.DataError, match="from_tf_data: train: received list"):
        data.from_tf_data([(IMAGES[0], 0)], 0.5)


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


def test_a_share_may_be_held_out():
    labels = np.repeat([0, 1], [10, 5])
    rows = np.arange(15.0)[:, None]
    dataset = data.from_arrays((rows, labels), 0.2)
    pairs = [(row, ["no", "yes"][label]) for row, label in zip(rows, labels, strict=True)]
    for other in (data.from_torch(pairs, 0.2), data.from_tf_data(TfData(pairs), 0.2)):
        np.testing.assert_array_equal(other.test_images, dataset.test_images)
        assert other.class_names == ("no", "yes")


class Folder:
    """A data set of torchvision's shape: examples have the value of their class as pixels."""

    def __init__(self, classes, kinds, **attributes):
        self.classes = classes
        self.class_to_idx = {name: number for number, name in enumerate(classes)}
        self.kinds = kinds
        vars(self).update(attributes)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, row):
        kind = self.kinds[row]
        return np.full((2, 2, 1), ord(kind[0]), np.uint8), self.classes.index(kind)


def pictured(dataset):
    """Checks that each row's class has the letter that its pixels show; returns the names of classes."""
    for images, labels in ((dataset.train_images, dataset.train_labels), (dataset.test_images, dataset.test_labels)):
        assert [ord(dataset.class_names[label][0]) for label in labels] == images[:, 0, 0, 0].tolist()
    return dataset.class_names


def test_classes_of_data_sets_are_compared_by_name():
    train = Folder(["ant", "bee", "cat"], ["ant", "bee", "cat", "cat"])
    for test in (Folder(["ant", "cat"], ["cat", "ant"]), Folder(["cat", "bee", "ant"], ["bee", "cat"])):
        assert pictured(data.from_torch(train, test)) == ("ant", "bee", "cat")
        assert pictured(data.from_torch(train, test, ["dog", "cat", "bee", "ant"])) == ("dog", "cat", "bee", "ant")
    assert pictured(data.from_torch(train, Folder(["cat", "dog"], ["cat"]))) == ("ant", "bee", "cat")  # no row is a dog
    assert pictured(data.from_torch(train, [(np.full((2, 2, 1), ord("c"), np.uint8), "cat")])) == ("ant", "bee", "cat")
    assert pictured(data.from_torch(Folder(list("ab"), list("abab")), 0.5)) == ("a", "b")
    for other, names, message in (
        (Folder(["ant", "dog"], ["dog"]), None, "test_labels holds 'dog', which is none of the classes ant, bee, cat"),
        (Folder(["ant", "dog"], ["dog"]), ["ant", "bee", "cat"], "test_labels holds 'dog'"),
        (
            [(IMAGES[0, :2, :2, :1], 0)],
            None,
            "test_labels are integers without names, .* ant, bee, cat: give class_names",
        ),
        (train, ["ant", "bee"], "train_labels holds 'cat', which is none of the classes ant, bee"),
        (Folder(["ant"], ["ant"], class_to_idx={"ant": 1}), None, "test: classes has 'ant' at position 0, .* says 1"),
        (Folder(["ant", "ant"], ["ant"]), None, "test: classes has 'ant' twice"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_torch(train, other, names)


def test_names_within_wrappers_are_compared():
    """A wrapper may return other labels than the data set within, but where all have the same names, positions do."""

    class Wrapper(MapStyle):
        def __init__(self, within):
            self.pairs = within

    abc, ac = Folder(list("abc"), list("abcabc")), Folder(list("ac"), list("acac"))
    assert data.from_torch(Wrapper(abc), Wrapper(Wrapper(abc))).class_names == ("0", "1", "2")
    both = Wrapper(abc)
    vars(both)["others"] = [ac]
    for train, test in ((Wrapper(abc), Wrapper(ac)), (Wrapper(Wrapper(abc)), Wrapper(ac)), (both, 0.5)):
        with pytest.raises(data.DataError, match="number different classes, a, b, c and a, c: return texts"):
            data.from_torch(train, test)
    assert data.from_torch(Wrapper(abc), Wrapper(ac), list("abc")).test_labels.tolist() == [0, 1, 0, 1]
    named = Wrapper(ac)
    vars(named)["classes"] = ac.classes
    assert pictured(data.from_torch(abc, named)) == ("a", "b", "c")


def test_names_that_a_data_set_does_not_have():
    """Functions, counts, and numbers as classes are no names; labels that a transform changes have none."""
    for classes in (None, 2, [0, 1], np.arange(2), lambda: ["a", "b"]):
        pairs = MapStyle([(IMAGES[0], 0), (IMAGES[1], 1)])
        pairs.classes = classes
        assert data.from_torch(pairs, pairs).class_names == ("0", "1")
    for classes in ([3, 5], {"ant": 0, "bee": 1}, "ab", [None, "b"]):
        pairs.classes = classes
        with pytest.raises(data.DataError, match="classes is .*, must be a list of texts.* give class_names"):
            data.from_torch(pairs, pairs)
        assert data.from_torch(pairs, pairs, ["three", "five"]).class_names == ("three", "five")
    pairs.classes = [("crane", "bird"), ("crane", "machine")]  # ImageNet has several names for a class
    assert data.from_torch(pairs, pairs).class_names == ("crane, bird", "crane, machine")
    pairs.classes = None
    pairs.class_to_idx = {"bee": 1, "ant": 0}
    assert data.from_torch(pairs, pairs).class_names == ("ant", "bee")
    pairs.target_transform = lambda label: 1 - label
    assert data.from_torch(pairs, pairs).class_names == ("0", "1")


@pytest.mark.parametrize("channels", [1, 3])
def test_labels_of_one_element(torch, channels):
    """As MedMNIST has them: `[1]` an example, `[B, 1]` a batch."""
    channels_first = np.moveaxis(IMAGES[..., :channels], -1, 1) / np.float32(255)
    wanted = IMAGES[..., :channels] / np.float32(255)
    pairs = [(Tensor(image), np.array([label])) for image, label in zip(channels_first, LABELS, strict=True)]
    batches = [(Tensor(channels_first[rows]), Tensor(LABELS[rows, None])) for rows in (np.arange(4), np.array([4, 5]))]
    for half, test in ((MapStyle(pairs), MapStyle(pairs[:4])), (pairs, pairs[:4]), (batches, batches[:1])):
        same(data.from_torch(half, test), wanted)
    one_hot = [
        (Tensor(image), np.eye(3, dtype=int)[label]) for image, label in zip(channels_first, LABELS, strict=True)
    ]
    with pytest.raises(data.DataError, match=r"test: example 0: received labels of shape \(3,\)"):
        data.from_torch(MapStyle(pairs), MapStyle(one_hot))


def test_labels_of_one_element_of_tf_data():
    pairs = list(zip(IMAGES, LABELS[:, None], strict=True))
    same(data.from_tf_data(TfData(pairs), TfData(pairs[:4])))
    batches = [(IMAGES[:4], LABELS[:4, None]), (IMAGES[4:], LABELS[4:, None])]
    same(data.from_tf_data(TfData(batches), TfData(batches[:1])))
    batches_of_one = [(IMAGES[row : row + 1], LABELS[row : row + 1]) for row in range(6)]
    same(data.from_tf_data(TfData(batches_of_one), TfData(batches_of_one[:4])))


def test_class_names_of_tf_data():
    """As `image_dataset_from_directory` has them."""
    train, test = (TfData(list(zip(IMAGES[:2], labels, strict=True))) for labels in ([0, 1], [0, 1]))
    train.class_names, test.class_names = ["a", "b"], ["b", "a"]
    dataset = data.from_tf_data(train, test)
    assert dataset.class_names == ("a", "b") and dataset.test_labels.tolist() == [1, 0]
    del test.class_names
    with pytest.raises(data.DataError, match="from_tf_data: test_labels are integers without names"):
        data.from_tf_data(train, test)


class Loader(Iterable):
    """A loader of PyTorch's, as far as it is looked at."""

    def __init__(self, pairs, rows, batches=None, drop_last=False, num_workers=0):
        super().__init__(pairs)
        self.num_workers = num_workers
        self.dataset, self.sampler, self.batch_sampler, self.drop_last = MapStyle(pairs), rows, batches, drop_last


def test_loaders_read_each_row_once():
    pairs = list(zip(IMAGES, LABELS, strict=True))
    same(data.from_torch(Loader(pairs, [5, 0, 1, 2, 3, 4]), Loader(pairs[:4], None, [[0, 3], [2, 1]])))
    random = type("Random", (list,), {"replacement": True})(range(6))
    for loader, message in (
        (
            Loader(pairs, [0, 0, 1, 2, 3, 4]),
            "train: the loader repeats 1 of 6 rows and leaves out 1.*pass loader.dataset",
        ),
        (Loader(pairs, [0, 1, 2]), "repeats 0 of 6 rows and leaves out 3"),
        (Loader(pairs, [0, 1, 2, 3, 4, 5, 5]), "repeats 1 of 6 rows"),
        (Loader(pairs, itertools.cycle(range(6))), "repeats 1 of 6 rows and leaves out 0, by its cycle"),
        (Loader(pairs, random), "by its Random; each row must be read once"),
        (Loader(pairs, range(6), [[0, 1, 2, 3]], drop_last=True), "leaves out 2, by drop_last=True"),
        (Loader(pairs, range(6), [[0, 1], [1, 2]]), "repeats 1 of 6 rows and leaves out 3"),
        (Loader(pairs, itertools.repeat(None), drop_last=True), "drop_last=True, which leaves rows out"),
        (Loader(pairs, itertools.repeat(None), num_workers=2), "num_workers=2, and each worker reads the whole"),
        (Loader(pairs, [[0, 1, 2], [3, 4]]), "repeats 0 of 6 rows and leaves out 1"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_torch(loader, 0.5)
    same(data.from_torch(Loader(pairs, [[0, 1, 2], [3, 4, 5]]), pairs[:4]))  # batches from the data set itself
    same(data.from_torch(Loader(pairs, itertools.repeat(None)), pairs[:4]))  # a data set that numbers no rows


@pytest.mark.slow
def test_real_loaders_and_subsets():
    torch = pytest.importorskip("torch")
    utils = torch.utils.data
    rows = utils.TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % 2)
    rows.classes = ["even", "odd"]
    load = lambda **options: utils.DataLoader(rows, batch_size=options.pop("batch_size", 4), **options)
    whole = utils.Subset(rows, [3, 2, 1, 0])
    for right in (
        load(),
        load(shuffle=True),
        load(batch_size=None),
        load(batch_size=1),
        load(batch_size=5),
        load(drop_last=True),
        load(sampler=utils.SubsetRandomSampler(torch.randperm(12))),
        utils.DataLoader(whole, batch_size=3),
        utils.ConcatDataset([utils.Subset(rows, [0, 1]), utils.Subset(rows, range(2, 12))]),
    ):
        dataset = data.from_torch(right, whole)
        assert dataset.train_images.shape[1:] == (1,) and dataset.class_names == ("even", "odd")
        assert (dataset.train_images[:, 0] % 2 == dataset.train_labels).all()
    other = utils.TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    other.classes = ["odd", "even"]
    assert data.from_torch(whole, utils.Subset(other, [1])).test_labels.tolist() == [0]
    weights = torch.ones(12)
    wrong = {
        "WeightedRandomSampler": load(sampler=utils.WeightedRandomSampler(weights, 12)),
        "RandomSampler": load(sampler=utils.RandomSampler(rows, replacement=True)),
        "RandomSampler; ": load(sampler=utils.RandomSampler(rows, num_samples=9)),
        "SubsetRandomSampler": load(sampler=utils.SubsetRandomSampler(range(8))),
        "DistributedSampler": load(sampler=utils.DistributedSampler(rows, num_replicas=3, rank=0)),
        "drop_last": load(batch_size=5, drop_last=True),
        "BatchSampler": utils.DataLoader(rows, batch_sampler=utils.BatchSampler(range(8), 3, False)),
        "is a Subset that repeats rows": utils.DataLoader(utils.Subset(rows, [0, 1, 1])),
        "is a ConcatDataset that repeats rows": utils.ConcatDataset([rows, rows]),
        "classes: (odd, even and even, odd|even, odd and odd, even)": utils.ConcatDataset([rows, other]),
    }
    for message, loader in wrong.items():
        with pytest.raises(data.DataError, match=message):
            data.from_torch(loader, 0.5)


@pytest.mark.slow
def test_real_tensors_of_other_kinds():
    torch = pytest.importorskip("torch")
    images = torch.arange(6 * 3 * 4 * 5).reshape(6, 3, 4, 5) / 4
    labels = torch.tensor(LABELS)
    dataset = torch.utils.data.TensorDataset
    for tensors in (images.clone().requires_grad_(), images.bfloat16()):
        half = dataset(tensors, labels)
        test = [half[row] for row in range(4)]
        same(data.from_torch(half, test), tensors.detach().float().numpy().transpose(0, 2, 3, 1))
    small = (images[..., :1, :1] % 2).to(torch.float8_e4m3fn)
    assert data.from_torch(dataset(small, labels), 0.5).train_images.dtype == np.float32
    sparse = [(image.to_sparse(), int(label)) for image, label in zip(images, LABELS, strict=True)]
    with pytest.raises(data.DataError, match="train: example 0: .*torch.sparse_coo, .*to_dense"):
        data.from_torch(sparse, 0.5)


def test_keys_that_are_missing():
    dicts = TfData([{"img": IMAGES[0], "label": 0}])
    with pytest.raises(data.DataError, match="from_tf_data: has img, label"):
        data.from_tf_data(dicts, dicts)
