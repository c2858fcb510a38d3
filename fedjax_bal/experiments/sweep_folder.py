"""A sweep's folder: `sweep.yaml`, `points/`, `results.csv`, `costs.json` and `sweep.html`."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.config import parse_yaml
from fedjax_bal.experiments.results_table import COSTS, as_csv
from fedjax_bal.files import open_to_append, read_bytes, write_atomically
from fedjax_bal.runs import LARGEST_NOTES, LOCK, FolderError, keep_others_out, writable


class SweepFolder:
    """A sweep's files.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Makes the folder if needed, and keeps other processes out of it.

        Raises:
            FolderError: it can't be written, is in use, or is no sweep's.
        """
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_owner()  # before anything is written into a folder of somebody else's
            lock = open_to_append(self.path / LOCK)  # held for as long as the sweep lasts
        with lock:
            keep_others_out(self.path, lock)
            yield

    def _check_owner(self) -> None:
        there = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK)
        if there and "sweep.yaml" not in there and not all(name.endswith(".part") for name in there):
            raise FolderError(
                f"{self.path}: is not empty and not a sweep's folder (it holds {there[0]}); choose another with --out"
            )

    def begin(self, text: str) -> None:
        """Writes down what is swept; more values on its axes are welcome, anything else is another sweep.

        Raises:
            FolderError: the folder holds another sweep.
        """
        try:
            there = self._told(read_bytes(self.path / "sweep.yaml", LARGEST_NOTES).decode())
        except FileNotFoundError:
            there = None
        except (OSError, ValueError) as error:
            raise FolderError(
                f"{self.path}: its sweep.yaml can't be read ({error}); choose another with --out"
            ) from error
        if there is not None and there != self._told(text):
            raise FolderError(
                f"{self.path}: holds another sweep (its sweep.yaml differs in more than the values of the axes), and "
                "nothing in it is touched; choose another folder with --out"
            )
        write_atomically(self.path / "sweep.yaml", text.encode())

    @staticmethod
    def _told(text: str) -> tuple[Any, Any]:
        """A sweep without the values of its axes."""
        sheet = parse_yaml(text, "sweep.yaml")
        if not isinstance(sheet, dict) or not isinstance(sheet.get("sweep"), list):
            raise ValueError("it is no sweep")
        axes = [list(axis) if isinstance(axis, dict) else axis for axis in sheet.pop("sweep")]
        return sheet, axes

    def read_costs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """What earlier sessions noted about the cost of each run, by point, method and seed; damaged notes are lost."""
        try:
            entries = json.loads(read_bytes(self.path / "costs.json", LARGEST_NOTES))
            return {(entry["point"], entry["method"], entry["seed"]): _figures(entry) for entry in entries}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}

    def write_costs(self, costs: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> None:
        """Notes what each run's group has cost."""
        entries = [
            {"point": point, "method": method, "seed": seed, **own} for (point, method, seed), own in costs.items()
        ]
        write_atomically(self.path / "costs.json", (json.dumps(entries, indent=1) + "\n").encode())

    def write_results(self, table: Sequence[Mapping[str, Any]]) -> Path:
        """Writes the table; returns its file."""
        write_atomically(self.path / "results.csv", as_csv(table).encode())
        return self.path / "results.csv"


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: entry.get(key) for key in COSTS}
    return {key: value for key, value in kept.items() if isinstance(value, int | float)}
