"""The papers' claims: verdicts against differences computed by hand; tables, pages and headers of run folders."""

import csv
import functools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import registered
from scipy import stats

from fedjax_bal.analyses import Findings
from fedjax_bal.config import builtin_configs, load_config, read_command, resolved_yaml
from fedjax_bal.lab import RunFolder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _claims
import _paper_pages
import papers

pytestmark = pytest.mark.slow

RUN = "papers/rebafl/table1_fmnist_m20"


@pytest.fixture(autouse=True)
def plugins():
    """The plug-ins that the papers' configurations use."""
    registered.load_included()


def result(values, rounds=200, metric="last5_accuracy", curves=None):
    """Runs of methods whose metric has these values, for seeds 0, 1, ..."""
    rows = [
        {"method": name, "seed": str(seed), "rounds": str(rounds), metric: "" if value is None else str(value)}
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
    return _claims.Result(RUN, rounds, rows, curves or {})


def decide(*found, paper=None, **claim):
    comparison = {"higher": "a", "lower": "b"} | claim
    return _claims.outcome(paper or {}, {"run": RUN, "compare": [comparison]}, {RUN: list(found)} if found else {})


def test_the_difference_is_paired_by_seed_with_student_s_interval():
    (pair,) = decide(result({"a": [0.5, 0.7, 0.6], "b": [0.49, 0.67, 0.55]})).pairs
    half = 4.302652729911275 * 2 / math.sqrt(3)  # t(0.975, 2) and the deviation of 1, 3 and 5 points
    assert pair.difference.mean == pytest.approx(3)
    assert (pair.difference.low, pair.difference.high) == (pytest.approx(3 - half), pytest.approx(3 + half))
    assert pair.values == (pytest.approx(60), pytest.approx(57)) and pair.as_claimed is None


@pytest.mark.parametrize(
    ("lead", "margin", "verdict"),
    [
        (5, 0, "holds"),
        (-5, 0, "does not hold"),
        (1, 0, "not decided"),
        (5, 5, "not decided"),
        (5, -1, "holds"),
        (-0.1, -4, "holds"),
        (5, 9, "does not hold"),
    ],
)
def test_a_verdict_compares_the_interval_with_the_margin(lead, margin, verdict):
    values = {"a": [(50 + lead + noise) / 100 for noise in (-1, 0, 1)], "b": [0.5, 0.5, 0.5]}  # +- 2.48 points
    assert decide(result(values), margin=margin).verdict == verdict


@pytest.mark.parametrize(
    ("lead", "within", "verdict"),
    [(0, 3, "holds"), (0, 2, "not decided"), (1, 3, "not decided"), (9, 3, "does not hold"), (-9, 3, "does not hold")],
)
def test_a_limit_of_both_sides_is_broken_by_gains_and_losses(lead, within, verdict):
    values = {"a": [(50 + lead + noise) / 100 for noise in (-1, 0, 1)], "b": [0.5, 0.5, 0.5]}  # +- 2.48 points
    outcome = decide(result(values), within=within)
    assert outcome.verdict == verdict


def test_seeds_of_one_side_count_against_a_difference_of_the_common_seed():
    outcome = decide(result({"a": [0.777], "b": [0.717, 0.789, 0.755]}))
    assert outcome.verdict == "not decided"
    assert outcome.pairs[0].values == (pytest.approx(77.7), pytest.approx(75.366667))
    assert decide(result({"a": [0.777], "b": [0.717, 0.739, 0.755]})).verdict == "holds"


def drawn(values):
    """Runs of methods by partition and seed."""
    rows = [
        {_claims.DRAW: str(partition), "method": name, "seed": str(seed), "last5_accuracy": str(value)}
        for name, own in values.items()
        for (partition, seed), value in own.items()
    ]
    return _claims.Result(RUN, 200, rows, {})


def test_the_seeds_of_a_partition_count_once_and_partitions_are_the_replicates():
    places = [(partition, seed) for partition in (5, 6, 7) for seed in (0, 1)]
    leads = dict(zip(places, (0, 2, 2, 4, 4, 6), strict=True))  # 1, 3 and 5 points on the three partitions
    level = {5: 0.3, 6: 0.6, 7: 0.9}  # far apart, so that only pairs of a partition say anything
    both = {"a": {at: level[at[0]] + leads[at] / 100 for at in places}, "b": {at: level[at[0]] for at in places}}
    (pair,) = decide(drawn(both)).pairs
    half = 4.302652729911275 * 2 / math.sqrt(3)  # t(0.975, 2) and the deviation of 1, 3 and 5 points
    assert pair.difference.mean == pytest.approx(3)
    assert (pair.difference.low, pair.difference.high) == (pytest.approx(3 - half), pytest.approx(3 + half))
    assert (pair.difference.pairs, pair.partitions, len(pair.runs[0]), len(pair.runs[1])) == (3, 3, 6, 6)
    assert _claims.replicates(pair.common) == "3 partitions with 6 runs"
    one_draw = {name: {at: value for at, value in own.items() if at[0] == 5} for name, own in both.items()}
    (pair,) = decide(drawn(one_draw)).pairs
    assert (pair.difference.pairs, pair.partitions) == (2, 1)
    assert _claims.replicates(pair.common) == "2 seeds of one partition"


def test_the_same_seed_on_another_partition_is_another_run():
    claim = decide(drawn({"a": {(5, 0): 0.9}, "b": {(6, 0): 0.1}}))
    assert claim.verdict == "not run yet" and not claim.pairs
    (pair,) = decide(drawn({"a": {(5, 0): 0.9, (6, 0): 0.8}, "b": {(6, 0): 0.1, (7, 0): 0.2}})).pairs
    assert pair.difference.mean == pytest.approx(70) and pair.across == (pytest.approx(60), pytest.approx(80))


@pytest.mark.parametrize(
    ("values", "rounds", "setting"),
    [
        ({"a": [0.9, 0.9], "b": [0.1, 0.2]}, 200, "in full"),
        ({"a": [0.9, 0.9], "b": [0.1, 0.2]}, 199, "shortened"),
        ({"a": [0.9], "b": [0.1]}, 200, "shortened"),
        ({"a": [0.9], "b": [0.1, 0.2, 0.3]}, 200, "shortened"),  # one seed in common
    ],
)
def test_fewer_rounds_or_one_seed_are_not_the_paper_s_setting(values, rounds, setting):
    own = decide(result(values, rounds=rounds))
    assert own.setting == setting


@pytest.mark.parametrize(("lead", "verdict"), [(2.9, "not decided"), (3.1, "holds"), (-3.1, "does not hold")])
def test_one_seed_decides_large_differences_alone(lead, verdict):
    outcome = decide(result({"a": [0.5 + lead / 100], "b": [0.5]}))
    assert outcome.verdict == verdict and outcome.pairs[0].difference.low is None


@pytest.mark.parametrize(("points", "close"), [(3.1, True), (4.9, True), (5.1, False), (2.9, False)])
def test_few_points_of_one_seed_are_marked(points, close):
    (pair,) = decide(result({"a": [0.6 + points / 100], "b": [0.5]}), margin=10).pairs
    assert pair.is_close == close


def test_few_points_of_several_seeds_are_not_marked():
    (pair,) = decide(result({"a": [0.54, 0.541], "b": [0.5, 0.5]})).pairs
    assert pair.as_claimed and not pair.is_close


@pytest.mark.parametrize(("ratio", "verdict"), [(1.9, "not decided"), (2.1, "holds"), (0.4, "does not hold")])
def test_one_seed_decides_a_swing_by_its_ratio(ratio, verdict):
    swings = lambda size: [{"test_accuracy": str(0.5 + size * (-1) ** place)} for place in range(20)]
    curves = {("", "", "a", "0"): swings(0.01 * ratio), ("", "", "b", "0"): swings(0.01)}
    assert decide(result({"a": [0.5], "b": [0.5]}, curves=curves), metric="swing").verdict == verdict


def test_a_side_can_be_a_multiple_and_a_margin_a_share_of_another_difference():
    runs = result({"a": [0.8, 0.81], "b": [0.5, 0.51], "c": [0.6, 0.61]})
    assert decide(runs).verdict == "holds" and decide(runs, times=0.5).verdict == "does not hold"
    share = lambda share: {"share": share, "run": RUN, "higher": "c", "lower": "b"}  # of 10 points
    assert decide(runs, margin=share(2.9)).verdict == "holds"
    assert decide(runs, margin=share(3.1)).verdict == "does not hold"


def test_a_formula_holds_without_runs_and_a_doubtful_stand_in_stays_open():
    claim = {"run": RUN, "exact": "by algebra"}
    exact = _claims.outcome({}, claim, {})
    assert (exact.verdict, exact.setting, exact.reason) == ("holds", "by a formula", "by algebra")
    claim = {"run": RUN, "compare": [{"higher": "a", "lower": "b"}], "open": "too far from the paper's data"}
    runs = {RUN: [result({"a": [0.9, 0.91], "b": [0.5, 0.51]})]}
    assert _claims.outcome({}, claim, runs).verdict == "not decided"


def test_a_claim_without_runs_says_what_decides_it_and_one_with_runs_does_not():
    claim = {"run": RUN, "compare": [{"higher": "a", "lower": "b"}], "decides": "three seeds"}
    without = _claims.outcome({}, claim, {})
    assert (without.verdict, without.reason) == ("not run yet", "three seeds")
    assert _claims.outcome({}, claim, {RUN: [result({"a": [0.9], "b": [0.1]})]}).reason == ""
    gpu = _claims.outcome({"unrun": {"*": "needs a GPU"}}, claim, {})
    assert (gpu.verdict, gpu.reason) == ("could not be tested", "needs a GPU")


def test_each_claim_is_in_one_state():
    pair = {"run": RUN, "compare": [{"higher": "a", "lower": "b"}]}
    leads = {"long": ([0.9, 0.91], 200), "short": ([0.9, 0.91], 100), "none": ([0.51, 0.48], 200)}
    found = {
        name: _claims.outcome({}, pair, {RUN: [result({"a": values, "b": [0.5, 0.5]}, rounds=rounds)]})
        for name, (values, rounds) in leads.items()
    }
    stand_in = _claims.outcome({"stand_ins": ["*"]}, pair, {RUN: [result({"a": [0.1], "b": [0.5]})]})
    unrun = [_claims.outcome({}, pair, {}), _claims.outcome({"unrun": {"*": "no data"}}, pair, {})]
    exact = _claims.outcome({}, {"run": RUN, "exact": "by algebra"}, {})
    assert list(_paper_pages.states([*found.values(), stand_in, *unrun, exact]).items()) == [
        ("by a formula", 1), ("full protocol", 1), ("shortened, or one seed", 1), ("stand-in", 1), ("open", 2),
        ("could not be tested", 1),
    ]  # fmt: skip


def test_a_claim_about_several_holds_in_part():
    three = result({"a": [0.5, 0.51], "b": [0.4, 0.41], "c": [0.6, 0.61], "d": [0.5, 0.52]})
    assert decide(three, lower=["b", "c", "missing"]).verdict == "in part"
    assert decide(three, lower=["b", "c", "missing"]).missing == 1
    assert decide(three, lower=["c", "d"]).verdict == "does not hold"
    assert decide(three, higher=0.5 * 100, lower="b").verdict == "holds"


def test_runs_with_few_rounds_decide_nothing_unless_the_claim_asks_for_fewer():
    short = result({"a": [0.9], "b": [0.1]}, rounds=49)
    assert decide(short).verdict == "not run yet" and decide(short, rounds=49).verdict == "holds"
    assert decide(short, paper={"unrun": {"papers/rebafl/*": "no data"}}).verdict == "could not be tested"
    long, seeds = result({"a": [0.9], "b": [0.1]}), result({"a": [0.1, 0.1], "b": [0.9, 0.9]}, rounds=100)
    assert decide(long, seeds).pairs[0].result.rounds == 100  # the one with an interval


def test_traffic_of_runs_that_miss_the_target_counts_where_it_says_who_was_first():
    def outcome(a, b):
        rows = [
            {"method": name, "seed": "0", "traffic_to_target_bytes": str(taken or ""), "traffic_bytes": "9e6"}
            for name, taken in (("a", a), ("b", b))
        ]
        return decide(_claims.Result(RUN, 200, rows, {}), metric="traffic_to_target")

    assert outcome(4e6, 1e6).pairs[0].difference.mean == pytest.approx(3)
    assert outcome(None, 1e6).pairs[0].values == (pytest.approx(9), pytest.approx(1))
    assert outcome(1e6, None).verdict == "does not hold"
    assert outcome(None, None).verdict == "not decided" and outcome(None, 9.5e6).verdict == "not decided"


def test_curves_give_early_accuracy_swing_and_fall():
    heights = [0.1 * place for place in range(10)] + [0.5] * 10
    points = [{"test_accuracy": str(value)} for value in heights]
    of = lambda metric: _claims.METRICS[metric].of({}, points)
    assert of("early_accuracy") == pytest.approx(0.45)
    assert of("swing") == 0
    assert of("fall") == pytest.approx(0.7 - 0.5)  # (0.5 + 0.6 + 0.7 + 0.8 + 0.9) / 5
    assert _claims.METRICS["early_accuracy"].of({}, points[:5]) is None


@functools.cache
def stored_pairs():
    """All comparisons of stored runs."""
    known = _claims.results()
    claims = [(paper, claim) for paper in _claims.papers().values() for claim in paper["claims"]]
    return [pair for paper, claim in claims for pair in _claims.outcome(paper, claim, known).pairs]


def leads(file, higher, lower, column, **point):
    """Paired differences in a stored table, in points: by seed, or by partition, read without the code above."""
    sides = {higher: {}, lower: {}}
    with (_claims.KEPT / file).open(newline="") as opened:
        for row in csv.DictReader(opened):
            if row["method"] in sides and all(row[f"partition.{key}"] == str(value) for key, value in point.items()):
                sides[row["method"]].setdefault(row.get("partition.seed"), {})[row["seed"]] = 100 * float(row[column])
    ours, theirs = sides[higher], sides[lower]
    common = {draw: ours[draw].keys() & theirs[draw].keys() for draw in ours.keys() & theirs.keys()}
    by_run = {draw: [ours[draw][seed] - theirs[draw][seed] for seed in seeds] for draw, seeds in common.items()}
    return np.array([np.mean(own) for own in by_run.values()] if len(by_run) > 1 else next(iter(by_run.values())))


FIVE, BEST = "last5_accuracy", "best_accuracy"


@pytest.mark.parametrize(
    ("file", "higher", "lower", "column", "margin", "replicates"),
    [
        ("astraea_figure4a_fmnist.csv", "fedavg", "alpha 2.0", FIVE, 0, 3),
        ("astraea_figures4b_9_fmnist.csv", "alpha 0.67", "no augmentation", FIVE, 0, 3),
        ("astraea_figures4b_9_letters.csv", "alpha 0.67", "fedavg", FIVE, 0, 5),
        ("astraea_fmnist_ltrf.csv", "astraea", "fedavg", FIVE, 0, 10),
        ("astraea_figure1_fmnist.csv", "BAL2", "BAL1", FIVE, -1, 3),
        ("astraea_figure1_fmnist.csv", "INS", "BAL2", FIVE, -1, 3),
        ("cbfl_small_cifar10.csv", "cbfl", "fedavg", BEST, 0, 5),
        ("cbfl_small_cifar10.csv", "cbfl", "without sampler", BEST, 0, 5),
        ("flcir_cifar10_1000_rounds.csv", "cucb", "random", FIVE, 0, 3),
        ("flcir_cifar10_1000_rounds.csv", "cucb", "greedy", FIVE, 0, 3),
        ("rebafl_figures4_5_fmnist_clustered_50_rounds.csv", "rebafl", "feddyn", FIVE, 0, 3),
        ("rebafl_figures4_5_fmnist_clustered_50_rounds.csv", "rebafl", "fedavg", FIVE, 0, 3),
        ("rebafl_table1_fmnist_m20.csv", "fedavg", "scaffold (authors' code)", FIVE, 5, 3),
    ],
)
def test_verdicts_of_stored_runs_are_those_of_a_t_test(file, higher, lower, column, margin, replicates):
    over = leads(file, higher, lower, column) - margin
    assert len(over) == replicates
    p, mean = stats.ttest_1samp(over, 0).pvalue, over.mean()
    expected = None if p >= 0.05 else bool(mean > 0)
    experiment, _ = _claims._content(Path(file))
    found = [
        pair
        for pair in stored_pairs()
        if (pair.result.experiment, pair.higher, pair.lower, pair.margin) == (experiment, higher, lower, margin)
        and pair.metric == column
    ]
    assert found and all(pair.as_claimed is expected for pair in found)


@pytest.mark.parametrize(
    ("scheme", "alpha"), [("dirichlet", 0.1), ("dirichlet", 0.5), ("long_tail", 0.9), ("long_tail", 0.99)]
)
def test_verdicts_of_one_stored_seed_are_those_of_three_points(scheme, alpha):
    file, rivals = "iwds_figure5_fmnist.csv", ("fedavg IWDS", "fedavg uniform")
    (lead,) = leads(file, *rivals, FIVE, scheme=scheme, alpha=alpha)
    margin = -1 if scheme == "dirichlet" else 0
    expected = None if abs(lead - margin) <= 3 else bool(lead > margin)
    (found,) = [
        pair
        for pair in stored_pairs()
        if pair.result.experiment == "papers/iwds/figure5_fmnist"
        and (pair.higher, pair.lower) == rivals
        and pair.metric == FIVE
        and pair.point == f"scheme {scheme}, alpha {alpha}"
    ]
    assert found.as_claimed is expected


def test_what_does_not_hold_and_each_promise_that_was_run_is_examined():
    known = _claims.results()
    for paper in _claims.papers().values():
        for claim in paper["claims"]:
            found = _claims.outcome(paper, claim, known)
            if found.pairs and (found.verdict != "holds" or "headline" in claim):
                assert {"why", "note", "open"} & claim.keys(), (claim["where"], claim["claim"])


@pytest.mark.parametrize(
    ("value", "limits", "text"),
    [(-4.967, (-5,), "-4.97"), (-4.967, (), "-5.0"), (0.004, (), "+0.004"), (0.0, (), "0.0"), (-5.0, (-5,), "-5.0")],
)
def test_a_figure_that_rounds_to_its_limit_has_more_decimals(value, limits, text):
    assert _paper_pages._figure(value, _claims.METRICS["last5_accuracy"], "+", limits) == text


def test_the_stored_pages_are_what_the_tables_give():
    for file, text in _paper_pages.pages().items():
        assert file.read_text(encoding="utf-8") == text, file


def test_the_pages_show_the_stored_pictures_and_no_others():
    known = _claims.results()
    shown = {
        _paper_pages._picture_name(result)
        for outcomes in _paper_pages._decided(known).values()
        for result in _paper_pages._pictured(outcomes, known)
    }
    assert {file.name for file in _paper_pages.PAGES.glob("*.svg")} == shown | {"scatter.svg"}


def test_claims_and_experiments_name_each_other():
    known = {name for name in builtin_configs() if name.startswith("papers/")}
    claims = [claim for paper in _claims.papers().values() for claim in paper["claims"]]
    named = {name for claim in claims for name in (claim["run"], *claim.get("original", ()))}
    runs = {own["run"] for claim in claims for own in claim.get("compare", ()) if "run" in own}
    assert named | runs == known
    for claim in claims:
        assert claim["claim"].endswith(".") and {"where", "theirs", "run"} <= claim.keys()
        assert len({"compare", "untested", "exact"} & claim.keys()) == 1
        assert claim.get("ranking", "best_accuracy") in _claims.METRICS
        for comparison in claim.get("compare", ()):
            optional = {"metric", "margin", "within", "times", "at", "run", "with", "rounds", "because"}
            assert {"higher", "lower"} <= comparison.keys() <= {"higher", "lower", *optional}
            assert ("rounds" in comparison) == ("because" in comparison)
            assert comparison.get("metric", "last5_accuracy") in _claims.METRICS


def sides(comparison, name):
    value = comparison[name]
    return value if isinstance(value, list) else [value]


def test_compared_methods_and_keys_are_in_the_experiments():
    for claim in (claim for paper in _claims.papers().values() for claim in paper["claims"]):
        for comparison in claim.get("compare", ()):
            read = read_command(builtin_configs()[comparison.get("run", claim["run"])])
            methods = {method.get("name", method["recipe"]) for method in read.stated["methods"]}
            swept = {key: [str(value) for value in own] for axis in (read.file_axes or ()) for key, own in axis.items()}
            for side in (*sides(comparison, "higher"), *sides(comparison, "lower")):
                name = side["method"] if isinstance(side, dict) else side
                assert isinstance(name, int | float) or name in methods or "correlation" in comparison["metric"], claim
            at = sides(comparison, "at") if "at" in comparison else [{}]
            given = [
                own for own in (*at, *sides(comparison, "higher"), *sides(comparison, "lower")) if isinstance(own, dict)
            ]
            for key, value in ((key, value) for own in given for key, value in own.items() if key != "method"):
                assert str(value) in swept[key], (claim["where"], key)


def run_folder(folder, config, seconds=7, accuracy=0.5):
    """A finished run's folder, as far as it is read, with one curve."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(resolved_yaml(config))
    machine = {"device": "a machine", "versions": {"jax": "1"}, "target_accuracy": 0.75}
    names, rounds = [method.name for method in config.methods], config.training.rounds
    numbers = {"seed": 0, "rounds": rounds, "last5_accuracy": accuracy, "rounds_to_target": None}
    runs = [{"method": name} | numbers for name in names]
    (folder / "summary.json").write_text(json.dumps({"name": config.name, "runs": runs} | machine))
    lines = []
    for at in range(1, rounds + 1):
        metrics = {"test_accuracy": at / 200, "update_diversity": 2.0, "wall_s": seconds * at / rounds}
        metrics["worst_class_accuracy"] = at / 400
        lines.append(json.dumps({"method": names[0], "seed": 0, "round": at} | metrics))
    (folder / "metrics.jsonl").write_text("\n".join(lines))


def rows_of(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder for tables in place of the kept ones."""
    monkeypatch.setattr(papers, "KEPT", tmp_path)
    monkeypatch.setattr(_claims, "KEPT", tmp_path)
    return tmp_path


def test_a_run_folder_becomes_two_tables(kept):
    changes = ["training.rounds=120", "seeds=[0]", "training.batch_size=25", "methods=[fedavg, rebafl]"]
    run_folder(kept / "run", load_config(RUN, changes))
    near = {"nearest": {"generated": {"mean": 50.0, "least": 31.0}, "test": {"mean": 42.0, "least": 20.0}}}
    RunFolder(kept / "run").write_findings("privacy", "fedavg", 0, Findings(near))
    about = {"commit": "c", "note": ""}
    assert papers.collect([kept / "run"], about) == ["rebafl_table1_fmnist_m20_120_rounds: 2 runs"]
    rows = rows_of(kept / "rebafl_table1_fmnist_m20_120_rounds.csv")
    assert [row["method"] for row in rows] == ["fedavg", "rebafl"]
    assert rows[0]["changes"] == "training.batch_size=25" and "rounds_to_target" not in rows[0]
    assert float(rows[0]["last5_worst_class"]) == pytest.approx((116 + 117 + 118 + 119 + 120) / 5 / 400)
    assert [row["nearest_image"] for row in rows] == ["1.55", ""]
    curve = rows_of(kept / "rebafl_table1_fmnist_m20_120_rounds_curves.csv")
    assert len(curve) == 40 and curve[-1]["round"] == "120" and curve[-1]["update_diversity"] == "2.0"


def test_another_draw_of_the_partition_is_no_change_and_is_kept(kept):
    run_folder(kept / "run", load_config(RUN, ["seeds=[0]", "partition_seeds=[5]", "methods=[fedavg, rebafl]"]))
    papers.collect([kept / "run"], {})
    (rows,) = (result.rows for result in _claims.results()[RUN])
    assert [row[_claims.DRAW] for row in rows] == ["5", "5"] and not any(row.get("changes") for row in rows)
    file = kept / "rebafl_table1_fmnist_m20.csv"
    before = "\n".join(line.partition(",")[2] for line in file.read_text().splitlines())  # as older tables are
    file.write_text(before)
    assert {row[_claims.DRAW] for row in _claims.results()[RUN][0].rows} == {"2022"}


def test_runs_of_another_method_seed_or_partition_are_added_and_those_of_the_same_replaced(kept):
    def collect(name, methods, draw, accuracy):
        changes = ["seeds=[0]", f"partition_seeds=[{draw}]", f"methods=[{methods}]"]
        run_folder(kept / name, load_config(RUN, changes), accuracy=accuracy)
        papers.collect([kept / name], {"commit": name, "note": ""})

    collect("first", "fedavg, rebafl", 2022, 0.5)
    collect("second", "rebafl, feddyn", 2022, 0.6)
    collect("third", "rebafl", 1, 0.7)
    rows = _claims.results()[RUN][0].rows
    found = {(row["method"], row[_claims.DRAW]): (row["commit"], row["last5_accuracy"]) for row in rows}
    assert len(rows) == len(found)
    assert found == {
        ("fedavg", "2022"): ("first", "0.5"), ("rebafl", "2022"): ("second", "0.6"),
        ("feddyn", "2022"): ("second", "0.6"), ("rebafl", "1"): ("third", "0.7"),
    }  # fmt: skip
    curves = _claims.results()[RUN][0].curves
    assert sorted(run[1:3] for run in curves) == [("1", "rebafl"), ("2022", "fedavg"), ("2022", "rebafl")]


def test_pauses_do_not_count_as_training_time_and_stacked_runs_add_up():
    dispatches = [(2, 5.0), (2, 5.0), (4, 7.0), (6, 1009.0), (8, 1011.0), (10, 1013.0)]  # compiled first, paused once
    lines = [{"method": "a", "seed": seed, "round": at, "wall_s": s} for seed in (0, 1) for at, s in dispatches]
    assert papers.training_seconds(lines) == 2 * 10.0  # each run has its share of the stack's time
    alone = [{"method": "b", "seed": 0, "round": at, "wall_s": 0.5 * at} for at in range(1, 5)]
    assert papers.training_seconds([*lines, *alone]) == 2 * 10.0 + 2.0
