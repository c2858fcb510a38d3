"""The page of a run and that of several runs, and their figures as files for papers."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import quick
import yaml
from PIL import Image

from fedjax_bal.cli.console import Output
from fedjax_bal.cli.results import show_results
from fedjax_bal.lab import FolderError
from fedjax_bal.metrics import NOTHING, compare
from fedjax_bal.report import gallery, write_comparison_page, write_figures, write_run_page, write_table
from fedjax_bal.report.comparison import PROVISIONAL, comparison_table
from fedjax_bal.report.page import reproduction
from fedjax_bal.report.reading import read_runs

pytestmark = pytest.mark.slow

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps the tags, the identifiers, the text and the table's cells."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.text, self.cells = [], [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        self.links += [value for key, value in attrs if key == "href"]
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
    "hundred classes": {"classes": 100, "rounds": 3},
    "names that would run": {"methods": ("fedavg", "</title></svg><script>x</script>\"'"), "rounds": 3},
    "one client": {"clients": 1, "methods": ("fedavg",), "seeds": (0,), "rounds": 1},
}


@pytest.mark.parametrize("case", quick.only(CASES, "two", "one seed"))
def test_page_is_whole_and_self_contained(make_run, tmp_path, case):
    folder = make_run(tmp_path / "run", **CASES[case])
    page = write_run_page(folder)
    assert page == folder / "report.html"
    reader = parse(page)
    text = page.read_text(encoding="utf-8")
    without_pictures = re.sub(r'src="data:image/svg\+xml,[^"<>&]*"', "", text)
    assert not re.search(r"https?:|//\w|@import|<script|<link|\bsrc=", without_pictures)
    assert "default-src 'none'" in text
    assert len(reader.ids) == len(set(reader.ids)) >= 6
    assert reader.links == [f"#{name}" for name in reader.ids]
    summary = json.loads((folder / "summary.json").read_text())
    table = comparison_table([compare(summary["runs"])], summary["target_accuracy"])
    rows = table.rows
    cells = [*table.headings, *(cell for row in rows for cell in row)]
    assert reader.cells[: len(cells)] == cells
    pictures = sorted(path.name for path in (folder / "plots").iterdir())
    assert (
        len(pictures)
        == reader.tags.count("img") / 2  # one for a page, and one for a phone
        == reader.tags.count("figcaption")
        == 4 + (len(rows) > 1) + -(-len(rows) // 9)
    )
    for name in pictures:
        assert ElementTree.parse(folder / "plots" / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_answer_comes_first_and_how_to_reproduce_is_there(make_run, tmp_path):
    text = " ".join(parse(write_run_page(make_run(tmp_path / "run"))).text).replace("\N{NO-BREAK SPACE}", " ")
    assert text.index("rebafl has the highest accuracy") < text.index("Comparison")
    for part in (
        "fedjax-bal run config.yaml",
        "pathological, clients 20",
        "jax 0.10.2",
        "cpu: 2 cores",
        "321",
        "12.3 s",
    ):
        assert part in text
    assert PROVISIONAL not in text


@pytest.mark.usefixtures("undrawn")
def test_one_sentence_leads_and_the_others_are_a_list(make_run, tmp_path, capsys):
    folder = make_run(tmp_path / "run", methods=("a", "b", "c"), gain=0.001)
    text = write_run_page(folder).read_text()
    (lead,) = re.findall("<p class=verdict>(.*?)</p>", text)
    *_, remark = re.findall("<li>(.*?)</li>", text)
    assert "No clear winner" in lead and "seeds would show" in remark
    show_results(folder, Output(), Output())
    assert "seeds would show" in " ".join(capsys.readouterr().out.split())


def test_identical_input_gives_identical_bytes(make_run, tmp_path):
    files = [
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*.*")
            if path.suffix in (".html", ".svg")
        }
        for folder in (make_run(tmp_path / name) for name in "ab")
        if write_run_page(folder)
    ]
    assert files[0] == files[1] and len(files[0]) == 7
    write_run_page(tmp_path / "a")
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
    leftovers = [path.name for path in (tmp_path / "a").rglob(".*")]
    assert leftovers == []


def test_a_run_that_has_only_begun_still_has_a_page(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    path = folder / "summary.json"
    nothing = {"finished": False, "runs": [], "partitions": [], "class_names": [], "device": None, "versions": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | nothing))
    (folder / "metrics.jsonl").write_text("")
    text = "".join(parse(write_run_page(folder)).text)
    assert "No run has a final accuracy yet" in text and "not recorded" in text


def test_damage_leaves_the_old_page_alone(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    page = write_run_page(folder)
    before = page.read_bytes()
    (folder / "summary.json").write_text("{")
    with pytest.raises(FolderError, match=r"summary.json: .*line 1"):
        write_run_page(folder)
    assert page.read_bytes() == before


def test_importing_the_report_does_not_import_jax_matplotlib_or_scipy():
    code = "import sys, fedjax_bal.report; print(sorted({'matplotlib', 'scipy', 'jax'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


@pytest.fixture
def folders(make_run, tmp_path):
    """Two runs of the same methods, the second with another learning rate and other accuracies."""
    first = make_run(tmp_path / "one" / "run")
    second = shutil.copytree(first, tmp_path / "two" / "run")
    config = (second / "config.yaml").read_text()
    assert "learning_rate: 0.05" in config
    (second / "config.yaml").write_text(config.replace("learning_rate: 0.05", "learning_rate: 0.2"))
    return [first, second]


def test_the_page_compares_and_says_where_settings_differ(folders, tmp_path):
    page = write_comparison_page(folders, tmp_path / "out.html").read_text()
    assert "one/run: 0.05; two/run: 0.2" in page
    assert "training.optimizer.learning_rate" in page and "training.rounds" not in page
    assert "Accuracy by round" in page
    rows = (tmp_path / "out-tables.csv").read_text().splitlines()
    methods = [run["method"] for run in read_runs(folders).record.summary["runs"]]
    assert {row.partition(",")[0] for row in rows[1:]} == set(methods) and rows[0].startswith("method,metric,n,mean")
    assert all(name in (tmp_path / "out-tables.tex").read_text().replace("\\_", "_") for name in methods)


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves out the figures, which take seconds to draw."""
    monkeypatch.setattr(gallery, "run_figures", lambda runs: [])


def change(folder, **sections):
    """Changes some keys of sections in a run folder's configuration."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for key, values in sections.items():
        config[key] = {**config.get(key, {}), **values}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def shown(page):
    """Headline and table of a page: the sentences, the heading of the differences, and each method's difference."""
    sentences = [html.unescape(text) for text in re.findall("<(?:p class=verdict|li)>(.*?)</(?:p|li)>", page)]
    (table,) = re.findall('aria-label="Comparison of methods".*?</table>', page, re.DOTALL)
    heading = re.search('<th scope="col">(Difference from .*?)</th>', table)
    rows = re.findall('<th scope="row">(.*?)</th><td>.*?</td><td>(.*?)</td>', table)
    return sentences, heading and heading[1], {name.replace("<wbr>", ""): cell.replace("*", "") for name, cell in rows}


@pytest.mark.usefixtures("undrawn")
def test_methods_of_runs_on_other_data_are_not_paired(folders, tmp_path):
    page = write_comparison_page(folders, tmp_path / "out.html").read_text()
    alike = shown(page)
    assert "same data (" not in page
    assert alike[1] == "Difference from fedavg (one/run), points [95% interval]" and len(alike[0]) == 2
    change(folders[1], partition={"clients": 21})
    page = write_comparison_page(folders, tmp_path / "out.html").read_text()
    assert "Not all methods use the same data (partition.clients)" in page
    sentences, heading, cells = shown(page)
    assert heading == "Difference from the first method on the same data, points [95% interval]"
    assert cells == {**alike[2], "fedavg (two/run)": NOTHING, "rebafl (two/run)": cells["rebafl (one/run)"]}
    assert cells["fedavg (one/run)"] == NOTHING and cells["rebafl (one/run)"].startswith("+")
    assert [{*re.findall(r"\((?:one|two)/run\)", text)} for text in sentences] == [{"(one/run)"}, {"(two/run)"}]
    assert sentences[1].startswith("On the data of fedavg (two/run): rebafl (two/run) has the highest")


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_failed_is_told_with_its_reason_and_is_not_waited_for(folders, tmp_path):
    summary = json.loads((folders[0] / "summary.json").read_text())
    lost = dict.fromkeys(("final_accuracy", "last5_accuracy"))
    summary["runs"][-1] |= {"rounds": 3, "failure": "round 4: client 2 is <not> finite", **lost}
    (folders[0] / "summary.json").write_text(json.dumps({**summary, "finished": False}))
    both = write_comparison_page(folders, tmp_path / "out.html")
    for page, name in ((write_run_page(folders[0]), "rebafl"), (both, "rebafl (one/run)")):
        text = page.read_text()
        cells = parse(page).cells
        at = cells.index("failed: round 4: client 2 is <not> finite")
        assert cells[at - 4 : at] == [name, "2", "round 3 of 20", NOTHING]
        assert PROVISIONAL not in text and "different numbers of rounds" not in text


@pytest.mark.usefixtures("undrawn")
def test_methods_of_a_run_on_other_data_are_not_paired(make_run, tmp_path, capsys):
    folder = make_run(tmp_path / "run", methods=("fedavg", "rebafl", "centralised"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["methods"][1]["partition"] = {"clients": 20}  # the same as the others'
    config["methods"][2] |= {"label": "Centralised", "partition": {"scheme": "iid", "clients": 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    page = write_run_page(folder).read_text()
    warning = "Not all methods use the same data (methods.2.partition.scheme, methods.2.partition.clients)"
    assert warning in page
    sentences, heading, cells = shown(page)
    assert heading == "Difference from the first method on the same data, points [95% interval]"
    assert cells["Centralised"] == cells["fedavg"] == NOTHING and cells["rebafl"].startswith("+")
    assert [text.partition(" has the highest")[0] for text in sentences] == ["On the data of fedavg: rebafl"]
    rows = list(csv.DictReader((folder / "tables.csv").read_text().splitlines()))
    assert {row["method"] for row in rows if row["difference"]} == {"rebafl"}
    table = write_table([folder], ["last5"], bold=True).read_text()
    assert table.count("\\textbf") == 2 and "Bold: the best mean of runs on the same data" in table

    show_results(folder, Output(), Output())
    told = " ".join(capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").split())
    assert warning in told and "vs first [95%]" in told
    assert all(text.replace("\N{NO-BREAK SPACE}", " ") in told for text in sentences)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("seeds", "partitions", "pairs"),
    [
        ([0, 1, 2], [10, 11, 12], 3),
        ([0, 1, 2, 3], [10, 11, 12, 13], 3),
        ([2, 0], [12, 10], 2),
        ([1, 2, 0], [10, 11, 12], 0),
    ],
)
def test_seeds_are_paired_only_on_the_same_partition(make_run, tmp_path, seeds, partitions, pairs):
    folders = []
    for name, listed, drawn in (("a", [0, 1, 2], [10, 11, 12]), ("b", seeds, partitions)):
        folders.append(make_run(tmp_path / name, methods=("fedavg",), seeds=listed))
        config = yaml.safe_load((folders[-1] / "config.yaml").read_text())
        (folders[-1] / "config.yaml").write_text(yaml.safe_dump({**config, "partition_seeds": drawn}))
    page = write_comparison_page(folders, tmp_path / "out.html").read_text()
    _, heading, _ = shown(page)
    assert "same data (" not in page and (heading is None) == (pairs == 0)
    with (tmp_path / "out-tables.csv").open() as file:
        found = {row["pairs"] for row in csv.DictReader(file) if row["method"] == "fedavg (b)"}
    assert str(pairs) in found and len(found) <= 2  # fewer seeds reach the target


BAD = [
    (lambda own: own[:1], "received 1 folder"),
    (lambda own: [own[0], own[0]], "2 to 20 different ones"),
    (lambda own: [own[0], own[0].parent], "holds no run or sweep"),
]


@pytest.mark.parametrize(("pick", "message"), BAD, ids=[message for _, message in BAD])
def test_what_can_not_be_compared_is_told(folders, tmp_path, pick, message):
    with pytest.raises(FolderError, match=message):
        write_comparison_page(pick(folders), tmp_path / "out.html")


def test_runs_on_other_classes_are_refused(make_run, folders, tmp_path):
    other = make_run(tmp_path / "other", classes=7)
    with pytest.raises(FolderError, match="its classes differ from those of"):
        read_runs([folders[0], other])


SWEEP = "name: mine\nsweep: [{lr: [0.1, 0.2]}]\n"
TABLE = "lr,point,method,seed,status,last5_accuracy,failure\n0.1,p,fedavg,0,done,0.5,\n0.2,p,fedavg,0,done,0.6,\n"


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "results.csv").write_text(TABLE)
    return folder


def widths(folder):
    """The widths of the files in inches, by name."""
    box = re.compile(rb"/MediaBox \[ ?0 0 ([\d.]+) ")
    pages = {file.name: float(box.search(file.read_bytes())[1]) / 72 for file in folder.glob("*.pdf")}
    return pages | {file.name: Image.open(io.BytesIO(file.read_bytes())).width / 300 for file in folder.glob("*.png")}


def test_figures_of_a_run_and_of_a_comparison(make_run, tmp_path):
    folders = [make_run(tmp_path / name, methods=("fedavg",), seeds=(0,), rounds=2) for name in "ab"]
    names = [file.stem for file in write_figures(folders[:1], tmp_path / "one", 5.5)]
    assert names == ["accuracy", "classes", "predictions", "partition-1", "confusion-1"]
    assert list(widths(tmp_path / "one").values()) == pytest.approx([5.5] * 10, abs=0.01)
    before = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    write_figures(folders[:1], tmp_path / "one", 5.5)
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert [file.stem for file in write_figures(folders, tmp_path / "two", 3.25)] == names
    assert list(widths(tmp_path / "two").values()) == pytest.approx([3.25] * 10, abs=0.01)


def test_chosen_figures_are_written_and_an_unknown_one_is_refused_before_any(make_run, tmp_path):
    folder = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0,), rounds=2)
    with pytest.raises(ValueError, match="--only: received 'acuracy'"):
        write_figures([folder], tmp_path / "out", 3.25, only=["acuracy"])
    assert not (tmp_path / "out").exists()
    files = write_figures([folder], tmp_path / "out", 3.25, only=["partition", "accuracy"])
    assert [file.name for file in files] == ["accuracy.pdf", "partition-1.pdf"]
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_a_character_without_a_glyph_is_named_and_written_anyway(make_run, tmp_path):
    folder, notes = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0,), rounds=2), []
    files = write_figures([folder], tmp_path / "out", 3.25, {"fedavg": "基线"}, ["accuracy"], notes.append)
    assert len(files) == 1 and files[0].exists()
    assert len(notes) == 2 and all("CJK UNIFIED IDEOGRAPH" in text and "--names" in text for text in notes)
    write_figures([folder], tmp_path / "out", 3.25, {"fedavg": "база"}, ["accuracy"], notes.append)
    assert len(notes) == 2


def test_a_place_that_cannot_be_written_is_an_error_in_words(sweep, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="file: can't be written .file exists."):
        write_figures([sweep], tmp_path / "file", 3.25)


WORDS = ["fedjax-bal", "run", "config.yaml"]


def pasted(config, given):
    """The arguments that a shell passes on when the command is pasted into it."""
    shell = f"printf '%s\\0' {reproduction('run', 'config.yaml', config, given, 'name: x').command}"
    return subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", ["x; touch pwned #", "x' ; touch pwned '", "-x;y"])
def test_the_name_of_a_plugin_is_one_word(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pasted({"plugins": {name: "0"}}, None) == [*WORDS, "--plugin", f"{name}.py"]
    assert not list(tmp_path.iterdir())


def test_what_a_terminal_would_act_on_is_left_out():
    for name in ("x\ntouch pwned", "\x1b[201~"):
        assert pasted({"plugins": {"mine": "0"}}, {"plugins": [name], "data_dir": name}) == WORDS


@pytest.mark.parametrize("name", ["a b", "x; touch pwned", "$HOME", "*"])
def test_the_folder_of_data_is_one_word(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pasted({}, {"plugins": [], "data_dir": f"/data/{name}"}) == [*WORDS, "--data-dir", f"/data/{name}"]
    assert not list(tmp_path.iterdir())
