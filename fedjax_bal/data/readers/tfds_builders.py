"""Builders for TensorFlow Datasets of the data sets that it doesn't have.

They take the official files from the folder that TensorFlow Datasets calls `manual_dir` and write ArrayRecord files,
without TensorFlow. To import this module is to import TensorFlow Datasets, which knows the sets by name from then on.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers.reader import Reader, StoredImage
from fedjax_bal.data.readers.registry import DATASETS
from fedjax_bal.types import Dataset

_VERSION = "1.0.0"


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What the builders share: examples have an image, a label and, for training, the number of a client, or -1."""

    VERSION = tfds.core.Version(_VERSION)
    READER: Reader
    code_path = None  # where checksums of downloads would lie; looking for it takes a package that isn't declared

    def _info(self) -> tfds.core.DatasetInfo:
        reader = self.READER
        features = {
            "image": tfds.features.Image(shape=(None, None, 3) if reader.tfds.stored else reader.image_shape),
            "label": tfds.features.ClassLabel(num_classes=reader.num_classes),
            "client": np.int64,
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=reader.description,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage=reader.home,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        folder = Path(dl_manager.manual_dir)
        if self.READER.tfds.stored is not None:
            images = self.READER.tfds.stored(folder)
        else:
            dataset = self.READER.read(folder)
            images = {half: _encoded(dataset, half) for half in ("train", "test")}
        return {half: self._generate_examples(own) for half, own in images.items()}

    def _generate_examples(self, images: Iterable[StoredImage]) -> Iterator[tuple[int, dict[str, Any]]]:
        for row, image in enumerate(images):
            yield row, {"image": image.content, "label": image.label, "client": image.client}


def _encoded(dataset: Dataset, half: str) -> Iterator[StoredImage]:
    """The images of a half as PNG files."""
    images, labels = getattr(dataset, f"{half}_images"), getattr(dataset, f"{half}_labels")
    clients = dataset.train_clients if half == "train" else None
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        yield StoredImage(_png(image), int(label), -1 if clients is None else int(clients[row]))


def _builder(reader: Reader) -> type[_Builder]:
    """A builder that TensorFlow Datasets knows by the reader's name, which it takes from that of the class."""
    own = {"READER": reader, "MANUAL_DOWNLOAD_INSTRUCTIONS": f"manual_dir holds {reader.files}."}
    return type(reader.name.capitalize(), (_Builder,), own)


BUILDERS = {name: _builder(reader) for name, reader in DATASETS.items() if reader.is_buildable}
"""Name of each data set that has a builder here -> it."""


def build(name: str, files: Path, data_dir: Path) -> Path:
    """Writes a data set as TensorFlow Datasets keeps it.

    Args:
        name: one of `BUILDERS`.
        files: the folder that holds its official files.
        data_dir: the folder below which it is written, as NAME/VERSION.

    Returns:
        The folder of the set; one that is already there is left as it is.

    Raises:
        DataError: official files are missing or damaged, or nothing can be written.
    """
    try:
        builder = BUILDERS[name](data_dir=str(data_dir), file_format="array_record")
        builder.download_and_prepare(
            download_dir=str(data_dir / name / "downloads"),
            download_config=tfds.download.DownloadConfig(manual_dir=str(files)),
        )
    except DataError:
        raise
    except Exception as error:  # of any kind: what fails in there is not told apart
        text = " ".join(str(error).split())[:300]
        raise DataError(f"{data_dir / name}: can't be written ({type(error).__name__}: {text}).") from error
    return Path(builder.data_dir)


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()
