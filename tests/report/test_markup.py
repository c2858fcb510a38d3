"""The command that a page offers for pasting."""

import html
import re
import subprocess

import pytest

from fedjax_bal.report.markup import Picture, _figures, reproduction

pytestmark = pytest.mark.slow

WORDS = ["fedjax-bal", "run", "config.yaml"]


def shown(config, given):
    return reproduction("run", "config.yaml", config, given, "name: x")[1]


def pasted(config, given):
    """The arguments that a shell passes on when the command is pasted into it."""
    (text,) = re.findall(r"<pre>(.*)</pre><details>", shown(config, given), re.DOTALL)
    shell = f"printf '%s\\0' {html.unescape(text)}"
    return subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", ["x; touch pwned #", "$(touch pwned)", "`touch pwned`", "x' ; touch pwned '", "-x;y"])
def test_the_name_of_a_plugin_is_one_word(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pasted({"plugins": {name: "0"}}, None) == [*WORDS, "--plugin", f"{name}.py"]
    assert not list(tmp_path.iterdir())


def test_what_a_terminal_would_act_on_is_left_out():
    for name in ("x\ntouch pwned", "\x1b[201~"):
        assert pasted({"plugins": {"mine": "0"}}, {"plugins": [name], "data_dir": name}) == WORDS


@pytest.mark.parametrize("name", ["it's mine", "a b", "x; touch pwned", "$HOME", "*"])
def test_the_folder_of_data_is_one_word(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pasted({}, {"plugins": [], "data_dir": f"/data/{name}"}) == [*WORDS, "--data-dir", f"/data/{name}"]
    assert not list(tmp_path.iterdir())


def test_files_of_plugins_are_given_where_they_are_known():
    given = {"plugins": ["/home/me/my plug.py", "package.module"], "data_dir": None}
    assert pasted({"plugins": {"my plug": "0", "package": "1"}}, given) == [
        *WORDS, "--plugin", "/home/me/my plug.py", "--plugin", "package.module",
    ]  # fmt: skip
    assert pasted({"plugins": {"mine": "0"}}, None) == [*WORDS, "--plugin", "mine.py"]
    assert pasted({}, None) == pasted({"plugins": "damaged"}, None) == WORDS


def test_a_figure_without_a_neighbour_in_its_row_has_its_caption_there():
    wide = (False, True, False, False, False)
    shown = _figures([Picture(f"pictures-{place}", "a", "b", "<svg/>", own) for place, own in enumerate(wide)])
    assert re.findall(r"<figure(?: class=(\w+))?>", shown) == ["alone", "wide", "", "", "alone"]
    assert shown.count("<img class=photo ") == 5 and _figures([]) == ""
