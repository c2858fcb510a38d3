"""One session of a sweep: outline, batches, table."""

import contextlib
import time
from typing import Any

from rich.console import Console

from fedjax_bal.experiments.display import Progress
from fedjax_bal.experiments.outline import batch_title, place_of_results, sweep_outline
from fedjax_bal.experiments.plan import Sweep
from fedjax_bal.experiments.results_table import ResultsTable
from fedjax_bal.experiments.summary import total
from fedjax_bal.experiments.sweep_work import SweepWork
from fedjax_bal.experiments.training import Stopped
from fedjax_bal.runs import SweepFolder


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    console: Console,
    *,
    plain: bool,
    dry_run: bool,
    **options: Any,
) -> tuple[list[dict[str, Any]], bool]:
    """Prints the outline of a sweep, trains its batches, and writes the table.

    Args:
        sweep: the sweep.
        folder: its folder, claimed.
        console: shows outline and progress.
        plain: lines in place of the live display.
        dry_run: only print the outline.
        options: those of `SweepWork`.

    Returns:
        The rows of the table, and whether the user stopped it.
    """
    display = Progress(console, plain=plain)
    if dry_run:
        folder.check_owner(sweep.text, sweep.configs)
    else:
        folder.begin(sweep.text, sweep.configs)
    if folder.part is not None:
        number, parts = folder.part
        sweep = sweep._replace(points=sweep.points[number - 1 :: parts])
    with contextlib.ExitStack() as claims:
        work = SweepWork(sweep, folder, display, claims, **options, look=dry_run)
        outline = sweep_outline(sweep, work.batches, work.broken, work.backend.about())
        for line in (*outline, *(f"  {text}" for text in work.data_lines)):
            display.note(line)
        if dry_run:
            display.note(place_of_results(folder))
            return [], False
        titles = ((batch_title(sweep, batch), batch.tasks[0].simulation.rounds) for batch in work.batches)
        display.start(dict(enumerate(titles)), "batches")
        table, stopped, began = ResultsTable(sweep, folder, work), False, time.monotonic()
        try:
            work.run(table.update)
        except Stopped:
            stopped = True
        finally:
            display.stop()
            rows = table.finish()
            if folder.part is None:
                folder.seal()
        if work.costs:
            display.note(total(own.cost for own in work.costs).in_words(time.monotonic() - began))
    return rows, stopped
