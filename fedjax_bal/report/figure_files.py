"""The figures of reports as files for papers: PDF and PNG at the width of a column."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedjax_bal.files import write_atomically
from fedjax_bal.lab import FolderError, RunFolder, SweepFolder
from fedjax_bal.report.comparison import join, origins
from fedjax_bal.report.sweep_results import read_results, sweep_curves

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Drawn

_DOTS_PER_INCH = 300


def write_figures(folders: Sequence[Path], directory: Path, width: float) -> list[Path]:
    """Writes each figure of a run, of a sweep, or of 2 to 20 runs that are compared, as PDF and PNG.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        directory: where the files are put; it is made if need be, and files of the same names are replaced.
        width: of the figures, in inches. Figures are laid out for this width, with text of at least 7 points.

    Returns:
        The PDF files, in the order of the page.

    Raises:
        FolderError: a folder can't be read, the folders don't go together, or the files can't be written.
    """
    from fedjax_bal.report.svg import as_wide_as, to_pdf, to_png

    files = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with as_wide_as(width):
            for name, _, _, figure in _figures(folders):
                files.append(directory / f"{name}.pdf")
                write_atomically(files[-1], to_pdf(figure))
                write_atomically(directory / f"{name}.png", to_png(figure, _DOTS_PER_INCH))
    except OSError as error:
        raise FolderError(f"{directory}: the figures can't be written there ({error.strerror})") from error
    return files


def _figures(folders: Sequence[Path]) -> Iterator["Drawn"]:
    from fedjax_bal.report.gallery import run_figures
    from fedjax_bal.report.sweep_plots import sweep_figures

    if len(folders) > 1:
        both = join(folders)
        return run_figures(both, origins(both))
    sweep = SweepFolder(folders[0])
    if not sweep.exists():
        return run_figures(RunFolder(folders[0]).read())
    results = read_results(folders[0])
    return sweep_figures(results, sweep_curves(results, sweep))


def write_partition_picture(
    file: Path, counts: np.ndarray, clients: Sequence[str], classes: Sequence[str], title: str
) -> None:
    """Draws the clients' samples of each class, `Int[M, C]`, below a title, into a `.png` or `.svg` file."""
    from fedjax_bal.report.gallery import partition
    from fedjax_bal.report.svg import to_png, to_svg

    figure = partition(counts, clients, classes, title)
    write_atomically(file, to_png(figure) if file.suffix.lower() == ".png" else to_svg(figure, title).encode())
