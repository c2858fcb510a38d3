"""Stands in for torchvision, which three rivals import but nothing here uses, and for Ray where it isn't installed.

torchvision's releases come with compiled code that fits PyTorch's CUDA build only, and refuse to be imported beside the
CPU build. FL-bench imports Ray, but needs it for several workers only. Import this before the rival.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

NAMES = ["torchvision", *(name for name in ("ray",) if importlib.util.find_spec(name) is None)]


def empty(_: object, name: str) -> type:
    """Returns an empty class, in which every name is another."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Empty(name, (), {})


class Empty(type):
    """The type of empty classes."""

    __getattr__ = empty


class Absent(types.ModuleType):
    """A module in which every name is an empty class."""

    __path__: Sequence[str] = ()
    __version__ = "0"
    __getattr__ = empty


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is stood in for, and all that would be in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A package, for what is stood in for and all that would be in it."""
        if fullname.partition(".")[0] not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty stand-in."""
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.insert(0, Finder())
