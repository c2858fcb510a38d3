"""oneDNN's handler for the tests that need it."""

import functools

import pytest

from fedjax_bal.models.onednn import library


def needed():
    """Builds and loads the handler, or skips the test and says what is missing."""
    missing = _problem()
    if missing:
        pytest.skip(missing)


@functools.cache
def _problem():
    try:
        if not library._place().exists():
            library.build()
        library.load()
    except ValueError as error:
        return str(error)
    return None
