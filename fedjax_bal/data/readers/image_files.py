"""Reading of image files from any source: length, size and kind are checked before pixels are decoded."""

import concurrent.futures
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.errors import reading
from fedjax_bal.files import read_bytes

EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes of images with at most eight bits a value."""

_BLOCK = 64  # images that a thread reads at a time


class ImageRules(NamedTuple):
    """The image files that a data set accepts.

    Attributes:
        remedy: what to do about any other file; ends the message about it.
        formats: Pillow's names of the formats.
        modes: Pillow's names of the kinds of pixels.
        max_bytes: the longest file.
        max_side: the longest side, in pixels.
        size: width and height of every image; None if they differ.
    """

    remedy: str
    formats: tuple[str, ...] = ("PNG", "JPEG")
    modes: tuple[str, ...] = (*EIGHT_BITS, "CMYK")
    max_bytes: int = 2**24
    max_side: int = 4096
    size: tuple[int, int] | None = None


def decode(content: bytes, place: str | os.PathLike, rules: ImageRules, convert: Callable[[Any], Any]) -> np.ndarray:
    """Decodes an image file's content; returns the pixels of `convert(image)`, `UInt8[H, W]` or `UInt8[H, W, K]`."""
    with reading(place, rules.remedy):
        image = open_image(content, rules)
        if image.format == "PNG":
            image.verify()  # compares checksums, and leaves the image closed
            image = open_image(content, rules)
        return np.asarray(convert(image))


def open_image(content: bytes, rules: ImageRules) -> Any:
    """Opens an image and checks its size and mode; its pixels are not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=list(rules.formats))
    except UnidentifiedImageError:
        raise ValueError(f"is no {' or '.join(rules.formats)} file, or one with a damaged header") from None
    found = "x".join(map(str, image.size))
    if rules.size is not None and image.size != rules.size:
        raise ValueError(f"expected an image of {'x'.join(map(str, rules.size))} pixels, found {found}")
    if max(image.size) > rules.max_side or image.mode not in rules.modes:
        raise ValueError(
            f"expected a colour or grey image of at most {rules.max_side} pixels a side and eight bits a value, found "
            f"{found} pixels of mode {image.mode}"
        )
    return image


def read_images(
    files: Sequence[Path], rules: ImageRules, shape: tuple[int, int, int], convert: Callable[[Any], Any]
) -> np.ndarray:
    """Returns the pixels of many files, `UInt8[D, H, W, K]`, decoded by as many threads as there are cores."""
    images = np.empty((len(files), *shape), np.uint8)

    def fill(start: int) -> None:
        for row, file in enumerate(files[start : start + _BLOCK], start):
            with reading(file, rules.remedy):
                content = read_bytes(file, rules.max_bytes)
            images[row] = decode(content, file, rules, convert).reshape(shape)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for _ in pool.map(fill, range(0, len(files), _BLOCK)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)  # one damaged file is enough: the others are not read
            raise
    return images


def read_classes(
    files: Sequence[Sequence[Path]], rules: ImageRules, shape: tuple[int, int, int], convert: Callable[[Any], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of each class's files, `UInt8[D, H, W, K]`, and labels `Int32[D]`, class after class."""
    images = read_images([file for own in files for file in own], rules, shape, convert)
    return images, np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])


def square(image: Any, side: int) -> Any:
    """Scales the largest centred square of a Pillow image; the bilinear filter averages the pixels that it merges."""
    from PIL.Image import Resampling

    shorter = min(image.size)
    left, top = ((length - shorter) / 2 for length in image.size)
    return image.resize((side, side), Resampling.BILINEAR, box=(left, top, left + shorter, top + shorter))
