"""Builders for TensorFlow Datasets of the data sets that it doesn't have: FEMNIST, CINIC-10 and iNaturalist 2019.

They take the official files from the folder that TensorFlow Datasets calls `manual_dir` and write ArrayRecord files,
without TensorFlow. To import this module is to import TensorFlow Datasets, which knows the sets by name from then on.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_bal.data.catalogue import DATASETS
from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers import inaturalist
from fedjax_bal.data.readers.official import OFFICIAL
from fedjax_bal.data.readers.untrusted import read_file
from fedjax_bal.types import Dataset

_VERSION = "1.0.0"


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What the builders share: examples have an image, a label and, for training, the number of a client, or -1."""

    VERSION = tfds.core.Version(_VERSION)
    code_path = None  # where checksums of downloads would lie; looking for it takes a package that isn't declared

    def _info(self) -> tfds.core.DatasetInfo:
        info = DATASETS[self.name]
        features = {
            "image": tfds.features.Image(shape=self._shape()),
            "label": tfds.features.ClassLabel(num_classes=info.num_classes),
            "client": np.int64,
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=info.description,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage=OFFICIAL[self.name].home,
            disable_shuffling=True,
        )

    def _shape(self) -> tuple[int | None, ...]:
        return DATASETS[self.name].image_shape

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        dataset = OFFICIAL[self.name].read(Path(dl_manager.manual_dir))
        return {half: self._generate_examples(dataset, half) for half in ("train", "test")}

    def _generate_examples(self, dataset: Dataset, half: str) -> Iterator[tuple[int, dict[str, Any]]]:
        images, labels = getattr(dataset, f"{half}_images"), getattr(dataset, f"{half}_labels")
        clients = dataset.train_clients if half == "train" else None
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield row, _example(_png(image), label, -1 if clients is None else clients[row])


class Femnist(_Builder):
    """FEMNIST, from LEAF's JSON files."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = f"manual_dir holds {OFFICIAL['femnist'].wanted}."


class Cinic10(_Builder):
    """CINIC-10, from its folders of PNG files."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = f"manual_dir holds {OFFICIAL['cinic10'].wanted}."


class Inaturalist2019(_Builder):
    """iNaturalist 2019, from the competition's files; the images are stored as they are."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = f"manual_dir holds {OFFICIAL['inaturalist2019'].wanted}."

    def _shape(self) -> tuple[int | None, ...]:
        return None, None, 3

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        root = inaturalist.find_inaturalist(dl_manager.manual_dir)
        files = dict(zip(("train", "test"), inaturalist.HALVES, strict=True))
        halves = {half: inaturalist.annotated(root / file) for half, file in files.items()}
        for entries in halves.values():
            inaturalist.check_links(root, entries)
        return {half: self._generate_files(entries, half) for half, entries in halves.items()}

    def _generate_files(self, entries: list[inaturalist.Entry], half: str) -> Iterator[tuple[int, dict[str, Any]]]:
        clients = inaturalist.owners([entry.holder for entry in entries]) if half == "train" else None
        for row, entry in enumerate(entries):
            content = read_file(entry.file, inaturalist.KIND.max_bytes, inaturalist.KIND.again)
            yield row, _example(content, entry.label, -1 if clients is None else clients[row])


BUILDERS = {"femnist": Femnist, "cinic10": Cinic10, "inaturalist2019": Inaturalist2019}
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


def _example(content: bytes, label: Any, client: Any) -> dict[str, Any]:
    return {"image": content, "label": int(label), "client": int(client)}


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()
