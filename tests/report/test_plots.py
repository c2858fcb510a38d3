import matplotlib
import numpy as np
import pytest

from fedjax_bal.metrics.classification import evenly_spaced
from fedjax_bal.metrics.seeds import Curve
from fedjax_bal.report import plots
from fedjax_bal.report.panels import GREY
from fedjax_bal.report.styles import looks_of
from fedjax_bal.report.svg import WIDTH, as_wide_as, inline, style, to_pdf, to_svg

CURVE = Curve(np.array([1, 2, 4]), np.array([0.2, 0.5, 0.6]), np.array([0.1, 0.4, 0.5]), np.array([0.3, 0.6, 1.2]))


def drawn(curves, *arguments, **options):
    return plots.accuracy_curves(curves, looks_of([name for name, _ in curves]), *arguments, **options)


def labels(figure):
    """What is written beside the curves of each panel."""
    return [[text.get_text() for text in axes.texts] for axes in figure.axes]


def test_lines_are_in_percent_over_rounds_with_a_band_within_bounds():
    axes = drawn([("a", CURVE), ("b", CURVE._replace(low=None, high=None))], 0.4).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 20], [2, 50], [4, 60]])
    assert len(axes.collections) == 1
    assert axes.collections[0].get_paths()[0].vertices[:, 1].max() == 100
    assert axes.lines[-1].get_ydata()[0] == 40
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy, %")


def test_traffic_is_in_megabytes():
    axes = drawn([("a", CURVE)], traffic=[np.array([1e6, 2e6, 5e6])]).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2, 5])


def test_eight_methods_look_different_without_colour_too():
    figure = drawn([(f"method {place}", CURVE) for place in range(8)])
    lines = [line for line in figure.axes[0].lines if line.get_alpha() is None]
    assert len({line.get_marker() for line in lines}) == 8
    assert sorted(labels(figure)[0]) == [f"method {place}" for place in range(8)]


def test_more_methods_are_small_multiples_with_the_first_in_each_and_no_colour_twice():
    figure = drawn([(f"method {place}", CURVE) for place in range(12)])
    assert [len(own) for own in labels(figure)] == [7, 6]
    for axes, own in zip(figure.axes, labels(figure), strict=True):
        lines = [line for line in axes.lines if line.get_alpha() is None]
        assert "method 0" in own and lines[0].get_color() == GREY
        assert len({line.get_color() for line in lines}) == len(lines) == len(own)


def test_the_climb_of_the_first_tenth_is_left_out_but_not_the_target():
    climbing = CURVE._replace(rounds=np.array([1, 20, 40]), low=None, high=None)
    bottom = lambda target: drawn([("a", climbing)], target).axes[0].get_ylim()[0]
    assert (bottom(None), bottom(0.55), bottom(0.3)) == (48, 48, 28)


def test_labels_stand_apart_in_the_order_of_the_ends_within_the_axes():
    ends = dict(zip("abcd", (0.5, 0.505, 0.51, 0.9), strict=True))
    curves = [(name, CURVE._replace(mean=np.array([0.1, 0.3, end]), low=None, high=None)) for name, end in ends.items()]
    (axes,) = drawn(curves).axes
    assert [text.get_text() for text in axes.texts] == ["a", "b", "c", "d"]
    heights = [text.get_position()[1] for text in axes.texts]
    assert np.diff(heights).min() > 0.04 and heights[0] >= 0 and heights[-1] <= 1
    assert [text.xy for text in axes.texts] == [(4, pytest.approx(100 * end)) for end in ends.values()]


def test_panels_stand_beside_each_other_where_labels_leave_room():
    across = lambda name: drawn([(f"{name}{place}", CURVE) for place in range(12)]).axes[0].get_gridspec().ncols
    assert (across("m"), across("a_long_name_of_a_method")) == (2, 1)
    with as_wide_as(3.25):
        assert across("method") == 1


@pytest.mark.parametrize("classes", [10, 20])
def test_classes_stand_from_head_to_tail_below_their_numbers(classes):
    mean, samples = np.linspace(0, 1, classes), np.arange(classes) + 5.0
    bars, axes = plots.accuracy_by_class([("a", (mean, mean, mean))], [f"c{k}" for k in range(classes)], samples).axes[
        :2
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"c{k}" for k in reversed(range(classes))]
    assert [bar.get_height() for bar in bars.patches] == sorted(samples, reverse=True)
    np.testing.assert_allclose(axes.collections[0].get_array(), [100 * mean[::-1]])
    written = [text.get_text() for text in axes.texts]
    assert written == ([f"{100 * value:.0f}" for value in mean[::-1]] if classes == 10 else [])


def test_a_hundred_classes_have_a_cell_each_with_a_tip():
    mean = np.linspace(1, 0, 100)
    mean[3] = np.nan
    names = [f"c{k}" for k in range(100)]
    figure = plots.accuracy_by_class([("a", (mean, None, None)), ("b", (mean, None, None))], names)
    assert not figure.axes[0].texts and len(figure.axes[0].get_xticklabels()) < 10
    text = to_svg(figure, "p", "t", "d")
    assert "<title>a, c99: 0.0%</title>" in text and "<title>b, c0: 100.0%</title>" in text
    assert "nan" not in text.replace("c3: nan", "")


def test_predicted_classes_stand_beside_true_and_trained_ones():
    shares, true, samples = np.array([0.2, 0.8]), np.array([0.5, 0.5]), np.array([10.0, 30.0])
    axes = plots.predicted_classes([("a", shares)], true, ["x", "y"], samples, looks_of(["a"])).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["y", "x"]
    assert [bar.get_height() for bar in axes.patches] == [75, 25]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 50, 50])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [80, 20])


def test_a_method_has_its_colour_whatever_stands_beside_it():
    names = ["fedavg", "rebafl", "mine", "balanced_softmax", "scaffold", "astraea", "flcir"]
    alone = {name: looks_of([name])[name] for name in names}
    for some in (names, names[::-1]):
        together = looks_of(some)
        assert len({look.colour for look in together.values()}) == len(names)
        assert all(together[name] == alone[name] for name in ("fedavg", "rebafl", "balanced_softmax", "flcir"))


def test_methods_that_runs_share_have_a_panel_each_whose_dashes_are_the_runs():
    origins = {f"{method} ({run})": (method, run) for run in "xy" for method in ("fedavg", "rebafl", "cbfl")}
    looks = looks_of(list(origins), origins)
    figure = plots.accuracy_curves([(name, CURVE) for name in origins], looks, 0.6)
    assert [axes.get_title("left") for axes in figure.axes] == ["fedavg", "rebafl", "cbfl"]
    means = [
        [line for line in axes.lines if line.get_marker() not in ("o", "None") or line.get_alpha() is None]
        for axes in figure.axes
    ]
    assert all(len({line.get_color() for line in lines[:2]}) == 1 for lines in means)
    assert all(lines[0].get_linestyle() != lines[1].get_linestyle() for lines in means)
    assert labels(figure)[0] == ["x", "y", "target 60%"]


def test_more_runs_than_dashes_are_told_apart_by_colour():
    origins = {f"{method} ({run})": (method, run) for run in "uvwxy" for method in ("fedavg", "rebafl")}
    figure = plots.accuracy_curves([(name, CURVE) for name in origins], looks_of(list(origins), origins))
    assert [len(own) for own in labels(figure)] == [6, 5] and "rebafl (y)" in labels(figure)[1]


def test_the_targets_label_is_in_the_margin_and_seeds_have_thin_lines():
    curve = CURVE._replace(seeds=((0, CURVE.mean - 0.1), (7, CURVE.mean + 0.1)))
    figure = plots.accuracy_curves([("a", curve)], looks_of(["a"]), 0.4)
    axes = figure.axes[0]
    assert axes.texts[0].get_text() == "target 40%" and axes.texts[0].xy == (4, 40)
    thin = [line for line in axes.lines if line.get_linewidth() < 1]
    np.testing.assert_allclose([line.get_ydata()[-1] for line in thin], [50, 70])
    text = to_svg(figure, "p", "t", "d")
    assert "<title>a, seed 7: 70.0% at the end</title>" in text
    assert "<title>a, round 4: 60.0 ± 60.0%</title>" in text and "tips:" not in text


def test_ticks_of_clients_are_round_numbers_at_their_places():
    axes = plots.partition(np.ones((50, 2)), range(50), ["x", "y"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "20", "30", "40"]
    shown = evenly_spaced(1000, 50).tolist()
    axes = plots.partition(np.ones((50, 2)), shown, ["x", "y"]).axes[0]
    places = {label.get_text(): label.get_position()[0] for label in axes.get_xticklabels()}
    assert list(places) == ["0", "200", "400", "600", "800"]
    assert places["400"] == pytest.approx(np.interp(400, shown, range(50)))


def test_figures_are_made_for_a_column_of_another_width():
    with as_wide_as(3.25):
        figure = plots.accuracy_curves([("a", CURVE)], looks_of(["a"]))
    assert figure.get_size_inches()[0] == 3.25
    assert 7 <= figure.axes[0].get_xticklabels()[0].get_fontsize() < 8
    assert to_pdf(figure) == to_pdf(figure) and to_pdf(figure).startswith(b"%PDF")
    assert plots.accuracy_curves([("a", CURVE)], looks_of(["a"])).get_size_inches()[0] == WIDTH


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
    text = to_svg(drawn([(name, CURVE)]), "n", name, name)
    assert "<script" not in text and "\x00" not in text
    shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\x00", "\ufffd")
    assert text.count(f">{shown}<") == 3


def test_the_same_figure_gives_the_same_bytes_without_date_or_address():
    first, second = (to_svg(plots.confusion(np.eye(3), "a", ["x", "y", "z"]), "c", "t", "d") for _ in range(2))
    assert first == second
    assert "<metadata" not in first and "<style" not in first and "matplotlib.org" not in first


def test_identifiers_carry_the_figures_name_and_inline_has_no_address():
    text = to_svg(drawn([("a", CURVE)]), "fig", "t", "d")
    assert 'id="fig-' in text and "url(#fig-" in text and text.count('id="') == text.count('id="fig-')
    assert 'aria-labelledby="fig-title fig-desc"' in text
    assert "http" not in inline(text)


def test_matplotlibs_own_settings_neither_matter_nor_change():
    expected = to_svg(drawn([("a", CURVE)]), "fig", "t", "d")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        assert to_svg(drawn([("a", CURVE)]), "fig", "t", "d") == expected
        assert matplotlib.rcParams["font.size"] == 30
    with style():
        small = [size for key, size in matplotlib.rcParams.items() if key.endswith(("labelsize", "legend.fontsize"))]
        assert all(isinstance(size, str) or size >= 9 for size in small)


def test_a_curve_has_as_many_points_as_can_be_told_apart():
    rounds = np.arange(1, 5001)
    whole = Curve(rounds, rounds / 5000, rounds / 5000 - 0.1, rounds / 5000 + 0.1)
    at, height = drawn([("fedavg", whole)]).axes[0].lines[0].get_data()
    assert len(at) == plots.MOST_POINTS and (at[0], at[-1]) == (1, 5000)
    np.testing.assert_allclose(height, at / 50)
