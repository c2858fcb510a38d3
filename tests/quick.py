"""Which of many cases run without `--all`."""

import pytest


def only(cases, *kept):
    """The cases as parameters, all but some marked slow."""
    missing = set(kept) - set(cases)
    if missing:
        raise ValueError(f"no such cases: {missing}")
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]
