"""The command `fedjax-bal export`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedjax_bal.cli.arguments import DataDir, Plugins


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
    from fedjax_bal.experiments import load_run

    notes: list[str] = []
    file = load_run(folder, data_dir, notes.append).export(method, seed, kind, out)
    yield from (*notes, f"model: {file}")
