"""Raw arrays: every door takes and refuses the same, for training and for testing."""

import numpy as np
import pytest

from fedjax_bal import LocalTraining, data, models, optimizer, recipes, simulate

LABELS = np.repeat(np.arange(3), 4)
FEATURES = (np.random.default_rng(0).normal(size=(12, 5)) + 3 * np.eye(3, 5)[LABELS]).astype(np.float32)
FEDERATION = data.federate(FEATURES, LABELS, [np.arange(0, 12, 2), np.arange(1, 12, 2)], 3)
LOCAL = LocalTraining(batch_size=6, optimizer=optimizer("sgd", 0.1))


def evaluated(inputs, labels, federation=FEDERATION):
    model = models.build("mlp", 3, federation.images.shape[1:])
    return simulate(recipes.fedavg(), model, federation, (inputs, labels), rounds=1, seed=0, local=LOCAL)


DOORS = {
    "federate": lambda inputs, labels: data.federate(inputs, labels, [np.arange(len(labels))], 3),
    "training set": lambda inputs, labels: data.from_arrays((inputs, labels), (FEATURES, LABELS)),
    "test set": lambda inputs, labels: data.from_arrays((FEATURES, LABELS), (inputs, labels)),
    "simulate": evaluated,
}


def with_value(value, dtype=np.float32):
    inputs = FEATURES.astype(dtype)
    inputs[4, 1] = inputs[7, 0] = value
    return inputs


WRONG_LABELS = {
    "floats": LABELS + 0.7,
    "whole floats": LABELS.astype(float),
    "True and False": LABELS > 0,
    "texts": LABELS.astype(str),
    "too few": LABELS[1:],
    "negative": LABELS - 1,
    "beyond 32 bits": LABELS + 2**32,
    "unsigned": np.where(LABELS == 2, 2**64 - 1, LABELS).astype(np.uint64),
}
WRONG_INPUTS = {
    "complex": FEATURES.astype(complex),
    "texts": FEATURES.astype(str),
    "True and False": FEATURES > 0,
    "ids beyond 32 bits": np.full((12, 5), 2**40),
    "ids below 0": np.arange(60, dtype=np.int16).reshape(12, 5) - 7,
    "flat": FEATURES[:, 0],
}


@pytest.mark.parametrize("kind", ["requires_grad", "bfloat16"])
def test_tensors_are_arrays_at_every_door(kind):
    torch = pytest.importorskip("torch")
    given = torch.tensor(FEATURES, dtype=torch.float32)
    given = given.requires_grad_() if kind == "requires_grad" else given.bfloat16()
    wanted = given.detach().float().numpy()
    np.testing.assert_array_equal(data.federate(given, LABELS, [range(12)], num_classes=3).images, wanted)
    np.testing.assert_array_equal(data.checked_examples(given, LABELS, "test ")[0], wanted)
    with pytest.raises(ValueError, match="tensor of torch.float32 and torch.sparse_coo"):
        data.checked_examples(torch.tensor(FEATURES, dtype=torch.float32).to_sparse(), LABELS)


@pytest.mark.parametrize("name", WRONG_LABELS)
@pytest.mark.parametrize("door", DOORS)
def test_labels_of_other_kinds_are_refused(door, name):
    if name == "whole floats" and door in (
        "training set",
        "test set",
    ):  # as in tables: Keras has floats for two classes
        dataset = DOORS[door](FEATURES, WRONG_LABELS[name])
        assert dataset.train_labels.tolist() == dataset.test_labels.tolist() == LABELS.tolist()
        return
    with pytest.raises(ValueError, match="labels"):
        DOORS[door](FEATURES, WRONG_LABELS[name])


@pytest.mark.parametrize("name", WRONG_INPUTS)
@pytest.mark.parametrize("door", DOORS)
def test_inputs_of_other_kinds_are_refused(door, name):
    with pytest.raises(ValueError, match="images"):
        DOORS[door](WRONG_INPUTS[name], LABELS)


@pytest.mark.parametrize("value, dtype", [(np.nan, "f4"), (-np.inf, ">f8"), (1e300, "f8"), (np.nan, "f2")])
@pytest.mark.parametrize("door", DOORS)
def test_the_first_row_that_is_not_finite_is_named(door, value, dtype):
    with pytest.raises(ValueError, match=rf"images\[4\] holds {value!s}".replace("+", r"\+")):
        DOORS[door](with_value(value, dtype), LABELS)


@pytest.mark.parametrize("door", ["federate", "simulate"])
def test_a_class_that_is_not_there_is_refused(door):
    with pytest.raises(ValueError, match="labels"):
        DOORS[door](FEATURES, LABELS + 1)


@pytest.mark.slow
def test_either_byte_order_and_the_machines_are_the_same_numbers():
    wanted = evaluated(FEATURES, LABELS)
    other = data.federate(FEATURES.astype(">f4"), LABELS.astype(">i8"), [np.arange(0, 12, 2), np.arange(1, 12, 2)], 3)
    found = evaluated(FEATURES.astype(">f4"), LABELS.astype(">u2"), other)
    assert found.history == wanted.history and other.images.dtype.isnative


@pytest.mark.parametrize("train, test", [("u1", "f4"), ("f4", "u1"), ("f4", "f2")])
def test_test_inputs_are_on_the_scale_of_those_for_training(train, test):
    images = (FEATURES - FEATURES.min())[:, None, :, None]
    federation = data.federate(images.astype(train), LABELS, [np.arange(12)], 3)
    message = f"of {np.dtype(train)} and test images of {np.dtype(test)}; expected one type"
    with pytest.raises(ValueError, match=message):
        evaluated(images.astype(test), LABELS, federation)
    with pytest.raises(ValueError, match=message):
        data.from_arrays((images.astype(train), LABELS), (images.astype(test), LABELS))


def test_texts_are_padded_at_their_ends():
    padded = data.pad([[5, 3, 8], np.array([2], np.uint16), []])
    assert padded.dtype == np.int32 and padded.tolist() == [[5, 3, 8], [2, 0, 0], [0, 0, 0]]
    assert data.pad([[0, 4], [6]], length=3, value=1).tolist() == [[0, 4, 1], [6, 1, 1]]
    assert data.pad([[5, 0], [0, 0]]).tolist() == [[5, 0], [0, 0]]  # padded before
    assert data.pad([[]]).shape == (1, 1)


NOT_PADDED = {
    "nothing": (([],), r"sequences: received \[\], must be lists of token ids, at least one"),
    "a text": (("good film",), "sequences: received 'good film', must be lists of token ids"),
    "one list": (([3, 4],), r"sequences\[0\] is 3; expected a list of integers"),
    "floats": (([[1], [1.0]],), r"sequences\[1\] is \[1.0\]; expected a list of integers"),
    "a negative id": (([[1, -1]],), r"sequences\[0\] holds ids from -1 to 1; expected 0 to 2147483647"),
    "a longer text": (([[1], [1, 2, 3]], 2), r"sequences\[1\] has 3 ids, more than length=2: cut longer texts"),
    "padding inside": (([[1], [4, 0, 3]],), r"sequences\[1\] holds 0 at position 1, before another id, but 0 marks"),
    "no length": (([[1]], 0), "length: received 0, must be an integer of at least 1"),
    "a negative value": (([[1]], None, -1), "value: received -1, must be an integer of at least 0"),
}


@pytest.mark.parametrize("name", NOT_PADDED)
def test_what_cannot_be_padded_is_named(name):
    arguments, message = NOT_PADDED[name]
    with pytest.raises(ValueError, match=message):
        data.pad(*arguments)


@pytest.mark.parametrize("name, value", [("early_stopping", 5), ("on_round", 5), ("seed", 0.5), ("rounds", True)])
def test_other_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}: received {value}"):
        simulate(
            recipes.fedavg(), models.build("mlp", 3, (5,)), FEDERATION, (FEATURES, LABELS),
            **{"rounds": 1, "seed": 0, "local": LOCAL, name: value},
        )  # fmt: skip
