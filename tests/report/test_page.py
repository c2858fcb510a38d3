import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import quick

from fedjax_bal.lab import FolderError
from fedjax_bal.report import build, compare, table
from fedjax_bal.report.page import missing_runs

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps the tags, the identifiers, the text and the table's cells."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.text, self.cells = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.remove(tag) if tag not in VOID else None

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def parse(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


CASES = {
    "two": {},
    "one seed": {"seeds": (4,)},
    "twelve": {"methods": tuple(f"method{place}" for place in range(12)), "rounds": 4},
    "hundred classes": {"classes": 100, "rounds": 3},
    "one client": {"clients": 1, "methods": ("fedavg",), "seeds": (0,), "rounds": 1},
}


@pytest.mark.parametrize("case", quick.only(CASES, "two", "one seed"))
def test_page_is_whole_and_self_contained(make_run, tmp_path, case):
    folder = make_run(tmp_path / "run", **CASES[case])
    page = build(folder)
    assert page == folder / "report.html"
    reader = parse(page)
    text = page.read_text(encoding="utf-8")
    without_pictures = re.sub(r'src="data:image/svg\+xml;base64,[\w+/=]*"', "", text)
    assert not re.search(r"https?:|//\w|@import|<script|<link|\bsrc=|href=", without_pictures)
    assert len(reader.ids) == len(set(reader.ids))
    summary = json.loads((folder / "summary.json").read_text())
    headings, rows = table(compare(summary["runs"]), summary["target_accuracy"])
    assert reader.cells == [*headings, *(cell for row in rows for cell in row)]
    pictures = sorted(path.name for path in (folder / "plots").iterdir())
    assert len(pictures) == reader.tags.count("img") == reader.tags.count("figcaption") == 5 + len(rows)
    for name in pictures:
        assert ElementTree.parse(folder / "plots" / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_a_page_with_cohorts_says_what_they_are(make_run, make_cohorts, tmp_path):
    folder = make_cohorts(make_run(tmp_path / "run", methods=("fedavg", "<b>&"), rounds=5), estimating=("<b>&",))
    reader = parse(build(folder))
    assert reader.tags.count("img") == reader.tags.count("figcaption") == len(list((folder / "plots").iterdir())) == 7
    # Two seeds reached the target, in 8 and 9 of 5 rounds that sent 2 MB each: 17 MB.
    assert reader.cells[:10][7] == "Traffic to 60%, MB" and reader.cells[10:20][7] == "17 (2 of 3)"
    text = "".join(reader.text)
    assert "Augmentation of fedavg, <b>&" in text and "as <b>& estimates it: its rank correlation" in text


def change_runs(folder, change):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    for run in summary["runs"]:
        run |= change(run["method"])
    path.write_text(json.dumps(summary))


@pytest.mark.slow
def test_divergences_are_in_the_table_with_a_line_under_it_only_where_classes_are_evened(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    before = build(folder).read_bytes()
    kls = {"fedavg": 0.55, "rebafl": 0.125}
    change_runs(folder, lambda method: {"chain_kl": kls[method], "clients_per_chain": 1, "copies": 0})
    assert build(folder).read_bytes() == before
    change_runs(folder, lambda method: {"copies": 7 if method == "rebafl" else 0})
    reader = parse(build(folder))
    at = reader.cells.index("KL")
    assert [cell for cell in reader.cells if cell in ("0.550", "0.125")] == ["0.550", "0.125"]
    assert reader.cells[at + 11] == "0.550" and reader.cells[at + 22] == "0.125"
    assert (
        "".join(reader.text).count("KL: divergence of the classes behind each averaged model from uniform, in nats")
        == 1
    )


@pytest.mark.slow
def test_no_row_stands_out_where_all_methods_end_alike(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    assert build(folder).read_text(encoding="utf-8").count("<tr class=best>") == 1
    change_runs(folder, lambda _: {"last5_accuracy": 0.021})
    text = build(folder).read_text(encoding="utf-8")
    assert "<tr class=best>" not in text
    assert (
        "<p class=verdict>Both methods have the same mean accuracy over their last two evaluations, 2.1%.</p>" in text
    )


@pytest.mark.slow
def test_the_answer_comes_first_and_how_to_reproduce_is_there(make_run, tmp_path):
    text = " ".join(parse(build(make_run(tmp_path / "run"))).text).replace("\N{NO-BREAK SPACE}", " ")
    assert text.index("rebafl has the highest accuracy over its last five evaluations") < text.index("Comparison")
    for part in (
        "fedjax-bal run config.yaml",
        "pathological, clients 20",
        "jax 0.10.2",
        "cpu: 2 cores",
        "321",
        "12.3 s",
    ):
        assert part in text
    assert "not finished" not in text


@pytest.mark.slow
def test_identical_input_gives_identical_bytes(make_run, tmp_path):
    files = [
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*.*")
            if path.suffix in (".html", ".svg")
        }
        for folder in (make_run(tmp_path / name) for name in "ab")
        if build(folder)
    ]
    assert files[0] == files[1] and len(files[0]) == 8
    build(tmp_path / "a")
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
    leftovers = [path.name for path in (tmp_path / "a").rglob(".*")]
    assert leftovers == []


@pytest.mark.slow
def test_a_very_long_name_is_shortened(make_run, tmp_path):
    reader = parse(build(make_run(tmp_path / "run", methods=("a" * 500, "b"), rounds=2)))
    assert "a" * 79 + "…" in reader.cells


@pytest.mark.slow
def test_an_unfinished_run_says_so(make_run, tmp_path):
    folder = make_run(tmp_path / "run", finished=False, rounds=2)
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["runs"] = [run for run in summary["runs"] if (run["method"], run["seed"]) != ("rebafl", 2)]
    summary["runs"][0]["rounds"] = 1
    path.write_text(json.dumps(summary))
    text = "".join(parse(build(folder)).text)
    assert "This run is not finished" in text
    assert "Still missing: fedavg, seed 0 (1 of 2 rounds); rebafl, seed 2." in text
    assert "So far: rebafl" in text


def test_a_run_that_has_only_begun_still_has_a_page(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    path = folder / "summary.json"
    path.write_text(json.dumps({"finished": False, "runs": [], "class_names": []}))
    (folder / "metrics.jsonl").write_text("")
    text = "".join(parse(build(folder)).text)
    assert "No run has an accuracy yet" in text and "not recorded" in text


def test_missing_runs_follow_names_recipes_and_rounds_of_each_method():
    config = {
        "training": {"rounds": 5},
        "seeds": [0],
        "methods": [
            {"recipe": "fedavg"},
            {"recipe": ["scaffold", {"name": "balanced_softmax"}]},
            {"recipe": "rebafl", "name": "mine", "training": {"rounds": 2}},
        ],
    }
    names = ["fedavg", "scaffold+balanced_softmax", "mine"]
    assert missing_runs(config, []) == [f"{name}, seed 0" for name in names]
    done = [{"method": name, "seed": 0, "rounds": rounds} for name, rounds in zip(names, (5, 4, 2), strict=True)]
    assert missing_runs(config, done) == ["scaffold+balanced_softmax, seed 0 (4 of 5 rounds)"]
    assert missing_runs({"methods": 3, "seeds": None, "training": 1}, []) == []


@pytest.mark.slow
def test_damage_leaves_the_old_page_alone(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    page = build(folder)
    before = page.read_bytes()
    (folder / "summary.json").write_text("{")
    with pytest.raises(FolderError, match=r"summary.json: .*line 1"):
        build(folder)
    assert page.read_bytes() == before


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_an_error_in_words(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    (folder / "plots").write_text("in the way")
    with pytest.raises(FolderError, match="the report can't be written there"):
        build(folder)


def test_importing_the_report_does_not_import_jax_matplotlib_or_scipy():
    code = "import sys, fedjax_bal.report; print(sorted({'matplotlib', 'scipy', 'jax'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


@pytest.mark.slow
def test_a_run_of_fewer_evaluations_than_five_does_not_claim_five(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    text = build(folder).read_text()
    assert "over its last two evaluations" in text and "Mean of last 2, %" in text and "five" not in text
    tables = (folder / "tables.tex").read_text()
    assert "Mean of last 2" in tables and "five" not in tables and "last 5" not in tables
    assert "evaluations,3,2.0," in (folder / "tables.csv").read_text()
