"""Reports of run folders: statistics over seeds as text and tables, and pages as single HTML files."""

from fedjax_bal.report.page import (
    build,
    build_comparison,
    compare_run,
    read_run,
    write_figures,
    write_partition_picture,
    write_table,
)
from fedjax_bal.report.published import paper_comparison_of_sweep, paper_tables, paper_verdict
from fedjax_bal.report.sweep_page import answer, build_sweep
from fedjax_bal.report.sweep_results import comparable, read_results
from fedjax_bal.report.tables import by_client, group_table
from fedjax_bal.report.wording import KL_IN_WORDS, Table, shows_divergence, table, verdict
