"""The command `fedjax-bal verify`."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from fedjax_bal.cli.arguments import Plugins
from fedjax_bal.cli.console import fail

_MOST_SHOWN = 20


def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps, or exported models.")
    ],
    plugin: Plugins = None,
) -> Iterator[str]:
    """Check that every file is as it was written: what is whole, what is damaged, and what to do then (exit code 1)."""
    damaged = 0
    for folder in folders:
        damages, remarks, whole = _findings(folder)
        damaged += len(damages)
        yield from islice(damages, _MOST_SHOWN)
        yield from [f"{len(damages) - _MOST_SHOWN} more are damaged"] * (len(damages) > _MOST_SHOWN)
        yield from (f"{folder}: {what}" for what in _counted(remarks))
        yield f"{folder}: whole: {', '.join(_counted(whole)) or 'nothing'}"
    if damaged:
        fail(f"{damaged} damaged, see above", 1)


def _findings(folder: Path) -> tuple[list[str], Counter[str], Counter[str]]:
    """A folder's damages, and by kind of file the remarks and the number of whole files."""
    from fedjax_bal.runs import verify

    damages, remarks, whole = [], Counter[str](), Counter[str]()
    for found in verify(folder):
        if found.damage:
            damages.append(f"damaged: {found.place}: {found.damage}")
        elif found.remark:
            remarks[f"{found.kind}: {found.remark}"] += 1
        else:
            whole[found.kind] += 1
    return damages, remarks, whole


def _counted(texts: Counter[str]) -> list[str]:
    return [f"{count} x {text}" if count > 1 else text for text, count in texts.items()]
