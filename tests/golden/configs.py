"""What the configurations that come with the package resolve to, as a run folder's config.yaml would hold it."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import registered
import yaml
from golden import texts

from fedjax_bal.config import load_config
from fedjax_bal.config.resolved import resolved_yaml
from fedjax_bal.lab.sweep_plan import load_sweep

ROOT = Path(__file__).parents[2] / "configs"
FOLDERS = sorted({file.parent.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.yaml")})
HEAD = """What the configurations in configs/{folder} resolve to: the first one in full, of each other one what differs
from the nearest above it; "absent" is what it lacks. The digest is of the whole text, order of keys included."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def file_of(folder: str) -> str:
    """Where the configurations of a folder are recorded."""
    return f"configs/{'top' if folder == '.' else folder.replace('/', '-')}.txt"


def head(folder: str) -> str:
    """What stands at the top of a record."""
    return HEAD.format(folder="" if folder == "." else folder)


def record(folder: str) -> texts.Record:
    """The record of a folder's files; a sweep has an entry for each of its points."""
    trees: dict[str, dict[str, str]] = {}
    found: texts.Record = {}
    for name, text in _resolved(folder):
        own, digest = _leaves(yaml.load(text, _LOADER)), hashlib.sha256(text.encode()).hexdigest()[:16]
        told = {known: _differences(tree, own) for known, tree in trees.items()}
        nearest = min(told, key=lambda known: len(told[known]), default=None)
        lines = _differences({}, own) if nearest is None else [f"as {nearest}, but", *told[nearest]]
        found[name], trees[name] = [f"digest: {digest}", *lines], own
    return found


def _differences(known: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    lines = [f"{key}: {value}" for key, value in own.items() if known.get(key) != value]
    prefixes = {prefix for key in own for prefix in _prefixes(key)}
    gone = (
        next((prefix for prefix in _prefixes(key) if prefix not in prefixes), key) for key in known if key not in own
    )
    return lines + [f"{key}: absent" for key in dict.fromkeys(gone)]


def _prefixes(key: str) -> list[str]:
    """`a.b.c` as `a`, `a.b` and `a.b.c`."""
    return [*itertools.accumulate(key.split("."), "{}.{}".format)]


def _resolved(folder: str) -> Iterator[tuple[str, str]]:
    registered.load_included()
    for file in sorted((ROOT / folder).glob("*.yaml")):
        if "sweep" not in yaml.load(file.read_text(encoding="utf-8"), _LOADER):
            yield file.name, resolved_yaml(load_config(file))
            continue
        for point in load_sweep(file).points:
            # Files beside a configuration have absolute paths once it is read.
            yield f"{file.name}, {point.label}", resolved_yaml(point.config).replace(f"{file.parent}/", "")


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """The values of a tree as JSON, by dotted path."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping) or not value:
        return {path.removeprefix("."): json.dumps(value, ensure_ascii=False)}
    return {key: leaf for name, below in value.items() for key, leaf in _leaves(below, f"{path}.{name}").items()}
