"""Figures as files: the same bytes each time, whatever the user's matplotlib is set to, and names as text."""

from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from fedjax_bal.report.plots import Series, curves, heat, panels_of
from fedjax_bal.report.svg import WIDTH, as_wide_as, style, to_pdf, to_png, to_svg

SERIES = Series(np.array([1, 2]), np.array([20.0, 50.0]))


def drawn(name="a"):
    return curves([(panel, {name: SERIES}) for panel in panels_of([name])], "round", "accuracy")


def test_figures_are_made_for_a_column_of_another_width():
    with as_wide_as(3.25):
        figure = drawn()
    assert figure.get_size_inches()[0] == 3.25
    assert 7 <= figure.axes[0].get_xticklabels()[0].get_fontsize() < 8
    assert drawn().get_size_inches()[0] == WIDTH


@pytest.mark.parametrize("write", [to_pdf, to_png, lambda figure: to_svg(figure, "t")], ids=["pdf", "png", "svg"])
def test_the_same_figure_gives_the_same_bytes(write):
    first, second = (write(heat(np.eye(3), "abc", "xyz", "share")) for _ in range(2))
    assert first == second and len(first) > 1000


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{", "<script>x</script>", "_hidden", "a --> b", "名前 😀", "a\x00b", "&amp;"]
)
def test_any_name_becomes_plain_text(name):
    root = ElementTree.fromstring(to_svg(drawn(name), name))
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert texts.count(name.replace("\x00", "\ufffd")) >= 2  # the title, and the legend
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_matplotlibs_own_settings_neither_matter_nor_change():
    expected = to_svg(drawn(), "t")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        assert to_svg(drawn(), "t") == expected
        assert matplotlib.rcParams["font.size"] == 30
    with style():
        small = [size for key, size in matplotlib.rcParams.items() if key.endswith(("labelsize", "legend.fontsize"))]
        assert all(isinstance(size, str) or size >= 9 for size in small)
