import numpy as np
import pytest
from matplotlib.colors import LogNorm

from fedjax_bal.data.description import describe
from fedjax_bal.report.partition_plots import classes_picture, picture
from fedjax_bal.report.svg import to_png, to_svg


def told(counts):
    """The description of a partition with given class counts."""
    counts = np.asarray(counts)
    labels = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return describe(labels, np.split(np.arange(len(labels)), np.cumsum(counts.sum(1))[:-1]), counts.shape[1])


def drawn(counts, title="t"):
    figure = picture(told(counts), [f"c{label}" for label in range(np.shape(counts)[1])], title)
    return figure, figure.axes


def test_a_dots_area_is_its_count_and_absent_classes_have_none():
    _, (main, side, sizes, divergences) = drawn([[400, 0], [100, 200], [0, 100]])
    (dots,) = main.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    areas = dots.get_sizes()
    np.testing.assert_allclose(areas / areas[0], [1, 0.25, 0.5, 0.25])
    assert "largest has 400" in main.get_xlabel()
    assert [bar.get_width() for bar in side.patches] == [500, 300]
    assert [label.get_text() for label in main.get_yticklabels()] == ["c0", "c1"]
    assert main.get_ylim() == (1.5, -0.5)  # the first class is on top
    assert sum(bar.get_height() for bar in sizes.patches) == 3
    assert [bar.get_height() for bar in divergences.patches if bar.get_height()] == [1, 2]  # 0.06 nats; log 2 twice


def test_many_clients_are_cells_and_of_very_many_some():
    counts = np.ones((41, 3), int)
    counts[5] = [0, 3, 1]
    (image,) = drawn(counts)[1][0].images
    np.testing.assert_array_equal(image.get_array().filled(0), counts.T)
    assert not isinstance(image.norm, LogNorm)
    _, (main, side, *_) = drawn(np.ones((1001, 3), int))
    assert main.images[0].get_array().shape == (3, 200)
    assert main.get_xlabel() == "client, 200 of 1,001"
    assert [label.get_text() for label in main.get_xticklabels()] == ["0", "200", "400", "600", "800", "1,000"]
    assert [bar.get_width() for bar in side.patches] == [1001] * 3  # of all clients, not of those shown


def test_very_uneven_counts_are_on_a_logarithmic_scale():
    counts = np.ones((50, 3), int)
    counts[0] = 500
    assert isinstance(drawn(counts)[1][0].images[0].norm, LogNorm)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (1, 21), (40, 20), (300, 200)])
def test_any_shape_can_be_written(shape):
    counts = np.random.default_rng(0).integers(0, 5, shape) + 1
    figure, axes = drawn(counts, "x" * 200 + "$\\frac")
    assert len(axes) >= 4
    assert to_svg(figure, "p", "t", "d").startswith("<svg")


def test_a_png_is_the_same_each_time():
    files = [to_png(drawn([[1, 2], [3, 0]])[0], 50) for _ in range(2)]
    assert files[0] == files[1] and files[0].startswith(b"\x89PNG")


def test_classes_alone():
    axes = classes_picture(np.array([3, 9]), ["cat", "dog"], "pets").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [3, 9]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
