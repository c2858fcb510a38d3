"""Checks every file from which a folder's results can be had again: is it what was written?

Not pages, figures and tables, which `fedjax-bal report` writes again from these files.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.config import LARGEST_YAML, parse_yaml
from fedjax_bal.files import parse_json, read_bytes
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.folder import POINTS, RunFolder, SweepFolder
from fedjax_bal.lab.model_files import MODEL_FORMATS, model_sums
from fedjax_bal.lab.output_files import LARGEST_FILE, PUT_BACK, START_OVER, SUMS, FolderError, unreadable

_ORBAX = "_CHECKPOINT_METADATA"  # by which Orbax knows its folders
_BEFORE = "the same command again goes on from the one before it, if that is whole"
_KILLED = "there is none: a session is going on here, or was killed: the same command again goes on, and writes it"


class Finding(NamedTuple):
    """A file that was checked.

    Attributes:
        kind: config.yaml, checkpoint, ...
        place: the file.
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

    With `SHA256SUMS` every file is compared with its sum, those of a sweep's points with the sweep's. Without, as a
    session is going on or was killed, each file is read: checkpoints have sums of their own, the others must be whole.

    Raises:
        FolderError: it is none of these, or a file can't be read, which says nothing about its content.
    """
    run = RunFolder(path)
    sweep = SweepFolder(path)
    # SHA256SUMS says what there was if the file that makes it a run's or a sweep's folder is missing.
    sealed = run.files.is_sealed()
    if sweep.exists() or (sealed and (path / POINTS).is_dir()):
        points = sweep.points()
        inner = (f"{POINTS}/{point.path.name}/{name}" for point in points for name in point.files.covered_names())
        yield from _folder(sweep, inner)
        for point in points:
            yield from _exports(point.path) if sealed else verify(point.path)
    elif run.exists() or sealed:
        yield from _folder(run)
        yield from _exports(path)
    elif path.suffix[1:] in MODEL_FORMATS or (path / _ORBAX).exists():
        yield _model(path)
    else:
        raise FolderError(f"{path}: is no folder of a run or a sweep, and no exported model; give one of these")


def _folder(folder: RunFolder | SweepFolder, inner: Iterable[str] = ()) -> Iterator[Finding]:
    """Checks a folder's own files, and if it has sums also files of folders in it."""
    sums = folder.files.sums()
    covered = folder.files.covered_names()
    if sums is None:
        yield Finding(SUMS, str(folder.path / SUMS), remark=_KILLED, unfinished=True)
    for name in covered if sums is None else sorted({*sums, *covered, *inner}):
        saved = "checkpoints/" in name
        (outer, _, last) = name.rpartition("/")
        wrong = _damage(folder, name) if sums is None else folder.files.misfit(name, sums.get(name))
        remedy = _BEFORE if saved else PUT_BACK if sums is not None else f"put back a copy of it, or {START_OVER}"
        damage = f"{wrong}; {remedy}" if wrong else ""
        yield Finding("checkpoint" if saved else outer or last, str(folder.path / name), damage)


def _damage(folder: RunFolder | SweepFolder, name: str) -> str:
    """Describes the damage of a file without a sum in `SHA256SUMS`; empty if it is whole, or has been removed since."""
    file = folder.path / name
    damaged = []
    try:
        if name.startswith("checkpoints/"):
            checkpoint.check(file)
        elif name.endswith(".json"):
            parse_json(read_bytes(file, LARGEST_FILE))
        elif name.endswith(".yaml"):
            parse_yaml(read_bytes(file, LARGEST_YAML).decode(), name)
        elif isinstance(folder, RunFolder) and name.endswith(".jsonl"):
            folder.read_metrics(damaged.append)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise unreadable(file, error) from error
    except FolderError:
        raise
    except ValueError as error:
        return f"damaged ({str(error).removeprefix(f'{file}: ')})"
    return "".join(damaged).removeprefix(f"warning: {file}, ")


def _exports(path: Path) -> Iterator[Finding]:
    return map(_model, sorted(path.glob("exports/[!.]*")))


def _model(file: Path) -> Finding:
    """Checks an exported model, which has sums of its own."""
    kind = "orbax" if file.is_dir() else file.suffix[1:]
    again = "export it again"
    if kind not in MODEL_FORMATS:
        return Finding("export", str(file), remark="not checked: no model that `fedjax-bal export` writes")
    try:
        tensors, about = MODEL_FORMATS[kind].read(file)
        differing = sorted(set(about["sha256"].items()) ^ set(model_sums(tensors, about).items()))
    except ImportError as error:
        return Finding("export", str(file), remark=f"not checked: {error}")
    except Exception as error:  # a flipped byte can make a format's reader fail in any way
        if fault := checkpoint.disk_fault(error):
            raise unreadable(file, fault) from error
        return Finding("export", str(file), f"damaged ({error}); {again}")
    return Finding("export", str(file), f"the checksum of {differing[0][0]} is wrong; {again}" if differing else "")
