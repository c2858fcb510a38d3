"""The command `fedjax-bal verify`."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_bal.cli.arguments import Plugins
from fedjax_bal.cli.console import fail

_MOST_SHOWN = 20
_DAMAGED, _UNFINISHED = 1, 3


def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps, or exported models.")
    ],
    plugin: Plugins = None,
) -> Iterator[str]:
    """Check that every file is as it was written: what is damaged or missing, and what to do then.

    Exit code 0: all is whole. 1: something is damaged or missing. 3: nothing is, but a session is going on or was
    killed, so that there is no SHA256SUMS to compare with.
    """
    damaged, unfinished = 0, 0
    for folder in folders:
        damages, remarks, whole = [], Counter[str](), Counter[str]()
        for found in _findings(folder):
            unfinished += found.unfinished
            if found.damage:
                damages.append(f"damaged: {found.place}: {found.damage}")
            elif found.remark:
                remarks[f"{found.kind}: {found.remark}"] += 1
            else:
                whole[found.kind] += 1
        damaged += len(damages)
        yield from islice(damages, _MOST_SHOWN)
        yield from [f"{len(damages) - _MOST_SHOWN} more are damaged"] * (len(damages) > _MOST_SHOWN)
        yield from (f"{folder}: {what}" for what in _counted(remarks))
        yield f"{folder}: whole: {', '.join(_counted(whole)) or 'nothing'}"
    if damaged:
        fail(f"{damaged} damaged, see above", _DAMAGED)
    if unfinished:
        fail("not finished, see above", _UNFINISHED)


def _findings(folder: Path) -> Iterator[Any]:
    from fedjax_bal.runs import verify

    return verify(folder)


def _counted(texts: Counter[str]) -> list[str]:
    return [f"{count} x {text}" if count > 1 else text for text, count in texts.items()]
