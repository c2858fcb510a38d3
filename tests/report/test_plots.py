"""Panels of curves, heat maps and images: what is drawn where, and what their files hold."""

from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from fedjax_bal.metrics.seeds import Curve
from fedjax_bal.report import plots
from fedjax_bal.report.plots import (
    COLOURS,
    GREY,
    WIDE,
    Grid,
    Series,
    curves,
    heat,
    images,
    panels_of,
    percent,
    style,
    to_pdf,
    to_png,
    to_svg,
)

pytestmark = pytest.mark.slow

CURVE = Curve(np.array([1, 2, 4]), np.array([0.2, 0.5, 0.6]), np.array([0.1, 0.4, 0.5]), np.array([0.3, 0.6, 1.2]))


def drawn(names, series=None, origins=None, **options):
    found = series or dict.fromkeys(names, percent(CURVE))
    return curves([(panel, found) for panel in panels_of(names, origins=origins)], "round", "accuracy, %", **options)


def legends(figure):
    """The names in each panel's legend, or in the one below all panels."""
    found = [axes.get_legend() for axes in figure.axes if axes.get_legend()] or figure.legends
    return [[text.get_text() for text in own.get_texts()] for own in found]


def lines(axes):
    return [line for line in axes.lines if line.get_marker() != "None" or line.get_color() == GREY]


def test_lines_are_in_percent_with_a_band_within_bounds():
    without = percent(CURVE._replace(low=None, high=None))
    axes = drawn("ab", {"a": percent(CURVE), "b": without}, target=40.0).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 20], [2, 50], [4, 60]])
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == 100
    assert axes.lines[-1].get_ydata()[0] == 40
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy, %")


def test_names_stand_beside_a_panel_in_the_order_in_which_lines_end():
    heights = {"low": 10.0, "high": 30.0, "middle": 20.0}
    series = {name: Series(np.arange(2), np.array([0.0, height])) for name, height in heights.items()}
    assert legends(drawn(list(series), series, target=25.0)) == [["high", "target 25%", "middle", "low"]]


def test_seven_methods_look_different_without_colour_too():
    (axes,) = drawn([f"method {place}" for place in range(7)]).axes
    assert len({line.get_marker() for line in axes.lines}) == len({line.get_color() for line in axes.lines}) == 7


def test_more_methods_are_small_multiples_with_the_first_in_each_and_no_colour_twice():
    figure = drawn([f"method {place}" for place in range(12)])
    assert [len(own) for own in legends(figure)] == [7, 6]
    for axes, own in zip(figure.axes, legends(figure), strict=True):
        assert "method 0" in own and axes.lines[0].get_color() == GREY
        assert len({line.get_color() for line in lines(axes)}) == len(own)
    whole = {name for own in legends(figure) for name in own}
    assert whole == {f"method {place}" for place in range(12)}


def test_methods_that_runs_share_have_a_panel_each_whose_lines_are_the_runs():
    origins = {f"{method} ({run})": (method, run) for run in "xy" for method in ("fedavg", "rebafl", "cbfl")}
    figure = drawn(list(origins), origins=origins, target=60.0)
    assert [axes.get_title("left") for axes in figure.axes] == ["fedavg", "rebafl", "cbfl"]
    assert [[line.get_color() for line in lines(axes)] for axes in figure.axes] == [list(COLOURS[:2])] * 3
    assert legends(figure) == [["x", "y", "target 60%"]]
    # A method that only one run has keeps that run's look.
    assert next(iter(panels_of(["a (x)", "b (x)", "a (y)"], origins={"a (x)": ("a", "x"), "b (x)": ("b", "x"),
        "a (y)": ("a", "y")})[1].lines.values())).colour == COLOURS[0]  # fmt: skip


def test_the_climb_of_the_first_tenth_is_left_out_but_not_the_target():
    climbing = percent(CURVE._replace(rounds=np.array([1, 20, 40]), low=None, high=None))
    bottom = lambda target: drawn("a", {"a": climbing}, target=target, late=True).axes[0].get_ylim()[0]
    assert (bottom(None), bottom(55.0), bottom(30.0)) == (48, 48, 28)


def test_a_curve_that_ends_within_the_first_tenth_of_another_is_visible():
    long, short = (
        percent(CURVE._replace(rounds=np.array(at), low=None, high=None)) for at in ([1, 200, 400], [1, 2, 4])
    )
    short = short._replace(y=np.array([10.0, 20.0, 30.0]))
    assert drawn("ab", {"a": long, "b": short}, late=True).axes[0].get_ylim()[0] <= 10


def test_a_curve_has_as_many_points_as_can_be_told_apart():
    rounds = np.arange(1, 5001)
    whole = Curve(rounds, rounds / 5000, rounds / 5000 - 0.1, rounds / 5000 + 0.1)
    at, height = drawn(["fedavg"], {"fedavg": percent(whole)}).axes[0].lines[0].get_data()
    assert len(at) == plots.MOST_POINTS and (at[0], at[-1]) == (1, 5000)
    np.testing.assert_allclose(height, at / 50)


def test_heat_maps_have_numbers_in_few_cells_and_a_bar_for_many():
    few = heat([Grid("", np.array([[90.0, 10], [np.nan, 0]]), ["u", "v"])], ["x", "y"], "share, %")
    (axes,) = few.axes
    np.testing.assert_allclose(np.ma.filled(axes.images[0].get_array(), -1), [[90, 10], [-1, 0]])
    assert {text.get_text(): text.get_position() for text in axes.texts} == {"90": (0, 0), "10": (1, 0), "0": (1, 1)}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]  # the first row is on top
    names = [f"c{place}" for place in range(100)]
    axes, bar = heat([Grid("", np.eye(100), names)], names, "share, %").axes
    assert bar.get_ylabel() == "share, %" and not axes.texts
    ticks = {label.get_text(): label.get_position()[0] for label in axes.get_xticklabels()}
    assert ticks["c0"] == 0 and ticks["c99"] == 99 and len(ticks) == 8


def test_panels_of_a_heat_map_share_names_where_they_are_the_same():
    grids = [Grid(name, np.full((2, 2), 40.0), ["u", "v"]) for name in "abcd"]
    figure = heat([*grids, Grid("e", np.full((2, 1), 50.0), ["w"])], ["x", "y"], "share, %", vertical="class")
    assert figure.get_size_inches()[0] == WIDE
    names = lambda axis: [label.get_text() for label in axis.get_ticklabels()]
    assert [names(axes.yaxis) for axes in figure.axes] == [["x", "y"], [], [], ["x", "y"], []]
    assert [names(axes.xaxis) for axes in figure.axes] == [[], [], ["u", "v"], ["u", "v"], ["w"]]
    assert [axes.get_ylabel() for axes in figure.axes] == ["class", "", "", "class", ""]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_stand_in_rows_by_class(channels):
    pixels = np.arange(2 * 3 * 4 * 4 * channels, dtype=np.uint8).reshape(2, 3, 4, 4, channels)
    first, second = images([("real", pixels), ("generated", pixels[:, :1])], ["cat", "dog"]).axes
    table = np.asarray(first.images[0].get_array()).reshape(8, 12, channels)
    np.testing.assert_array_equal(table[4:, 8:], pixels[1, 2])
    assert [label.get_text() for label in first.get_yticklabels()] == ["cat", "dog"]
    assert (first.get_title(), second.get_title()) == ("real", "generated")
    assert np.asarray(second.images[0].get_array()).shape[:2] == (8, 4)


def test_names_take_even_lines_and_formulas_are_not_broken():
    assert plots.wrapped("Balanced softmax, tau 1 (ours)") == "Balanced softmax,\ntau 1 (ours)"
    assert plots.wrapped(r"Smooth, $\beta = 0.9$ and so on", 14) == "Smooth,\n$\\beta = 0.9$\nand so on"
    assert plots.wrapped("from $5 to $10") == r"from \$5 to \$10"
    # Beside a formula, matplotlib would draw a dummy for each letter that DejaVu Sans lacks.
    assert plots.wrapped("\u6771\u4eac $x_1$") == "\u6771\u4eac \\$x_1\\$"
    assert plots.wrapped("Zürich $x_1$") == "Zürich $x_1$"


@pytest.mark.parametrize("write", [to_pdf, to_png, lambda figure: to_svg(figure, "t")], ids=["pdf", "png", "svg"])
def test_the_same_figure_gives_the_same_bytes(write):
    first, second = (write(heat([Grid("", np.eye(3), "xyz")], "abc", "share")) for _ in range(2))
    assert first == second and len(first) > 1000


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{", "<script>x</script>", "_hidden", "a --> b", "名前 😀", "a\x00b", "&amp;"]
)
def test_any_name_becomes_plain_text(name):
    root = ElementTree.fromstring(to_svg(drawn([name]), name))
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert texts.count(name.replace("\x00", "\ufffd")) >= 2  # the title, and the legend
    assert not [element for element in root.iter() if element.tag.endswith("script")]


@pytest.mark.parametrize(
    ("settings", "font"),
    [
        ({"font.family": ["STIXGeneral"]}, "STIXGeneral"),
        ({"font.family": ["No Such Font", "cmr10"]}, "cmr10"),
        ({"font.family": ["serif"], "font.serif": ["No Such Font", "STIXGeneral"]}, "STIXGeneral"),
        ({"font.sans-serif": ["DejaVu Sans Mono"]}, "DejaVu Sans Mono"),
        ({}, "DejaVu Sans"),
    ],
)
def test_the_user_s_fonts_are_used_where_they_are_installed(settings, font):
    with matplotlib.rc_context(settings):
        figure = drawn(["минус"])
        assert font in to_svg(figure, "t") and "No Such Font" not in to_svg(figure, "t")
        assert font.replace(" ", "").lower().encode() in to_pdf(figure).lower()
        assert matplotlib.rcParams["font.family"] == settings.get("font.family", ["sans-serif"])


@pytest.mark.parametrize("save", [to_png, to_pdf])
def test_characters_that_no_font_has_are_named(save):
    with pytest.warns(UserWarning, match="IDEOGRAPH-57FA"):
        save(drawn(["基", "плюс"]))
    save(drawn(["плюс", "é ★", r"$\alpha$"]))
    # A second font of the user's has what the first lacks.
    with matplotlib.rc_context({"font.family": ["cmr10", "DejaVu Serif"]}):
        save(drawn(["плюс"]))


def test_matplotlibs_other_settings_neither_matter_nor_change():
    expected = to_svg(drawn(["a"]), "t")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        assert to_svg(drawn(["a"]), "t") == expected
        assert matplotlib.rcParams["font.size"] == 30
    with style():
        small = [size for key, size in matplotlib.rcParams.items() if key.endswith(("labelsize", "legend.fontsize"))]
        assert all(isinstance(size, str) or size >= 9 for size in small)
