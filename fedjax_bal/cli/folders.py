"""The commands `report`, `verify` and `export`, which read folders of finished runs."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from fedjax_bal.caches import drawing
from fedjax_bal.cli.arguments import DataDir, Plugins
from fedjax_bal.cli.console import Output, fail, say


def build_page(path: Path) -> Path:
    """Writes the page of a run's folder, or of a sweep's; returns its file."""
    with drawing():
        from fedjax_bal.lab import SweepFolder
        from fedjax_bal.report import build, build_sweep

        if SweepFolder(path).exists():
            return build_sweep(path, lambda text: say(Output(), text))
        return build(path)


def write_pages(folders: list[Path], out: Path | None, figures: Path | None, width: float) -> None:
    """Writes each folder's page, and of several runs one that compares them, into the first folder.

    With `out` only the latter, into that file; without it, folders that can't be compared get a line instead of an
    error. `figures` is a folder for the figures at a width in inches, of several runs those of the comparison.
    """
    from fedjax_bal.lab import FolderError, RunFolder, SweepFolder

    console = Output()
    if figures is not None:
        with drawing():
            from fedjax_bal.report import write_figures

            files = write_figures(folders, figures, width)
            say(console, f"figures: {figures} ({len(files)} as PDF and PNG, {width:g} inches wide)")
    if out is None:
        for folder in folders:
            say(console, f"report: {build_page(folder)}")
            missing = SweepFolder(folder).missing_plugins() or RunFolder(folder).missing_plugins()
            if missing:
                names = ", ".join(missing)
                say(
                    console,
                    f"{folder}: any metrics of these plug-ins are left out: {names}; give them with --plugin",
                )
        if len(folders) == 1 or any(SweepFolder(folder).exists() for folder in folders):
            return
    with drawing():
        from fedjax_bal.report import build_comparison

        try:
            say(console, f"comparison: {build_comparison(folders, out or RunFolder(folders[0]).comparison)}")
        except FolderError as error:
            if out is not None:
                raise
            say(console, f"not compared: {error}")


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
    from fedjax_bal.lab import verify as check

    damaged, unfinished = 0, 0
    for folder in folders:
        damages, remarks, whole = [], Counter[str](), Counter[str]()
        for found in check(folder):
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


def _counted(texts: Counter[str]) -> list[str]:
    return [f"{count} x {text}" if count > 1 else text for text, count in texts.items()]


def export(
    folder: Annotated[Path, typer.Argument(help="A run folder, or that of a sweep's point.")],
    method: Annotated[str | None, typer.Option(help="The method; by default the first.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed; by default the first.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="npz|safetensors|orbax", help="The format; by default that of --out's ending, or npz."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file, or Orbax's folder; by default in the run folder's exports.")
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> Iterator[str]:
    """Write a trained model for programs without this package, with all that is needed to predict."""
    from fedjax_bal.lab import load_run

    notes: list[str] = []
    file = load_run(folder, data_dir, notes.append).export(method, seed, kind, out)
    yield from (*notes, f"model: {file}")
