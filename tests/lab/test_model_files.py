"""Models as files: what was written is read, and damage is named."""

import json

import numpy as np
import pytest

from fedjax_bal import load_weights
from fedjax_bal.lab import FolderError
from fedjax_bal.lab.model_files import MODEL_FORMATS

TENSORS = {
    "params/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "params/steps": np.array(3, np.int32),
    "params/none": np.zeros((0, 2)),
}


@pytest.fixture(params=["npz", "safetensors"])
def file(request, tmp_path):
    file = tmp_path / f"model.{request.param}"
    MODEL_FORMATS[request.param].write(file, TENSORS, json.dumps({"run": "mine"}))
    return file


def test_what_was_written_is_read(file):
    tensors, about = MODEL_FORMATS[file.suffix[1:]].read(file)
    assert about == {"run": "mine"}
    for name, wanted in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], wanted, strict=True)
    assert load_weights(file).params["steps"] == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: (2**40).to_bytes(8, "little") + content[8:],
        lambda content: content.replace(b"[2,3]", b"[9,9]").replace(b"[2, 3]", b"[9, 9]").replace(b"(2, 3)", b"(9, 9)"),
    ],
    ids=["empty", "cut", "long", "shape"],
)
def test_a_damaged_file_is_named(file, change):
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(FolderError, match=f"{file}: damaged, or written by another version .*export or save it again"):
        load_weights(file)
