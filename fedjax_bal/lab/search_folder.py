"""The folder of a search: which search it belongs to, the journal of its trials, and their sweeps."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedjax_bal.config import leaves, parse_yaml, received_value
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, ForeignFolderError, reading
from fedjax_bal.lab.folder import RunFolder, method_name
from fedjax_bal.lab.output_folder import SUMS, OutputFolder
from fedjax_bal.lab.search_plan import Search
from fedjax_bal.lab.sweep_folder import SweepFolder

_SHEET = "search.yaml"
_JOURNAL = "journal.log"
_TRIALS = "trials"
_MOST_DIFFERENCES = 8


class SearchFolder(OutputFolder):
    """The files of a search: its plan, Optuna's journal of its trials, and a sweep's folder for each method."""

    marker = _SHEET
    kind = "a search's folder"
    contents = (_SHEET, _JOURNAL)

    @property
    def journal(self) -> Path:
        """The file with the trials of all methods."""
        return self.path / _JOURNAL

    def sweep(self, method: str) -> SweepFolder:
        """Returns the folder of a method's trials."""
        return SweepFolder(self.path / _TRIALS / method_name(method))

    def comparison(self, trials: int) -> RunFolder:
        """Returns the folder of the comparison after a number of trials of each method."""
        return RunFolder(self.path / f"best-of-{trials}")

    def read_devices(self) -> int | None:
        """Reads the number of devices that the trials began with; None before the first checkpoint."""
        sweeps = self.path / _TRIALS
        folders = sorted(sweeps.iterdir()) if sweeps.is_dir() else []
        return next(filter(None, (SweepFolder(folder).read_devices() for folder in folders)), None)

    @contextlib.contextmanager
    def claimed(self, search: Search, *, lock: bool = True) -> Iterator[Search]:
        """Locks the folder, and compares it with a search, which it then belongs to.

        Raises:
            ForeignFolderError: the folder holds a different search.
            FolderError: the folder can't be written, is in use, or holds something else.
        """
        self._check_kind()
        self._compare(search)
        if not lock:
            yield search
            return
        with self._locked():
            self._compare(search)
            self._remove(SUMS)
            self._write(_SHEET, search.text.encode())
            yield search

    def _compare(self, search: Search) -> None:
        text = self._marker_text()
        if text in (None, search.text):
            return
        with reading(self.path / _SHEET, CHOOSE_ANOTHER):
            here, asked = (leaves(parse_yaml(each, _SHEET)) for each in (text, search.text))
        differing = [
            f"{key}: {received_value(here.get(key))} here, {received_value(asked.get(key))} asked for"
            for key in dict.fromkeys([*here, *asked])
            if here.get(key) != asked.get(key)
        ]
        shown = "\n  ".join(differing[:_MOST_DIFFERENCES] + ["..."] * (len(differing) > _MOST_DIFFERENCES))
        raise ForeignFolderError(
            f"{self.path}: holds a different search; nothing in it was changed. Choose another folder with --out, or "
            f"ask for the same search, with the same or more trials. Differences:\n  {shown}",
            shown,
        )
