from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.listing import PAGES, guide_contents


def test_all_pages_of_the_guide_are_listed_tasks_first():
    sections = guide_contents()
    listed = CliRunner().invoke(app, ["guide"]).output
    names = [line.split()[0] for line in listed.splitlines() if line and line[0] != " " and line[:-1] not in sections]
    assert names == [page for pages in sections.values() for page in pages] and names[0] == "getting_started"
    assert sorted([*names, "contents"]) == sorted(file.stem for file in PAGES.glob("*.md"))


def test_an_unknown_page_is_a_message():
    refused = CliRunner().invoke(app, ["guide", "sped"])
    assert refused.exit_code == 2 and "did you mean 'speed'?" in refused.output


def test_methods_are_listed_by_either_name():
    by_name = [CliRunner().invoke(app, ["list", kind, "rebafl"]).output for kind in ("methods", "recipes")]
    assert by_name[0] == by_name[1] and "rebafl" in by_name[0]


def test_a_page_of_the_guide_is_shown():
    shown = CliRunner().invoke(app, ["guide", "speed"])
    assert shown.exit_code == 0 and (PAGES / "speed.md").read_text()[2:].split("\n")[0] in shown.output
