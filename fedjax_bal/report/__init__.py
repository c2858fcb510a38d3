"""Reports of run folders: statistics over seeds in words and tables, and pages as single HTML files."""

from fedjax_bal.metrics import Curve, Difference, MethodSummary, Spread, compare, curve
from fedjax_bal.report.comparison import build_comparison
from fedjax_bal.report.figure_files import write_figures, write_partition_picture
from fedjax_bal.report.page import build
from fedjax_bal.report.published import beside_of_sweep, paper_caption, paper_verdict, side_by_side
from fedjax_bal.report.sweep_page import answer, build_sweep
from fedjax_bal.report.sweep_results import comparable, read_results
from fedjax_bal.report.wording import KL_IN_WORDS, Table, shows_divergence, table, verdict

__all__ = [
    "KL_IN_WORDS",
    "Curve",
    "Difference",
    "MethodSummary",
    "Spread",
    "Table",
    "answer",
    "beside_of_sweep",
    "build",
    "build_comparison",
    "build_sweep",
    "comparable",
    "compare",
    "curve",
    "paper_caption",
    "paper_verdict",
    "read_results",
    "shows_divergence",
    "side_by_side",
    "table",
    "verdict",
    "write_figures",
    "write_partition_picture",
]
