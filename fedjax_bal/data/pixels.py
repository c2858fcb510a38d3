"""From a picture to pixels: the same rules for files, Hugging Face data sets, PyTorch data sets and arrays.

A picture is an image of Pillow. Its pixels are those that a viewer shows: turned as its EXIF orientation says, and
coloured as its palette says.
"""

import re
import sys
from typing import Any

import numpy as np

_ORIENTATION = 0x0112  # the tag of EXIF
_UPRIGHT = 1
_GREY = ("L",)
_COLOUR = ("RGB",)
# The conversions of each mode. A palette goes through RGBA, which takes any kind of transparency.
_CONVERSIONS = {
    "1": _GREY,
    "L": _GREY,
    "LA": _GREY,
    "La": ("LA", "L"),
    "P": ("RGBA", "RGB"),
    "PA": ("RGBA", "RGB"),
    **dict.fromkeys(("RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"), _COLOUR),
}
_MODES = {1: "L", 3: "RGB"}
_SIXTEEN_BITS = re.compile(";16[BLN]")  # in the name of a raw mode of Pillow


def is_picture(value: Any) -> bool:
    """Returns whether a value is an image of Pillow, which need not be imported."""
    return isinstance(value, getattr(sys.modules.get("PIL.Image"), "Image", ()))


def plain_picture(image: Any, channels: int | None = None) -> Any:
    """Returns a picture upright and in mode L or RGB: pixels of eight bits without palette, transparency or inks.

    Grey pictures stay grey: modes `1` (which becomes 0 and 255), `L` and `LA`. All others become RGB. Transparency is
    dropped: what a transparent pixel hides is shown.

    Args:
        image: an image of Pillow; it is not changed.
        channels: 1 or 3 to convert colours to grey, or grey to colours; None keeps what the picture has.

    Raises:
        ValueError: more than eight bits a value, as in the mode `I;16`, whose range isn't known.

    Example:
        >>> from PIL import Image
        >>> palette = Image.new("P", (2, 1))
        >>> palette.putpalette([10, 20, 30, 40, 50, 60])
        >>> palette.putpixel((1, 0), 1)
        >>> np.asarray(plain_picture(palette)).tolist()
        [[[10, 20, 30], [40, 50, 60]]]
        >>> plain_picture(Image.new("I;16", (2, 1)))  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: received an image of mode I;16, must be a colour or grey image of eight bits a value: scale it
        first, or pass its values as numbers, np.asarray(image, np.float32)
    """
    from PIL.ImageOps import exif_transpose

    if image.mode not in _CONVERSIONS:
        raise ValueError(
            f"received an image of mode {image.mode}, must be a colour or grey image of eight bits a value: scale it "
            "first, or pass its values as numbers, np.asarray(image, np.float32)"
        )
    # Of sixteen bits for a colour Pillow reads eight, and names them only where it hasn't read the file yet.
    if any(_SIXTEEN_BITS.search(str(tile[-1])) for tile in getattr(image, "tile", ())):
        raise ValueError(
            f"received an image of mode {image.mode} with 16 bits a value, of which Pillow drops eight: scale it "
            "first, or read it by another library and pass its values as floats"
        )
    if image.getexif().get(_ORIENTATION, _UPRIGHT) != _UPRIGHT:
        image = exif_transpose(image)
    wanted = () if channels is None else (_MODES[channels],)
    for mode in (*_CONVERSIONS[image.mode], *wanted):
        if image.mode != mode:
            image = image.convert(mode)
    return image


def pixels(image: Any, channels: int | None = None) -> np.ndarray:
    """Returns a picture's pixels, `UInt8[H, W, K]`, with K = 1 or 3, see `plain_picture`."""
    array = np.asarray(plain_picture(image, channels))
    return array[..., None] if array.ndim == 2 else array
