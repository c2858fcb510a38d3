"""The cropped digits of SVHN: MATLAB files of version 5, which are no pickles.

Each file has images `X`, `[32, 32, 3, D]`, and labels `y`, `[D, 1]`, in which 10 stands for the digit 0. Headers are
checked before any pixel is unpacked. The file `extra_32x32.mat` is not used.

References:
    Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

import os
import string
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.readers.reader import Reader, TfdsSets
from fedjax_bal.data.readers.untrusted import CHECK_PATH, MAX_DEFLATE_RATIO, find_folder
from fedjax_bal.types import Dataset

_DIGITS = tuple(string.digits)
_FOLDERS = ("svhn", "SVHN", "")
_FILES = ("train_32x32.mat", "test_32x32.mat")
_SHAPE = (32, 32, 3)
_MAX_BYTES = 2**31
_NUMBERS = {f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)} | {"double", "single"}
_REMEDY = "the file is damaged or none of SVHN's: fetch it again."


def read_digits(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Reads one of the files: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]` in 0..9."""
    path = Path(path)
    count = _checked_header(path)
    found = _scipy(path, "loadmat", variable_names=["X", "y"])
    pixels, digits = np.asarray(found["X"]), np.asarray(found["y"]).reshape(-1)
    fitting = pixels.shape == (*_SHAPE, count) and pixels.dtype == np.uint8 and len(digits) == count
    if not fitting or digits.dtype.kind not in "iuf":  # complex numbers have a header as real ones do
        raise DataError(f"{path}: its arrays are not what its header says; {_REMEDY}")
    outside = ~((digits >= 1) & (digits <= 10) & (digits == np.floor(digits)))
    if outside.any():
        at = int(np.argmax(outside))
        raise DataError(f"{path}: label {digits[at]} at position {at}, expected 1..10 (10 for the digit 0); {_REMEDY}")
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)), digits.astype(np.int32) % 10


def _read_set(data_dir: Path) -> Dataset:
    train, test = _find_set(data_dir)
    return Dataset(*read_digits(train), *read_digits(test), _DIGITS)


def _find_set(data_dir: Path) -> list[Path]:
    remedy = "put SVHN's two files of cropped digits (format 2) there, or pass the folder that holds them"
    folder = find_folder("svhn", data_dir, _FOLDERS, _FILES, remedy)
    return [folder / file for file in _FILES]


def _checked_header(path: Path) -> int:
    """Returns the number of images, after checking the headers alone."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); {CHECK_PATH}") from error
    kinds = {name: (tuple(shape), kind) for name, shape, kind in _scipy(path, "whosmat")}
    shape, kind = kinds.get("X", ((), "nothing"))
    if len(shape) != 4 or shape[:3] != _SHAPE or kind != "uint8" or not shape[3]:
        raise DataError(f"{path}: expected images X of 32x32x3xD bytes, found {_shown(shape, kind)}; {_REMEDY}")
    labels, kind = kinds.get("y", ((), "nothing"))
    if labels not in ((shape[3], 1), (1, shape[3])) or kind not in _NUMBERS:
        raise DataError(f"{path}: expected {shape[3]} labels y, found {_shown(labels, kind)}; {_REMEDY}")
    claimed, most = shape[3] * 3072, min(size * MAX_DEFLATE_RATIO, _MAX_BYTES)
    if claimed > most:
        raise DataError(
            f"{path}: its header claims {claimed} bytes of pixels, but it can hold at most {most}; {_REMEDY}"
        )
    check_images_fit(path, 2 * shape[3], _SHAPE)  # they are copied once
    return int(shape[3])


def _shown(shape: tuple[int, ...], kind: str) -> str:
    return f"{'x'.join(map(str, shape))} of {kind}" if shape else kind


def _scipy(path: Path, function: str, **options: Any) -> Any:
    import scipy.io

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return getattr(scipy.io, function)(path, **options)
    except NotImplementedError as error:
        raise DataError(
            f"{path}: is a MATLAB file of version 7.3, SVHN's are of version 5; save it with that version."
        ) from error
    except Exception as error:  # scipy raises errors of many kinds for damaged content
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is no MATLAB file of version 5 that can be read ({reason}); {_REMEDY}") from error


READERS = (
    Reader(
        name="svhn",
        description=(
            "SVHN, cropped: 73,257 + 26,032 colour images 32x32 of house numbers' digits, 10 classes of unequal size"
        ),
        read=_read_set,
        find=_find_set,
        files=f"{' and '.join(_FILES)}, or svhn/ with them",
        home="http://ufldl.stanford.edu/housenumbers (format 2)",
        tfds=TfdsSets("svhn_cropped", "svhn_cropped"),
        image_shape=_SHAPE,
        class_names=_DIGITS,
        counts=(73_257, 26_032),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
)
"""SVHN, normalised with its own published constants."""
