"""A table as text for a terminal, as HTML, CSV and LaTeX."""

import csv
import io

import pytest

from fedjax_bal.lab import SweepFolder, as_csv
from fedjax_bal.report.comparison import comparison_table, notes, summarise
from fedjax_bal.report.tables import Latex, Table, printable


def comparison(name):
    rows = [("a", "70.0 ± 1.0", "-", "x"), (name, "75.0 ± 2.0", "+5.0 [+1.0, +9.0]", "x")]
    short = {"Difference from a, points [95% interval]": "vs first [95%]", "Best": None}
    headings = ("method", "last 5", "Difference from a, points [95% interval]", "Best")
    return Table("alpha [0.5]", headings, rows, "in %", {1}, short)


@pytest.mark.parametrize(
    ("width", "name", "expected"),
    [
        (120, "b" * 60, ["75.0 ± 2.0  +5.0 [+1.0, +9.0]"]),
        (90, "b" * 60, ["    75.0          +5.0", "± 2.0  [+1.0, +9.0]"]),
        (50, "b" * 60, ["b" * 28 + "    75.0          +5.0", "b" * 28 + "   ± 2.0  [+1.0, +9.0]"]),
        (30, "b" * 30, ["  last 5: 75.0 ± 2.0", "  vs first [95%]: +5.0 [+1.0, +9.0]"]),
    ],
    ids=["whole", "two lines", "names folded", "a list"],
)
def test_a_table_takes_the_form_for_which_there_is_room(width, name, expected):
    lines = comparison(name).text(width).splitlines()
    assert lines[0] == "alpha [0.5]" and lines[-1] == "in %" and not any("x" in line for line in lines[1:-1])
    assert all(any(line.endswith(text) for line in lines) for text in expected)
    assert width == 30 or max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (80, ["mean", "seeds", "KL", "MB"], []),
        (41, ["mean", "KL", "MB"], ["seeds"]),
        (30, ["mean", "KL"], ["seeds", "MB"]),
    ],
)
def test_columns_are_left_out_before_cells_break_and_the_note_names_them(width, shown, left_out):
    short = {"Seeds": "seeds"}
    table = Table(
        "", ("method", "mean", "Seeds", "KL", "MB"), [("fedavg" * 2, "70.0 ± 1.0", "12 of 14", "1.2", "1,234")], "%",
        short=short, optional=("Seeds", "MB", "absent"), remarks={"KL": "KL is small.", "MB": "MB is large."},
    )  # fmt: skip
    text = table.text(width)
    assert text.splitlines()[0].split() == ["method", *shown] and "70.0 ± 1.0" in text
    said = " ".join(text.split("─\n")[1].split())
    assert said.endswith(f"No room for {', '.join(left_out)}; the page has them." if left_out else "MB is large.")
    assert "KL is small." in said and ("MB is large." in said) == ("MB" in shown)


def test_names_of_a_page_are_text_and_the_best_row_stands_out():
    html = comparison("<b>_+").html("h3")
    assert "<h3>alpha [0.5]</h3>" in html and "<b>" not in html.replace("&lt;b&gt;", "")
    assert "&lt;b&gt;_<wbr>+<wbr>" in html
    assert html.count("class=best") == 1 and html.index("class=best") > html.index("70.0")


RUNS = [
    {"method": method, "seed": seed, "final_accuracy": value, "best_accuracy": value, "last5_accuracy": value,
     "rounds_to_target": None, "traffic_bytes": 100}
    for method, values in {"a_b": (0.5, 0.6, 0.7), "[x] | 50%": (0.6, 0.8)}.items() for seed, value in enumerate(values)
]  # fmt: skip


def test_latex_has_the_cells_and_the_note_as_a_comment():
    groups = [summarise(RUNS)]
    latex = comparison_table(groups, None, notes(groups)).latex()
    said = " ".join(line.removeprefix("% ") for line in latex.splitlines() if line.startswith("% "))
    assert "sample standard deviation" in said and "95\\% Student t interval" in said
    assert "\\caption{Comparison of methods.}\n\\label{tab:comparison-of-methods}" in latex
    assert r"a\_b & 60.0 $\pm$ 10.0 & -- &" in latex
    assert r"{[}x{]} | 50\% & 70.0 $\pm$ 14.1 & +15.0 {[}$-$48.5, +78.5{]} &" in latex
    assert latex.count(r"\begin{tabular}{lrrrrrr}") == latex.count(r"\end{table}") == 1


def test_names_are_text_in_latex_and_formulas_stay_formulas():
    rows = [("*star", "50.0"), ("<b>", Latex(r"\textbf{1}")), (r"A_b $\beta=1$", "from $5")]
    latex = Table("t", ("Method", "x"), rows).latex()
    assert "\n{}*star & 50.0" in latex and r"$<$b$>$ & \textbf{1}" in latex
    assert r"A\_b $\beta=1$ & from \$5" in latex


def test_printable_keeps_to_one_line_and_a_length():
    assert printable("a\tb\n c\x1b[0m") == "a b c\N{REPLACEMENT CHARACTER}[0m"
    assert len(printable("x" * 50, 10)) == 10


def test_a_text_that_python_reads_as_a_number_stays_a_text(tmp_path):
    row = {"law": "1_2", "point": "p", "method": "a", "status": "done", "failure": None}
    (tmp_path / "results.csv").write_text(as_csv([row]))
    assert SweepFolder(tmp_path).read_results(["law"]) == [{**row, "failure": ""}]


@pytest.mark.parametrize("name", ["=1+1", "-cmd|' /C calc'!A0", "'=x", "\tx"])
def test_no_cell_of_csv_is_a_formula_and_names_are_read_back(name, tmp_path):
    row = {"lr": "-0.5", "law": name, "point": "'p", "method": name, "seed": "0", "status": "done", "failure": "''"}
    text = as_csv([row])
    (written,) = csv.DictReader(io.StringIO(text))
    assert written["method"] == f"'{name}" and written["lr"] == "-0.5"
    (tmp_path / "results.csv").write_text(text)
    assert SweepFolder(tmp_path).read_results(["lr", "law"]) == [{**row, "lr": -0.5, "seed": 0}]
