"""From a run folder to an answer: statistics over seeds, their wording, and the report as one HTML file.

>>> compare([])
[]
"""

from fedjax_bal.report.folder import ReportError, RunFolder
from fedjax_bal.report.page import build
from fedjax_bal.report.statistics import Curve, Difference, MethodSummary, Spread, compare, curve
from fedjax_bal.report.words import KL_IN_WORDS, Table, shows_divergence, table, verdict

__all__ = [
    "KL_IN_WORDS",
    "Curve",
    "Difference",
    "MethodSummary",
    "ReportError",
    "RunFolder",
    "Spread",
    "Table",
    "build",
    "compare",
    "curve",
    "shows_divergence",
    "table",
    "verdict",
]
