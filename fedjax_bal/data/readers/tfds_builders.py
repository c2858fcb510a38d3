"""Builders for TensorFlow Datasets of the data sets that it doesn't have.

They take the official files from the folder that TensorFlow Datasets calls `manual_dir` and write ArrayRecord files,
without TensorFlow. Importing this module imports TensorFlow Datasets and registers the sets there by name.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers import DATASETS
from fedjax_bal.data.readers.reader import Reader, StoredImage
from fedjax_bal.data.readers.untrusted import brief_error
from fedjax_bal.files import own_folder
from fedjax_bal.types import Dataset


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The base of the builders: an example has an image, a label and the number of its client, or -1."""

    VERSION = tfds.core.Version("1.0.0")
    READER: Reader
    code_path = None  # of checksums of downloads; looking for it needs a package that isn't a dependency

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
    """Returns the images of a half as PNG files."""
    images, labels = getattr(dataset, f"{half}_images"), getattr(dataset, f"{half}_labels")
    clients = dataset.train_clients if half == "train" else None
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        yield StoredImage(_png(image), int(label), -1 if clients is None else int(clients[row]))


def _builder(reader: Reader) -> type[_Builder]:
    """Makes a builder; TensorFlow Datasets registers it by the name of its class."""
    own = {"READER": reader, "MANUAL_DOWNLOAD_INSTRUCTIONS": f"manual_dir holds {reader.files}."}
    return type(reader.name.capitalize(), (_Builder,), own)


BUILDERS = {name: _builder(reader) for name, reader in DATASETS.items() if reader.is_buildable}
"""Name of a data set -> its builder."""


def build(name: str, files: Path, data_dir: Path) -> Path:
    """Writes a data set in the format of TensorFlow Datasets; returns its folder, `data_dir`/NAME/VERSION.

    `files` is the folder of its official files. A set that exists already is left as it is.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        own_folder(data_dir, name)
        builder = BUILDERS[name](data_dir=str(data_dir), file_format="array_record")
        builder.download_and_prepare(
            download_dir=str(data_dir / name / "downloads"),
            download_config=tfds.download.DownloadConfig(manual_dir=str(files)),
        )
    except DataError:
        raise
    except Exception as error:  # TensorFlow Datasets raises errors of any kind
        raise DataError(f"{data_dir / name}: can't be written ({brief_error(error)}).") from error
    return Path(builder.data_dir)


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()
