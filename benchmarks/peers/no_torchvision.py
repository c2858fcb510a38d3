"""Stands in for torchvision, which two rivals import but nothing here uses.

Its releases come with compiled code that fits PyTorch's CUDA build only, and refuse to be imported beside the CPU
build. Import this before the rival.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

NAME = "torchvision"


class Absent(types.ModuleType):
    """A module in which every name is an empty class."""

    __path__: Sequence[str] = ()
    __version__ = "0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and all that would be in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A package, for torchvision and all that would be in it."""
        if fullname.partition(".")[0] != NAME:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty stand-in."""
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.insert(0, Finder())
