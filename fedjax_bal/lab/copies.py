"""Copies of plug-ins and small files in an output folder, so that the command on its page finds them."""

import hashlib
import os
from pathlib import Path
from typing import Any

from fedjax_bal.config import PATHS, Config, dump_yaml
from fedjax_bal.files import read_bytes
from fedjax_bal.plugins import plugin_copies

PLUGIN_COPIES = "plugins"
FILE_COPIES = "files"
"""The subfolders for copies of plug-ins that were loaded from files, and of weights, partitions and traces."""

_LARGEST_COPY = 2**24  # bytes


def copied_plugins(*configs: Config) -> dict[str, bytes]:
    """Returns the source of the plug-ins that configurations use, by the copies' names."""
    names = {name for config in configs for name in config.plugins}
    return {f"{PLUGIN_COPIES}/{path}": content for path, content in plugin_copies(names).items()}


def copied_files(*configs: Config) -> dict[str, bytes]:
    """Returns the weights, partitions and traces that configurations name, by the copies' names; no large files."""
    named = {
        str(file)
        for config in configs
        for method in config.methods
        for section, key in PATHS.items()
        if (file := getattr(getattr(method, section), key, None)) is not None
    }
    small = [file for file in named if os.path.isfile(file) and os.path.getsize(file) <= _LARGEST_COPY]
    return {_copy_name(file): read_bytes(file) for file in small}


def with_copies(folder: Path, sheet: Any, text: str) -> str:
    """Returns the text of a configuration with the paths of a folder's copies, relative to it."""
    replaced = _with_copies(folder, sheet)
    return text if replaced == sheet else dump_yaml(replaced)


def _with_copies(folder: Path, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_copies(folder, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_copies(folder, item) for item in value]
    return _copy_name(value) if isinstance(value, str) and os.path.isfile(folder / _copy_name(value)) else value


def _copy_name(file: str) -> str:
    # In a subfolder, because files of different folders may have the same name, which belongs to a run's identity.
    digest = hashlib.sha256(file.encode(errors="surrogateescape")).hexdigest()
    return f"{FILE_COPIES}/{digest[:8]}/{os.path.basename(file)}"
