"""From a run folder to an answer: statistics over seeds, their wording, and the report as one HTML file.

>>> compare([])
[]
"""

from fedjax_bal.report.folder import ReportError, RunFolder
from fedjax_bal.report.page import build
from fedjax_bal.report.statistics import Curve, Difference, MethodSummary, Spread, compare, curve
from fedjax_bal.report.words import Table, table, verdict

__all__ = [
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
    "table",
    "verdict",
]
