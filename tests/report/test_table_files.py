"""The report's tables as CSV, Markdown and LaTeX."""

import csv
import io

import pytest

from fedjax_bal.metrics import NOTHING
from fedjax_bal.report import build
from fedjax_bal.report.table_files import table_files
from fedjax_bal.runs import SweepFolder, as_csv


def one(method, seed, final, **more):
    usual = {"best_accuracy": final, "last5_accuracy": final, "rounds_to_target": None, "traffic_bytes": 100}
    return {"method": method, "seed": seed, "final_accuracy": final, **usual, **more}


RUNS = [one("a_b", 0, 0.5), one("a_b", 1, 0.6), one("a_b", 2, 0.7)]
RUNS += [one("[x] | 50%", 0, 0.6, macro=1), one("[x] | 50%", 1, 0.8, rounds_to_target=3)]


def test_csv_has_n_mean_deviation_and_intervals():
    table = list(csv.DictReader(io.StringIO(table_files([RUNS], None)["csv"].decode())))
    rows = {(row["method"], row["metric"]): row for row in table}
    first = rows["a_b", "final_accuracy"]
    assert (first["n"], first["difference"], first["pairs"]) == ("3", "", "")
    # With 2 degrees of freedom the 0.975 quantile of t is 4.3027.
    expected = {"mean": 0.6, "deviation": 0.1, "low": 0.6 - 4.3027 * 0.1 / 3**0.5, "high": 0.6 + 4.3027 * 0.1 / 3**0.5}
    assert {key: float(first[key]) for key in expected} == pytest.approx(expected, abs=1e-5)
    second = rows["[x] | 50%", "final_accuracy"]
    assert (float(second["difference"]), second["pairs"]) == (pytest.approx(0.15), "2")
    assert float(second["difference_low"]) == pytest.approx(0.15 - 12.7062 * 0.05, abs=1e-4)
    reached = rows["[x] | 50%", "rounds_to_target"]
    assert (reached["n"], reached["mean"], reached["deviation"], reached["low"]) == ("1", "3.0", "", "")
    assert rows["a_b", "rounds_to_target"]["n"] == "0" and ("a_b", "copies") not in rows


def test_markdown_and_latex_have_the_tables_of_the_page():
    texts = {ending: content.decode() for ending, content in table_files([RUNS], None).items()}
    rows = [line for line in texts["md"].splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1 and len(rows) == 4
    assert rows[2].startswith(f"| a_b | 60.0 ± 10.0 | {NOTHING} | {NOTHING} | 60.0 ± 10.0 |") and rows[2].endswith(
        "| 3 |"
    )
    assert "sample standard deviation" in texts["md"] and "95% Student t interval" in texts["md"]
    latex = texts["tex"]
    assert r"a\_b & 60.0 $\pm$ 10.0 & -- &" in latex
    assert r"{[}x{]} | 50\% & 70.0 $\pm$ 14.1 & +15.0 {[}$-$48.5, +78.5{]} &" in latex
    assert latex.count(r"\begin{tabular}{lrrrrrrr}") == latex.count(r"\end{table}") == 1


def test_names_are_text_in_markdown_and_latex():
    texts = table_files([[one("*star", 0, 0.5), one("<b>", 0, 0.6)]], None)
    assert "\n{}*star & 50.0" in texts["tex"].decode() and "\n| &lt;b> | 60.0" in texts["md"].decode()


@pytest.mark.slow
def test_tables_lie_beside_the_report_and_without_runs_are_empty(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    build(folder)
    for ending, content in table_files([[]], 0.5).items():
        assert content
        assert (folder / f"tables.{ending}").stat().st_size > len(content)


FORMULAS = ["=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(A1)", "'=x", "''=x", "\tx"]


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_of_csv_is_a_formula_and_names_are_read_back(name, tmp_path):
    rows = [{"lr": "-0.5", "law": name, "point": "p", "method": name, "seed": "0", "status": "done", "failure": ""}]
    text = as_csv(rows)
    (written,) = csv.DictReader(io.StringIO(text))
    assert written["method"] == f"'{name}" and written["lr"] == "-0.5"
    (tmp_path / "results.csv").write_text(text)
    (read,) = SweepFolder(tmp_path).read_results(["lr", "law"])
    assert (read["method"], read["law"], read["lr"]) == (name, name, -0.5)


def test_an_apostrophe_before_anything_else_stays(tmp_path):
    (tmp_path / "results.csv").write_text(
        as_csv([{"point": "'p", "method": "it's", "status": "done", "failure": "''"}])
    )
    assert SweepFolder(tmp_path).read_results([]) == [
        {"point": "'p", "method": "it's", "status": "done", "failure": "''"}
    ]


def test_names_load_no_picture_in_markdown():
    name = "![x](http://evil/x.png)"
    text = table_files([[one(name, 0, 0.5), one("[y](http://evil)", 0, 0.6)]], None)["md"].decode()
    assert "](" not in text and "![x]&#40;http" in text
