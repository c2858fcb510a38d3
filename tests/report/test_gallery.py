import json

import pytest

from fedjax_bal.metrics import class_accuracies
from fedjax_bal.report import cohort_gallery, gallery
from fedjax_bal.report.gallery import draw
from fedjax_bal.report.styles import looks_of
from fedjax_bal.runs import RunFolder

ALWAYS = ["accuracy", "traffic", "classes", "predictions", "partition-1", "confusion-1", "confusion-2"]
ABOUT_COHORTS = ["augmentation-1", "evenness", "chosen", "composition-2"]


@pytest.fixture
def folder(make_run, tmp_path):
    return make_run(tmp_path / "run", rounds=5, clients=12)


def edit(folder, change):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


def pictures(folder):
    return {picture.name: picture for picture in draw(RunFolder(folder).read())}


def names(folder):
    return [name for name in pictures(folder) if name not in ALWAYS]


@pytest.mark.slow
def test_without_cohorts_there_are_no_pictures_of_them(folder):
    assert list(pictures(folder)) == ALWAYS


@pytest.mark.slow
def test_with_cohorts_there_are_four_between_partitions_and_confusions(folder, make_cohorts):
    assert list(pictures(make_cohorts(folder))) == [*ALWAYS[:5], *ABOUT_COHORTS, *ALWAYS[5:]]


@pytest.mark.slow
def test_methods_on_the_same_cohorts_have_no_pictures_of_cohorts(folder, make_cohorts):
    make_cohorts(folder, even=(), estimating=(), augmented=False)
    assert names(folder) == []
    make_cohorts(folder, even=("fedavg", "rebafl"), estimating=(), augmented=False)
    assert names(folder) == []


@pytest.mark.slow
def test_with_augmentation_evenness_tells_something_of_equal_cohorts_too(folder, make_cohorts):
    assert names(make_cohorts(folder, even=(), estimating=())) == ["augmentation-1", "evenness"]


@pytest.mark.slow
def test_one_method_has_nothing_to_be_compared_with(make_run, make_cohorts, tmp_path):
    folder = make_run(tmp_path / "one", methods=("flcir",), rounds=2)
    assert names(make_cohorts(folder, estimating=("flcir",), augmented=False)) == ["composition-1"]


@pytest.mark.slow
def test_an_unfinished_run_on_the_same_cohorts_is_no_different(folder, make_cohorts):
    make_cohorts(folder, even=(), estimating=(), augmented=False)
    edit(folder, lambda s: s["runs"][-1].update(rounds=4, chosen=[[0, 3], [1, 9]]))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert names(folder) == []


@pytest.mark.slow
def test_a_picture_is_there_if_one_of_the_methods_has_its_data(folder, make_cohorts):
    make_cohorts(folder)
    edit(folder, lambda s: [run.update(chosen=None) for run in s["runs"] if run["method"] == "fedavg"])
    assert names(folder) == ["augmentation-1", "evenness", "composition-2"]


def test_without_traffic_there_is_no_picture_of_it(folder):
    run = RunFolder(folder).read()
    run = run._replace(lines=[{**line, "bytes_up": 0, "bytes_down": 0} for line in run.lines])
    assert [name for name, *_ in gallery._over_rounds(run, looks_of(["fedavg", "rebafl"]))] == ["accuracy"]


def test_classes_are_those_of_the_runs_that_have_not_failed(folder, monkeypatch):
    edit(folder, lambda s: s["runs"][2].update(failure="round 4: not finite"))
    run, shown = RunFolder(folder).read(), {}
    monkeypatch.setattr(gallery.plots, "accuracy_by_class", lambda values, *others: shown.update(values))
    list(gallery._over_classes(run, looks_of(["fedavg", "rebafl"])))
    others = class_accuracies([line for line in run.lines if line["seed"] != 2], "fedavg")
    assert others is not None and shown["fedavg"][0] == pytest.approx(others[0])


@pytest.mark.slow
def test_captions_hold_the_numbers(folder, make_cohorts):
    make_cohorts(folder)
    before, after = [0] * 8 + [1000, 1000], [0] * 8 + [1000, 1501]
    sizes = {"extra_rows": 501, "extra_bytes": 501 * 784}
    edit(folder, lambda s: s["partitions"][0].update(augmentation={"before": before, "after": after, **sizes}))
    captions = {name: picture.caption for name, picture in pictures(folder).items()}
    assert "The 501 copies would take 0.393 MB to store, 25.1% more than the originals" in captions["augmentation-1"]
    assert "2.30 a single class" in captions["evenness"]
    assert "some of the 12 clients" in captions["composition-2"]
    assert "clients and seeds: 0.73 ± 0.02, where 1" in captions["composition-2"]


@pytest.mark.slow
def test_boxes_have_the_mean_that_the_comparison_has(folder, make_cohorts):
    make_cohorts(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kls = {"fedavg": 0.5504, "rebafl": 0.1246}
    lines = [line | {"chain_kl": kls[line["method"]], "chain_kls": [0.1, 0.9]} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = pictures(folder)["evenness"].document
    assert ">0.550<" in document and ">0.125<" in document


@pytest.mark.slow
def test_an_unknown_rank_correlation_is_said_to_be_unknown_and_a_negative_one_has_a_minus(folder, make_cohorts):
    make_cohorts(folder)
    for value, shown in ((None, "not known"), (-0.5, "\N{MINUS SIGN}0.50 ± 0.00")):
        edit(folder, lambda s, value=value: [r["composition"].update(rank_correlation=value) for r in s["runs"][3:]])
        assert f">rank correlation {shown}<" in pictures(folder)["composition-2"].document


@pytest.mark.slow
def test_augmentation_of_nothing_is_left_out(folder, make_cohorts):
    make_cohorts(folder, even=(), estimating=())
    nothing = {"before": [0] * 10, "after": [0] * 10, "extra_rows": 0, "extra_bytes": 0}
    edit(folder, lambda s: s["partitions"][0].update(augmentation=nothing))
    assert "augmentation-1" not in names(folder)


@pytest.mark.slow
def test_an_augmentation_says_whose_it_is_and_is_drawn_once(folder, make_cohorts):
    make_cohorts(folder)

    def split(summary):
        (part,) = summary["partitions"]
        other = {**part["augmentation"], "extra_bytes": 1_000_000}
        summary["partitions"] = [
            {**part, "methods": ["a"], "augmentation": None},
            {**part, "methods": ["b"]},
            {**part, "methods": ["c"], "augmentation": other},
            {**part, "methods": ["d", "e"]},
        ]

    edit(folder, split)
    found = pictures(folder)
    titles = [found[name].title for name in found if name.startswith("augmentation")]
    assert titles == [f"Classes before and after augmentation of {names}" for names in ("b, d, e", "c")]
    assert "would take 1 MB" in found["augmentation-2"].caption
    assert found["partition-4"].title == "Partition of d, e"


@pytest.mark.slow
def test_of_more_partitions_than_a_page_shows_the_others_are_counted(folder, monkeypatch):
    monkeypatch.setattr(cohort_gallery, "_MOST_ALIKE", 2)
    edit(folder, lambda s: s.update(partitions=s["partitions"] * 5))
    found = pictures(folder)
    assert [name for name in found if name.startswith("partition")] == ["partition-1", "partition-2"]
    assert found["partition-2"].caption.endswith("The page shows the first 2, 3 more are left out.")


@pytest.mark.slow
def test_many_classes_and_methods_can_be_drawn(make_run, make_cohorts, tmp_path):
    methods = tuple(f"method {place}" for place in range(9))
    folder = make_run(tmp_path / "many", methods=methods, classes=47, rounds=2, clients=5)
    found = pictures(make_cohorts(folder, even=methods[:4], estimating=methods[7:], shown=60))
    ours = ["augmentation-1", "evenness", "chosen", "composition-8", "composition-9"]
    assert list(found) == [*ALWAYS[:5], *ours, *(f"confusion-{place}" for place in range(1, 10))]
    assert "each line in an order of its own" in found["augmentation-1"].caption
    assert max(len(found[name].document) for name in found) < 300_000
