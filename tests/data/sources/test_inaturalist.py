import io
import json
import struct
import threading

import numpy as np
import pytest
from PIL import Image

from fedjax_bal.data import DataError, load
from fedjax_bal.data.sources.inaturalist import read_inaturalist

SIZES = [(80, 60), (60, 80), (50, 50), (224, 301), (33, 32)]
CLASSES = {"train": [7, 1009, 0, 7, 400], "val": [3, 3]}


def jpeg(image, **options):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=100, subsampling=0, **options)
    return stream.getvalue()


def scene(width, height, seed):
    """A smooth picture, which JPEG hardly changes, with its left third black so that its middle is off its mean."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((width, height))
    pixels = np.array(smooth)
    pixels[:, : width // 3] = 0
    return Image.fromarray(pixels)


def annotations(half, names, classes):
    """A file as of the competition; annotations stand in another order than images, and ids are no row numbers."""
    images = [
        {"id": 1000 - row, "width": 1, "height": 1, "file_name": name, "license": 1, "rights_holder": "someone"}
        for row, name in enumerate(names)
    ]
    own = [{"id": 5, "image_id": 1000 - row, "category_id": label} for row, label in enumerate(classes)]
    extra = {"info": {"year": 2019}, "categories": [{"id": n, "name": str(n)} for n in range(1010)], "licenses": []}
    return {**extra, "images": images, "annotations": own[::-1]}


@pytest.fixture
def natural(tmp_path):
    """A function that writes a small set; returns the folder and the files of each half."""

    def write(folder=""):
        files = {}
        for half, classes in CLASSES.items():
            names = [f"train_val2019/Birds/{label}/{half}{row}.jpg" for row, label in enumerate(classes)]
            for row, name in enumerate(names):
                file = tmp_path / folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(jpeg(scene(*SIZES[row], seed=row)))
            path = tmp_path / folder / f"{half}2019.json"
            path.write_text(json.dumps(annotations(half, names, classes)))
            files[half] = [tmp_path / folder / name for name in names]
        return tmp_path, files

    return write


def tents(length, square, pieces):
    """Weights `[pieces, length]` of Pillow's bilinear filter where the square in the middle shrinks to `pieces`."""
    scale = square / pieces
    centres = (length - square) / 2 + (np.arange(pieces) + 0.5) * scale
    weights = np.maximum(1 - np.abs(np.arange(length) + 0.5 - centres[:, None]) / scale, 0)
    return weights / weights.sum(axis=1, keepdims=True)


def shrunk(file, pieces):
    pixels = np.asarray(Image.open(file).convert("RGB"), np.float64)
    down, across = (tents(length, min(pixels.shape[:2]), pieces) for length in pixels.shape[:2])
    return np.einsum("ap,bq,pqk->abk", down, across, pixels)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "inaturalist2019", "iNaturalist2019", "inat2019"])
def test_images_stand_in_the_order_of_the_annotations(natural, folder):
    data_dir, files = natural(folder)
    images, labels, test_images, test_labels, _, clients = read_inaturalist(data_dir, 32)[:6]
    assert clients.tolist() == [0] * 5 and clients.dtype == np.int32
    assert (labels.tolist(), test_labels.tolist()) == (CLASSES["train"], CLASSES["val"])
    assert (images.dtype, images.shape, labels.dtype) == (np.uint8, (5, 32, 32, 3), np.int32)
    for got, file in zip([*images, *test_images], files["train"] + files["val"], strict=True):
        assert np.abs(got - shrunk(file, 32)).max() < 1.5, file


def test_an_image_of_the_right_size_is_left_as_it_is(natural):
    data_dir, files = natural()
    images, *_ = read_inaturalist(data_dir, 50)
    np.testing.assert_array_equal(images[2], np.asarray(Image.open(files["train"][2])))


def test_many_images_keep_their_places(tmp_path):
    shades = np.random.default_rng(0).integers(0, 256, 300)
    for row, shade in enumerate(shades):
        (tmp_path / f"{row}.jpg").write_bytes(jpeg(Image.new("L", (4, 4), int(shade))))
    content = json.dumps(annotations("train", [f"{row}.jpg" for row in range(300)], shades.tolist()))
    for half in CLASSES:
        (tmp_path / f"{half}2019.json").write_text(content)
    images, labels, *_ = read_inaturalist(tmp_path, 4)
    np.testing.assert_array_equal(labels, shades)
    assert np.abs(images.astype(int) - shades[:, None, None, None]).max() <= 1


def claiming(width, height):
    """A small JPEG file whose header names another size."""
    whole = jpeg(Image.new("RGB", (16, 16), (9, 9, 9)))
    start = whole.index(b"\xff\xc0") + 5
    return whole[:start] + struct.pack(">HH", height, width) + whole[start + 4 :]


WHOLE = jpeg(scene(40, 40, 0))
HOSTILE = {
    "empty": (b"", "is no JPEG file"),
    "header alone": (WHOLE[:20], "damaged"),
    "half": (WHOLE[: len(WHOLE) // 2], "damaged"),
    "a web page": (b"<!DOCTYPE html>", "is no JPEG file"),
    "another format": (b"\x89PNG\r\n\x1a\n" + bytes(50), "is no JPEG file"),
    "a size that is claimed": (claiming(60_000, 60_000), "damaged or foreign"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_foreign_and_damaged_images_are_named(natural, kind):
    data_dir, files = natural()
    content, message = HOSTILE[kind]
    files["train"][3].write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_inaturalist(data_dir, 32)
    assert str(caught.value).startswith(f"{files['train'][3]}: ")
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_grey_and_print_colours_become_colours(natural):
    data_dir, files = natural()
    files["train"][0].write_bytes(jpeg(Image.new("L", (40, 40), 77)))
    files["train"][1].write_bytes(jpeg(Image.new("CMYK", (40, 40), (0, 0, 0, 0))))
    images, *_ = read_inaturalist(data_dir, 8)
    assert (images[0] == 77).all() and (images[1] > 250).all()


def first(key, **changes):
    def change(content):
        content[key][0] |= changes

    return change


def without(key):
    return lambda content: content.pop(key)


CHANGES = {
    "no images": (without("images"), "lacks 'images'"),
    "no mapping": (lambda content: content["images"].append(3), "val2019.json: "),
    "nothing": (lambda content: content.update(images=[], annotations=[]), "found 0 and 0"),
    "a number for a name": (first("images", file_name=3), "val2019.json: "),
    "an id twice": (first("images", id=999), "an annotation each"),
    "a class too many": (first("annotations", category_id=1010), r"category_id 1010, expected one in 0..1009"),
    "a truth for a class": (first("annotations", category_id=True), r"category_id true"),
    "an unknown image": (first("annotations", image_id=7), "category_id null"),
    "one too few": (lambda content: content["annotations"].pop(0), "an annotation each, found 2 and 1"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_annotations_that_do_not_fit_are_named(natural, kind):
    data_dir, _ = natural()
    change, message = CHANGES[kind]
    file = data_dir / "val2019.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        read_inaturalist(data_dir, 32)
    assert str(caught.value).startswith(f"{file}: ") and len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"images": ' + "9" * 5000 + "}", "\udcff"])
def test_annotations_that_are_no_json_are_named(natural, text):
    data_dir, _ = natural()
    file = data_dir / "train2019.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=f"{file}: is not a JSON file"):
        read_inaturalist(data_dir, 32)


def test_missing_files_are_named(natural):
    data_dir, files = natural()
    files["val"][1].unlink()
    with pytest.raises(DataError, match=r"val1\.jpg: can't be read"):
        read_inaturalist(data_dir, 32)
    (data_dir / "val2019.json").unlink()
    with pytest.raises(DataError, match="looked for train2019.json, val2019.json in .*inat2019"):
        load("inaturalist2019_32", data_dir)
    with pytest.raises(DataError, match="doesn't have it"):
        load("inaturalist2019")


def test_users_are_numbered_by_name_where_all_are_known(natural):
    data_dir, _ = natural()
    file = data_dir / "train2019.json"
    content = json.loads(file.read_text())
    for image, name in zip(content["images"], ["Zoe", "Abe", "Zoe", "Bo", "Abe"], strict=True):
        image["rights_holder"] = name
    file.write_text(json.dumps(content))
    dataset = load("inaturalist2019_32", data_dir)
    assert dataset.train_clients.tolist() == [2, 0, 2, 1, 0] and dataset.client_names == ("Abe", "Bo", "Zoe")
    content["images"][3]["rights_holder"] = ""
    file.write_text(json.dumps(content))
    assert load("inaturalist2019_32", data_dir).train_clients is None


def test_both_sizes_have_a_name(natural):
    data_dir, _ = natural()
    large, small = (load(name, str(data_dir)) for name in ("inaturalist2019", "inaturalist2019_32"))
    assert (large.train_images.shape, small.train_images.shape) == ((5, 224, 224, 3), (5, 32, 32, 3))
    assert large.test_images.shape == (2, 224, 224, 3)
    assert small.class_names == tuple(str(number) for number in range(1010))
