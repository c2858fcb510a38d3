"""What a terminal shows: tables in any width, and names that come from elsewhere."""

import io
import json
from typing import NamedTuple

import numpy as np
import pytest
import small_run
from rich.text import Text
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.console import Output, names_table, print_table, replace_control_characters, with_short_names
from fedjax_bal.lab import Progress
from fedjax_bal.report import Table

EVIL = ["\x1b]0;pwned\x07", "\x1b[2J", "\x9b31m", "\x08\x08", "\u202egpj", "\u2066x", "a\rb", "\x7f", "\x00", "\u2028"]
LITERAL = ["a[/x]", "[bold]b[/bold]", "lr:x:1", ":100:", "[link=http://x]y[/link]", "\\[c]", "50%", "名前 é"]


def shown(show, **options):
    """What `show` prints on a console."""
    file = io.StringIO()
    show(Output(file=file, width=200, **options))
    return file.getvalue()


WAYS = {
    "say": lambda text: lambda console: console.say(text),
    "print": lambda text: lambda console: console.print(text),
    "text": lambda text: lambda console: console.print(Text(text)),
    "names": lambda text: lambda console: console.print(names_table([(text, [text, text])])),
    "table": lambda text: lambda console: print_table(Table((text, text), [(text, text)]), console, text, text),
    "lines": lambda text: lambda console: print_table(Table(("m", "x" * 300), [(text, text)]), console, text, text),
    "note": lambda text: lambda console: Progress(console, plain=True).note(text),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EVIL)
def test_no_control_character_of_a_name_is_printed(way, name):
    text = shown(WAYS[way](f"<{name}>"))
    assert not any(letter in text for letter in name if replace_control_characters(letter) != letter)
    assert "<" in text and ">" in text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LITERAL)
def test_markup_and_emoji_names_are_text(way, name):
    assert name in shown(WAYS[way](name))


def test_live_bars_still_move_the_cursor():
    def show(console):
        console.file.isatty = lambda: True
        progress = Progress(console)
        progress.start({0: ("a\x1b[2J", 3)})
        progress.compiling(0)
        progress.stop()

    text = shown(show, force_terminal=True)
    assert "\x1b[" in text and "\x1b[2J" not in text and "a\N{REPLACEMENT CHARACTER}" in text


@pytest.fixture
def evil(tmp_path):
    """A data set with hostile names of classes."""
    rng = np.random.default_rng(0)
    halves = {f"{half}_images": rng.normal(size=(8, 2)).astype(np.float32) for half in ("train", "test")}
    halves |= {f"{half}_labels": np.arange(8) % 2 for half in ("train", "test")}
    np.savez(tmp_path / "evil.npz", **halves, class_names=np.array(["cat\x1b]0;pwned\x07\nx", "[/bold]:x:"]))
    return tmp_path


def test_names_of_classes_are_printed_without_control_characters(evil):
    out = CliRunner().invoke(app, ["data", "prepare", "npz", f"path={evil / 'evil.npz'}", "--check"]).output
    assert "cat\N{REPLACEMENT CHARACTER}]0;pwned" in out and "[/bold]:x:" in out and "\x1b" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "no\x1b[2Jwhere.yaml"],
        ["report", "no\x1b[2Jwhere"],
        ["verify", "no\x1b[2Jwhere"],
        ["run", "dataset.name=\x1b[2J"],
        ["data", "describe", "quickstart", "partition.scheme=\x1b[2J"],
        ["list", "recipes", "\x1b[2J"],
        ["config", "explain", "\x1b[2J"],
        ["data", "prepare", "image_folder", "path=\x1b[2J"],
    ],
    ids=lambda own: " ".join(own[:2]).replace("\x1b", "^"),
)
def test_messages_have_no_control_characters(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "\x1b" not in result.output


def test_files_with_hostile_names_are_verified(tmp_path):
    folder = tmp_path / "model.npz"
    folder.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("\x1b[2J: [/x]")
    (tmp_path / "run" / "exports").mkdir()
    (tmp_path / "run" / "exports" / "a\x1b]0;x\x07[x].npz").write_text(json.dumps({}))
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
    assert result.exit_code == 1 and "\x1b" not in result.output and "]0;x\N{REPLACEMENT CHARACTER}[x]" in result.output


@pytest.mark.slow
def test_a_verbose_sweep_prints_names_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    methods = "[{recipe: fedavg, name: 'a[/x]'}, {recipe: fedavg, name: '[bold]'}]"
    sheet = f"name: mine\nbase: small.yaml\nseeds: [0]\nmethods: {methods}\nexecution: {{devices: 1}}\n"
    (tmp_path / "sweep.yaml").write_text(f"{sheet}sweep: [{{training.rounds: [2]}}]\n")
    result = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--verbose"])
    assert result.exit_code == 0, result.output
    assert "a[/x]" in result.output and "[bold]" in result.output


TABLE = Table(
    ("method", "last 5", "vs a [95%]"), [("a", "70.0 ± 1.0", "-"), ("b" * 60, "75.0 ± 2.0", "+5.0 [+1.0, +9.0]")]
)


class Row(NamedTuple):
    method: str


def console(width):
    return Output(file=io.StringIO(), width=width)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, ["75.0 ± 2.0  +5.0 [+1.0, +9.0]"]),
        (90, ["  75.0          +5.0", " ± 2.0  [+1.0, +9.0]"]),
        (70, ["  last 5: 75.0 ± 2.0", "  vs a [95%]: +5.0 [+1.0, +9.0]"]),
    ],
)
def test_a_table_takes_the_form_for_which_there_is_room(width, expected):
    own = console(width)
    print_table(TABLE, own, "in %", "alpha [0.5]")
    lines = [line.rstrip() for line in own.file.getvalue().splitlines()]
    assert lines[0] == "alpha [0.5]" and max(map(len, lines)) <= width
    assert all(any(line.endswith(text) for line in lines) for text in expected)


def test_a_name_without_a_text_is_listed():
    own = console(80)
    own.print(names_table([("mine", []), ("fedavg", ["The mean."])]))
    assert [line.split() for line in own.file.getvalue().splitlines()] == [["mine"], ["fedavg", "The", "mean."]]


def test_names_are_shortened_to_the_room_there_is():
    def shortened(width, *names):
        return [row.method for row in with_short_names([Row(name) for name in names], console(width))]

    assert [len(shortened(width, "m" * 40)[0]) for width in (120, 90)] == [24, 16]
    alike = ("balanced_softmax+astraea", "balanced_softmax+cbfl")
    assert shortened(90, *alike) == ["balance…+astraea", "balance…max+cbfl"]
    assert shortened(90, "a" * 20 + "b" + "a" * 20, "a" * 41) == ["a" * 20 + "b" + "a" * 20, "a" * 41]
