"""The files that a configuration names: their SHA-256, which a run records, and copies of small ones."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_bal.config import PATHS, Config, ConfigError, dump_yaml, parse_yaml
from fedjax_bal.files import read_bytes
from fedjax_bal.lab.output_files import reading, sha256

FILE_COPIES = "files"
"""The subfolder of a run's or sweep's folder for copies of weights, partitions and traces."""

_LARGEST_COPY = 2**24  # bytes
_SHA256 = re.compile("[0-9a-f]{64}")
_KEYS = (*PATHS.items(), ("dataset", "path"), ("dataset", "test"))  # sections, and their keys for a file


def named_files(config: Config, data_dir: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Returns the absolute paths of the existing files and folders that a configuration names, by key.

    A relative `dataset.path` starts from `data_dir`, or without one from the current folder; `dataset.test`, if it is a
    file, from the folder of that path.
    """
    named = {}
    for index, method in enumerate(config.methods):
        for name, key in _KEYS:
            section = getattr(method, name)
            file = getattr(section, key, None)
            if not isinstance(file, str | os.PathLike):  # `dataset.test` may be a share
                continue
            start = os.path.dirname(section.path) if key == "test" else ""
            path = os.path.abspath(os.path.join(data_dir or "", start, file))
            own = "" if section == getattr(config, name) else f"methods.{index}."
            if os.path.exists(path):  # an absent one is reported when it is read
                named[f"{own}{name}.{key}"] = path
    return named


def content_digest(path: str) -> str:
    """Returns the SHA-256 of a file; of a folder that of the names and digests of all files in it, except hidden ones.

    Raises `FolderError` if one can't be read.
    """
    folder = Path(path)
    with reading(folder):
        if not folder.is_dir():
            return sha256(folder)
        inner = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
        shown = [file for file in inner if not any(part.startswith(".") for part in file.parts)]
        lines = [f"{sha256(folder / file)}  {file.as_posix()}\n" for file in shown]
        return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def check_digests(
    named: Mapping[str, str], digests: Mapping[str, str], recorded: Mapping[str, str], remedy: str
) -> None:
    """Raises `ConfigError` if a file has another content than was recorded; accepts everything if nothing was.

    A file that isn't listed must have one of the digests: it may have been moved.

    Args:
        named: paths by key, see `named_files`.
        digests: their SHA-256, by path.
        recorded: the SHA-256 of a run's files, by the paths that they had then.
        remedy: the end of the message.

    Example:
        >>> check_digests({"model.weights": "/new/w.npz"}, {"/new/w.npz": "ab"}, {"/old/w.npz": "ab"}, "")
        >>> check_digests({"model.weights": "/w.npz"}, {"/w.npz": "cd"}, {"/w.npz": "ab"}, "put it back")
        Traceback (most recent call last):
        fedjax_bal.config.errors.ConfigError: model.weights: /w.npz has the SHA-256 cd, recorded was ab; put it back
    """
    for key, path in named.items() if recorded else ():
        wanted = [recorded[path]] if path in recorded else list(dict.fromkeys(recorded.values()))
        if digests[path] not in wanted:
            was = " or ".join(wanted)
            raise ConfigError(f"{key}: {path} has the SHA-256 {digests[path]}, recorded was {was}; {remedy}")


def small_files(configs: Iterable[Config]) -> dict[str, bytes]:
    """Returns the content of the recorded files of configurations, by their names in a folder of copies.

    Data sets and large files are left out.
    """
    copies = {}
    for config in configs:
        for key, path in named_files(config).items() if config.files else ():
            digest = config.files.get(path)
            if "dataset." in key or digest is None or os.path.getsize(path) > _LARGEST_COPY:
                continue
            content = read_bytes(path, _LARGEST_COPY)
            if hashlib.sha256(content).hexdigest() == digest:
                copies[_copy_name(path, digest)] = content
    return copies


def with_copies(folder: Path, sheet: Mapping[str, Any], text: str) -> str:
    """Replaces the paths in a configuration's text by those of the copies in a folder, relative to it."""
    recorded = sheet.get("files")
    if not isinstance(recorded, dict):
        return text
    digests = {path: digest for path, digest in recorded.items() if _SHA256.fullmatch(str(digest))}
    copies = {path: f"{FILE_COPIES}/{_copy_name(path, digest)}" for path, digest in digests.items()}
    there = {path: copy for path, copy in copies.items() if (folder / copy).is_file()}
    return dump_yaml(_replaced(sheet, there)) if there else text


def _copy_name(path: str, digest: str) -> str:
    """The name of a copy, in a subfolder, because files of different folders may have the same name."""
    return f"{digest[:8]}/{os.path.basename(path)}"


def _replaced(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(key, key): _replaced(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def with_files(text: str, files: Mapping[str, str]) -> str:
    """Returns the text of a sweep with the SHA-256 of its files."""
    sheet = parse_yaml(text, "sweep.yaml")
    axes = sheet.pop("sweep")
    return dump_yaml({**sheet, "files": dict(files), "sweep": axes})
