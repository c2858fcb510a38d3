"""Blocks of code in pages: which of them can run here."""

import importlib.util
import re


def can_run(code):
    """Whether all libraries that Python code imports are installed: some are optional."""
    libraries = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return all(importlib.util.find_spec(name) for name in libraries)
