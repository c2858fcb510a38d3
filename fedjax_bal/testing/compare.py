"""Differences between two results, in words."""

from typing import Any

import jax
import numpy as np

from fedjax_bal.types import PyTree


def difference(got: PyTree, wanted: PyTree, tolerance: float) -> str | None:
    """The largest difference between two trees of arrays that rounding does not explain; None if there is none.

    The tolerance is relative to a leaf's largest number, or to 1 if that is larger. Two values that are both NaN are
    equal.

    Example:
        >>> import numpy as np
        >>> difference({"w": np.ones(2)}, {"w": np.array([1.0, 1.5])}, 1e-6)
        "a difference of 0.5 in ['w']"
        >>> difference({"w": np.ones(2)}, {"w": np.ones(2)}, 1e-6)
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
