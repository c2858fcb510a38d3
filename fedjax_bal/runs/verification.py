"""Checks every file from which a folder's results can be had again: is it what was written, and whose is it?

Pages, figures and tables aside, which `fedjax-bal report` writes anew from these files.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.config import LARGEST_YAML, Config, ConfigError, is_resolved, load_config, run_digest
from fedjax_bal.files import open_file, parse_json, read_bytes
from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.checksums import SUMS
from fedjax_bal.runs.folder import POINTS, RunFolder
from fedjax_bal.runs.model_files import MODEL_FORMATS, model_sums
from fedjax_bal.runs.output_files import PUT_BACK, START_OVER, FolderError, unreadable
from fedjax_bal.runs.sweep_folder import SweepFolder

_ORBAX = "_CHECKPOINT_METADATA"  # by which Orbax knows its folders
_CHECKPOINT = re.compile(r"checkpoints/method-(\d{1,9})-seed-(\d{1,19})/round-\d{1,19}\.npz")
_KILLED = "a session is going on here, or was killed: the same command again goes on, and writes it when it ends"
_COPY = "put back a copy of it"
_OWN_COPY = "put back a copy of config.yaml if that was changed, or else of this file"


class Finding(NamedTuple):
    """A file that was checked.

    Attributes:
        kind: config.yaml, checkpoint, ...
        place: the file, and the line in it.
        damage: what is wrong, and what to do; empty for a whole file.
        remark: what could not be checked; empty if nothing.
        unfinished: whether this says that the folder's last session hasn't ended, so that it has no sums.
    """

    kind: str
    place: str
    damage: str = ""
    remark: str = ""
    unfinished: bool = False


def verify(path: Path) -> Iterator[Finding]:
    """Checks the folder of a run or of a sweep, or an exported model; trains, unpickles and changes nothing.

    Raises:
        FolderError: it is none of these, or a file can't be read, which says nothing about its content.
    """
    run, sweep = RunFolder(path), SweepFolder(path)
    sealed = (
        run.files.is_sealed()
    )  # which says what there was, if the file that makes it a run's or a sweep's is missing
    if sweep.exists() or (sealed and (path / POINTS).is_dir()):
        return _sweep(sweep)
    if run.exists() or sealed:
        return _run(run)
    if path.suffix[1:] in MODEL_FORMATS or (path / _ORBAX).exists():
        return iter([_model(path, None)])
    raise FolderError(f"{path}: is no folder of a run or a sweep, and no exported model; give one of these")


def _sweep(folder: SweepFolder) -> Iterator[Finding]:
    sums = folder.files.sums()
    inner = {name: digest for name, digest in (sums or {}).items() if name.startswith(f"{POINTS}/")}
    if sums is None:
        yield Finding(SUMS, str(folder.path / SUMS), remark=f"there is none: {_KILLED}", unfinished=True)
        for name in folder.files.covered_names():
            yield Finding(name, str(folder.path / name), _unreadable_as_text(folder.path / name))
    else:
        for name in sorted({*sums, *folder.files.covered_names()} - inner.keys()):
            yield _compared(name, folder, sums)
    for point in folder.points():
        yield from _run(point, in_sweep=sums is None)
        # Their own sums are compared above; these must be the same, or the point isn't that of the sweep's table.
        own = f"{POINTS}/{point.path.name}"
        listed = {name: inner.pop(name) for name in list(inner) if name.startswith(f"{own}/")}
        here = {f"{own}/{name}": digest for name, digest in (point.files.sums() or {}).items()}
        if sums is not None and listed != here:
            what = f"is not as listed in the sweep's {SUMS}: the same command again brings both together, or {_COPY}"
            yield Finding("point", str(point.path / SUMS), what)
    for label in dict.fromkeys(name.split("/")[1] for name in inner):
        yield Finding("point", str(folder.point(label).path), f"is missing, but listed in {SUMS}; {PUT_BACK}")


def _run(folder: RunFolder, *, in_sweep: bool = False) -> Iterator[Finding]:
    """Checks a run's folder; `in_sweep` if it is a point of a sweep whose session hasn't ended."""
    config, damage = _read_config(folder)
    missing = folder.missing_plugins() if damage else []
    remark = f"not compared, as these plug-ins are missing: {', '.join(missing)}; give them with --plugin"
    sums = folder.files.sums()
    names = {*(sums or {}), *folder.files.covered_names()}
    rounds: dict[tuple[int, int], int] = {}
    for name in sorted(names, key=lambda name: (name != "config.yaml", name)):
        file, saved = folder.path / name, _CHECKPOINT.fullmatch(name)
        own = Finding("config.yaml", str(file), "" if missing else damage, remark if missing else "")
        own = own if name == "config.yaml" else Finding(_kind(name), str(file))
        if saved and file.exists():
            run = int(saved[1]), int(saved[2])
            own = _checkpoint(file, run, config)
            if not file.exists():  # a run that is going on removes older ones
                continue
            if not own.damage:
                rounds[run] = max(rounds.get(run, 0), checkpoint.round_of(file))
        if sums is None and not own.damage and not saved:
            own = own._replace(damage=_unreadable_as_text(file))
        elif sums is not None and not own.damage:
            compared = _compared(name, folder, sums)
            own = own._replace(damage=compared.damage) if compared.damage else own
        yield own
    if sums is None:
        yield from _unended(folder, config, rounds, in_sweep=in_sweep)
    for file in sorted(folder.path.glob("exports/[!.]*")):
        yield _model(file, config)


def _compared(name: str, folder: RunFolder | SweepFolder, sums: Mapping[str, str]) -> Finding:
    """Compares a file with its sum."""
    wrong = folder.files.misfit(name, sums.get(name))
    return Finding(_kind(name), str(folder.path / name), f"{wrong}; {PUT_BACK}" if wrong else "")


def _kind(name: str) -> str:
    outer, _, last = name.rpartition("/")
    return "checkpoint" if outer.startswith("checkpoints/") else outer or last


def _unreadable_as_text(file: Path) -> str:
    """What is wrong with a JSON file that has no sum; empty for any other file, and for one that is no longer there."""
    try:
        if file.suffix == ".json":
            with open_file(file) as stream:
                parse_json(stream.read())
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise unreadable(file, error) from error
    except ValueError as error:
        return f"damaged ({error}); {_COPY}, or {START_OVER}"
    return ""


def _unended(
    folder: RunFolder, config: Config | None, rounds: Mapping[tuple[int, int], int], *, in_sweep: bool
) -> Iterator[Finding]:
    """What can be said of a folder without `SHA256SUMS`, whose whole checkpoints are of these rounds."""
    file, seen, damaged = folder.path / "metrics.jsonl", set(), False
    for line in folder.examine_metrics():
        if line.damage:
            damaged = True
            yield Finding(file.name, line.place, f"{line.damage}; {_COPY}, or {START_OVER}")
        else:  # of each line only its place is kept
            seen.add((line.values["method"], line.values["seed"], line.values["round"]))
    methods = [config.for_method(index) for index in range(len(config.methods))] if config else []
    finished = bool(methods) and not damaged
    for (index, method), seed in itertools.product(enumerate(methods), config.seeds if config else ()):
        due = method.evaluation.options.rounds(rounds.get((index, seed), 0), method.training.rounds)
        lacking = next((round for round in due if (method.name, seed, round) not in seen), None)
        if lacking is not None and not damaged:  # or else that is why
            what = f"lacks round {lacking} of {method.name}, seed {seed}; {_COPY}, or {START_OVER}"
            yield Finding(file.name, str(file), what)
        finished = finished and (method.name, seed, method.training.rounds) in seen
    if finished and not in_sweep:
        what = f"is missing, though all runs are finished: {_COPY}; the same command again checks them, and writes it"
        yield Finding(SUMS, str(folder.path / SUMS), what)
    else:
        yield Finding(SUMS, str(folder.path / SUMS), remark=f"there is none: {_KILLED}", unfinished=True)


def _read_config(folder: RunFolder) -> tuple[Config | None, str]:
    file = folder.path / "config.yaml"
    try:
        text = read_bytes(file, LARGEST_YAML).decode()
        config = load_config(file, recorded=True)
        if is_resolved(text, config):
            return config, ""
        reason = "was not written by a run"
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        _raise_disk_fault(file, error)
        reason = (isinstance(error, OSError) and error.strerror) or str(error).removeprefix(f"{file}: ")
    return None, f"{reason}; {_COPY}: without it nothing in the folder is used"


def _checkpoint(file: Path, run: tuple[int, int], config: Config | None) -> Finding:
    try:
        whole = checkpoint.check(file, checkpoint.owner(config, *run) if config else None)
    except (checkpoint.CheckpointError, checkpoint.StateError) as error:
        before = "the same command again goes on from the one before it, if that is whole"
        return Finding("checkpoint", str(file), f"{str(error).removeprefix(f'{file}: ')}; {before}")
    except FileNotFoundError:
        return Finding("checkpoint", str(file))
    except OSError as error:
        raise unreadable(file, error) from error
    return Finding("checkpoint", str(file), "" if whole else f"belongs to another run; {_OWN_COPY}")


def _raise_disk_fault(file: Path, error: Exception) -> None:
    """Raises `FolderError` if a reader's error is that the file can't be read for the moment."""
    if fault := checkpoint.disk_fault(error):
        raise unreadable(file, fault) from error


def _model(file: Path, config: Config | None) -> Finding:
    """Checks an exported model, and that it is of this configuration's runs, if there is one."""
    kind, again = ("orbax" if file.is_dir() else file.suffix[1:]), "export it again"
    if kind not in MODEL_FORMATS:
        return Finding("export", str(file), remark="not checked: no model that `fedjax-bal export` writes")
    try:
        tensors, about = MODEL_FORMATS[kind].read(file)
        sums: Any = about["sha256"]
        differing = sorted(set(sums.items()) ^ set(model_sums(tensors, about).items()))
    except ImportError as error:
        return Finding("export", str(file), remark=f"not checked: {error}")
    except Exception as error:  # a flipped byte can make a format's reader fail in any way
        _raise_disk_fault(file, error)
        return Finding("export", str(file), f"damaged ({error}); {again}")
    if differing:
        return Finding("export", str(file), f"the checksum of {differing[0][0]} is wrong; {again}")
    if config and about.get("run_sha256") != run_digest(config):
        return Finding("export", str(file), f"belongs to another run; {_OWN_COPY}")
    return Finding("export", str(file))
