"""oneDNN's handler for the tests that need it."""

import functools

import pytest

from fedjax_bal.models import onednn


def needed():
    """Builds and loads the handler, or skips the test and says what is missing."""
    missing = _problem()
    if missing:
        pytest.skip(missing)


@functools.cache
def _problem():
    try:
        if not onednn._place().exists():
            onednn.build()
        onednn.load()
    except ValueError as error:
        return str(error)
    return None
