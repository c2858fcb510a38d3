"""What a terminal shows: tables in any width, and names that come from elsewhere."""

import io

import pytest
from rich.text import Text
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.console import Output, names_table, replace_control_characters
from fedjax_bal.lab import Progress
from fedjax_bal.lab.display import WorkUnit
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
    "table": lambda text: lambda console: console.say(Table(text, (text, text), [(text, text)], text).text(200)),
    "lines": lambda text: lambda console: console.say(Table(text, ("m", "x" * 300), [(text, text)], text).text(200)),
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
        progress.start({0: WorkUnit("a\x1b[2J", "seed 0", 3)})
        progress.compiling(0)
        progress.stop()

    text = shown(show, force_terminal=True)
    assert "\x1b[" in text and "\x1b[2J" not in text and "a\N{REPLACEMENT CHARACTER}" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "no\x1b[2Jwhere.yaml"],
        ["report", "no\x1b[2Jwhere"],
        ["list", "recipes", "\x1b[2J"],
        ["data", "prepare", "image_folder", "path=\x1b[2J"],
    ],
    ids=lambda own: " ".join(own[:2]).replace("\x1b", "^"),
)
def test_messages_have_no_control_characters(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "\x1b" not in result.output


def console(width):
    return Output(file=io.StringIO(), width=width)
