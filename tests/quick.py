"""Which of many cases run without `--all`."""

import pytest


def only(cases, *kept):
    """The cases as parameters, all but some marked slow; a tuple is a case of several parameters."""
    missing = set(kept) - set(cases)
    if missing:
        raise ValueError(f"no such cases: {missing}")
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    marks = [() if case in kept else (pytest.mark.slow,) for case in cases]
    return [pytest.param(*values, marks=own) for values, own in zip(several, marks, strict=True)]
