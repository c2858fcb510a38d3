import matplotlib
import numpy as np
import pytest

from fedjax_bal.metrics.seeds import Curve
from fedjax_bal.report import plots
from fedjax_bal.report.svg import inline, style, to_svg

CURVE = Curve(np.array([1, 2, 4]), np.array([0.2, 0.5, 0.6]), np.array([0.1, 0.4, 0.5]), np.array([0.3, 0.6, 1.2]))


def test_lines_are_in_percent_over_rounds_with_a_band_within_bounds():
    axes = plots.accuracy_by_round([("a", CURVE), ("b", CURVE._replace(low=None, high=None))], 0.4).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 20], [2, 50], [4, 60]])
    assert len(axes.collections) == 1
    assert axes.collections[0].get_paths()[0].vertices[:, 1].max() == 100
    assert axes.lines[2].get_ydata()[0] == 40
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy, %")


def test_traffic_is_in_megabytes():
    axes = plots.accuracy_by_traffic([("a", CURVE)], [np.array([1e6, 2e6, 5e6])]).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2, 5])


def test_twelve_methods_look_different_without_colour_too():
    figure = plots.accuracy_by_round([(f"method {place}", CURVE) for place in range(12)])
    shapes = {(line.get_marker(), str(line.get_linestyle())) for line in figure.axes[0].lines}
    colours = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(shapes) == len(colours) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"method {place}" for place in range(12)]


def test_a_legend_has_as_many_columns_as_fit():
    columns = lambda *names: plots.accuracy_by_round([(name, CURVE) for name in names]).legends[0]._ncols
    assert (columns("a", "b", "c", "d"), columns(*3 * ["a" * 40])) == (4, 1)


@pytest.mark.parametrize(("classes", "ticks"), [(10, 10), (20, 20)])
def test_classes_are_named_as_long_as_they_can_be_read(classes, ticks):
    mean = np.linspace(0, 1, classes)
    axes = plots.accuracy_by_class([("a", (mean, mean, mean))], [f"c{k}" for k in range(classes)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"c{k}" for k in range(ticks)]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.column_stack([100 * mean, np.arange(classes)]))


def test_a_hundred_classes_are_ranked_for_each_method():
    mean = np.linspace(1, 0, 100)
    mean[3] = np.nan
    axes = plots.accuracy_by_class([("a", (mean, None, None))], [str(k) for k in range(100)]).axes[0]
    drawn = axes.lines[0].get_ydata()
    assert len(drawn) == 99 and np.all(np.diff(drawn) > 0)


def test_confusion_has_numbers_for_ten_classes_and_names_for_twenty():
    ten, twenty, more = (plots.confusion(np.eye(n), "a", [f"c{k}" for k in range(n)]).axes[0] for n in (10, 20, 21))
    assert [text.get_text() for text in ten.texts] == ["100"] * 10
    assert not twenty.texts and len(twenty.get_xticklabels()) == 20
    assert len(more.get_yticklabels()) < 10


def test_confusion_has_true_classes_in_rows():
    axes = plots.confusion(np.array([[0.9, 0.1], [np.nan, np.nan]]), "a", ["x", "y"]).axes[0]
    np.testing.assert_allclose(np.ma.filled(axes.images[0].get_array(), -1), [[90, 10], [-1, -1]])
    assert {text.get_text(): text.get_position() for text in axes.texts} == {"90": (0, 0), "10": (1, 0)}


def test_partition_leaves_absent_classes_white():
    axes = plots.partition(np.array([[3, 0, 1], [0, 0, 7]]), [4, 9], ["x", "y", "z"]).axes[0]
    image = axes.images[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(image, 0), [[3, 0], [0, 0], [1, 7]])
    np.testing.assert_array_equal(np.ma.getmaskarray(image), [[False, True], [True, True], [False, False]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "9"]


def test_a_partition_without_samples_can_be_drawn():
    text = to_svg(plots.partition(np.zeros((2, 2)), [0, 1], ["x", "y"]), "p", "t", "d")
    assert "samples" in text


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{", "<script>x</script>", "_hidden", "a --> b", "名前 😀", "a\x00b", "&amp;"]
)
def test_any_name_becomes_plain_text(name):
    text = to_svg(plots.accuracy_by_round([(name, CURVE)]), "n", name, name)
    assert "<script" not in text and "\x00" not in text
    shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\x00", "\ufffd")
    assert text.count(f">{shown}<") == 3


def test_the_same_figure_gives_the_same_bytes_without_date_or_address():
    first, second = (to_svg(plots.confusion(np.eye(3), "a", ["x", "y", "z"]), "c", "t", "d") for _ in range(2))
    assert first == second
    assert "<metadata" not in first and "<style" not in first and "matplotlib.org" not in first


def test_identifiers_carry_the_figures_name_and_inline_has_no_address():
    text = to_svg(plots.accuracy_by_round([("a", CURVE)]), "fig", "t", "d")
    assert 'id="fig-' in text and "url(#fig-" in text and text.count('id="') == text.count('id="fig-')
    assert 'aria-labelledby="fig-title fig-desc"' in text
    assert "http" not in inline(text)


def test_matplotlibs_own_settings_neither_matter_nor_change():
    expected = to_svg(plots.accuracy_by_round([("a", CURVE)]), "fig", "t", "d")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        assert to_svg(plots.accuracy_by_round([("a", CURVE)]), "fig", "t", "d") == expected
        assert matplotlib.rcParams["font.size"] == 30
    with style():
        small = [size for key, size in matplotlib.rcParams.items() if key.endswith(("labelsize", "legend.fontsize"))]
        assert all(isinstance(size, str) or size >= 9 for size in small)


def test_a_curve_has_as_many_points_as_can_be_told_apart():
    rounds = np.arange(1, 5001)
    whole = Curve(rounds, rounds / 5000, rounds / 5000 - 0.1, rounds / 5000 + 0.1)
    drawn = plots.accuracy_by_round([("fedavg", whole)]).axes[0].lines[0]
    at, height = drawn.get_data()
    assert len(at) == plots.MOST_POINTS and (at[0], at[-1]) == (1, 5000)
    np.testing.assert_allclose(height, at / 50)
