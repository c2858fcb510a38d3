"""Tables in LaTeX: chosen metrics for a paper, and all tables of a page."""

import json
import re
import subprocess

import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.metrics import METRICS
from fedjax_bal.report import write_run_page, write_table
from fedjax_bal.report.paper import find_metrics, paper_table

DOCUMENT = r"""\documentclass{article}\usepackage{booktabs}\begin{document}
\input{table}\input{tables}
\end{document}"""


def runs(**accuracies):
    """The runs of methods by their final accuracies, and how low the worst class is: half of it."""
    return [
        {"method": method, "seed": seed, "final_accuracy": value, "worst_class_accuracy": value and value / 2}
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def cells(text):
    """The rows of a table, each as the list of its cells."""
    return [re.sub(r" \\\\.*", "", line).split(" & ") for line in text.splitlines() if " & " in line]


def table(*conditions, metrics=("final",), **options):
    shown = [(name, [group]) for name, group in conditions]
    return paper_table(shown, find_metrics(metrics), **({"bold": False, "name": "my_run"} | options))


def test_a_table_has_a_row_for_each_method_and_a_column_for_each_metric():
    text = table(("", runs(fedavg=[0.5, 0.7], a_b=[0.6, None])), metrics=("worst_class", "final_accuracy"))
    assert cells(text) == [
        ["Method", r"Worst class (\%)", r"Final accuracy (\%)"],
        ["fedavg", r"30.0 $\pm$ 7.1", r"60.0 $\pm$ 14.1"],
        [r"a\_b", "30.0 (1 of 2)", "60.0 (1 of 2)"],
    ]
    assert r"\caption{my\_run: mean $\pm$ standard deviation over 2 seeds.}" in text
    assert r"\label{tab:my-run}" in text and text.startswith("% Needs \\usepackage{booktabs}.")
    assert "over 1 seed.}" in table(("", runs(fedavg=[0.5])))


@pytest.mark.parametrize(
    ("others", "best", "close"),
    [
        # Paired differences of 0.1 and 0.1: the interval is a point.
        ({"b": [0.6, 0.8]}, ["b"], []),
        # Differences of 0.3 and -0.1: the interval is 0.1 +- 12.7 * 0.2.
        ({"b": [0.8, 0.6], "c": [0.3, 0.1]}, ["b"], ["a"]),
        # Two may have the same mean.
        ({"b": [0.7, 0.5], "c": [0.3, 0.1]}, ["a", "b"], ["c"]),
        # A method that lacks a run neither leads nor ties.
        ({"b": [0.9, None], "c": [0.4, 0.6]}, ["a"], []),
        ({"a": [0.5, None], "b": [0.9, None]}, [], []),
    ],
)
def test_the_best_mean_is_bold_and_those_that_may_equal_it_are_underlined(others, best, close):
    text = table(("", runs(**{"a": [0.5, 0.7], **others})), bold=True)
    assert [row[0] for row in cells(text) if "textbf" in row[1]] == best
    assert [row[0] for row in cells(text) if "underline" in row[1]] == close
    assert "Bold: " in text and "Underlined: " in text


def test_of_one_seed_the_best_alone_is_bold_and_of_costs_the_lowest():
    text = table(("", runs(a=[0.5], b=[0.6])), bold=True)
    assert [row[1] for row in cells(text)][1:] == ["50.0", r"\textbf{60.0}"] and "Underlined" not in text
    costs = [{"method": method, "seed": 0, "traffic_bytes": size} for method, size in (("a", 3.2e9), ("b", 1e6))]
    text = table(("", costs), metrics=("traffic",), bold=True)
    assert [row[1] for row in cells(text)] == ["Traffic (MB)", "3,200.0", r"\textbf{1.0}"]


def test_conditions_are_groups_of_columns():
    both = ("alpha 0.1", runs(a=[0.5], b=[0.6])), ("alpha 1", runs(a=[0.7]))
    first, second, *rows = cells(table(*both, metrics=("final", "worst_class")))
    assert first == ["", r"\multicolumn{2}{c}{alpha 0.1}", r"\multicolumn{2}{c}{alpha 1}"]
    assert second[1:] == [r"Final accuracy (\%)", r"Worst class (\%)"] * 2
    assert rows == [["a", "50.0", "25.0", "70.0", "35.0"], ["b", "60.0", "30.0", "--", "--"]]
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in table(*both, metrics=("final", "worst_class"))
    text = table(*both, remark="Tuned on 5% of it.")
    assert cells(text)[0] == ["", r"\multicolumn{1}{c}{alpha 0.1}", r"\multicolumn{1}{c}{alpha 1}"]
    assert r" Tuned on 5\% of it.}" in text


def test_formulas_in_names_stay_formulas_and_other_dollars_are_text():
    for name, expected in (
        (r"A_b $\beta_1=0.9$", r"A\_b $\beta_1=0.9$"),
        ("from $5 to $10", r"from \$5 to \$10"),
        (r"$\frac{1}{$", r"\$\textbackslash{}frac\{1\}\{\$"),
    ):
        assert cells(table(("", [{"method": name, "seed": 0, "final_accuracy": 0.5}])))[1][0] == expected


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError) as refused:
        find_metrics(["wurst"])
    assert (
        str(refused.value).startswith("--table: received 'wurst'; did you mean 'worst'")
        and len(str(refused.value)) < 120
    )
    with pytest.raises(ValueError, match="--table: received 'finl'"):
        find_metrics(["worst_class", "finl"])


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("class mean", "balanced_accuracy"), ("class_mean", "balanced_accuracy"),
        ("Mean over classes", "balanced_accuracy"),
        ("macro f1", "macro_f1"), ("macro_f1", "macro_f1"), ("f1", "macro_f1"), ("accuracy", "final_accuracy"),
        ("last 5", "last5_accuracy"), ("Mean of last 5", "last5_accuracy"), ("worst", "worst_class_accuracy"),
        ("few-shot", "few_shot_accuracy"), ("KL", "chain_kl"), ("MB", "traffic_bytes"), ("test_loss", "test_loss"),
        ("Worst 10% of clients", "client_accuracy_worst10"), ("to 60%", "rounds_to_target"),
        ("Rounds to 60%", "rounds_to_target"), ("Traffic to 60%", "traffic_to_target_bytes"),
    ],
)  # fmt: skip
def test_a_column_is_found_by_the_names_that_are_printed(printed, name):
    assert [metric.name for metric in find_metrics([printed])] == [name]


def test_headings_say_what_they_are():
    metrics = [metric for metric in METRICS.values() if metric.column]
    headings = [metric.column.heading for metric in metrics]
    assert len({*headings}) == len(headings)
    assert cells(table(("", runs(a=[0.5])), metrics=["client_accuracy"]))[0][1] == r"Mean over clients (\%)"


def test_differences_from_a_method_stand_beside_a_metric():
    made = runs(a=[0.5, 0.7], fedavg=[0.6, 0.9], b=[0.25, 0.5])
    text = table(("", made), against="fedavg", metrics=("final", "worst_class"))
    # a: -10 and -20 points; with 1 degree of freedom the 0.975 quantile of t is 12.706.
    assert cells(text)[0][:3] == ["Method", r"Final accuracy (\%)", "vs fedavg (points)"]
    assert [row[2] for row in cells(text)[1:]] == [
        "$-$15.0 {[}$-$78.5, +48.5{]}", "--", "$-$37.5 {[}$-$69.3, $-$5.7{]}",
    ]  # fmt: skip
    assert "Differences from fedavg" in text and "Holm" in text
    starred = runs(fedavg=[0.50, 0.51, 0.52], b=[0.60, 0.61, 0.625], c=[0.52, 0.55, 0.545])
    assert [row[2].partition(" ")[0] for row in cells(table(("", starred), against="fedavg"))[1:]] == [
        "--", "+10.2*", "+2.8*",
    ]  # fmt: skip
    pair = table(("", runs(fedavg=[0.5, 0.6], b=[0.7, 0.8])), against="fedavg")
    assert "+20.0 " in cells(pair)[2][2] and "Holm" not in pair


def test_differences_of_costs_have_their_unit():
    made = [{"method": method, "seed": 0, "traffic_bytes": size} for method, size in (("a", 3.2e9), ("b", 1e6))]
    (heads, _, b) = cells(table(("", made), metrics=["MB"], against="a"))
    assert heads[2] == "vs a (MB)" and b[2] == "$-$3,199.0"


def invoke(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.slow
def test_the_command_writes_a_table_of_a_run_and_of_a_comparison(make_run, tmp_path):
    folders = [make_run(tmp_path / name, rounds=2) for name in "ab"]
    code, output = invoke(folders[0], "--table", "final,best", "--bold", "--names", "fedavg=FedAvg,rebafl=A & B")
    assert code == 0 and "table.tex" in output
    text = (folders[0] / "table.tex").read_text()
    assert [row[0] for row in cells(text)] == ["Method", "FedAvg", r"A \& B"] and text.count("textbf") == 2
    counts = json.loads((folders[0] / "summary.json").read_text())["partitions"][0]["samples"]
    assert f"over 3 seeds; {sum(counts):,} training rows of 10 classes on 20 clients." in text
    write_table(folders, ["final"], names={"fedavg": "FedAvg"})
    rows = cells((folders[0] / "table.tex").read_text())
    assert [row[0] for row in rows] == ["Method", "FedAvg (a)", "rebafl (a)", "FedAvg (b)", "rebafl (b)"]


def test_a_metric_of_rounds_is_that_of_the_last_evaluation(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=5, seeds=(0,))
    text = write_table([folder], ["test_loss"]).read_text()
    # The loss of all runs ends at 1 + exp(-5).
    assert cells(text) == [["Method", "Test loss (nats)"], ["fedavg", "1.007"], ["rebafl", "1.007"]]
    for name in ("train_loss", "per_class_accuracy"):  # not measured; a list
        with pytest.raises(ValueError, match=f"--table: received '{name}'"):
            write_table([folder], [name])
    code, output = invoke(folder, "--table", "final", "--against", "fedprox")
    assert code == 2 and "--against: received 'fedprox'" in output


def test_a_metric_of_rounds_of_a_sweep_is_read_from_its_points(tmp_path):
    (tmp_path / "sweep.yaml").write_text("methods: [{recipe: a, label: A}, b]\nsweep: [{partition.seed: [3, 4]}]\n")
    rows = ["partition.seed,point,method,seed,status,last5_accuracy,failure"]
    for seed in (3, 4):
        rows += [f"{seed},p{seed},a,0,done,0.5,", f"{seed},p{seed},b,0,{'done' if seed == 3 else 'diverged'},0.5,"]
        point = tmp_path / "points" / f"p{seed}"
        point.mkdir(parents=True)
        lines = [
            {"method": method, "seed": 0, "round": at, "macro_f1": seed / 10 + at / 100}
            for at in (1, 2) for method in "ab"
        ]  # fmt: skip
        (point / "config.yaml").write_text("name: mine\n")
        (point / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    text = write_table([tmp_path], ["macro f1"]).read_text()
    assert cells(text)[1:] == [["A", r"37.0 $\pm$ 7.1"], ["b", "32.0 (1 of 2)"]]


@pytest.mark.nightly
def test_latex_compiles_the_tables(make_run, make_cohorts, tmp_path):
    methods = ("fedavg", "*star_[x] 50% & {more} ~^\\ <b> $5 #1", "rebafl")
    folder = make_cohorts(make_run(tmp_path / "run", methods=methods, rounds=2))
    write_run_page(folder)
    write_table([folder], ["last5", "worst_class", "rounds_to_target"], bold=True)
    (folder / "paper.tex").write_text(DOCUMENT)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "paper.pdf").stat().st_size > 10_000


def test_what_the_command_refuses(tmp_path):
    assert "--bold: is for --table" in invoke(tmp_path, "--bold")[1]
    assert "--only: is for --figures" in invoke(tmp_path, "--only", "accuracy")[1]
    assert "--width: is for --figures" in invoke(tmp_path, "--width", "3")[1]
    code, output = invoke(tmp_path, tmp_path / "b" / "..")
    assert code == 2 and "received the same folder twice" in output
    assert "--names: is for --table" in invoke(tmp_path, "--names", "a=b")[1]
    assert "--names: received 'fedavg', must be NAME=LABEL, such as fedavg=FedAvg" in invoke(
        tmp_path, "--table", "final", "--names", "fedavg"
    )[1]  # fmt: skip
