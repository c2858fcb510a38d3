"""Data sets in NumPy's npz files: the user's own, those that `data prepare` writes, and the package's.

An npz file is a zip archive of arrays, with checksums. Nothing in it is unpickled. The sizes that the archive and the
header of an array claim must agree, and be possible for a file of its length, before NumPy allocates anything.
"""

import importlib.resources
import math
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_bal.data.inputs import check_finite, check_one_type, stored_inputs
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.reading import MAX_DEFLATE_RATIO, reading
from fedjax_bal.data.sources.idx import FASHION, MERGED_CHARACTERS, MNIST_CONSTANTS
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

REQUIRED = ("train_images", "train_labels", "test_images", "test_labels")
"""The arrays that a file must have."""

ARRAYS = (*REQUIRED, "class_names", "train_clients")
"""All arrays that are read."""

_MAX_CLASSES = 2**16
_HOW = (
    "write it with numpy.savez(FILE, train_images=..., train_labels=..., test_images=..., test_labels=...), images of "
    "type uint8, or other inputs as floats or integers"
)
_REMEDY = "write it again with numpy.savez. Pickles, also arrays of objects, can run any code and are never opened."
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: str | os.PathLike) -> Dataset:
    """Reads a data set from one file.

    Args:
        path: the file. It has `train_images` `UInt8[D, H, W]` or `UInt8[D, H, W, K]`, or other inputs, `Float[D, ...]`
            or token ids `Int[D, ...]`; `train_labels` `Int[D]` from 0, `test_images`, `test_labels`; and may have
            `class_names` (C texts) and `train_clients` (D integers or texts: the client of each training image).

    Returns:
        The data set. Without `class_names`, classes are named by their numbers, up to the largest label; clients are
        numbered in the order of their names.

    Raises:
        DataError: the file can't be read, isn't an npz file, is damaged, or holds arrays that don't fit.
    """
    path = Path(path)
    return as_dataset(path, read_arrays(path, ARRAYS))


def as_dataset(path: Path | str, arrays: Mapping[str, np.ndarray]) -> Dataset:
    """Makes a data set from a file's arrays, see `read_npz`; raises `DataError` if they don't fit."""
    with reading(path, f"{_HOW}."):
        missing = [name for name in REQUIRED if name not in arrays]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        train, test = (_checked_half(half, arrays) for half in ("train", "test"))
        if train[0].shape[1:] != test[0].shape[1:]:
            raise ValueError(
                f"training images are {_by(train[0].shape[1:])} and test images {_by(test[0].shape[1:])}; expected one "
                "size"
            )
        check_one_type(train[0], test[0])
        names = _class_names(arrays.get("class_names"), int(max(train[1].max(), test[1].max())))
        clients = arrays.get("train_clients")
        if clients is not None:
            if clients.shape != train[1].shape or clients.dtype.kind not in "iuU":
                raise ValueError(
                    f"train_clients is {_by(clients.shape)} of {clients.dtype}; expected {len(train[1])} integers or "
                    "texts, one for each training image"
                )
            clients = np.unique(clients, return_inverse=True)[1].astype(np.int32)
    return Dataset(*train, *test, names, clients)


def read_arrays(path: Path, names: Sequence[str] | None, limit: int | None = None) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file that have one of these names, or all arrays, by name.

    Raises `DataError` if the file is damaged, isn't written by NumPy, or holds a pickle, and for arrays that together
    have more than `limit` bytes, or don't fit in memory.
    """
    with reading(path, _REMEDY), open_file(path) as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            raise ValueError(f"is not an npz file, or was cut short: it begins with {stream.read(8)!r}")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as archive:
            # Other members, such as the pickle in a PyTorch file, are not opened.
            members = {
                member.filename.removesuffix(".npy"): member
                for member in archive.zip.infolist()
                if member.filename.endswith(".npy")
            }
            wanted = [name for name in (members if names is None else names) if name in members]
            size = sum(members[name].file_size for name in wanted)
            most = os.fstat(stream.fileno()).st_size * MAX_DEFLATE_RATIO
            most = most if limit is None else min(most, limit)
            if size > most:
                raise ValueError(f"claims arrays of {size} bytes, at most {most} are read")
            check_memory(f"{path}: its arrays need", size)
            arrays = {}
            for name in wanted:
                with reading(f"{path}: {name}", _REMEDY):
                    with archive.zip.open(members[name]) as member:
                        shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
                        held = members[name].file_size - member.tell()
                        claimed = math.prod(shape) * dtype.itemsize
                    if claimed != held and not dtype.hasobject:  # NumPy itself rejects objects
                        raise ValueError(f"its header claims {_by(shape)} of {dtype}, {claimed} bytes, found {held}")
                    arrays[name] = archive[name]
            return arrays


def _checked_half(half: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, H, W, K]`, or other inputs `[D, ...]`, and labels `Int32[D]`."""
    images = arrays[f"{half}_images"]
    labels = arrays[f"{half}_labels"]
    inputs = stored_inputs(images[..., None] if images.dtype == np.uint8 and images.ndim == 3 else images)
    if inputs is None or not inputs.size:
        raise ValueError(
            f"{half}_images is {_by(images.shape)} of {images.dtype}; expected DxHxW or DxHxWxK of uint8, or other "
            "inputs with an axis more than labels, of floats, or of 32-bit integers, which are token ids"
        )
    check_finite(f"{half}_images", images, inputs)
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{half}_labels is {_by(labels.shape)} of {labels.dtype}; expected {len(images)} integers, one for each "
            "image"
        )
    if labels.min() < 0 or labels.max() >= _MAX_CLASSES:
        raise ValueError(
            f"{half}_labels lie in {labels.min()}..{labels.max()}; expected 0..{_MAX_CLASSES - 1}, the number of a "
            "class each"
        )
    return np.ascontiguousarray(inputs), labels.astype(np.int32)


def _class_names(names: np.ndarray | None, largest: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(largest + 1)))
    if names.ndim != 1 or names.dtype.kind != "U" or len(np.unique(names)) != len(names) or len(names) <= largest:
        raise ValueError(
            f"class_names is {_by(names.shape)} of {names.dtype}; expected different texts, at least {largest + 1}, "
            f"since there is label {largest}"
        )
    codes = np.ascontiguousarray(names).view(f"{names.dtype.byteorder}u4")
    if codes.max() > sys.maxunicode or ((codes >= 0xD800) & (codes < 0xE000)).any():
        raise ValueError("class_names holds code points that aren't text")
    return tuple(names.tolist())


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single value"


def read_embedded(name: str, class_names: tuple[str, ...]) -> Dataset:
    """Reads a data set of the package; labels become `Int32[D]`."""
    resource = importlib.resources.files("fedjax_bal.data.embedded") / f"{name}.npz"
    with (
        reading(str(resource), "install fedjax_bal again."),
        resource.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train_images, train_labels, test_images, test_labels = (archive[name] for name in REQUIRED)
    return Dataset(train_images, train_labels.astype(np.int32), test_images, test_labels.astype(np.int32), class_names)


def _make_labels() -> Dataset:
    """Makes labels with blank images: enough of each class for the frequencies of letters in Astraea's paper."""
    classes = np.arange(len(MERGED_CHARACTERS), dtype=np.int32)
    train, test = (np.repeat(classes, count) for count in (16_000, 10))
    images, test_images = (np.zeros((len(labels), 1, 1, 1), np.uint8) for labels in (train, test))
    return Dataset(images, train, test_images, test, MERGED_CHARACTERS)


READERS = (
    Reader(
        name="fashion_mnist_small",
        description=(
            "Fashion-MNIST, a balanced sixth that comes with the package: 10,000 + 2,000 grey images 28x28, 10 classes"
        ),
        origin="package",
        read=partial(read_embedded, "fashion_mnist_small", FASHION),
        class_names=FASHION,
        counts=(10_000, 2_000),
        **MNIST_CONSTANTS,
    ),
    Reader(
        name="labels_47",
        description=(
            "Labels only: 47 classes as in EMNIST, 16,000 + 10 blank images 1x1 of each, to study who holds what"
        ),
        origin="package",
        read=_make_labels,
        image_shape=(1, 1, 1),
        class_names=MERGED_CHARACTERS,
        counts=(752_000, 470),
        mean=(0.0,),
        std=(1.0,),
    ),
    Reader(
        name="npz",
        description="Your own arrays, in one file of NumPy's: path is that file",
        origin="own",
        read=read_npz,
    ),
)
"""The package's data sets (a sixth of Fashion-MNIST; labels with blank images) and the user's own arrays."""
