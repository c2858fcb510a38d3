"""The stubs of recipes and parts name every method."""

import pytest
import stubs


@pytest.mark.parametrize("face", stubs.FACES, ids=lambda face: face.__name__)
def test_a_stub_has_all_names_of_its_module(face):
    assert stubs.file_of(face).read_text("utf-8") == stubs.stub(face), "write it again: python tests/stubs.py"
