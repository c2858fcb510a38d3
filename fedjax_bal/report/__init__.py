"""Reports of run folders: statistics over seeds as text and tables, and pages as single HTML files."""

from fedjax_bal.report.page import write_comparison_page, write_run_page
from fedjax_bal.report.paper import write_figures, write_partition_picture, write_table
from fedjax_bal.report.sweep_page import write_sweep_page
from fedjax_bal.report.tables import Table, points
from fedjax_bal.report.terminal import results
