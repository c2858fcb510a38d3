"""Every message that a test catches: compared with the recorded one, or noted where messages are recorded anew.

A message belongs to the name of its test and the test's parameters, wherever the file is. What differs between machines
is taken out, and messages in the words of Python or of a library are left out.
"""

import functools
import importlib.util
import inspect
import json
import os
import re
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import texts
from hypothesis import currently_in_test_context
from typer.testing import CliRunner

NOTES = "FEDJAX_BAL_GOLDEN_NOTES"
"""The environment variable that names a folder in which messages are noted instead of compared."""

PACKAGE = os.path.dirname(importlib.util.find_spec("fedjax_bal").origin) + os.sep  # which must not be imported yet
FOLDER = texts.FOLDER / "messages"
HEAD = """The messages that tests catch, by test, one after each hyphen.
Between those of several tests of the same name stands "or"."""
LEFT_OUT = "(empty, or in words of Python or of a library)"
_FOREIGN = r"Tracer|[Rr]eceived [A-Z]\w*(Error|Exception|Warning)\b|Errno|Traceback|Usage: "
_QUOTED = (
    "Expecting|Overlapped entries|'utf-8' codec|maximum recursion|Stack overflow|Exceeds the limit|Bad CRC|Bad magic|"
    "Compressed file|RuntimeError|address already in use|\\('(unexpected )?EOF"
)
_NORMAL = (
    (rf"{re.escape(os.path.realpath(tempfile.gettempdir()))}/tmp\w+", "TMP"),
    (r"(not YAML: )(Python int|chr\(\)).*", r"\1(...)"),
    (r"(open: )?embedded null (byte|character in path)", "(...)"),
    (r"\b0x[0-9a-f]{6,}", "ADDRESS"),
    (r"\bPython \d+\.\d+\.\d+", "Python #"),
    (r"127\.0\.0\.1(:|', )\d+", r"127.0.0.1\1PORT"),
    (r"[\d.]+ (Gi?B (on the host|of memory are available|are free \())", r"# \1"),
    (r"handler-[0-9a-f]{16}", "handler-#"),
    (r"a difference of \d[\d.e+-]*", "a difference of #"),
    (r"Image size \(.* DOS attack\.", "(...)"),
    (r"Decompressed [Dd]ata [^;]*", "(...)"),
    (r"(malformed node or string)[^;]*", r"\1 (...)"),
    (rf"\(({_QUOTED}).*\)", "(...)"),
    (r"\['(w\d)'\]", r"\1"),  # a key of a pytree, which jax 0.12 quotes
    (r"[^\n -~\xa1-\u2027\u202a-\U0010ffff]", lambda found: f"\\x{ord(found[0]):02x}"),
    (r" +(?=\n|$)", ""),
)
"""What is put in place of what differs between machines, or is quoted."""
_HELPS = re.compile(r"^def (?!test_)(.|\n)*raises\(")


class _Test:
    """The test that runs, how many messages it has caught, and what its temporary folders are called."""

    item: Any = None
    caught = 0
    folder = re.compile("")


@pytest.fixture(autouse=True)
def _messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Says whose messages are caught."""
    _Test.item, _Test.caught = request.node, 0
    _Test.folder = re.compile(rf"{re.escape(str(tmp_path_factory.getbasetemp()))}/[^/\s'\",:;)]+")
    yield
    _Test.item = None


class _Expected:
    """What `pytest.raises` returns, and a look at the message before the test goes on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __enter__(self) -> Any:
        self.caught = self.inner.__enter__()
        return self.caught

    def __exit__(self, *error: Any) -> bool:
        expected = bool(self.inner.__exit__(*error))
        if expected and traceback.extract_tb(self.caught.tb)[-1].filename.startswith(PACKAGE):
            _meet(str(self.caught.value))
        return expected


def _raises(*arguments: Any, **options: Any) -> Any:
    context = _Test.raises(*arguments, **options)
    return _Expected(context) if len(arguments) < 2 else context  # with two it has called a function


def _invoke(*arguments: Any, **options: Any) -> Any:
    result = _Test.invoke(*arguments, **options)
    if result.exit_code == 2:
        _meet(" ".join(result.output.split()))
    return result


if pytest.raises is not _raises:
    _Test.raises, _Test.invoke = staticmethod(pytest.raises), staticmethod(CliRunner.invoke)
    pytest.raises = _raises
    CliRunner.invoke = lambda self, *arguments, **options: _invoke(self, *arguments, **options)


def _meet(text: str) -> None:
    """Compares a message with the one recorded for this place of this test, or notes it.

    Messages about values that hypothesis draws are left out.
    """
    if _Test.item is None or currently_in_test_context():
        return
    key, place, text = _Test.item.name, _Test.caught, _Test.folder.sub("TMP", text)
    _Test.caught += 1
    if folder := os.environ.get(NOTES):
        with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([_Test.item.nodeid, key, text]) + "\n")
        return
    text = _normal(text)
    known = [own[place] for own in _recorded().get(key, []) if place < len(own)]
    if known and text not in known:
        lines = [f"  {mark} {line}" for mark, own in (("-", known[0]), ("+", text)) for line in own.split("\n")]
        raise AssertionError("\n".join([f"{key}: another message than the one recorded in {FOLDER}", *lines]))


def _normal(text: str) -> str:
    for pattern, word in _NORMAL:
        text = re.sub(pattern, word, text)
    return LEFT_OUT if not text or re.search(_FOREIGN, text) else text


@functools.cache
def _recorded() -> dict[str, list[list[str]]]:
    """For each test, the messages of each test of that name."""
    records = (texts.read(f"messages/{file.name}") for file in sorted(FOLDER.glob("*.txt")))
    return {key: _parsed(lines) for record in records for key, lines in record.items()}


def _parsed(lines: Iterable[str]) -> list[list[str]]:
    tests: list[list[str]] = [[]]
    for line in lines:
        if line == "or":
            tests.append([])
        elif line.startswith("- "):
            tests[-1].append(line[2:])
        else:
            tests[-1][-1] += "\n" + line[2:]
    return tests


def _rendered(tests: Iterable[list[str]]) -> list[str]:
    blocks = ["\n".join("- " + text.replace("\n", "\n  ") for text in own) for own in tests]
    return "\nor\n".join(blocks).split("\n")


def records(notes: Path) -> dict[str, texts.Record]:
    """What was noted, by file: the one that holds a test's messages already, or that of its part of the package."""
    kept = {key: file.name for file in FOLDER.glob("*.txt") for key in texts.read(f"messages/{file.name}")}
    tests: dict[tuple[str, str], list[str]] = {}
    for file in notes.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            test, key, text = json.loads(line)
            tests.setdefault((key, test), []).append(_normal(text))
    found: dict[str, dict[str, list[list[str]]]] = {}
    for (key, test), own in sorted(tests.items()):
        if set(own) != {LEFT_OUT}:
            known = found.setdefault(kept.setdefault(key, _area(test)), {}).setdefault(key, [])
            known += [own] if own not in known else []
    return {file: {key: _rendered(own) for key, own in record.items()} for file, record in sorted(found.items())}


def _area(test: str) -> str:
    """The file for a test at `tests/engine/test_stack.py::...` or `tests/test_cli.py::...`."""
    path = Path(test.partition("::")[0].partition("tests/")[2])
    return f"{path.parts[0].removeprefix('test_').removesuffix('.py')}.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves only tests that catch something; asked for by the recorder, which loads this module as a plugin."""
    if os.environ.get(NOTES):
        items[:] = [item for item in items if _catches(getattr(item, "function", None))]


def _catches(test: Any) -> bool:
    """Whether a test, or a function that its file has for its tests, looks like catching something."""
    if test is None:
        return False
    test = inspect.unwrap(test)
    source, file = inspect.getsource(test), inspect.getsource(inspect.getmodule(test))
    helpers = [part for part in re.split(r"^(?=def |class |@)", file, flags=re.M) if not part.startswith("def test_")]
    return bool(re.search(r"raises\(|invoke\(|exit_code", source)) or any(_HELPS.search(part) for part in helpers)
