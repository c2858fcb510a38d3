"""iNaturalist 2019: JPEG files and the annotations of the competition, in the format of COCO.

The official archives unpack to `train_val2019/`, with a JPEG file of at most 800 pixels a side for each image, and to
`train2019.json` and `val2019.json`, which name the files and their classes. JPEG has no checksums, so that damage to
pixels can go unnoticed.

References:
    Van Horn et al.: The iNaturalist Species Classification and Detection Dataset, 2018; the data are those of the
    competition of 2019, with 265,213 + 3,030 images of 1,010 species.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.memory import check_images_fit
from fedjax_bal.data.reading import find_folder, read_json, reading, shortened
from fedjax_bal.data.sources.images import ImageRules, read_images
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset

_FOLDERS = ("inaturalist2019", "iNaturalist2019", "inat2019", "")
_CLASSES = tuple(map(str, range(1010)))  # species, named by their numbers
_HALVES = ("train2019.json", "val2019.json")  # tests use the validation images: the official test set has no labels
_REMEDY = "the file is damaged or foreign to iNaturalist 2019: unpack its archive again."
_RULES = ImageRules(_REMEDY, formats=("JPEG",))


class Annotation(NamedTuple):
    """An image's file, the number of its species, and its owner."""

    file: Path
    label: int
    owner: Any


def read_inaturalist(data_dir: str | os.PathLike, side: int) -> Dataset:
    """Reads the training images and, as the test set, the validation images, in the order of the annotations.

    The largest centred square of each image is scaled to `side` pixels a side. Clients are the users to whom the
    training images belong (`rights_holder`), in the order of their names; None unless every image has one.
    """
    files = _find_set(Path(data_dir))
    halves = [_read_annotations(file) for file in files]
    shape = (side, side, 3)
    remedy = "take a machine with more, or inaturalist2019_32, which has smaller images"
    check_images_fit(files[0].parent, sum(map(len, halves)), shape, remedy)

    images, test_images = (read_images([image.file for image in half], _RULES, shape) for half in halves)
    labels, test_labels = (np.array([image.label for image in half], np.int32) for half in halves)
    owners = [annotation.owner for annotation in halves[0]]
    clients = names = None
    if all(isinstance(owner, str) and owner for owner in owners):
        names = tuple(sorted(set(owners)))
        numbers = {name: number for number, name in enumerate(names)}
        clients = np.array([numbers[name] for name in owners], np.int32)
    return Dataset(images, labels, test_images, test_labels, _CLASSES, clients, client_names=names)


def _read_annotations(file: Path) -> list[Annotation]:
    """Reads an annotation for each image, in the order of the file's images, which aren't opened."""
    content = read_json(file, _REMEDY)
    listed = []
    with reading(file, _REMEDY):
        images = content["images"]
        annotations = content["annotations"]
        classes = {annotation["image_id"]: annotation["category_id"] for annotation in annotations}
        ids = {image["id"] for image in images}
        if not images or not len(images) == len(annotations) == len(classes) == len(ids):
            raise ValueError(f"expected images with an annotation each, found {len(images)} and {len(annotations)}")
        for image in images:
            label = classes.get(image["id"])
            if type(label) is not int or not 0 <= label < len(_CLASSES):
                raise ValueError(
                    f"found {shortened(image)} with the category_id {shortened(label)}, expected one in "
                    f"0..{len(_CLASSES) - 1}"
                )
            listed.append(Annotation(file.parent / image["file_name"], label, image.get("rights_holder")))
    return listed


def _find_set(data_dir: Path) -> list[Path]:
    remedy = (
        "unpack train2019.json.tar.gz, val2019.json.tar.gz and train_val2019.tar.gz in one of them, or pass the folder "
        "that holds them as --data-dir."
    )
    root = find_folder("inaturalist2019", data_dir, _FOLDERS, _HALVES, remedy)
    return [root / half for half in _HALVES]


def _reader(name: str, description: str, side: int) -> Reader:
    return Reader(
        name=name,
        description=description,
        read=partial(read_inaturalist, side=side),
        find=_find_set,
        files=(
            "train2019.json, val2019.json and train_val2019/ (unpacked from the archives of these names), or "
            "inaturalist2019/ with them"
        ),
        home="https://github.com/visipedia/inat_comp/tree/master/2019",
        image_shape=(side, side, 3),
        class_names=_CLASSES,
        counts=(265_213, 3_030),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        clients=True,
    )


READERS = (
    _reader(
        "inaturalist2019",
        "iNaturalist 2019: 265,213 + 3,030 colour images of 1,010 species, made 224x224, which takes 38 GiB",
        224,
    ),
    _reader("inaturalist2019_32", "iNaturalist 2019, made 32x32: 265,213 + 3,030 colour images of 1,010 species", 32),
)
"""iNaturalist 2019 in two sizes, normalised with the constants of ImageNet."""
