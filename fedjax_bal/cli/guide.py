"""The command `fedjax-bal guide`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from fedjax_bal.cli.console import names_table

PAGES = Path(__file__).parents[1] / "guide"


def guide(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="One of the pages; none to see them.")] = None,
) -> Iterator[Table | Markdown]:
    """Show a page of the guide in the terminal."""
    pages = {file.stem: file for file in sorted(PAGES.glob("*.md"))}
    if page is None:
        yield names_table((name, [_title(file)]) for name, file in pages.items())
        return
    from fedjax_bal.config import nearest_choices

    if page not in pages:
        raise ValueError(f"guide: received {page!r}; {nearest_choices(page, pages)}")
    yield Markdown(pages[page].read_text(encoding="utf-8"))


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
