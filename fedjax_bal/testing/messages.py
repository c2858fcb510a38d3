"""Differences between two results, and the places of exceptions, in words."""

import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from fedjax_bal.parts import Part
from fedjax_bal.types import PyTree

_PACKAGE = Path(__file__).resolve().parents[1]
_PACKAGES = {"site-packages", "dist-packages"}
_OTHERS = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def difference(got: PyTree, wanted: PyTree, tolerance: float) -> str | None:
    """The largest difference between two trees of arrays that rounding does not explain; None if there is none.

    The tolerance is relative to a leaf's largest number, or to 1 if that is larger. Two values that are both NaN are
    equal.
    """
    apart = [
        (_apart(np.asarray(ours, float), np.asarray(theirs, float)), jax.tree_util.keystr(path))
        for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True)
    ]
    (relative, absolute), where = max(apart, default=((0.0, 0.0), ""))
    return f"a difference of {absolute:.2g} in {where}" if relative > tolerance else None


def _apart(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The largest difference, relative to the largest number or 1, and absolute."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(ours - theirs))
    gap = np.where(np.isnan(gap), np.inf, gap)
    largest = float(gap.max(initial=0.0))
    known = np.abs(theirs[np.isfinite(theirs)])
    return largest / max(1.0, float(known.max(initial=0.0))), largest


def odd_value(leaf: Any) -> str:
    """The first value of an array that is not finite, as text."""
    values = np.asarray(leaf)
    return str(values[~np.isfinite(values)].flat[0])


def place(error: BaseException) -> str:
    """Names the innermost line of the user's own code that an exception passed through.

    The text is ` (in METHOD, FILE:LINE)`. User code is neither in this package nor installed nor Python's own; without
    any, it is the innermost method of a part. The text is empty if there is neither.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    chosen = [pair for pair in frames if _own(pair[0])] or [pair for pair in frames if _of_part(pair[0])]
    if not chosen:
        return ""
    frame, line = chosen[-1]
    return f" (in {frame.f_code.co_qualname}, {frame.f_code.co_filename}:{line})"


def _own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith("<frozen"):
        return False
    path = Path(name).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PACKAGE, *_OTHERS)) and not _PACKAGES & {*path.parts}


def _of_part(frame: FrameType) -> bool:
    return isinstance(frame.f_locals.get("self"), Part)
