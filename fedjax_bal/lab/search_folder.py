"""The folder of a search: which search it belongs to, the journal of its trials, and their sweeps."""

from pathlib import Path

from fedjax_bal.config import differing_leaves, parse_yaml
from fedjax_bal.lab.errors import CHOOSE_ANOTHER, reading
from fedjax_bal.lab.folder import RunFolder, method_name
from fedjax_bal.lab.output_folder import SUMS, OutputFolder
from fedjax_bal.lab.search_plan import Search
from fedjax_bal.lab.sweep_folder import SweepFolder

_SHEET = "search.yaml"
_JOURNAL = "journal.log"
_TRIALS = "trials"


class SearchFolder(OutputFolder):
    """The files of a search: its plan, Optuna's journal of its trials, and a sweep's folder for each method."""

    marker = _SHEET
    kind = "a search's folder"
    holds = "search"
    may_grow = ", with the same or more trials"
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

    def compared(self, asked: Search) -> Search:
        """Compares the folder with a search."""
        text = self._marker_text()
        if text not in (None, asked.text):
            with reading(self.path / _SHEET, CHOOSE_ANOTHER):
                here, there = (parse_yaml(each, _SHEET) for each in (text, asked.text))
            raise self._foreign(differing_leaves(here, there))
        return asked

    def begin(self, search: Search) -> None:
        """Writes search.yaml, which assigns the folder to this search."""
        self._remove(SUMS)
        self._write(_SHEET, search.text.encode())
