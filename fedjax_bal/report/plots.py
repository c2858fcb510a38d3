"""The report's figures about accuracy and partitions, each a pure function from numbers to a matplotlib figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_bal.metrics import Curve, evenly_spaced
from fedjax_bal.report.styles import figure_with_legend, method_style
from fedjax_bal.report.svg import INK, blank, style
from fedjax_bal.report.wording import printable

# From a blue that even one sample sets off from the white of none.
SAMPLES = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))
MOST_NAMED = 20
MOST_NUMBERED = 10
MOST_WITH_SPREAD = 6
MOST_POINTS = 1000  # of a line: a page is narrower than that


def accuracy_by_round(curves: Sequence[tuple[str, Curve]], target: float | None = None) -> Figure:
    """Test accuracy against the round: a line per method, a band of one standard deviation over seeds, the target."""
    return _curves(curves, [curve.rounds for _, curve in curves], "round", target)


def local_accuracy_by_round(curves: Sequence[tuple[str, Curve]]) -> Figure:
    """Mean test accuracy of the clients' own models against the round, drawn as `accuracy_by_round` draws."""
    rounds = [curve.rounds for _, curve in curves]
    return _curves(curves, rounds, "round", height="mean local test accuracy, %")


def accuracy_by_traffic(curves: Sequence[tuple[str, Curve]], traffic: Sequence[np.ndarray]) -> Figure:
    """Test accuracy against the bytes up and down so far, `Float[E]` at each curve's rounds."""
    return _curves(curves, [sent / 1e6 for sent in traffic], "traffic up and down, MB")


@style()
def accuracy_by_class(
    values: Sequence[tuple[str, tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]], classes: Sequence[str]
) -> Figure:
    """Accuracy of each class: a row of dots per class, or, for many classes, each method's classes in rising order.

    `values` are the name of each method, and mean, low and high of its class accuracies `Float[C]`.
    """
    named = len(classes) <= MOST_NAMED
    few = len(values) <= MOST_WITH_SPREAD
    height = 0.7 + len(classes) * (0.17 + (0.055 if few else 0.03) * len(values)) if named else 2.9
    figure, axes = figure_with_legend([name for name, _ in values], height, "none" if named else None)
    for place, (_, (mean, low, high)) in enumerate(values):
        if named:
            _class_dots(axes, place, len(values), mean, (low, high) if few else (None, None))
        else:
            ranked = 100 * np.sort(mean[~np.isnan(mean)])
            axes.plot(np.arange(1, len(ranked) + 1), ranked, **method_style(place, len(ranked)))
    if named:
        name_classes(axes.yaxis, classes)
        axes.set_ylim(len(classes) - 0.5, -0.5)
        axes.set_yticks(np.arange(1, len(classes)) - 0.5, minor=True)
        axes.grid(False, axis="y")
        axes.grid(True, axis="y", which="minor")
        axes.tick_params(axis="y", which="both", length=0)
        axes.set(xlabel="test accuracy of the class, %", xlim=(-2, 102))
    else:
        axes.set(xlabel="rank of the class, from worst to best", ylabel="test accuracy of the class, %", ylim=(-2, 102))
    return figure


@style()
def accuracy_by_client(values: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """The clients' accuracies from worst to best, a line for each method, as from `metrics.ranked_clients`."""
    figure, axes = figure_with_legend([name for name, _ in values])
    for place, (_, accuracies) in enumerate(values):
        at = np.linspace(0, 100, len(accuracies))
        axes.plot(at, 100 * accuracies, **method_style(place, len(at)))
    axes.set(xlabel="clients from worst to best, %", ylabel="client accuracy, %", ylim=(-2, 102))
    return figure


@style()
def confusion(matrix: np.ndarray, method: str, classes: Sequence[str]) -> Figure:
    """A confusion matrix in percent: true classes in rows, predicted in columns, colour the share of the true class.

    `matrix`, `Float[C, C]`, has shares of each row, nan in the row of a class without test examples. The names of up to
    20 classes are written, and the numbers of up to 10.
    """
    figure = blank(4.2)
    axes = figure.add_subplot()
    image = axes.imshow(100 * matrix, cmap="Blues", norm=Normalize(0, 100), interpolation="none", aspect="auto")
    axes.set(xlabel="predicted class", ylabel="true class", title=printable(method, 44))
    _frame(axes)
    name_classes(axes.yaxis, classes, 12)
    name_classes(axes.xaxis, classes, 12, rotation=55, ha="right", rotation_mode="anchor")
    if len(classes) <= MOST_NUMBERED:
        for (true, given), share in np.ndenumerate(matrix):
            if share >= 0.005:
                colour = "white" if share > 0.55 else INK
                axes.text(given, true, f"{100 * share:.0f}", ha="center", va="center", color=colour, size=9)
    figure.colorbar(image, ax=axes, label="share of the true class, %", pad=0.02)
    return figure


@style()
def partition(class_counts: np.ndarray, clients: Sequence[int], classes: Sequence[str]) -> Figure:
    """Samples of each class on each client, `Int[M, C]`: a column for each client, white for no sample."""
    figure = blank(float(np.clip(0.21 * len(classes) + 1.0, 2.4, 4.4)))
    axes = figure.add_subplot()
    counts = np.ma.masked_equal(class_counts.T, 0)
    norm = Normalize(0, max(int(class_counts.max(initial=0)), 1))
    image = axes.imshow(counts, cmap=SAMPLES, norm=norm, interpolation="none", aspect="auto")
    axes.set(xlabel="client", ylabel="class")
    _frame(axes)
    name_classes(axes.yaxis, classes)
    at = evenly_spaced(len(clients), 6)
    axes.set_xticks(at, [str(clients[place]) for place in at])
    bar = figure.colorbar(image, ax=axes, label="samples", pad=0.02)
    bar.locator = MaxNLocator(5, integer=True)
    bar.update_ticks()
    return figure


@style()
def _curves(
    curves: Sequence[tuple[str, Curve]],
    positions: Sequence[np.ndarray],
    label: str,
    target: float | None = None,
    height: str = "test accuracy, %",
) -> Figure:
    figure, axes = figure_with_legend([name for name, _ in curves])
    for place, ((_, curve), whole) in enumerate(zip(curves, positions, strict=True)):
        kept = evenly_spaced(len(whole), MOST_POINTS)
        at, line = whole[kept], method_style(place, len(kept))
        axes.plot(at, 100 * curve.mean[kept], zorder=3, **line)
        if curve.low is not None and curve.high is not None:
            low, high = (100 * np.clip(edge[kept], 0, 1) for edge in (curve.low, curve.high))
            axes.fill_between(at, low, high, color=line["color"], alpha=0.14, linewidth=0)
    if target is not None:
        axes.axhline(100 * target, color="#666666", linewidth=1)
        axes.annotate(
            f"target {100 * target:g}%", (1, 100 * target), (-2, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", color="#555555", size=9,
        )  # fmt: skip
    axes.set(xlabel=label, ylabel=height)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=label == "round"))
    return figure


def _class_dots(
    axes: Axes, place: int, methods: int, mean: np.ndarray, band: tuple[np.ndarray | None, np.ndarray | None]
) -> None:
    low, high = band
    at = np.arange(len(mean)) + (place + 0.5 - methods / 2) * 0.76 / methods
    dots = {**method_style(place), "linestyle": "none"}
    axes.plot(100 * mean, at, zorder=3, **dots)
    if low is not None and high is not None:
        axes.hlines(at, 100 * np.clip(low, 0, 1), 100 * np.clip(high, 0, 1), color=dots["color"], linewidth=1.1)


def name_classes(axis: Axis, classes: Sequence[str], length: int = 18, **text: Any) -> None:
    """Writes the names of up to 20 classes at an axis; of more, some of their numbers."""
    if len(classes) <= MOST_NAMED:
        axis.set_ticks(range(len(classes)), [printable(name, length) for name in classes], **text)
    else:
        axis.set_major_locator(MaxNLocator(6, integer=True))


def _frame(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
