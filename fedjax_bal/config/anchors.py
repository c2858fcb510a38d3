"""Paths in a configuration: relative to the file that names them, absolute once read."""

import os
from typing import Any

from fedjax_bal.config.problems import KeyPath

PATHS = ("availability", "delivery", "speed", "partition")
"""The sections whose key `file` is a path."""


def with_absolute_paths(value: Any, folder: str | os.PathLike[str], path: KeyPath = ()) -> Any:
    """Makes the paths in a configuration absolute.

    Args:
        value: a configuration, or the part of it under `path`.
        folder: what relative paths are relative to.
        path: the keys that lead to the part.

    Example:
        >>> with_absolute_paths({"delivery": {"name": "trace", "file": "phones.csv"}}, "/traces")
        {'delivery': {'name': 'trace', 'file': '/traces/phones.csv'}}
    """
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, folder, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, folder, (*path, place)) for place, item in enumerate(value)]
    keys = [part for key in path if isinstance(key, str) for part in key.split(".")]
    if len(keys) > 1 and keys[-2] in PATHS and keys[-1] == "file" and isinstance(value, str) and value.strip():
        return os.path.normpath(os.path.join(os.path.abspath(folder), value))
    return value
