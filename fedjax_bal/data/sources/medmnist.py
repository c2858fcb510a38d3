"""Medical images of MedMNIST: DermaMNIST, PathMNIST and BloodMNIST, in the npz files of version 2 with 28x28 pixels.

A file has `train_images`, `UInt8[D, 28, 28, 3]`, `train_labels`, `UInt8[D, 1]`, and the same for `val` and `test`. The
validation images are not used: `evaluation.validation` holds training rows out. Pixels are normalised with mean and
standard deviation 0.5, as in the authors' experiments.

References:
    Yang, Shi, Wei, Liu, Zhao, Ke, Pfister, Ni: MedMNIST v2 - A Large-Scale Lightweight Benchmark for 2D and 3D
    Biomedical Image Classification, 2023.
"""

from functools import partial
from pathlib import Path

import numpy as np

from fedjax_bal.data.arrays import REQUIRED
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.reading import FETCH_AGAIN, find_folder, reading
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

_FOLDERS = ("medmnist", "MedMNIST", ".medmnist", "")
_SHAPE = (28, 28, 3)

DERMA = (
    "actinic keratoses and intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis-like lesions",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevi",
    "vascular lesions",
)
"""The classes of DermaMNIST."""

PATH = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
"""The classes of PathMNIST."""

BLOOD = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocytes",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
"""The classes of BloodMNIST."""


def read_file(path: Path, class_names: tuple[str, ...]) -> Dataset:
    """Reads the training and test images of one of the files; raises `DataError` if it is damaged or another set's."""
    arrays = read_arrays(path, REQUIRED)
    classes = len(class_names)
    with reading(path, FETCH_AGAIN):
        missing = [name for name in REQUIRED if name not in arrays]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        for half in ("train", "test"):
            images = arrays[f"{half}_images"]
            labels = arrays[f"{half}_labels"]
            if images.shape[1:] != _SHAPE or images.dtype != np.uint8 or not len(images):
                raise ValueError(
                    f"{half}_images has shape {images.shape} and type {images.dtype}; expected (D, 28, 28, 3) of uint8"
                )
            if labels.shape != (len(images), 1) or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"{half}_labels has shape {labels.shape} and type {labels.dtype}; expected ({len(images)}, 1) of "
                    "integers, one class for each image"
                )
            if labels.min() < 0 or labels.max() >= classes:
                raise ValueError(f"{half}_labels lie in {labels.min()}..{labels.max()}; expected 0..{classes - 1}")
        # The files don't say what they are: another set's has other classes.
        absent = np.setdiff1d(np.arange(classes), arrays["train_labels"])
        if len(absent):
            raise ValueError(f"train_labels lacks class {absent[0]} ({class_names[absent[0]]}) of {classes}")
    train_images, train_labels, test_images, test_labels = (arrays[name] for name in REQUIRED)
    train, test = (labels[:, 0].astype(np.int32) for labels in (train_labels, test_labels))
    return Dataset(train_images, train, test_images, test, class_names)


def _find_set(name: str, data_dir: Path) -> list[Path]:
    remedy = f"put {name}.npz there (of 28x28 pixels), or pass the folder that holds it as --data-dir."
    return [find_folder(name, data_dir, _FOLDERS, (f"{name}.npz",), remedy) / f"{name}.npz"]


def _read_set(name: str, class_names: tuple[str, ...], data_dir: Path) -> Dataset:
    (path,) = _find_set(name, data_dir)
    return read_file(path, class_names)


def _reader(name: str, title: str, content: str, class_names: tuple[str, ...], counts: tuple[int, int]) -> Reader:
    train, test = counts
    return Reader(
        name=name,
        description=(
            f"{title} of MedMNIST: {train:,} + {test:,} colour images 28x28 of {content}, {len(class_names)} classes "
            "of unequal size"
        ),
        read=partial(_read_set, name, class_names),
        find=partial(_find_set, name),
        files=f"{name}.npz, or medmnist/ with it",
        home="https://medmnist.com",
        image_shape=_SHAPE,
        class_names=class_names,
        counts=counts,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


READERS = (
    _reader("dermamnist", "DermaMNIST", "skin lesions", DERMA, (7_007, 2_005)),
    _reader("pathmnist", "PathMNIST", "colon tissue", PATH, (89_996, 7_180)),
    _reader("bloodmnist", "BloodMNIST", "blood cells", BLOOD, (11_959, 3_421)),
)
"""DermaMNIST, PathMNIST and BloodMNIST."""
