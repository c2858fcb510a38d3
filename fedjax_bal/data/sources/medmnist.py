"""Medical images of MedMNIST: DermaMNIST, PathMNIST and BloodMNIST, in the npz files of version 2 with 28x28 pixels.

A file has `train_images`, `UInt8[D, 28, 28, 3]`, `train_labels`, `UInt8[D, 1]`, and the same for `val` and `test`. The
validation images are not used: `evaluation.validation` holds training rows out. Pixels are normalised with mean and
standard deviation 0.5, as in the authors' experiments.

References:
    Yang, Shi, Wei, Liu, Zhao, Ke, Pfister, Ni: MedMNIST v2 - A Large-Scale Lightweight Benchmark for 2D and 3D
    Biomedical Image Classification, 2023.
"""

from pathlib import Path

import numpy as np

from fedjax_bal.data.arrays import REQUIRED, as_dataset
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


def _reader(name: str, title: str, content: str, class_names: tuple[str, ...], counts: tuple[int, int]) -> Reader:
    def find(data_dir: Path) -> list[Path]:
        remedy = f"put {name}.npz there (of 28x28 pixels), or pass the folder that holds it as --data-dir."
        return [find_folder(name, data_dir, _FOLDERS, (f"{name}.npz",), remedy) / f"{name}.npz"]

    def read(data_dir: Path) -> Dataset:
        (path,) = find(data_dir)
        arrays = read_arrays(path, REQUIRED)
        with reading(path, FETCH_AGAIN):
            for half in ("train", "test"):
                images = arrays[f"{half}_images"]
                labels = arrays[f"{half}_labels"]
                if images.shape[1:] != _SHAPE or images.dtype != np.uint8 or labels.shape != (len(images), 1):
                    raise ValueError(
                        f"{half}_images has shape {images.shape} and type {images.dtype}, and {half}_labels shape "
                        f"{labels.shape}; expected (D, 28, 28, 3) of uint8, and (D, 1), one class for each image"
                    )
                arrays[f"{half}_labels"] = labels[:, 0]
            dataset = as_dataset(path, arrays, remedy=FETCH_AGAIN)
            # The files don't say what they are: another set's has other classes.
            found = len(dataset.class_names)
            if found > len(class_names):
                raise ValueError(f"labels lie in 0..{found - 1}; expected 0..{len(class_names) - 1}")
            absent = np.setdiff1d(np.arange(len(class_names)), dataset.train_labels)
            if len(absent):
                raise ValueError(f"train_labels lacks class {absent[0]} ({class_names[absent[0]]})")
        return dataset._replace(class_names=class_names)

    train, test = counts
    return Reader(
        name=name,
        description=(
            f"{title} of MedMNIST: {train:,} + {test:,} colour images 28x28 of {content}, {len(class_names)} classes "
            "of unequal size"
        ),
        read=read,
        find=find,
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
