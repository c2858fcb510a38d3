"""Pictures of many modes become the same pixels in a folder, in Hugging Face's data sets, PyTorch's and lists."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_bal import data
from fedjax_bal.data.pixels import is_picture, pixels

VALUES = np.array(
    [[[250, 10, 20], [0, 90, 200]], [[30, 240, 60], [120, 130, 140]], [[5, 6, 7], [255, 255, 255]]], np.uint8
)
GREY = np.array([[0, 255], [40, 130], [70, 200]], np.uint8)
ORIENTATION = 0x0112


def palette(mode="RGB", order=(0, 1, 2, 3, 4, 5), transparency=None):
    """The colours of `VALUES` as a palette in some order."""
    image = Image.new("P", (2, 3))
    colours = VALUES.reshape(6, 3)[list(order)]
    if mode == "RGBA":
        colours = np.concatenate([colours, np.arange(6, dtype=np.uint8)[:, None] * 50], axis=1)
    image.putpalette(colours.ravel().tolist(), mode)
    image.putdata([order.index(colour) for colour in range(6)])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def with_alpha(mode):
    image = Image.fromarray(VALUES if mode == "RGBA" else GREY).convert(mode)
    image.putalpha(Image.fromarray(np.array([[0, 255], [128, 0], [1, 2]], np.uint8)))
    return image


def turned():
    """Lies on its side, as a camera stores it."""
    image = Image.fromarray(np.rot90(VALUES).copy())
    image.getexif()[ORIENTATION] = 6
    return image


BINARY = np.where(GREY > 100, 255, 0).astype(np.uint8)
PICTURES = {
    "L": (Image.fromarray(GREY), GREY),
    "LA": (with_alpha("LA"), GREY),
    "1": (Image.fromarray(BINARY).convert("1"), BINARY),
    "RGB": (Image.fromarray(VALUES), VALUES),
    "RGBA": (with_alpha("RGBA"), VALUES),
    "P": (palette(), VALUES),
    "P in another order": (palette(order=(3, 1, 5, 0, 4, 2)), VALUES),
    "P with one transparent colour": (palette(transparency=2), VALUES),
    "P with transparent colours": (palette(transparency=bytes([0, 128, 255])), VALUES),
    "P of RGBA": (palette("RGBA"), VALUES),
    "PA": (palette().convert("PA"), VALUES),
    "CMYK": (Image.fromarray(VALUES).convert("CMYK"), VALUES),
    "turned": (turned(), VALUES),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pixels(kind):
    image, wanted = PICTURES[kind]
    before = image.mode, image.size, dict(image.getexif())
    wanted = wanted if wanted.ndim == 3 else wanted[..., None]
    np.testing.assert_array_equal(pixels(image), wanted)
    assert (image.mode, image.size, dict(image.getexif())) == before
    assert pixels(image, 1).shape == (3, 2, 1) and pixels(image, 3).shape == (3, 2, 3)
    if wanted.shape[-1] == 1:
        np.testing.assert_array_equal(pixels(image, 3), np.repeat(wanted, 3, axis=2))


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "LAB", "RGBX", "La", "RGBa"])
def test_other_modes_become_colours_or_grey(mode):
    via = {"La": "LA", "RGBa": "RGBA"}.get(mode, "RGB")
    if mode == "LAB":
        from PIL import ImageCms

        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.applyTransform(Image.fromarray(VALUES), ImageCms.buildTransform(srgb, lab, "RGB", "LAB"))
    else:
        image = Image.fromarray(GREY if mode == "La" else VALUES).convert(via).convert(mode)
    assert image.mode == mode
    wanted = GREY[..., None] if mode == "La" else VALUES
    assert np.abs(pixels(image).astype(int) - wanted).max() <= 24  # these conversions round


@pytest.mark.parametrize("mode", ["I;16", "I", "F", "I;16B"])
def test_pictures_of_more_bits_are_refused_by_name(mode):
    with pytest.raises(ValueError, match=f"an image of mode {mode}, must be .* np.asarray"):
        pixels(Image.new(mode, (2, 3)))
    images = [Image.new("L", (2, 3)), Image.new(mode, (2, 3))]
    with pytest.raises(data.DataError, match=f"from_torch: train: example 1: received an image of mode {mode}"):
        data.from_torch(list(zip(images, [0, 1], strict=True)), 0.5)
    with pytest.raises(data.DataError, match=f"train_images is not an array .*an image of mode {mode}"):
        data.from_arrays((images, [0, 1]), 0.5)


def test_what_is_a_picture():
    assert is_picture(Image.new("L", (1, 1))) and not is_picture(VALUES) and not is_picture(None)


def test_lists_of_pictures():
    for kinds in (("RGB", "P", "RGBA", "CMYK"), ("L", "LA", "L", "LA")):
        images = [PICTURES[kind][0] for kind in kinds]
        wanted = [pixels(image) for image in images]
        for inputs in (images, np.array([*images, None], object)[:4]):
            dataset = data.from_arrays((inputs, [0, 1, 0, 1]), (inputs, [0, 1, 0, 1]))
            np.testing.assert_array_equal(dataset.train_images, wanted)
    for images, message in (
        ([PICTURES["RGB"][0], None], "row 1 is None"),
        ([PICTURES["RGB"][0], PICTURES["L"][0]], "all input arrays must have the same shape"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.from_arrays((images, [0, 1]), 0.5)
    mixed = [(PICTURES["RGB"][0], 0), (PICTURES["L"][0], 1)]
    with pytest.raises(data.DataError, match=r"shapes \(3, 2, 3\) and \(3, 2, 1\), .*image.convert\('RGB'\)"):
        data.from_torch(mixed, 0.5)


def opened(path):
    with Image.open(path) as image:
        image.load()
    return image


FILES = dict.fromkeys(("L", "LA", "1", "RGB", "RGBA", "P", "P in another order"), "PNG") | {
    "P with one transparent colour": "PNG",
    "P with transparent colours": "PNG",
    "turned": "PNG",
    "CMYK": "JPEG",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_picture_has_the_same_pixels_at_every_door(tmp_path, kind):
    hub = pytest.importorskip("datasets")
    image, wanted = PICTURES[kind]
    ending = {"PNG": "png", "JPEG": "jpg"}[FILES[kind]]
    options = {"exif": image.getexif()} if kind == "turned" else {}
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for row in range(2):
            paths.append(tmp_path / name / f"{row}.{ending}")
            image.save(paths[-1], FILES[kind], **options)
    channels = 1 if wanted.ndim == 2 else 3
    folder = data.load("image_folder", path=tmp_path, channels=channels, test=0.5).train_images
    labels = [0, 0, 1, 1]
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["a", "b"])})
    split = hub.Dataset.from_dict({"image": list(map(str, paths)), "label": labels}, features=features)
    from_hub = data.from_huggingface(split, 0.5).train_images
    images = [opened(path) for path in paths]
    from_torch = data.from_torch(list(zip(images, labels, strict=True)), 0.5).train_images
    from_list = data.from_arrays((images, labels), 0.5).train_images
    for others in (from_hub, from_torch, from_list):
        np.testing.assert_array_equal(others, folder)
    if FILES[kind] == "PNG":
        np.testing.assert_array_equal(folder[0], wanted.reshape(3, 2, channels))


def test_files_of_sixteen_bits_are_refused_at_every_door(tmp_path):
    hub = pytest.importorskip("datasets")
    path = tmp_path / "a" / "0.png"
    path.parent.mkdir()
    for file in (path, path.with_name("1.png")):
        Image.fromarray(np.full((3, 2), 7000, np.uint16)).save(file)
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["a"])})
    split = hub.Dataset.from_dict({"image": [str(path)] * 2, "label": [0, 0]}, features=features)
    for door in (
        lambda: data.load("image_folder", path=tmp_path),
        lambda: data.from_huggingface(split, 0.5),
        lambda: data.from_torch([(opened(path), 0)] * 2, 0.5),
        lambda: data.from_arrays(([opened(path)] * 2, [0, 0]), 0.5),
    ):
        with pytest.raises(data.DataError, match="an image of mode I;16"):
            door()
    rows = (b"\0" + np.full((2, 3), 7000, ">u2").tobytes()) * 3  # Pillow writes no colours of sixteen bits
    chunks = {b"IHDR": struct.pack(">IIBBBBB", 2, 3, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    packed = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    refused = pytest.raises(data.DataError, match="mode RGB with 16 bits a value, of which Pillow drops eight")
    with refused:
        data.load("image_folder", path=tmp_path)
    with Image.open(path) as image, refused:
        data.from_arrays(([image] * 2, [0, 0]), 0.5)
