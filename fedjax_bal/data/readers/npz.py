"""Data sets in one npz file of NumPy's, without pickles: the user's own, and those that `data prepare` writes.

An npz file is a zip archive of arrays. Arrays of objects are pickles, which can run code when they are opened, so they
never are; nor is a file of PyTorch, which is a zip archive with a pickle in it. An array's header must agree with its
length in the archive, and that length must be possible for an archive of this size.
"""

import math
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.inputs import check_finite, check_one_type, stored_inputs
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.readers.reader import Reader
from fedjax_bal.data.readers.untrusted import CHECK_PATH, MAX_DEFLATE_RATIO
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

REQUIRED = ("train_images", "train_labels", "test_images", "test_labels")
"""The arrays that a file must have."""

ARRAYS = (*REQUIRED, "class_names", "train_clients")
"""All arrays that are read."""

_MAX_CLASSES = 2**16
_RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: MAX_DEFLATE_RATIO}  # how much each method can compress
_CHUNK = 2**24
_HOW = (
    "write it with numpy.savez(FILE, train_images=..., train_labels=..., test_images=..., test_labels=...), images of "
    "type uint8, or other inputs as floats or integers"
)
_PICKLE = f"a pickle can run any code, so it is never opened: {_HOW}."
_DAMAGED = "the file is incomplete or damaged: write it again."


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
        DataError: the file can't be read, is no such file, is damaged, or holds arrays that don't fit.
    """
    path = Path(path)
    return as_dataset(path, read_arrays(path, ARRAYS))


def as_dataset(path: Path | str, arrays: Mapping[str, np.ndarray]) -> Dataset:
    """Makes a data set from a file's arrays, see `read_npz`; raises `DataError` if they don't fit."""
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; {_HOW}.")
    train, test = (_checked_half(path, half, arrays) for half in ("train", "test"))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"{path}: training images are {_by(train[0].shape[1:])} and test images {_by(test[0].shape[1:])}; expected "
            "one size."
        )
    try:
        check_one_type(train[0], test[0])
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    names = _class_names(path, arrays.get("class_names"), int(max(train[1].max(), test[1].max())))
    return Dataset(*train, *test, names, _clients(path, arrays.get("train_clients"), len(train[1])))


def read_arrays(path: Path, names: tuple[str, ...] | None, limit: int | None = None) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file that have one of these names, or all of them, by name.

    Raises `DataError` if the file is damaged, is none of NumPy's, or holds a pickle, and for arrays of more than
    `limit` bytes together, or more than fit in memory.
    """
    try:
        with open_file(path) as stream:
            _check_archive(stream, path)
            with zipfile.ZipFile(stream) as archive:
                members = {member.filename: member for member in archive.infolist()}
                if any(name.endswith(".pkl") for name in members):
                    raise DataError(f"{path}: holds a pickle, as files of PyTorch do; {_PICKLE}")
                if names is None:
                    names = tuple(name.removesuffix(".npy") for name in members)
                wanted = {name: members[f"{name}.npy"] for name in names if f"{name}.npy" in members}
                size = sum(member.file_size for member in wanted.values())
                if limit is not None and size > limit:
                    raise DataError(f"{path}: claims arrays of {size} bytes, at most {limit} are read; {_DAMAGED}")
                return {name: _read_member(archive, member, path) for name, member in wanted.items()}
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); {CHECK_PATH}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, UnicodeError) as error:
        raise DataError(f"{path}: is no sound npz file ({error}); {_DAMAGED}") from error


def _check_archive(stream: BinaryIO, path: Path) -> None:
    """Raises `DataError` for a file that is no zip archive; the message says what it seems to be."""
    if zipfile.is_zipfile(stream):
        return
    stream.seek(0)
    start = stream.read(8)
    if start[:2] == b"PK":
        raise DataError(f"{path}: is an npz file that was cut short; {_DAMAGED}")
    kind = "begins with " + start[:4].hex(" ") if start else "empty"
    if start[:6] == b"\x93NUMPY":
        kind = "a single array"
    elif start[:1] == b"\x80" or path.suffix in (".pkl", ".pickle", ".pt", ".pth"):
        kind = "a pickle"
    raise DataError(f"{path}: is no npz file ({kind}); {_PICKLE}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Reads one array, of the length that the archive says and no longer."""
    _check_length(member, path)
    with archive.open(member) as stream:
        shape, fortran, dtype = _header(stream, f"{path}: {member.filename}")
        size = math.prod(shape) * dtype.itemsize
        if size != member.file_size - stream.tell():
            raise DataError(
                f"{path}: {member.filename}: its header claims {_by(shape)} of {dtype}, {size} bytes, found "
                f"{member.file_size - stream.tell()}; {_DAMAGED}"
            )
        values = np.empty(size, np.uint8)
        filled = 0
        while filled < size:
            piece = stream.read(min(_CHUNK, size - filled))
            if not piece:
                raise DataError(f"{path}: {member.filename}: ends after {filled} of {size} bytes; {_DAMAGED}")
            values[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        stream.read(1)  # reaching the end compares the checksum
    try:
        return values.view(dtype).reshape(shape, order="F" if fortran else "C")
    except (TypeError, ValueError) as error:  # of too many axes, for instance
        raise DataError(f"{path}: {member.filename}: no array can be {_by(shape)} of {dtype}; {_DAMAGED}") from error


def _check_length(member: zipfile.ZipInfo, path: Path) -> None:
    """Raises `DataError` for an array that can't be as long as the archive says, or doesn't fit in memory."""
    ratio = _RATIOS.get(member.compress_type)
    if ratio is None:
        raise DataError(f"{path}: {member.filename} is compressed in a way that NumPy doesn't use; {_HOW}.")
    held = min(member.compress_size, path.stat().st_size)
    if member.file_size > held * ratio:
        raise DataError(
            f"{path}: {member.filename} claims {member.file_size} bytes, but the archive can hold at most "
            f"{held * ratio}; {_DAMAGED}"
        )
    check_memory(f"{path}: {member.filename} needs", member.file_size)


def _header(stream: IO[bytes], place: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads shape, order and type of an array."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(stream)
        if version not in read:
            raise ValueError(f"version {version} of the format")
        shape, fortran, dtype = read[version](stream)
        if any(length < 0 for length in shape) or not dtype.itemsize:
            raise ValueError(f"a shape of {shape} of {dtype}")
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise
    except Exception as error:  # the header is a Python literal, which can be wrong in many ways
        raise DataError(f"{place}: is no array of NumPy ({' '.join(str(error).split())[:200]}); {_DAMAGED}") from error
    if dtype.hasobject:
        raise DataError(f"{place}: is an array of objects, which is a pickle; {_PICKLE}")
    return shape, fortran, dtype


def _checked_half(path: Path | str, half: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `UInt8[D, H, W, K]`, or other inputs `[D, ...]`, and labels `Int32[D]`."""
    images, labels = arrays[f"{half}_images"], arrays[f"{half}_labels"]
    inputs = stored_inputs(images[..., None] if images.dtype == np.uint8 and images.ndim == 3 else images)
    if inputs is None or not inputs.size:
        raise DataError(
            f"{path}: {half}_images is {_by(images.shape)} of {images.dtype}; expected DxHxW or DxHxWxK of uint8, or "
            "other inputs with an axis more than labels, of floats, or of 32-bit integers, which are token ids."
        )
    try:
        check_finite(f"{half}_images", images, inputs)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {half}_labels is {_by(labels.shape)} of {labels.dtype}; expected {len(images)} integers, "
            "one for each image."
        )
    if labels.min() < 0 or labels.max() >= _MAX_CLASSES:
        raise DataError(
            f"{path}: {half}_labels lie in {labels.min()}..{labels.max()}; expected 0..{_MAX_CLASSES - 1}, the number "
            "of a class each."
        )
    return np.ascontiguousarray(inputs), labels.astype(np.int32)


def _class_names(path: Path | str, names: np.ndarray | None, largest: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(largest + 1)))
    if names.ndim != 1 or names.dtype.kind != "U" or len(np.unique(names)) != len(names) or len(names) <= largest:
        raise DataError(
            f"{path}: class_names is {_by(names.shape)} of {names.dtype}; expected different texts, at least "
            f"{largest + 1}, since there is label {largest}."
        )
    codes = np.ascontiguousarray(names).view(f"{names.dtype.byteorder}u4")
    if codes.max() > sys.maxunicode or ((codes >= 0xD800) & (codes < 0xE000)).any():
        raise DataError(f"{path}: class_names holds what is no text; {_DAMAGED}")
    return tuple(names.tolist())


def _clients(path: Path | str, clients: np.ndarray | None, count: int) -> np.ndarray | None:
    if clients is None:
        return None
    if clients.shape != (count,) or clients.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: train_clients is {_by(clients.shape)} of {clients.dtype}; expected {count} integers or "
            "texts, one for each training image."
        )
    return np.unique(clients, return_inverse=True)[1].astype(np.int32)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single value"


_DESCRIPTION = "Your own arrays, in one file of NumPy's: path is that file"
READERS = (Reader(name="npz", description=_DESCRIPTION, origin="own", read=read_npz),)
"""The user's own arrays."""
