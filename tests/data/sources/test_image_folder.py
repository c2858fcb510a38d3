import io
import os

import numpy as np
import pytest
from PIL import Image

from fedjax_bal.data import DataError, load, memory
from fedjax_bal.data.sources.images import read_image_folder

CLASSES = {"train": {"cat": 2, "dog": 3, "emu": 1}, "test": {"dog": 2, "emu": 1}}


@pytest.fixture
def folder(tmp_path, to_png):
    """A small set; returns its folder and the images of each half, class after class."""
    shown, rng = {}, np.random.default_rng(3)
    for half, classes in CLASSES.items():
        shown[half] = rng.integers(0, 256, (sum(classes.values()), 6, 8, 3), dtype=np.uint8)
        images = iter(shown[half])
        for name, count in classes.items():
            (tmp_path / half / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / half / name / f"{number}.PNG").write_bytes(to_png(next(images)))
    return tmp_path, shown


def test_classes_are_called_by_their_folders(folder):
    root, shown = folder
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "fox").symlink_to("nowhere")
    dataset = load("image_folder", root.parent, path=root.name)
    np.testing.assert_array_equal(dataset.train_images, shown["train"])
    np.testing.assert_array_equal(dataset.test_images, shown["test"])
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.train_labels.tolist() == [0, 0, 1, 1, 1, 2]
    assert dataset.test_labels.tolist() == [1, 1, 2]
    assert (dataset.train_images.dtype, dataset.train_labels.dtype) == (np.uint8, np.int32)


def test_classes_that_are_numbers_are_in_the_order_of_their_values(folder):
    root, shown = folder
    for half in CLASSES:
        for name, number in (("cat", "10"), ("dog", "9"), ("emu", "2")):
            if (root / half / name).exists():
                (root / half / name).rename(root / half / number)
    dataset = load("image_folder", path=root)
    assert dataset.class_names == ("2", "9", "10")
    np.testing.assert_array_equal(dataset.train_images, shown["train"][[5, 2, 3, 4, 0, 1]])
    assert dataset.test_labels.tolist() == [0, 1, 1]


def test_images_become_squares_of_one_side(folder, to_png):
    root, shown = folder
    (root / "train" / "cat" / "0.PNG").write_bytes(to_png(np.full((9, 3, 3), 50, np.uint8)))
    dataset = read_image_folder(root, side=6)
    assert dataset.train_images.shape == (6, 6, 6, 3)
    assert (dataset.train_images[0] == 50).all()
    np.testing.assert_array_equal(dataset.test_images, shown["test"][:, :, 1:7])  # the middle, as it is
    with pytest.raises(DataError, match="cat/1.PNG: expected an image of 3x9 pixels, found 8x6"):
        read_image_folder(root)


def test_grey_images_and_colours(folder):
    root, shown = folder
    stream = io.BytesIO()
    Image.new("L", (8, 6), 90).save(stream, "JPEG")
    (root / "train" / "cat" / "0.PNG").unlink()
    (root / "train" / "cat" / "0.jfif").write_bytes(stream.getvalue())
    colours = read_image_folder(root)
    assert (colours.train_images[0] == 90).all() and colours.train_images.shape[-1] == 3
    grey = read_image_folder(root, channels=1)
    assert grey.train_images.shape == (6, 6, 8, 1)
    weighted = shown["train"][1] @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey.train_images[1, ..., 0] - weighted).max() <= 1


@pytest.mark.parametrize("below", ["train", ""])
def test_a_share_is_held_out_where_there_is_no_test_folder(tmp_path, to_png, below):
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / below / name).mkdir(parents=True)
        for number in range(10):
            image = to_png(np.full((2, 2, 3), 10 * label + number, np.uint8))
            (tmp_path / below / name / f"{number}.png").write_bytes(image)
    dataset = load("image_folder", path=tmp_path)
    assert dataset.class_names == ("cat", "dog") and dataset.test_share == 0.2
    train, test = (images[:, 0, 0, 0].tolist() for images in (dataset.train_images, dataset.test_images))
    assert sorted(train + test) == list(range(20)) and train == sorted(train) and test == sorted(test)
    assert [value // 10 for value in train] == dataset.train_labels.tolist() == [0] * 8 + [1] * 8
    assert [value // 10 for value in test] == dataset.test_labels.tolist() == [0] * 2 + [1] * 2
    halves = load("image_folder", path=tmp_path, test=0.5, test_seed=1)
    assert len(halves.test_labels) == 10
    other = load("image_folder", path=tmp_path, test=0.5, test_seed=2)
    assert not np.array_equal(halves.test_images, other.test_images)
    for folder in (tmp_path / below).iterdir():
        for file in sorted(folder.iterdir())[1:]:
            file.unlink()
    with pytest.raises(DataError, match="2 rows have 2 different labels"):
        load("image_folder", path=tmp_path)


def test_a_share_beside_a_test_folder_is_refused(folder):
    with pytest.raises(DataError, match="test: is the test set"):
        load("image_folder", path=folder[0], test=0.3)


def foreign_class(root):
    (root / "test" / "fox").mkdir()


def remove(*names):
    def act(root):
        for name in names:
            for file in sorted((root / name).rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()

    return act


def no_text(root):
    os.mkdir(os.fsencode(root / "train") + b"/\xff")


def look_alike(root):
    (root / "train" / "emu\u200b").mkdir()


def test_hidden_folders_are_left_out(folder):
    root, _ = folder
    before = load("image_folder", path=root)
    file = next(file for file in (root / "train" / "emu").iterdir() if file.is_file())
    (root / "train" / "emu" / ".thumbnails").mkdir()
    (root / "train" / "emu" / ".thumbnails" / file.name).write_bytes(file.read_bytes())
    np.testing.assert_array_equal(load("image_folder", path=root).train_images, before.train_images)


def nested(root):
    (root / "train" / "emu" / "more").mkdir()
    file = next(file for file in (root / "train" / "emu").iterdir() if file.is_file())
    (root / "train" / "emu" / "more" / file.name).write_bytes(file.read_bytes())


def other_format(root):
    (root / "train" / "emu" / "3.WebP").write_bytes(b"RIFF")


def only_validation(root):
    (root / "test").rename(root / "Valid")


BAD = {
    "classes that look the same": (look_alike, "train: classes 'emu' and .* look the same"),
    "images below a class": (nested, "emu/more: holds images below the folder of class emu"),
    "another format": (other_format, "emu/3.WebP: PNG and JPEG files are read, and 1 of another format"),
    "another half": (only_validation, "has train/ and Valid/, but no test/: rename Valid to test"),
    "a class of the test alone": (foreign_class, "test/fox: is not a class of .*train"),
    "no files in a class": (remove("train/emu"), "train/emu: holds no image files"),
    "no files for testing": (remove("test/dog", "test/emu"), "test: holds no image files"),
    "a name that is no text": (no_text, "train: .*udcff"),
    "no classes": (remove("test"), "test: holds no folders"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_does_not_fit_is_named(folder, kind):
    root, _ = folder
    act, message = BAD[kind]
    act(root)
    with pytest.raises(DataError, match=message):
        load("image_folder", path=root)


def test_missing_folders_memory_and_options(folder, monkeypatch):
    root, _ = folder
    with pytest.raises(DataError, match=r"nowhere: can't be read .* expected a folder of image files for each"):
        read_image_folder(root / "nowhere")
    for options, message in (({"channels": 2}, "channels: received 2"), ({"side": 0}, "side: received 0")):
        with pytest.raises(ValueError, match=message):
            read_image_folder(root, **options)
    monkeypatch.setattr(memory, "available_bytes", lambda: 9 * 64 * 64 * 3 - 1)
    with pytest.raises(DataError, match="9 images of 64x64 pixels need .* give a smaller side"):
        read_image_folder(root, side=64)
    for channels in (True, [3]):
        with pytest.raises(ValueError, match="channels: received"):
            read_image_folder(root, channels=channels)
