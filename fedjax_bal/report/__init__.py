"""Reports of run folders: statistics over seeds as text and tables, and pages as single HTML files."""

from typing import TYPE_CHECKING, Any

from fedjax_bal.report.page import write_comparison_page, write_run_page
from fedjax_bal.report.paper import write_figures, write_partition_picture, write_table
from fedjax_bal.report.sweep_page import write_sweep_page
from fedjax_bal.report.tables import Table, points
from fedjax_bal.report.terminal import results

if TYPE_CHECKING:
    from fedjax_bal.report.compared import ComparisonResult, compare


def __getattr__(name: str) -> Any:
    if name in ("ComparisonResult", "compare"):  # imported late, because they need jax, which reports do without
        from fedjax_bal.report import compared

        return getattr(compared, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
