"""Models as files: only what their header describes is read."""

import json

import numpy as np
import pytest

from fedjax_bal.lab.model_files import MODEL_FORMATS, model_sums, write_model
from fedjax_bal.lab.verification import verify

TENSORS = {
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(3, np.int32),
    "none": np.zeros((0, 2)),
}


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "model.safetensors"
    write_model("safetensors", file, TENSORS, {"run": "mine"})
    return file


def test_what_was_written_is_read(file):
    tensors, about = MODEL_FORMATS["safetensors"].read(file)
    assert about["run"] == "mine"
    assert about["sha256"] == model_sums(tensors, about) == model_sums(TENSORS, {"run": "mine"})
    for name, wanted in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], wanted, strict=True)


@pytest.mark.parametrize("start", [(2**40).to_bytes(8, "little"), b""])
def test_a_header_that_is_longer_than_the_file_is_not_read(file, start):
    file.write_bytes(start + file.read_bytes()[8:] * bool(start))
    (found,) = verify(file)
    assert "damaged" in found.damage


def test_an_array_of_another_shape_than_its_bytes_is_not_read(file):
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["kernel"]["shape"] = [2**40, 2**40]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    (found,) = verify(file)
    assert "kernel has 24 bytes" in found.damage
