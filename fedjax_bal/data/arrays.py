"""From arrays to a data set: what all of a user's own sources share.

Arrays are validated, texts become classes and clients with numbers, and where there is no test set a part of each class
is held out for it.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_bal.annotations import ProperShare, Seed, check
from fedjax_bal.data.held_out import split_test_rows, split_test_users
from fedjax_bal.data.inputs import are_whole, check_held, check_one_type, stored_inputs
from fedjax_bal.data.npz_file import by
from fedjax_bal.data.reading import reading, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import suggestion

REQUIRED = ("train_images", "train_labels", "test_images", "test_labels")
"""The arrays of a data set."""

ARRAYS = (*REQUIRED, "class_names", "train_clients", "test_clients")
"""The same, and those that it may have."""

TEST_SHARE = 0.2
"""The default share of each class that becomes the test set where there is none."""

_SPREADSHEETS = ("#n/a", "#na", "#n/a n/a", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?", *_SPREADSHEETS))
"""Texts that stand for a missing value, in lower case: those of pandas, and more."""

TestBy = Literal["classes", "clients"]
"""Without a test set of their own, data are tested on a share of each class's rows, or on all rows of some users."""

REMEDY = "pass inputs, images of uint8 or numbers, and as many labels."
"""The end of messages about objects in memory."""

_UNDRAWN = re.compile("[\u034f\u115f\u1160\u3164\ufe00-\ufe0f]")  # what Unicode draws nothing for, besides its class Cf
# A number without leading zeros, since 007 is a name.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_MAX_CLASSES = 2**16
_WRITE_AGAIN = (
    "write it with numpy.savez(FILE, train_images=..., train_labels=..., test_images=..., test_labels=...), images of "
    "type uint8, or other inputs as floats or integers."
)


def as_dataset(
    source: Path | str,
    arrays: Mapping[str, Any],
    test: float | None = None,
    test_seed: int = 0,
    remedy: str = _WRITE_AGAIN,
    test_by: str = "classes",
) -> Dataset:
    """Makes a data set from arrays, see `fedjax_bal.data.from_arrays`.

    Args:
        source: where they come from, for messages.
        arrays: those of `ARRAYS`; without `test`, all of `REQUIRED`. `train_class_names` and `test_class_names` are the
            names, by number, that the labels of one half have.
        test: the share of each class of the training rows that becomes the test set; None if the arrays have one.
        test_seed: the seed of that split.
        remedy: the end of a message.
        test_by: "classes", or "clients" to hold out a share of the users, with all their rows.

    Raises:
        DataError: arrays are missing, or don't fit.
    """
    with reading(source, remedy):
        missing = [name for name in (REQUIRED if test is None else REQUIRED[:2]) if name not in arrays]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        arrays = _with_numbers(arrays)
        inputs, labels = _checked_half("train", arrays)
        clients = _checked_clients("train", arrays, labels)
        test_clients = None
        by_users = check("test_by", TestBy, test_by) == "clients"
        if by_users and (test is None or clients is None):
            lacking = "a column of users, clients" if clients is None else "test to be a share, such as 0.2"
            raise ValueError(f"test_by: received 'clients', needs {lacking}")
        test_users = 0
        if test is None:
            test_inputs, test_labels = _checked_half("test", arrays)
            if inputs.shape[1:] != test_inputs.shape[1:]:
                raise ValueError(
                    f"training images are {by(inputs.shape[1:])} and test images {by(test_inputs.shape[1:])}; expected "
                    "one size"
                )
            check_one_type(inputs, test_inputs)
            test_clients = _checked_clients("test", arrays, test_labels)
        else:
            if "test_clients" in arrays:
                raise ValueError("test_clients are given without test inputs; leave them out")
            share = check("test", ProperShare, test)
            seed = check("test_seed", Seed, test_seed)
            if clients is not None:
                (clients,) = as_read("clients", [clients])  # in one order at every door, by which users are drawn
            if by_users and clients is not None:
                training, testing = split_test_users(labels, clients, share, seed)
            else:
                training, testing = split_test_rows(labels, share, seed)
            test_inputs, test_labels = inputs[testing], labels[testing]
            inputs, labels = inputs[training], labels[training]
            if clients is not None:
                test_clients = clients[testing]
                clients = clients[training]
                test_users = len(np.setdiff1d(test_clients, clients))
        client_names, clients, test_clients = _numbered_clients(clients, test_clients)
        largest = int(max(labels.max(), test_labels.max()))
        if "class_names" not in arrays and labels.min() > 0 and (test is None or test_labels.min() > 0):
            raise ValueError(
                f"train_labels are from {labels.min()} on, and none is 0: number classes from 0, or give class_names"
            )
        names = _class_names(arrays.get("class_names"), largest)
        check_distinct("classes", names)
        check_distinct("clients", client_names or ())
    return Dataset(
        inputs,
        labels,
        test_inputs,
        test_labels,
        names,
        clients,
        test_share=None if by_users else test,
        test_users=test_users,
        client_names=client_names,
        test_clients=test_clients,
    )


def without_objects(array: np.ndarray) -> np.ndarray:
    """Converts an array of objects to texts or numbers if all its items are; pandas stores texts as objects.

    Texts that are stored as bytes, as TensorFlow has them, become texts too. Anything else is returned unchanged.

    Example:
        >>> without_objects(np.array(["cat", "dog"], object)), without_objects(np.array([3, 1], object)).dtype.kind
        (array(['cat', 'dog'], dtype='<U3'), 'i')
    """
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype != object or not array.size:
        return array
    kinds = set(map(type, array.flat))
    if all(issubclass(kind, str) for kind in kinds):
        return array.astype(str)
    if all(issubclass(kind, bytes) for kind in kinds):
        return np.char.decode(array.astype(bytes), "utf-8")
    is_number = all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds)
    return np.array(array.tolist()) if is_number or kinds == {bool} else array


def as_read(what: str, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns names of classes or clients as pandas would read files of them: integers if all are, otherwise texts.

    So 10 follows 9, and +1, 1.0 and 1e0 are 1. Texts that would change otherwise stay as they are written: 007, or 1.5
    and 2; but two that are one number are refused. Outer spaces are dropped.

    Args:
        what: what the names are, for messages.
        columns: `[D]` each, integers or texts: training and test rows, for instance, of which all become one type.

    Raises:
        ValueError: one number in two forms, if texts stay as they are written.

    Example:
        >>> as_read("clients", [np.array(["10", "9 "]), np.array([9])])
        [array([10,  9]), array([9])]
        >>> as_read("clients", [np.array(["true", "TRUE"])])
        [array(['True', 'True'], dtype='<U4')]
    """
    # "2" in a file may be 2 in another, which has no texts; and NumPy makes floats of signed and unsigned integers.
    if any(column.dtype.kind == "U" for column in columns) or np.result_type(*columns).kind == "f":
        texts = np.char.strip(np.concatenate([column.astype(str) for column in columns]))
        distinct = list(dict.fromkeys(texts.tolist()))
        read = dict(zip(distinct, _numbers_or_texts(what, distinct), strict=True))
        joined = np.array([read[text] for text in texts.tolist()])
    else:
        joined = np.concatenate(columns)
    return np.split(joined, np.cumsum([len(column) for column in columns])[:-1])


def _numbers_or_texts(what: str, texts: list[str]) -> list[str] | list[int]:
    """Returns different texts as numbers, if all are integers; True and False have one form."""
    if all(text.lower() in ("true", "false") for text in texts):
        return [text.capitalize() for text in texts]
    if not all(map(_NUMBER.fullmatch, texts)):
        return texts
    numbers = [_number(text) for text in texts]
    if all(isinstance(number, int) for number in numbers):
        return [int(number) for number in numbers]
    first: dict[int | Decimal, str] = {}
    for text, number in zip(texts, numbers, strict=True):
        if first.setdefault(number, text) != text:
            raise ValueError(f"{what} holds {first[number]!r} and {text!r}, which are one number; write it in one way")
    return texts


def _number(text: str) -> int | Decimal:
    """Returns a number exactly, which a float might not be; as an integer if it is one that 64 bits hold."""
    number = Decimal(text)
    is_integer = number.copy_abs() < 2**63 and number == number.to_integral_value()
    return int(number) if is_integer else number


def _with_numbers(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replaces labels by the numbers of their classes: by name, wherever names are known.

    The classes are `class_names`, otherwise the names that the training labels have, otherwise the sorted texts among
    these. Integers without names are numbers already, if those of both halves are, or if `class_names` names them.
    """
    labels = {}
    for half in ("train", "test"):
        if f"{half}_labels" in arrays:
            names = arrays.get("class_names", arrays.get(f"{half}_class_names"))
            labels[half] = _named_rows(f"{half}_labels", arrays[f"{half}_labels"], () if names is None else names)
    arrays = {**arrays, **{f"{half}_labels": array for half, array in labels.items()}}
    if any(array.ndim != 1 or not array.size or array.dtype.kind not in "iuU" for array in labels.values()):
        return arrays  # the checks that follow reject it
    given = arrays.get("class_names")
    if given is not None:
        _check_class_names(given)
    names = {half: arrays.get(f"{half}_class_names") for half in labels}
    for half, array in labels.items():
        if array.dtype.kind == "U":
            continue
        own = names[half]
        _check_labels(f"{half}_labels", array, _MAX_CLASSES if own is None else len(own))

    named = [half for half, array in labels.items() if names[half] is not None or array.dtype.kind == "U"]
    if not named:
        return arrays
    if given is None and len(named) < len(labels):
        (without,) = labels.keys() - named
        known = names[named[0]]
        known = np.unique(labels[named[0]]).tolist() if known is None else known
        raise ValueError(
            f"{without}_labels are integers without names, and {named[0]}_labels have the names "
            f"{shortened(', '.join(known))}: give class_names, a text for each integer from 0"
        )
    classes = given
    if classes is None and names["train"] is not None:
        classes = np.array(names["train"], str)
    elif classes is None:
        if not any(names.values()):
            labels = dict(zip(labels, as_read("labels", list(labels.values())), strict=True))
        classes = np.unique(labels["train"]).astype(str)  # integers in the order of numbers
        labels = {half: array if names[half] is not None else array.astype(str) for half, array in labels.items()}
    for half, array in labels.items():
        labels[half] = _class_numbers(f"{half}_labels", array, names[half], classes)
    return {**arrays, **{f"{half}_labels": array for half, array in labels.items()}, "class_names": classes}


def _named_rows(name: str, values: np.ndarray, known: Iterable[str] = ()) -> np.ndarray:
    """Returns the label or client of each row, `[D]`, integers or texts; arrays of other shapes and types unchanged.

    Raises `ValueError`, which names the row, for missing values, texts that stand for them unless they are among the
    `known` names, and numbers that aren't integers.
    """
    array = without_objects(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size:
        return array
    if array.dtype.kind == "b":
        return array.astype(str)
    if array.dtype.kind == "f":
        missing = np.isnan(array)
    elif array.dtype == object:
        missing = np.array([str(value).strip().lower() in MISSING for value in array.tolist()])
    else:
        texts = np.unique(array).tolist() if array.dtype.kind == "U" else []
        missing = np.isin(array, [text for text in texts if text.strip().lower() in MISSING and text not in known])
    if missing.any():
        row = int(np.argmax(missing))
        raise ValueError(
            f"{name} holds {str(array[row])!r:.40} in row {row}, which stands for a missing value, in "
            f"{np.count_nonzero(missing):,} of {len(array):,} rows: leave such rows out, or, if it is a "
            "name, write it in another way"
        )
    if array.dtype == object:
        kinds = sorted({type(value).__name__ for value in array.tolist()})
        raise ValueError(f"{name} holds values of type {', '.join(kinds)}; expected integers or texts, all of one type")
    if array.dtype.kind == "f":
        whole = are_whole(array)
        if not whole.all():
            row = int(np.argmin(whole))
            near = f", which {array.dtype} doesn't tell from its neighbours" * bool(array[row] == np.rint(array[row]))
            raise ValueError(f"{name} holds {array[row]} in row {row}{near}; expected integers or texts")
        return array.astype(np.int64)
    return array


def _class_numbers(name: str, labels: np.ndarray, names: Sequence[str] | None, classes: np.ndarray) -> np.ndarray:
    """Returns the numbers in `classes` of labels: of texts, or of integers by their names.

    Integers without names are returned unchanged. Raises `ValueError` for a name that is none of the classes.
    """
    values, places = np.unique(labels, return_inverse=True)
    if labels.dtype.kind == "U":
        texts = values.tolist()
    elif names is None:
        return labels
    else:
        texts = [str(names[value]) for value in values]
    known = classes.tolist()
    numbers = {text: number for number, text in enumerate(known)}
    unknown = [text for text in texts if text not in numbers]
    if unknown:
        check_distinct("classes", [*known, *unknown])
        near = suggestion(unknown[0], known)
        raise ValueError(
            f"{name} holds {unknown[0]!r}, which is none of the classes {shortened(', '.join(known))}: "
            f"{f'{near} ' if near else ''}Correct it, leave its rows out, or list all classes as class_names"
        )
    return np.array([numbers[text] for text in texts])[places]


def _check_labels(name: str, labels: np.ndarray, count: int) -> None:
    """Raises `ValueError`, which names the row, for labels that aren't numbers of `count` classes."""
    if labels.min() == -1:
        raise ValueError(
            f"{name} holds -1 in row {np.argmin(labels)}, which is no label: it marks rows whose labels are hidden, as "
            "in the test sets of competitions, or unknown; use another split, validation for instance, or leave these "
            "rows out"
        )
    if labels.min() < 0 or labels.max() >= count:
        raise ValueError(
            f"{name} lie in {labels.min()}..{labels.max()}; expected 0..{count - 1}, the number of a class each"
        )


def _checked_half(half: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, H, W, K]`, or other inputs `[D, ...]`, and labels `Int32[D]`."""
    images = arrays[f"{half}_images"]
    labels = arrays[f"{half}_labels"]
    inputs = stored_inputs(images[..., None] if images.dtype == np.uint8 and images.ndim == 3 else images)
    if inputs is None or not inputs.size:
        raise ValueError(
            f"{half}_images is {by(images.shape)} of {images.dtype}; expected DxHxW or DxHxWxK of uint8, or other "
            "inputs with an axis more than labels, of floats, or of 32-bit integers, which are token ids"
        )
    check_held(f"{half}_images", images, inputs)
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{half}_labels is {by(labels.shape)} of {labels.dtype}; expected {len(images)} integers, or texts for "
            "training and testing, one for each input (labels.argmax(1) of one-hot labels)"
        )
    return np.ascontiguousarray(inputs), labels.astype(np.int32)


def _checked_clients(half: str, arrays: Mapping[str, np.ndarray], labels: np.ndarray) -> np.ndarray | None:
    """Returns the number or name of each input's client, `[D]`; None if unknown."""
    if f"{half}_clients" not in arrays:
        return None
    clients = _named_rows(f"{half}_clients", arrays[f"{half}_clients"])
    if clients.shape != labels.shape or clients.dtype.kind not in "iuU":
        raise ValueError(
            f"{half}_clients is {by(clients.shape)} of {clients.dtype}; expected {len(labels)} integers or texts, one "
            f"for each {'training' if half == 'train' else 'test'} input"
        )
    return clients


def _numbered_clients(
    train: np.ndarray | None, test: np.ndarray | None
) -> tuple[tuple[str, ...] | None, np.ndarray | None, np.ndarray | None]:
    """Returns the names of all clients, and the numbers of those of training and of test rows.

    Clients with training rows come first, so that their numbers are those of a natural partition.
    """
    if train is None:
        if test is not None:
            raise ValueError("test_clients are given without train_clients; give both, or leave test_clients out")
        return None, None, None
    given = [train] if test is None else [train, test]
    train, *others = as_read("clients", given)
    if train.dtype.kind == "U" and not all(half.dtype.kind == "U" for half in given):
        kinds = [
            f"{half}_clients are {'texts' if values.dtype.kind == 'U' else 'integers'} ({values[0]}, ...)"
            for half, values in zip(("train", "test"), given, strict=True)
        ]
        raise ValueError(f"{' and '.join(kinds)}; name users in one way, since users are compared by name")
    names, numbers = np.unique(train, return_inverse=True)
    if test is None:
        test_numbers = None
    else:
        (test,) = others
        names = np.concatenate([names, np.setdiff1d(test, names)])
        order = np.argsort(names, kind="stable")
        test_numbers = order[np.searchsorted(names, test, sorter=order)].astype(np.int32)
    return tuple(names.astype(str).tolist()), numbers.astype(np.int32), test_numbers


def check_distinct(what: str, names: Iterable[str]) -> None:
    """Raises `ValueError` for names that differ only in Unicode form, spaces, or characters that are not drawn."""
    shown: dict[str, str] = {}
    for name in names:
        other = shown.setdefault(as_shown(name), name)
        if other != name:
            raise ValueError(
                f"{what} {other!a} and {name!a} look the same, but differ in characters that can't be seen; "
                "write them in one way"
            )


def as_shown(name: str) -> str:
    r"""Returns a name in Unicode's composed form, with single spaces, and without characters that are not drawn.

    Example:
        >>> as_shown("barn\u00a0 owl\u200b") == as_shown("barn owl"), as_shown("cafe\u0301") == as_shown("caf\u00e9")
        (True, True)
    """
    if not name.isascii():
        name = _UNDRAWN.sub("", unicodedata.normalize("NFC", name))
        name = "".join(sign for sign in name if unicodedata.category(sign) != "Cf")
    return " ".join(name.split())


def _check_class_names(names: np.ndarray) -> None:
    if names.ndim != 1 or names.dtype.kind != "U" or not len(names) or len(np.unique(names)) != len(names):
        raise ValueError(
            f"class_names is {by(names.shape)} of {names.dtype}; expected different texts in a list, one for each class"
        )


def _class_names(names: np.ndarray | None, largest: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(largest + 1)))
    if len(names) <= largest:
        raise ValueError(
            f"class_names is {by(names.shape)}; expected at least {largest + 1}, since there is label {largest}"
        )
    return tuple(names.tolist())
