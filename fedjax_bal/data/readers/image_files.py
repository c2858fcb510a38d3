"""Reading image files that nobody vouches for: lengths, sizes and kinds are checked before pixels are unpacked."""

import concurrent.futures
import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.readers.untrusted import read_file

EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's kinds of images with eight bits a value at most."""

_BLOCK = 64  # images that a thread does at a time


class Kind(NamedTuple):
    """What the image files of a data set are like.

    Attributes:
        formats: names of the formats, as Pillow calls them.
        modes: kinds of pixels, as Pillow calls them.
        max_bytes: the longest file.
        max_side: the longest side, in pixels.
        size: width and height of every image; None where they differ.
        again: what to do about a file that is not like that, for the end of a message.
    """

    formats: tuple[str, ...]
    modes: tuple[str, ...]
    max_bytes: int
    max_side: int
    size: tuple[int, int] | None
    again: str


@contextlib.contextmanager
def decoder(name: str) -> Iterator[ModuleType]:
    """Pillow, with its warning of oversized images as an error: it comes from reading the size alone."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{name}: its images need Pillow, which can't be imported ({error}): install it.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield Image


def decoded(
    pillow: ModuleType, content: bytes, place: str | os.PathLike, kind: Kind, make: Callable[[Any], Any]
) -> np.ndarray:
    """The pixels, `UInt8[H, W]` or `UInt8[H, W, K]`, of what `make` turns an image of Pillow into."""
    image = opened(pillow, content, place, kind)
    try:
        if image.format == "PNG":
            image.verify()  # checksums, after which it has to be opened again
            image = _checked(pillow, content, kind)
        return np.asarray(make(image))
    except Exception as error:  # what a decoder raises for damaged content is of many kinds
        raise DataError(f"{place}: {error}; {kind.again}") from error


def opened(pillow: ModuleType, content: bytes, place: str | os.PathLike, kind: Kind) -> Any:
    """An image whose size and kind are known to be right; its pixels are still packed."""
    try:
        return _checked(pillow, content, kind)
    except pillow.UnidentifiedImageError as error:
        formats = " or ".join(kind.formats)
        raise DataError(f"{place}: is no {formats} file, or one with a damaged header; {kind.again}") from error
    except Exception as error:  # what a decoder raises for damaged content is of many kinds
        raise DataError(f"{place}: {error}; {kind.again}") from error


def read_all(
    name: str, files: Sequence[Path], kind: Kind, shape: tuple[int, int, int], make: Callable[[ModuleType, Any], Any]
) -> np.ndarray:
    """The pixels of many files, `UInt8[D, H, W, K]`, unpacked by as many threads as there are cores."""
    images = np.empty((len(files), *shape), np.uint8)
    with decoder(name) as pillow, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

        def fill(start: int) -> None:
            for row, file in enumerate(files[start : start + _BLOCK], start):
                content = read_file(file, kind.max_bytes, kind.again)
                pixels = decoded(pillow, content, file, kind, lambda image: make(pillow, image))
                images[row] = pixels.reshape(shape)

        try:
            for _ in pool.map(fill, range(0, len(files), _BLOCK)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return images


def squared(pillow: ModuleType, image: Any, side: int) -> Any:
    """The largest square in the middle of an image, scaled by Pillow's bilinear filter.

    The filter takes the mean of what it leaves out.

    Args:
        pillow: from `decoder`.
        image: an image of Pillow.
        side: pixels a side of the result.

    Returns:
        Another image of Pillow.
    """
    shorter = min(image.size)
    left, top = ((length - shorter) / 2 for length in image.size)
    box = (left, top, left + shorter, top + shorter)
    return image.resize((side, side), pillow.Resampling.BILINEAR, box=box)


def _checked(pillow: ModuleType, content: bytes, kind: Kind) -> Any:
    image = pillow.open(io.BytesIO(content), formats=list(kind.formats))
    found = "x".join(map(str, image.size))
    if kind.size is not None and image.size != kind.size:
        raise ValueError(f"expected an image of {'x'.join(map(str, kind.size))} pixels, found {found}")
    if max(image.size) > kind.max_side or image.mode not in kind.modes:
        raise ValueError(
            f"expected a colour or grey image of at most {kind.max_side} pixels a side and eight bits a value, found "
            f"{found} pixels of mode {image.mode}"
        )
    return image
