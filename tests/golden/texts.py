"""Records as text: sections of lines, compared line by line, numbers to a tolerance."""

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "records"
INDENT = "    "

Record = dict[str, list[str]]
"""By section, its lines."""

Alike = Callable[[str, str], bool]
"""Whether a new line says the same as a recorded one."""


def read(name: str) -> Record:
    """A record; empty where there is none."""
    file = FOLDER / name
    lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n") if file.exists() else []
    record: Record = {}
    own: list[str] = []
    for line in lines:
        if line.startswith(INDENT) or not line:
            own.append(line.removeprefix(INDENT))
        elif not line.startswith("#"):
            own = record[line] = []
    return record


def write(name: str, head: str, record: Record) -> None:
    """Writes a record, below a head of comments; one without sections is removed."""
    file = FOLDER / name
    if not record:
        file.unlink(missing_ok=True)
        return
    lines = [f"# {line}" for line in head.splitlines()]
    for section, own in record.items():
        lines += [section, *((INDENT + line).rstrip() for line in own)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def settled(old: Record, new: Record, alike: Alike) -> Record:
    """The new record with the old one's line wherever both say the same, so that rounding changes no file."""

    def settle(section: str) -> list[str]:
        known: dict[str, list[str]] = {}
        for line in reversed(old.get(section, [])):
            known.setdefault(_masked(line), []).append(line)
        pairs = ((known[_masked(line)].pop() if known.get(_masked(line)) else line, line) for line in new[section])
        return [before if alike(before, line) else line for before, line in pairs]

    return {section: settle(section) for section in new}


def _masked(line: str) -> str:
    """A line without its numbers."""
    return re.sub(r"(?<!\w)-?\d[\d.]*(e[+-]\d+)?(?!\w)", "#", line)


def differences(name: str, old: Record, new: Record) -> list[str]:
    """What differs, each as the name of the record and section, then lines as they were and as they are."""
    found = []
    for section in dict.fromkeys([*old, *new]):
        changed = list(_changes(old.get(section, []), new.get(section, [])))
        what = " (is new)" if section not in old else " (is gone)" if section not in new else ""
        if changed or what:
            found.append("\n".join([f"{name}, {section}{what}", *changed]))
    return found


def _changes(old: list[str], new: list[str]) -> Iterable[str]:
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = ([f"  {mark} {line}" for line in own] for mark, own in (("-", old[a:b]), ("+", new[c:d])))
        if kind != "equal":
            # Of lines that came in place of as many others each stands below its own.
            yield from itertools.chain(*zip(gone, come, strict=True)) if len(gone) == len(come) else gone + come


def numbers_alike(old: str, new: str, tolerance: float) -> bool:
    """Whether two lines agree to a tolerance, as `difference` measures it."""
    return difference(old, new) <= tolerance


def difference(old: str, new: str) -> float:
    """The largest difference of two lines' numbers, relative to each one's size or the line's scale.

    The scale of a line `name dtype[shape]: norm; entries` is the root mean square of the array; that of any other is
    its largest number. Lines that differ in anything else are infinitely different.
    """
    words = [re.split(r"[\s;]+", line) for line in (old, new)]
    if len(words[0]) != len(words[1]):
        return math.inf
    pairs = [(_number(a), _number(b)) for a, b in zip(*words, strict=True) if a != b]
    floor = _scale(old)
    return max((_relative(a, b, floor) for a, b in pairs), default=0.0)


def _relative(a: float | None, b: float | None, floor: float) -> float:
    if a is None or b is None:
        return math.inf
    scale = max(abs(a), floor)
    return abs(a - b) / scale if scale else math.inf if b else 0.0


def _scale(line: str) -> float:
    shape = re.search(r"\[([\d,]*)\]: ([^;]*);", line)
    if shape is None:
        values = (_number(word) for word in line.split())
        return max((abs(value) for value in values if value is not None), default=0.0)
    size = math.prod(int(side) for side in shape[1].split(",") if side)
    return float(shape[2]) / math.sqrt(max(size, 1))


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
