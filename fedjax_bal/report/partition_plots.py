"""The picture of a partition: samples of each client and class, sizes of clients and classes, divergence of clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_bal.data import Description, size_bins
from fedjax_bal.report.plots import MOST_NAMED, SAMPLES, name_classes
from fedjax_bal.report.styles import COLOURS, number_clients
from fedjax_bal.report.svg import blank, style
from fedjax_bal.report.wording import printable

PICTURE_WIDTH = 7.2
MOST_DOTTED = 40
MOST_SHOWN = 200
_UNEVEN = 20
_CELL, _BELOW = 0.25, 2.1
_DOT, _BARS = COLOURS[2], "#8aa9c4"


@style()
def picture(described: Description, classes: Sequence[str], title: str) -> Figure:
    """Draws a partition: clients against classes, and histograms.

    Up to 40 clients and 20 classes are dots whose area is the number of samples; more are cells whose colour is; of
    more than 200 clients, 200 are shown, evenly spaced by number. On the right the classes of all clients together;
    below, histograms of the clients' sizes and of their divergence from even classes. Up to 20 class names are written.
    """
    above = float(np.clip(_CELL * len(classes) + 0.8, 2.4, 5.2))
    figure = blank(above + _BELOW + 0.25, PICTURE_WIDTH)
    figure.suptitle(printable(title, 90), fontsize=10.5)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(above, _BELOW))[:, 0]
    main, side = top.subplots(1, 2, width_ratios=(5, 1), sharey=True)
    clients = len(described.class_counts)
    shown = np.linspace(0, clients - 1, min(clients, MOST_SHOWN)).astype(int)
    counts = described.class_counts[shown]
    if len(counts) <= MOST_DOTTED and len(classes) <= MOST_NAMED:
        _dots(main, counts, above)
    else:
        _cells(main, counts, top, side)
    _name_clients(main, shown, clients)
    _name_classes(main, classes)
    _class_bars(side, described.class_counts.sum(axis=0))
    left, right = bottom.subplots(1, 2)
    _size_bars(left, described.sizes)
    _divergence_bars(right, described.kl_of_clients, len(classes))
    return figure


@style()
def classes_picture(whole: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """Draws the number of samples of each class, `Int[C]`; up to 20 class names are written."""
    figure = blank(float(np.clip(_CELL * len(classes) + 1.1, 2.4, 5.2)))
    figure.suptitle(printable(title, 56), fontsize=10.5)
    axes = figure.add_subplot()
    _class_bars(axes, whole)
    _name_classes(axes, classes)
    axes.tick_params(axis="y", labelleft=True)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("samples")
    return figure


def _dots(axes: Axes, counts: np.ndarray, height: float) -> None:
    clients, classes = counts.shape
    # Neighbours that are both large may overlap a little, so that small ones can be seen.
    cell = min(1.5 * 72 * 0.62 * PICTURE_WIDTH / clients, 72 * (height - 0.7) / classes)
    largest = max(int(counts.max(initial=0)), 1)
    at, of = np.nonzero(counts)
    area = np.maximum((0.96 * cell) ** 2 * counts[at, of] / largest, 5.0)
    axes.scatter(at, of, s=area, color=_DOT, edgecolors="white", linewidths=0.3, zorder=3)
    axes.set_xlabel(f"client; a dot's area is its samples, the largest has {largest:,}")
    axes.set_xlim(-0.6, clients - 0.4)


def _cells(axes: Axes, counts: np.ndarray, figure: Any, side: Axes) -> None:
    shown = np.ma.masked_equal(counts.T, 0)
    largest = max(int(counts.max(initial=0)), 1)
    norm = LogNorm(1, largest) if largest > _UNEVEN * np.ma.median(shown) else Normalize(0, largest)
    image = axes.imshow(shown, cmap=SAMPLES, norm=norm, interpolation="none", aspect="auto")
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.set_xlabel("client")
    bar = figure.colorbar(image, ax=[axes, side], label="samples", pad=0.02)
    if isinstance(norm, LogNorm):
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        bar.locator = MaxNLocator(5, integer=True)
        bar.update_ticks()


def _name_clients(axes: Axes, shown: np.ndarray, clients: int) -> None:
    axes.tick_params(length=0)
    number_clients(axes.xaxis, shown.tolist())
    if len(shown) < clients:
        axes.set_xlabel(f"client, {len(shown)} of {clients:,}")


def _name_classes(axes: Axes, classes: Sequence[str]) -> None:
    name_classes(axes.yaxis, classes)
    if len(classes) > MOST_NAMED:
        axes.set_ylabel("class")
    axes.set_ylim(len(classes) - 0.5, -0.5)


def _class_bars(axes: Axes, whole: np.ndarray) -> None:
    axes.barh(np.arange(len(whole)), whole, 0.72 if len(whole) <= MOST_NAMED else 1.0, color=_BARS, zorder=2)
    axes.set_xlabel("samples in all")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelleft=False)
    largest = max(int(whole.max(initial=0)), 1)
    axes.set_xticks([0, largest], ["0", f"{largest:,}"])
    axes.set_xlim(0, 1.03 * largest)


def _size_bars(axes: Axes, sizes: np.ndarray) -> None:
    edges = size_bins(sizes)
    clients = np.histogram(sizes, edges)[0]
    axes.bar(np.arange(len(clients)), clients, 0.86, color=_BARS, zorder=2)
    if (np.diff(edges) == 1).all():  # each bin is a single size
        axes.set_xticks(np.arange(len(clients)), [f"{low:,}" for low in edges[:-1]])
    else:
        names = [f"{low:,}" for low in edges]
        axes.set_xticks(np.arange(len(edges)) - 0.5, names, rotation=35 if len(edges) > 5 else 0)
    axes.set_xlim(-0.6, max(len(clients), 3) - 0.4)
    axes.set(xlabel="samples of a client", ylabel="clients")
    axes.grid(False, axis="x")
    _count_clients(axes)


def _divergence_bars(axes: Axes, divergences: np.ndarray, classes: int) -> None:
    most = max(float(np.log(classes)), 0.1)
    counts, edges = np.histogram(np.clip(divergences, 0, most), 12, (0, most))
    axes.bar(edges[:-1], counts, 0.94 * np.diff(edges), align="edge", color=_BARS, zorder=2)
    axes.set(xlabel="KL of a client from even classes, nats", xlim=(0, most))
    axes.grid(False, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _count_clients(axes)


def _count_clients(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
