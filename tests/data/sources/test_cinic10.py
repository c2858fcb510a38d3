import struct
import zlib

import numpy as np
import pytest
from data.conftest import png
from PIL import Image

from fedjax_bal.data import DATASETS, DataError, inventory, load, prepared_status
from fedjax_bal.data.sources.images import read_cinic

CLASSES = DATASETS["cifar10"].class_names
FILES = {"airplane": 3, "bird": 2}  # of the others there is one


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def claiming(width, height):
    """A valid PNG file of a few bytes with the header of another size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (32, 32), dtype=np.uint8)


@pytest.fixture
def cinic(tmp_path):
    """A function that writes a small set; returns its folder and the images of each half, class after class."""

    def write(folder=""):
        shown, rng = {}, np.random.default_rng(7)
        for half in ("train", "valid", "test"):
            shown[half] = []
            for name in CLASSES:
                own = tmp_path / folder / half / name
                own.mkdir(parents=True)
                for number in range(FILES.get(name, 1)):
                    pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    (own / f"n0269_{number}.png").write_bytes(png(pixels))
                    shown[half].append(pixels)
        return tmp_path, {half: np.stack(images) for half, images in shown.items()}

    return write


@pytest.mark.parametrize("folder", ["", "cinic10", "CINIC-10"])
def test_train_and_test_are_read_class_after_class(cinic, folder):
    data_dir, shown = cinic(folder)
    dataset = load("cinic10", str(data_dir))
    np.testing.assert_array_equal(dataset.train_images, shown["train"])
    np.testing.assert_array_equal(dataset.test_images, shown["test"])
    assert dataset.train_labels.tolist() == dataset.test_labels.tolist() == [0, 0, 0, 1, 2, 2, *range(3, 10)]
    assert (dataset.train_images.dtype, dataset.train_labels.dtype) == (np.uint8, np.int32)
    assert dataset.class_names == CLASSES


def test_files_are_taken_by_name_whatever_their_age(tmp_path):
    (tmp_path / "cat").mkdir()
    for name, value in (("b.png", 2), ("a.png", 1), ("c.png", 3), ("notes.txt", 0)):
        content = png(np.full((32, 32), value, np.uint8)) if name.endswith("png") else b"no image"
        (tmp_path / "cat" / name).write_bytes(content)
    (tmp_path / "cat" / "folder.png").mkdir()
    images, labels = read_cinic(tmp_path, ["cat"])
    assert images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert labels.tolist() == [0, 0, 0]


def test_grey_images_and_palettes_become_colours(tmp_path):
    (tmp_path / "dog").mkdir()
    palette = Image.fromarray(GREY % 4).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    palette.save(tmp_path / "dog" / "1.png")
    (tmp_path / "dog" / "2.png").write_bytes(png(GREY))
    (tmp_path / "dog" / "3.png").write_bytes(png(np.dstack([COLOUR, GREY])))
    (tmp_path / "dog" / "4.png").write_bytes(png(GREY > 127))
    images, _ = read_cinic(tmp_path, ["dog"])
    colours = np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90], [100, 110, 120]])
    np.testing.assert_array_equal(images[0], colours[GREY % 4])
    np.testing.assert_array_equal(images[1], np.repeat(GREY[..., None], 3, 2))
    np.testing.assert_array_equal(images[2], COLOUR)
    np.testing.assert_array_equal(images[3, ..., 1], 255 * (GREY > 127))


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


WHOLE = png(COLOUR)
HOSTILE = {
    "half": (WHOLE[: len(WHOLE) // 2], "damaged"),
    "a bit of a pixel": (flipped(WHOLE, len(WHOLE) // 2), "damaged"),
    "a web page": (b"<!DOCTYPE html>", "is no PNG file"),
    "another size": (png(np.zeros((28, 28, 3), np.uint8)), "expected an image of 32x32 pixels, found 28x28"),
    "sixteen bits": (png(GREY.astype(np.uint16)), "an image of mode I;16"),
    "a size that is claimed": (claiming(30_000, 30_000), "damaged or foreign"),
    "too few pixels": (claiming(32, 32), "damaged"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_foreign_and_damaged_files_are_named(tmp_path, kind):
    content, message = HOSTILE[kind]
    (tmp_path / "ship").mkdir()
    (tmp_path / "ship" / "a.png").write_bytes(WHOLE)
    path = tmp_path / "ship" / "b.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_cinic(tmp_path, ["ship"])
    assert str(caught.value).startswith(f"{path}: ")


def test_missing_folders_are_named(cinic):
    data_dir, _ = cinic("cinic10")
    with pytest.raises(DataError, match=r"not found: looked for train/, test/ in .*cinic10, .*CINIC-10, .*/train;"):
        load("cinic10", data_dir / "cinic10" / "train")
    own = data_dir / "cinic10" / "test" / "horse"
    for file in own.iterdir():
        file.rename(file.with_suffix(".jpg"))
    with pytest.raises(DataError, match=r"test/horse: holds no PNG files \(\*\.png\)"):
        load("cinic10", data_dir)
    for file in own.iterdir():
        file.unlink()
    own.rmdir()
    with pytest.raises(DataError, match="test/horse: can't be read"):
        load("cinic10", data_dir)


def test_a_class_that_is_deleted_after_preparation_is_missed(cinic):
    data_dir, _ = cinic()
    inventory.prepare("cinic10", data_dir)
    assert prepared_status("cinic10", data_dir).endswith(", prepared")
    (data_dir / "train" / "ship" / "n0269_0.png").unlink()
    (data_dir / "train" / "ship").rmdir()
    assert prepared_status("cinic10", data_dir) == f"found official files in {data_dir}"
    with pytest.raises(DataError, match="train/ship: can't be read"):
        load("cinic10", data_dir)


def test_without_a_folder_it_says_what_to_do():
    with pytest.raises(DataError, match="doesn't have it"):
        load("cinic10")
