"""Writes the pages of folders, and the command `fedjax-bal report`."""

from pathlib import Path

from fedjax_bal.caches import drawing
from fedjax_bal.cli.console import Output, say


def build_page(path: Path) -> Path:
    """Writes the page of a run's folder, or of a sweep's; returns its file."""
    with drawing():
        from fedjax_bal.report import build, build_sweep
        from fedjax_bal.runs import SweepFolder

        if SweepFolder(path).exists():
            return build_sweep(path, lambda text: say(Output(), text))
        return build(path)


def write_pages(folders: list[Path], out: Path | None, figures: Path | None, width: float) -> None:
    """Writes each folder's page, and of several runs one that compares them, into the first folder.

    With `out` only the latter, into that file; without it, folders that can't be compared get a line instead of an
    error. `figures` is a folder for the figures at a width in inches, of several runs those of the comparison.
    """
    from fedjax_bal.runs import FolderError, RunFolder, SweepFolder

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
