"""Checks every file from which a folder's results can be had again: is it what was written, and whose is it?

Pages, figures and tables aside, which `fedjax-bal report` writes anew from these files.
"""

import functools
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import Config, ConfigError, is_resolved, load_config, run_digest
from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.checksums import Examined, unsealed
from fedjax_bal.runs.folder import RunFolder
from fedjax_bal.runs.model_files import MODEL_FORMATS, tensor_sums
from fedjax_bal.runs.output_files import FolderError
from fedjax_bal.runs.record import read_confusion, read_pictures
from fedjax_bal.runs.sweep_folder import SweepFolder

_ORBAX = "_CHECKPOINT_METADATA"  # by which Orbax knows its folders
_RUN = re.compile(r"method-(\d{1,9})-seed-(\d{1,19})")
_ROUND = re.compile(r"round-(\d{1,19})\.npz")
_EARLIER = "no checksums: written by an earlier version"
_ANEW = "the same command again writes it anew"
_RETRAINED = "the same command again trains that run from the start"
_COPY = "put back a copy of it"
_OWN_COPY = "put back a copy of config.yaml if that was changed, or else of this file"


class Finding(NamedTuple):
    """A file that was checked.

    Attributes:
        kind: config.yaml, checkpoint, ...
        place: the file, and the line in it.
        damage: what is wrong, and what to do; empty for a whole file.
        remark: what could not be checked; empty if nothing.
    """

    kind: str
    place: str
    damage: str = ""
    remark: str = ""


def verify(path: Path) -> Iterator[Finding]:
    """Checks the folder of a run or of a sweep, or an exported model; trains, unpickles and changes nothing.

    Raises:
        FolderError: it is none of these.
    """
    run, sweep = RunFolder(path), SweepFolder(path)
    if sweep.exists():
        return _sweep(sweep)
    if run.exists():
        return _run(run)
    if path.suffix[1:] in MODEL_FORMATS or (path / _ORBAX).exists():
        return iter([_model(path, None)])
    raise FolderError(f"{path}: is no folder of a run or a sweep, and no exported model; give one of these")


def _sweep(folder: SweepFolder) -> Iterator[Finding]:
    yield _tried("sweep.yaml", folder.path / "sweep.yaml", folder.read_sheet)
    if folder.results.exists():
        try:
            yield from _of_lines(folder.results, folder.examine_results(), _ANEW)
        except FolderError as error:
            yield Finding("results.csv", str(folder.results), str(error).removeprefix(f"{folder.results}: "))
    yield from _objects(folder, ["costs.json"])
    for point in folder.points():
        if point.exists():
            yield from _run(point)


def _run(folder: RunFolder) -> Iterator[Finding]:
    config, damage = _read_config(folder)
    missing = folder.missing_plugins() if damage else []
    remark = f"not compared, as these plug-ins are missing: {', '.join(missing)}; give them with --plugin"
    yield Finding("config.yaml", str(folder.path / "config.yaml"), "" if missing else damage, remark if missing else "")
    rounds: dict[tuple[int, int], int] = {}
    for run, file in _checkpoints(folder):
        found = _checkpoint(file, run, config)
        if not found.damage:
            rounds[run] = max(rounds.get(run, 0), int(file.stem.removeprefix("round-")))
        if file.exists():  # a run that is going on removes older ones
            yield found
    yield from _metrics(folder, config, rounds)
    yield from _objects(folder, ["summary.json", "execution.json", "tracking.json", "pictures/*", "personalised/*"])
    confusion = folder.path / "confusion.npz"
    if confusion.exists():
        yield _tried(confusion.name, confusion, functools.partial(read_confusion, confusion, np.iinfo(np.int32).max))
    for file in sorted(folder.path.glob("exports/[!.]*")):
        yield _model(file, config)


def _read_config(folder: RunFolder) -> tuple[Config | None, str]:
    file = folder.path / "config.yaml"
    try:
        config = load_config(file, recorded=True)
        if is_resolved(file.read_text(encoding="utf-8"), config):
            return config, ""
        reason = "was not written by a run"
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix(f"{file}: ")
    return None, f"{reason}; {_COPY}: without it nothing in the folder is used"


def _checkpoints(folder: RunFolder) -> Iterator[tuple[tuple[int, int], Path]]:
    for file in sorted(folder.path.glob("checkpoints/*/round-*.npz")):
        run = _RUN.fullmatch(file.parent.name)
        if run and _ROUND.fullmatch(file.name):
            yield (int(run[1]), int(run[2])), file


def _checkpoint(file: Path, run: tuple[int, int], config: Config | None) -> Finding:
    try:
        checkpoint.check(file, checkpoint.owners(config, *run) if config else ())
    except checkpoint.CheckpointError as error:
        reason = str(error).removeprefix(f"{file}: ")
        before = "the same command again goes on from the one before it, or from the start"
        return Finding("checkpoint", str(file), f"{reason}; {_OWN_COPY if 'another run' in reason else before}")
    return Finding("checkpoint", str(file))


def _metrics(folder: RunFolder, config: Config | None, rounds: Mapping[tuple[int, int], int]) -> Iterator[Finding]:
    """Checks the lines, and that there is one for each evaluated round up to the checkpoints."""
    file, place_of = folder.path / "metrics.jsonl", operator.itemgetter("method", "seed", "round")
    try:  # of each line only its place is kept
        lines = [own._replace(values=None if own.damage else place_of(own.values)) for own in folder.examine_metrics()]
    except OSError as error:
        yield Finding(file.name, str(file), f"can't be read ({error.strerror}); {_RETRAINED}")
        return
    damaged = any(line.damage for line in lines)  # which is why rounds are missing
    lacking = [] if config is None or damaged else list(_lacking(config, rounds, {line.values for line in lines}))
    yield from (Finding(file.name, str(file), f"{what}; {_RETRAINED}") for what in lacking)
    if lines and not lacking:
        yield from _of_lines(file, lines, _RETRAINED)


def _lacking(config: Config, rounds: Mapping[tuple[int, int], int], seen: Container[tuple[Any, ...]]) -> Iterator[str]:
    for (index, seed), done in rounds.items():
        if index >= len(config.methods):
            continue
        method = config.for_method(index)
        due = method.evaluation.options.rounds(done, method.training.rounds)
        first = next((round for round in due if (method.name, seed, round) not in seen), None)
        if first is not None:
            yield f"lacks round {first} of {method.name}, seed {seed}"


def _of_lines(file: Path, lines: Sequence[Examined], remedy: str) -> Iterator[Finding]:
    """A finding for each damaged line, or one for the whole file."""
    damaged = [line for line in lines if line.damage]
    yield from (Finding(file.name, line.place, f"{line.damage}; {remedy}") for line in damaged)
    if not damaged:
        without = sum(not line.has_checksum for line in lines)
        few = f"{without} of {len(lines)} lines have no checksum: written by an earlier version"
        yield Finding(file.name, str(file), remark=_EARLIER if without == len(lines) else few if without else "")


def _objects(folder: RunFolder | SweepFolder, patterns: Sequence[str]) -> Iterator[Finding]:
    """Checks files of one object, and pictures."""
    for file in sorted(file for pattern in patterns for file in folder.path.glob(pattern)):
        kind = file.name if file.parent == folder.path else file.parent.name
        if file.suffix == ".json":
            own = folder.files.examine_json(str(file.relative_to(folder.path)))
            damage = f"{own.damage}; {_ANEW}" if own.damage else ""
            yield Finding(kind, str(file), damage, "" if damage or own.has_checksum else _EARLIER)
        elif file.suffix == ".npz" and not file.name.startswith("."):
            yield _tried(kind, file, functools.partial(read_pictures, file, np.iinfo(np.int32).max))


def _tried(kind: str, file: Path, read: Callable[[], object]) -> Finding:
    """Reads a file whose reader says what is wrong and what to do."""
    try:
        read()
    except FolderError as error:
        return Finding(kind, str(file), str(error).removeprefix(f"{file}: "))
    return Finding(kind, str(file))


def _model(file: Path, config: Config | None) -> Finding:
    """Checks an exported model, and that it is of this configuration's runs, if there is one."""
    kind, again = ("orbax" if file.is_dir() else file.suffix[1:]), "export it again"
    if kind not in MODEL_FORMATS:
        return Finding("export", str(file), remark="not checked: no model that `fedjax-bal export` writes")
    try:
        tensors, sealed = MODEL_FORMATS[kind].read(file)
        about: Any = unsealed(sealed)
        sums = about.get("sha256")
        differing = sorted(set(sums.items()) ^ set(tensor_sums(tensors).items())) if sums else []
    except ImportError as error:
        return Finding("export", str(file), remark=f"not checked: {error}")
    except Exception as error:  # a flipped byte can make a format's reader fail in any way
        return Finding("export", str(file), f"damaged ({error}); {again}")
    if differing:
        return Finding("export", str(file), f"the checksum of {differing[0][0]} is wrong; {again}")
    if config and sums and about.get("run_sha256") != run_digest(config):
        return Finding("export", str(file), f"belongs to another run; {_OWN_COPY}")
    return Finding("export", str(file), remark="" if sums else _EARLIER)
