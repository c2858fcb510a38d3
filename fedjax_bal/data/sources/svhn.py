"""The cropped digits of SVHN, in MATLAB files of version 5, which can't execute code.

Each file has images `X`, `[32, 32, 3, D]`, and labels `y`, `[D, 1]`, in which 10 stands for the digit 0. The file
`extra_32x32.mat` is not used.

References:
    Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

import os
import string
from pathlib import Path

import numpy as np

from fedjax_bal.data.npz_file import by
from fedjax_bal.data.reading import find_folder, reading
from fedjax_bal.data.sources.reader import Reader, TfdsSets
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

_DIGITS = tuple(string.digits)
_FOLDERS = ("svhn", "SVHN", "")
_FILES = ("train_32x32.mat", "test_32x32.mat")
_SHAPE = (32, 32, 3)


def read_digits(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Reads one of the files: images `UInt8[D, 32, 32, 3]` and labels `Int32[D]` in 0..9."""
    from scipy.io import loadmat

    with reading(path, "the file is damaged or none of SVHN's: fetch it again."), open_file(path) as file:
        arrays = loadmat(file, variable_names=("X", "y"))
        images, labels = (np.asarray(arrays[name]) for name in ("X", "y"))
        if images.shape[:-1] != _SHAPE or images.dtype != np.uint8 or not images.size:
            raise ValueError(f"expected images X of 32x32x3xD bytes, found {by(images.shape)} of {images.dtype}")
        count = images.shape[-1]
        if labels.shape not in ((count, 1), (1, count)) or labels.dtype.kind not in "iuf":
            raise ValueError(f"expected {count} labels y, found {by(labels.shape)} of {labels.dtype}")
        outside = ~np.isin(labels, np.arange(1, 11))
        if outside.any():
            raise ValueError(f"label {labels[outside][0]}, expected 1..10 (10 for the digit 0)")
    return np.ascontiguousarray(np.moveaxis(images, -1, 0)), labels.reshape(-1).astype(np.int32) % 10


def _read_set(data_dir: Path) -> Dataset:
    train, test = _find_set(data_dir)
    return Dataset(*read_digits(train), *read_digits(test), _DIGITS)


def _find_set(data_dir: Path) -> list[Path]:
    remedy = (
        "put SVHN's two files of cropped digits (format 2) there, or pass the folder that holds them as --data-dir."
    )
    folder = find_folder("svhn", data_dir, _FOLDERS, _FILES, remedy)
    return [folder / file for file in _FILES]


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
"""SVHN, normalised with its published constants."""
