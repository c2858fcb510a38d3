"""The output of a command in the terminal when a run or sweep ends."""

from collections.abc import Sequence
from pathlib import Path

from fedjax_bal.lab import SweepFolder
from fedjax_bal.metrics import CLIENTS, NEW_CLIENTS
from fedjax_bal.report.comparison import KL, OVER_PARTITIONS, P_HOLM, STAR, by_client, compare_runs, details, run_states
from fedjax_bal.report.published import paper_comparison_of_sweep
from fedjax_bal.report.reading import ReportedRuns, read_runs
from fedjax_bal.report.sweep_page import best_settings, comparisons, leaders, unfinished, verdicts
from fedjax_bal.report.sweep_results import read_results
from fedjax_bal.report.tables import Table

_ACCURACY = "Test accuracy in %, ± standard deviation over {}."
_MOST_ROWS = 40


def results(folder: Path) -> tuple[list[Table], list[str]]:
    """Returns the tables and sentences that summarise a run or sweep: some of those on its page.

    Raises:
        FolderError: a file is missing or damaged.
    """
    if SweepFolder(folder).exists():
        sweep = read_results(folder)
        paper = paper_comparison_of_sweep(sweep)
        compared = comparisons(sweep)
        if len(compared) > 1 and sum(len(table.rows) for table in compared) > _MOST_ROWS:
            compared = []
        tables = [*_in_short(compared), *leaders(sweep), *best_settings(sweep), *paper.tables]
        return tables, [text for text in (*unfinished(sweep), *verdicts(sweep), paper.verdict) if text]
    return results_of(read_runs([folder]))


def results_of(runs: ReportedRuns) -> tuple[list[Table], list[str]]:
    """Returns the tables and sentences that summarise runs."""
    comparison = compare_runs(runs)
    named = any(of_run.named for of_run in runs.record.clients)
    tables = [
        *run_states(runs),
        *_in_short(comparison.tables),
        *details(runs.record.summary["runs"], [CLIENTS, NEW_CLIENTS]),
        *(by_client(runs) if named else []),
    ]
    return tables, [*comparison.warnings, *comparison.verdicts]


def _in_short(tables: Sequence[Table]) -> list[Table]:
    """Shortens the note for a terminal and shows it once; a single comparison gets no title."""
    starred = any(P_HOLM in table.headings for table in tables)
    crossed = any(OVER_PARTITIONS in table.note for table in tables)
    note = _ACCURACY.format(OVER_PARTITIONS if crossed else "seeds") + f" {STAR}" * starred
    noted = [table._replace(note="") for table in tables[:-1]]
    noted += [table._replace(note=note, remarks={"KL": KL}) for table in tables[-1:]]
    return noted if len(noted) > 1 else [table._replace(title="") for table in noted]
