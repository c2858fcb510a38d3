import numpy as np
import pytest

from fedjax_bal.report import cohort_plots as plots
from fedjax_bal.report.styles import looks_of
from fedjax_bal.report.svg import to_svg


def written(axes):
    return [text.get_text() for text in axes.texts]


def test_boxes_have_quartiles_whiskers_and_the_mean_in_numbers():
    # 0, 1, ..., 100: percentiles are the values themselves; the means are given, for not every value is drawn.
    axes = plots.evenness(
        [("a", np.arange(101.0), 50.25), ("b", np.array([3.0, 0, 0]), 1.0)], looks_of(["a", "b"])
    ).axes[0]
    box = axes.patches[0]
    assert (box.get_x(), box.get_x() + box.get_width()) == (25, 75)
    whisker, caps, median = (artist.get_segments() for artist in axes.collections[:3])
    assert whisker[0][:, 0].tolist() == [5, 95]
    assert [cap[0, 0] for cap in caps] == [5, 95]
    assert median[0][:, 0].tolist() == [50, 50]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[50.25, 0]], [[1, 1]]]
    assert written(axes) == ["50.250", "1.000", "mean"]
    assert axes.get_xlim()[0] == 0


def test_methods_stand_in_their_order_from_above_in_two_lines_if_need_be():
    names = ["fedavg", "scaffold+balanced_softmax", "x" * 50]
    axes = plots.evenness([(name, np.zeros(1), 0.0) for name in names], looks_of(names)).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["fedavg", "scaffold+balanced_\nsoftmax", f"{'x' * 22}\n{'x' * 21}…"]
    bottom, top = axes.get_ylim()
    assert bottom > 2 > 0 > top


def test_boxes_about_nothing_have_a_scale():
    axes = plots.evenness([("a", np.zeros(3), 0.0), ("b", np.full(2, 1e-5), 1e-5)], looks_of(["a", "b"])).axes[0]
    assert axes.get_xlim()[1] >= 0.02
    assert written(axes)[:2] == ["0.000", "0.000"]


def test_stairs_are_in_percent():
    values = [(name, (np.arange(3), np.array([0.25, 0.5, 1.0]))) for name in "ab"]
    figure = plots.chosen(values, looks_of(["a", "b"]))
    (axes,) = figure.axes
    assert [line.get_drawstyle() for line in axes.lines] == ["steps-post"] * 2
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[0, 25], [1, 50], [2, 100]])
    assert written(axes) == ["a", "b"]


def test_estimates_lie_above_what_is_true_and_the_diagonal_is_where_they_agree():
    axes = plots.composition(np.array([0.0, 0.5]), np.array([0.1, 0.2]), "flcir", "0.71").axes[0]
    diagonal, dots = axes.lines
    np.testing.assert_allclose(dots.get_xydata(), [[0, 10], [50, 20]])
    np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [100, 100]])
    assert axes.get_title() == "flcir\nrank correlation 0.71"
    assert 50 < axes.get_xlim()[1] < 55 and 20 < axes.get_ylim()[1] < 22


def test_up_to_twenty_classes_are_named_and_joined():
    before, after = np.arange(20.0), np.arange(20.0) + 5
    axes = plots.augmentation(before, after, [f"c{k}" for k in range(20)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"c{k}" for k in range(20)]
    assert [line.get_xdata().tolist() for line in axes.lines] == [before.tolist(), after.tolist()]
    joined = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
    assert joined == [[k, k + 5] for k in range(20)]
    assert axes.get_xlim()[0] == 0


def test_more_classes_are_lines_in_falling_order():
    before, after = np.arange(21.0), np.full(21, 30.0)
    after[0] = 40
    figure = plots.augmentation(before, after, [f"c{k}" for k in range(21)])
    first, second = (line.get_ydata() for line in figure.axes[0].lines)
    assert first.tolist() == list(range(20, -1, -1))
    assert second.tolist() == [40] + [30] * 20
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["before", "after"]


def test_mini_batches_are_beside_what_clients_hold_in_columns():
    held, trained = plots.batches(np.eye(2), np.full((2, 2), 0.5), [0, 7], ["cat", "dog"]).axes[:2]
    assert [axes.get_title() for axes in (held, trained)] == ["what clients hold", "what they train on"]
    assert [label.get_text() for label in held.get_xticklabels()] == ["0", "7"]
    assert held.images[0].get_array().tolist() == [[1, 0], [0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$\\frac{1}{", "<script>x</script>", "_hidden", "a\x00b", "名前 😀"])
def test_any_name_becomes_plain_text(name):
    shown = name.replace("<", "&lt;").replace(">", "&gt;").replace("\x00", "\ufffd")
    figures = [
        plots.evenness([(name, np.ones(2), 1.0)], looks_of([name])),
        plots.chosen([(name, (np.arange(2), np.array([0.5, 1])))], looks_of([name])),
        plots.composition(np.ones(1), np.ones(1), name, "1.00"),
        plots.augmentation(np.ones(1), np.ones(1), [name]),
    ]
    for figure in figures:
        text = to_svg(figure, "n", "title", "caption")
        assert "<script" not in text and "\x00" not in text
        assert text.count(f">{shown}<") == 1
