"""Finds the line of the user's code in which an exception was raised."""

import sysconfig
import traceback
from pathlib import Path
from types import FrameType

from fedjax_bal.parts import Part

_PACKAGE = Path(__file__).resolve().parents[1]
_PACKAGES = {"site-packages", "dist-packages"}
_OTHERS = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def place(error: BaseException) -> str:
    """Names the innermost line of the user's own code that an exception passed through.

    The text is ` (in METHOD, FILE:LINE)`. User code is neither in this package nor installed nor Python's own; without
    any, it is the innermost method of a part. The text is empty if there is neither.

    Example:
        >>> try:
        ...     {}["kernel"]
        ... except KeyError as error:
        ...     place(error).startswith(" (in <module>, ")
        True
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
