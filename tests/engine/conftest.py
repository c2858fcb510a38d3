"""Programs that the tests of a file share."""

import pytest

from fedjax_bal.engine.host import executable


@pytest.fixture(autouse=True, scope="module")
def programs():
    """Keeps the programs that a file's tests compile, which are otherwise freed with their simulations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "_PROGRAMS", {})
        yield
