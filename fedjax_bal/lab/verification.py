"""Checks that the files of a run, a sweep or an exported model are intact.

Pages, figures and tables aren't checked, because `fedjax-bal report` rewrites them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.config import LARGEST_YAML, parse_yaml
from fedjax_bal.files import parse_json, read_bytes
from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.folder import POINTS, RunFolder, SweepFolder
from fedjax_bal.lab.model_files import MODEL_FORMATS, model_sums
from fedjax_bal.lab.output_files import LARGEST_FILE, RESTORE, START_OVER, SUMS, FolderError, reading, unreadable

_ORBAX = "_CHECKPOINT_METADATA"  # marks a folder written by Orbax
_CHECKPOINT_REMEDY = "the same command resumes from the one before it, if that is intact"
_NO_SUMS = "missing: a session is running here, or was killed; the same command resumes, and writes it"


class Finding(NamedTuple):
    """A file that was checked.

    Attributes:
        kind: the kind of file: config.yaml, checkpoint, ...
        place: the file.
        damage: describes the damage and the remedy; empty for an intact file.
        remark: describes what could not be checked; empty if everything was.
        unfinished: True if the folder has no checksums because its last session hasn't ended.
    """

    kind: str
    place: str
    damage: str = ""
    remark: str = ""
    unfinished: bool = False


def verify(path: Path) -> Iterator[Finding]:
    """Checks the folder of a run or sweep, or an exported model; trains, unpickles and changes nothing.

    Every file is compared with its checksum in `SHA256SUMS`; a sweep's file also covers its points. Without this file,
    because a session is active or was killed, each file is read: checkpoints have their own checksums, the other files
    must be readable.

    Raises:
        FolderError: the path is none of these, or a file can't be read (its content may be intact).
    """
    run = RunFolder(path)
    sweep = SweepFolder(path)
    # SHA256SUMS identifies the folder even if the file that marks it as a run's or sweep's is missing.
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
        raise FolderError(f"{path}: is not the folder of a run or a sweep, nor an exported model; give one of these")


def _folder(folder: RunFolder | SweepFolder, inner: Iterable[str] = ()) -> Iterator[Finding]:
    """Checks a folder's files, and if it has checksums also the files `inner` in its subfolders."""
    sums = folder.files.sums()
    covered = folder.files.covered_names()
    if sums is None:
        yield Finding(SUMS, str(folder.path / SUMS), remark=_NO_SUMS, unfinished=True)
    for name in covered if sums is None else sorted({*sums, *covered, *inner}):
        saved = "checkpoints/" in name
        (outer, _, last) = name.rpartition("/")
        wrong = _damage(folder, name) if sums is None else folder.files.describe_mismatch(name, sums.get(name))
        remedy = (
            _CHECKPOINT_REMEDY if saved else RESTORE if sums is not None else f"put back a copy of it, or {START_OVER}"
        )
        damage = f"{wrong}; {remedy}" if wrong else ""
        yield Finding("checkpoint" if saved else outer or last, str(folder.path / name), damage)


def _damage(folder: RunFolder | SweepFolder, name: str) -> str:
    """Describes the damage of a file without a checksum; empty if it is intact or has been deleted since."""
    file = folder.path / name
    damaged = []
    with reading(file):
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
        except FolderError:
            raise
        except ValueError as error:
            return f"damaged ({str(error).removeprefix(f'{file}: ')})"
    return "".join(damaged).removeprefix(f"warning: {file}, ")


def _exports(path: Path) -> Iterator[Finding]:
    return map(_model, sorted(path.glob("exports/[!.]*")))


def _model(file: Path) -> Finding:
    """Checks an exported model against its own checksums."""
    kind = "orbax" if file.is_dir() else file.suffix[1:]
    again = "export it again"
    if kind not in MODEL_FORMATS:
        return Finding("export", str(file), remark="not checked: no model that `fedjax-bal export` writes")
    try:
        tensors, about = MODEL_FORMATS[kind].read(file)
        differing = sorted(set(about["sha256"].items()) ^ set(model_sums(tensors, about).items()))
    except ImportError as error:
        return Finding("export", str(file), remark=f"not checked: {error}")
    except Exception as error:  # a flipped byte can make a format's reader raise any exception
        if fault := checkpoint.disk_fault(error):
            raise unreadable(file, fault) from error
        return Finding("export", str(file), f"damaged ({error}); {again}")
    return Finding("export", str(file), f"the checksum of {differing[0][0]} is wrong; {again}" if differing else "")
