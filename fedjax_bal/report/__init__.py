"""Reports of run folders: statistics over seeds in words and tables, and pages as single HTML files."""

from fedjax_bal.metrics import Curve, Difference, MethodSummary, Spread, compare, curve
from fedjax_bal.report.comparison import build_comparison
from fedjax_bal.report.figure_files import write_figures
from fedjax_bal.report.page import build
from fedjax_bal.report.partition_picture import write_partition_picture
from fedjax_bal.report.sweep_page import build_sweep
from fedjax_bal.report.wording import KL_IN_WORDS, Table, shows_divergence, table, verdict

__all__ = [
    "KL_IN_WORDS",
    "Curve",
    "Difference",
    "MethodSummary",
    "Spread",
    "Table",
    "build",
    "build_comparison",
    "build_sweep",
    "compare",
    "curve",
    "shows_divergence",
    "table",
    "verdict",
    "write_figures",
    "write_partition_picture",
]
