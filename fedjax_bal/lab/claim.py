"""Chooses and claims the folder of a session: the one given by the user, otherwise the first that fits."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_bal.config import Config, with_convolution
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab.errors import ForeignFolderError
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.search_folder import SearchFolder
from fedjax_bal.lab.search_plan import Search
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Sweep


def claim_run_folder(
    session: contextlib.ExitStack, config: Config, out: Path | None, note: Callable[[str], None], *, lock: bool = True
) -> tuple[RunFolder, Config]:
    """Claims the folder of a comparison for a session; the first process chooses it and tells the others.

    Args:
        session: keeps the folder locked.
        config: the configuration.
        out: the folder; None for the first of runs/NAME, runs/NAME-2, ... that is free or that `config` continues.
        note: called with a message if runs/NAME has other results.
        lock: False for a dry run, which writes nothing.

    Returns:
        The folder, and the configuration with the form of convolution that "auto" stands for there.

    Raises:
        FolderError: the folder can't be used.
    """
    group = processes()
    if group.first:
        folder, form = _claim(session, RunFolder, config, config.name, out, note, lock)
        group.from_first(lambda: (folder.path, form))
    else:
        path, form = group.from_first(lambda: (Path(), ""))  # which the first process's values replace
        folder = RunFolder(path, first=False)
    return folder, with_convolution(config, form)


def claim_sweep_folder(
    session: contextlib.ExitStack,
    sweep: Sweep,
    part: tuple[int, int] | None,
    out: Path | None,
    note: Callable[[str], None],
    *,
    lock: bool = True,
) -> tuple[SweepFolder, Sweep]:
    """Claims the folder of a sweep, or of a part of it, as `claim_run_folder` does for a comparison."""
    return _claim(session, lambda path: SweepFolder(path, part), sweep, sweep.name, out, note, lock)


def claim_search_folder(
    session: contextlib.ExitStack, search: Search, out: Path | None, note: Callable[[str], None]
) -> SearchFolder:
    """Claims the folder of a search, as `claim_run_folder` does for a comparison."""
    return _claim(session, SearchFolder, search, f"{search.config.name}-search", out, note, lock=True)[0]


def _claim(
    session: contextlib.ExitStack,
    folder_at: Callable[[Path], Any],
    asked: Any,
    name: str,
    out: Path | None,
    note: Callable[[str], None],
    lock: bool,
) -> tuple[Any, Any]:
    """Returns the first folder that can be claimed, and what its `claimed` yields."""
    named = Path("runs") / name
    path = out or named
    numbers = itertools.count(2)
    differences = ""
    while True:
        folder = folder_at(path)
        try:
            settled = session.enter_context(folder.claimed(asked, lock=lock))
        except ForeignFolderError as error:
            if out is not None:
                raise
            differences = differences or error.differences
            path = named.with_name(f"{name}-{next(numbers)}")
        else:
            if differences:
                note(f"{named} holds different results; writing to {path}. Differences:\n  {differences}")
            return folder, settled
