"""Which of many cases run without `--all`, or without `--nightly`."""

import pytest


def only(cases, *kept, others=pytest.mark.slow):
    """The cases as parameters, all but some marked slow or otherwise; a tuple is a case of several parameters."""
    missing = set(kept) - set(cases)
    if missing:
        raise ValueError(f"no such cases: {missing}")
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    marks = [() if case in kept else (others,) for case in cases]
    return [pytest.param(*values, marks=own) for values, own in zip(several, marks, strict=True)]
