"""Writes the pages of folders."""

from pathlib import Path

from rich.console import Console

from fedjax_bal.caches import drawing
from fedjax_bal.cli.console import say


def compare_folders(folders: list[Path], out: Path | None, console: Console) -> None:
    """Writes one page that compares several run folders.

    Without `out` it goes into the first folder, and folders that can't be compared get a line instead of an error.

    Raises:
        FolderError: they can't be compared, and `out` asks for it.
    """
    with drawing():
        from fedjax_bal.report import build_comparison
        from fedjax_bal.runs import FolderError, RunFolder

        try:
            say(console, f"comparison: {build_comparison(folders, out or RunFolder(folders[0]).comparison)}")
        except FolderError as error:
            if out is not None:
                raise
            say(console, f"not compared: {error}")


def build_page(path: Path) -> Path:
    """The page of a run's folder, or of a sweep's."""
    from fedjax_bal.runs import SweepFolder

    return build_report(path, sweep=SweepFolder(path).exists())


def build_report(path: Path, *, sweep: bool = False) -> Path:
    """Writes the page of a folder; returns its file."""
    with drawing():
        from fedjax_bal.report import build, build_sweep

        return build_sweep(path) if sweep else build(path)
