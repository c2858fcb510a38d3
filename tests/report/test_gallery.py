"""The figures of a run: which there are, and what they show."""

import json

import numpy as np
import pytest

from fedjax_bal.lab import ClientResults, RunFolder
from fedjax_bal.metrics import class_accuracies
from fedjax_bal.report import gallery
from fedjax_bal.report.gallery import run_figures
from fedjax_bal.report.reading import read_runs

pytestmark = pytest.mark.slow

ALWAYS = ["accuracy", "traffic", "classes", "predictions", "partition-1", "confusion-1"]


@pytest.fixture
def folder(make_run, tmp_path):
    return make_run(tmp_path / "run", rounds=5, clients=12)


def edit(folder, change):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


def edit_lines(folder, change):
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | change(line)) + "\n" for line in lines))


def figures(folder):
    """Title, caption and figure by name."""
    return {name: rest for name, *rest in run_figures(read_runs([folder]))}


def test_a_run_has_its_figures_in_order(folder):
    assert list(figures(folder)) == ALWAYS


def test_without_traffic_there_is_no_picture_of_it(folder):
    edit_lines(folder, lambda line: {"bytes_up": 0, "bytes_down": 0})
    assert list(figures(folder)) == [name for name in ALWAYS if name != "traffic"]
    # Nor with equal traffic, whose curves are those by round.
    edit_lines(folder, lambda line: {"bytes_up": 1000 + (line["method"] == "fedavg"), "bytes_down": 1000})
    assert list(figures(folder)) == [name for name in ALWAYS if name != "traffic"]


def test_a_method_whose_run_failed_before_its_first_evaluation_has_no_curve_of_the_others(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    summary["runs"][-1] |= {"rounds": 0, "failure": "round 1: not finite"}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if (line["method"], line["seed"]) != ("rebafl", 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    (axes,) = figures(folder)["accuracy"][-1].axes
    assert [len(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) > 2] == [20]  # fedavg's, and a target


def test_traffic_is_that_of_all_rounds_until_then_in_megabytes(folder):
    axes = figures(folder)["traffic"][2].axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), 2 * np.arange(1, 6))  # 1 MB up and 1 MB down a round


def test_on_an_imbalanced_test_set_the_mean_over_classes_by_round_comes_first(folder):
    edit_lines(folder, lambda line: {"balanced_accuracy": line["round"] / 10})
    assert list(figures(folder)) == ALWAYS
    edit(folder, lambda summary: [run.update(balanced_accuracy=0.5) for run in summary["runs"]])
    assert list(figures(folder)) == ["class-mean", *ALWAYS]
    np.testing.assert_allclose(figures(folder)["class-mean"][2].axes[0].lines[0].get_ydata(), 10 * np.arange(1, 6))


def test_clients_and_their_models_are_shown_where_they_were_measured(folder):
    edit_lines(folder, lambda line: {"local_test_accuracy": 0.25})
    write_clients(folder, ("0", "1", "2", "3"), [0.4, 0.9, np.nan, 0.2])
    found = figures(folder)
    assert list(found) == [*ALWAYS[:2], "local", *ALWAYS[2:4], "clients", *ALWAYS[4:]]
    figure = found["clients"][2]
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata()[[0, 50, 100]], [[0, 20], [50, 40], [100, 90]])
    assert found["local"][2].axes[0].lines[0].get_ydata().tolist() == [25.0] * 5


def write_clients(folder, names, accuracies):
    """Results by client of all runs of the folder, the same of each: client i has 10 + i training rows."""
    accuracies = np.array(accuracies)
    training = 10 + np.arange(len(names))
    known, old = 1 - np.isnan(accuracies), np.zeros(len(names), bool)
    run = ClientResults("", 0, names, training, known, accuracies, accuracies, accuracies, old)
    runs = [(method, seed) for seed in (0, 1, 2) for method in ("fedavg", "rebafl")]
    RunFolder(folder).write_clients(run._replace(method=method, seed=seed) for method, seed in runs)


def test_a_few_clients_with_names_are_shown_one_by_one(folder):
    write_clients(folder, ("Mainz", "Jena", "Köln", "Ulm"), [0.4, 0.9, np.nan, 0.2])
    axes = figures(folder)["clients"][2].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Ulm, 13", "Mainz, 10", "Jena, 11"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[20, 40, 90]] * 2)
    write_clients(folder, tuple(f"clinic {number}" for number in range(21)), np.linspace(0, 1, 21))
    assert figures(folder)["clients"][2].axes[0].get_xlabel() == "clients from worst to best, %"


def test_clients_of_a_partition_have_their_names(folder):
    counts = [[1, 0, 0, 0, 0, 0, 0, 0, 0, 2]] * 20
    names = [f"clinic {number}" for number in range(20)]
    change = {"shown": list(range(20)), "clients": 20, "class_counts": counts}
    edit(folder, lambda s: s["partitions"][0].update(**change, client_names=names))
    labels = figures(folder)["partition-1"][2].axes[0].get_xticklabels()
    assert [label.get_text().replace("\n", " ") for label in labels] == names
    more = {"shown": list(range(40)), "clients": 40, "class_counts": counts * 2, "client_names": names * 2}
    edit(folder, lambda s: s["partitions"][0].update(more))
    labels = [label.get_text() for label in figures(folder)["partition-1"][2].axes[0].get_xticklabels()]
    assert all(label.isdigit() or not label for label in labels) and "0" in labels


def test_classes_stand_from_most_to_fewest_and_are_those_of_the_runs_that_have_not_failed(folder):
    edit(folder, lambda s: s["runs"][2].update(failure="round 4: not finite"))
    edit(folder, lambda s: s["partitions"][0].update(samples=list(range(1, 11))))
    axes = figures(folder)["classes"][2].axes[0]
    others = class_accuracies([line for line in RunFolder(folder).read().lines if line["seed"] != 2], "fedavg")
    assert others is not None
    np.testing.assert_allclose(axes.images[0].get_array()[0], 100 * others[0][::-1])
    assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["Ankle boot, 10", "Bag, 9"]
    assert "from most to fewest training images" in figures(folder)["classes"][1]
    with_copies = {"samples": [99] * 10, "methods": ["rebafl"], "augmentation": {"before": list(range(1, 11))}}
    edit(folder, lambda s: s["partitions"].append({**s["partitions"][0], **with_copies}))
    names = [label.get_text() for label in figures(folder)["classes"][2].axes[0].get_xticklabels()]
    assert names[:2] == ["Ankle boot, 10", "Bag, 9"]
    edit(folder, lambda s: s["partitions"].pop())
    edit(folder, lambda s: s["partitions"][0].update(samples=[7] * 10))
    axes = figures(folder)["classes"][2].axes[0]
    assert axes.get_xticklabels()[0].get_text() == "T-shirt/top" and axes.get_xlabel() == "class"


def test_predicted_classes_stand_beside_true_and_trained_ones(make_run, tmp_path):
    folder = make_run(tmp_path / "run", methods=("fedavg",), seeds=(0,), rounds=1, classes=3)
    RunFolder(folder).write_confusion({("fedavg", 0): np.array([[1, 1, 0], [0, 1, 0], [0, 3, 4]])})
    edit(folder, lambda s: s["partitions"][0].update(samples=[10, 30, 60]))
    axes = figures(folder)["predictions"][2].axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([60, 30, 10])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["true", "fedavg", "training images"]
    predicted, true = axes.lines
    np.testing.assert_allclose(predicted.get_ydata(), [40, 50, 10])
    np.testing.assert_allclose(true.get_ydata(), [70, 10, 20])


def test_a_partition_is_blank_where_a_client_lacks_a_class(folder):
    counts = [[3, 0], [0, 7], [1, 1]]
    part = {"methods": ["fedavg"], "clients": 30, "shown": [0, 14, 29], "class_counts": counts}
    figure = gallery.partition([("", np.array(counts, float), ["0", "14", "29"])], ["x", "y"])
    many = gallery.partition([("", np.ones((20, 2)), [f"{client}" for client in range(20)])], ["x", "y"])
    ticks = [label.get_text() for label in many.axes[0].get_xticklabels()]
    assert list(filter(None, ticks)) == [f"{client}" for client in range(0, 20, 2)]
    image = figure.axes[0].images[0].get_array()
    assert np.ma.filled(image, 0).tolist() == [[3, 0, 1], [0, 7, 1]]
    assert np.ma.getmaskarray(image).tolist() == [[False, True, False], [True, False, False]]
    part |= {"samples": [4, 8], "data": "", "mean": [], "std": []}
    edit(folder, lambda s: s.update(partitions=[part], class_names=["x", "y"]))
    edit_lines(folder, lambda line: {"per_class_accuracy": None})
    (folder / "confusion.npz").unlink()
    _, caption, figure = figures(folder)["partition-1"]
    assert caption.startswith("A column is a client") and figure.axes[0].get_title() == "3 of 30 clients"


def test_panels_of_a_heat_map_have_one_scale_and_more_than_nine_are_several_figures(make_run, tmp_path):
    folder = make_run(tmp_path / "run", methods=tuple(f"m{place}" for place in range(10)), seeds=(0,), rounds=1)
    edit(folder, lambda s: s["partitions"].append({**s["partitions"][0], "class_counts": [[99] * 10] * 20}))
    found = figures(folder)
    assert [name for name in found if name.startswith("confusion")] == ["confusion-1", "confusion-2"]
    assert found["confusion-2"][0] == "Confusion of classes (2 of 2)"
    assert [axes.get_title() for axes in found["confusion-2"][2].axes] == ["m9"]
    scales = {(image.norm.vmin, image.norm.vmax) for axes in found["partition-1"][2].axes[:2] for image in axes.images}
    (scale,) = scales
    assert scale[0] == 0 and scale[1] >= 99
