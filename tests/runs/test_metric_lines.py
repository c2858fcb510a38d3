"""Very long metrics: read in bounded memory, and thinned out to what figures can show."""

import io
import json

import numpy as np
import pytest

from fedjax_bal.metrics.seeds import cumulate_traffic, curve
from fedjax_bal.report import build
from fedjax_bal.runs import FolderError, RunFolder, metric_lines
from fedjax_bal.runs.metric_lines import read_lines


@pytest.fixture
def few(monkeypatch):
    """Files of more than 60 lines are long ones."""
    monkeypatch.setattr(metric_lines, "MOST_LINES", 60)


def rewrite(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_thinned_lines_tell_the_same_at_their_rounds(make_run, tmp_path, few):
    folder = make_run(tmp_path / "run", seeds=(0, 1), rounds=50)
    whole = lines_of(folder)
    for number, line in enumerate(whole):
        line["bytes_up"] = 1 + number**2
    rng = np.random.default_rng(0)
    rewrite(folder, [whole[place] for place in rng.permutation(len(whole))])
    run = RunFolder(folder).read()
    assert len(run.lines) + run.left_out == 200 and len(run.lines) <= 60
    for method in ("fedavg", "rebafl"):
        for value in ("test_accuracy", "traffic_bytes"):
            thin, full = (curve(cumulate_traffic(lines), method, value) for lines in (run.lines, whole))
            assert thin.rounds.tolist() == list(range(2, 51, 4))  # 100 lines for room for 30
            np.testing.assert_array_equal(thin.mean, full.mean[thin.rounds - 1])


def test_the_last_line_of_each_run_stays_and_the_later_of_two_counts(make_run, tmp_path, few):
    folder = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0, 1), rounds=50)
    whole = [line for line in lines_of(folder) if line["seed"] == 0 or line["round"] <= 37]
    again = {**whole[-1], "test_accuracy": 0.125}
    rewrite(folder, [*whole, again])
    run = RunFolder(folder).read()
    last = {line["seed"]: line for line in sorted(run.lines, key=lambda line: line["round"])}
    assert (last[0]["round"], last[1]["round"], last[1]["test_accuracy"]) == (50, 37, 0.125)
    assert len(run.lines) + run.left_out == 87
    assert sum(line["bytes_up"] for line in run.lines) == sum(line["bytes_up"] for line in whole)


def test_bytes_that_are_not_known_stay_unknown(make_run, tmp_path, few):
    folder = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0,), rounds=100)
    whole = lines_of(folder)
    whole[48]["bytes_up"] = None
    rewrite(folder, whole)
    run = RunFolder(folder).read()
    totals = {line["round"]: line["traffic_bytes"] for line in cumulate_traffic(run.lines)}
    wanted = {line["round"]: line["traffic_bytes"] for line in cumulate_traffic(whole)}
    assert totals == {round: wanted[round] for round in totals}
    assert None in totals.values() and len(set(totals.values())) > 2


def test_damage_is_found_in_lines_that_are_not_shown(make_run, tmp_path, few):
    folder = make_run(tmp_path / "run", rounds=50)
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*text[:150], "{\n", *text[150:]]))
    with pytest.raises(FolderError, match="line 151: expected JSON"):
        RunFolder(folder).read()


def test_the_page_says_so(make_run, tmp_path, few):
    folder = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0,), rounds=100)
    assert "Of the 100 lines of metrics.jsonl the figures show 50" in build(folder).read_text()


def test_memory_does_not_grow_with_the_file(monkeypatch):
    monkeypatch.setattr(metric_lines, "MOST_LINES", 100)
    held, most = [0], [0]

    class Counted(dict):
        def __init__(self, *content):
            super().__init__(*content)
            held[0] += 1
            most[0] = max(most[0], held[0])

        def __del__(self):
            held[0] -= 1

    text = "".join(json.dumps({"method": "a", "seed": 0, "round": at}) + "\n" for at in range(1, 20_001))
    lines, left_out = read_lines(io.BytesIO(text.encode()), lambda number, raw: Counted(json.loads(raw)))
    assert (len(lines), left_out) == (100, 19_900)
    assert most[0] <= 103
