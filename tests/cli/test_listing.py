from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.listing import PAGES

GUIDE = sorted(file.stem for file in PAGES.glob("*.md"))


def test_all_pages_of_the_guide_are_listed():
    listed = CliRunner().invoke(app, ["guide"]).output
    pages = [line.split()[0] for line in listed.splitlines()]
    assert sorted(pages) == GUIDE and pages[0] == "getting_started"


def test_an_unknown_page_is_a_message():
    refused = CliRunner().invoke(app, ["guide", "sped"])
    assert refused.exit_code == 2 and "did you mean 'speed'?" in refused.output


def test_methods_are_listed_by_either_name():
    by_name = [CliRunner().invoke(app, ["list", kind, "rebafl"]).output for kind in ("methods", "recipes")]
    assert by_name[0] == by_name[1] and "rebafl" in by_name[0]


def test_a_page_of_the_guide_is_shown():
    shown = CliRunner().invoke(app, ["guide", "speed"])
    assert shown.exit_code == 0 and (PAGES / "speed.md").read_text()[2:].split("\n")[0] in shown.output
