"""The figures about cohorts and classes, each a pure function from numbers to a matplotlib figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_bal.report.panels import label, panelled, panels_of
from fedjax_bal.report.plots import MOST_NAMED, name_classes
from fedjax_bal.report.styles import COLOURS, LONGEST_LINE, ROUND, Looks, number_clients, two_lines
from fedjax_bal.report.svg import INK, blank, style
from fedjax_bal.report.wording import nats, printable

WHISKERS = (5, 95)
BEFORE, AFTER = COLOURS[1], COLOURS[2]
LEAST_NATS = 0.02


@style()
def evenness(values: Sequence[tuple[str, np.ndarray, float]], looks: Looks) -> Figure:
    """Divergence from even classes of the data behind each averaged model: a box per method.

    `values` are the name of each method, its divergences `Float[K]` in nats, at least one, and their mean. Boxes reach
    from the lower to the upper quartile with a line at the median, whiskers from 5% to 95%; the mean has a marker and
    its number.
    """
    figure = blank(0.95 + 0.33 * len(values))
    axes = figure.add_subplot()
    for place, (name, divergences, mean) in enumerate(values):
        _box(axes, place, divergences, mean, looks[name].line())
    axes.set_yticks(range(len(values)), [two_lines(name) for name, *_ in values])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, max(axes.get_xlim()[1], LEAST_NATS))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
    axes.set_xlabel("KL from even classes, nats")
    axes.annotate("mean", (1, -0.6), (6, 2), **_BESIDE, color="#555555", va="bottom")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


@style()
def images(kinds: Sequence[tuple[str, np.ndarray]], classes: Sequence[str]) -> Figure:
    """Images of several kinds side by side, a row for each class, the first 20 at most.

    `kinds` are titles and pixels `UInt8[C, S, H, W, K]`, K 1 or 3.
    """
    rows = min(len(kinds[0][1]), len(classes), MOST_NAMED)
    widths = [pixels.shape[1] for _, pixels in kinds]
    narrow = max(widths) == 1
    figure = blank((1.0 if narrow else 0.5) + rows * min(0.27, 3.6 / (sum(widths) + len(widths))))
    pair = figure.subplots(1, len(kinds), width_ratios=widths, squeeze=False)[0]
    for place, (axes, (title, pixels)) in enumerate(zip(pair, kinds, strict=True)):
        axes.imshow(_mosaic(pixels[:rows]), interpolation="nearest", cmap="gray", vmin=0, vmax=255)
        axes.set_title(title, **({"rotation": 90} if narrow else {}))
        axes.grid(False)
        axes.set_xticks([])
        height = pixels.shape[2]
        names = [printable(name, LONGEST_LINE) for name in classes[:rows]]
        axes.set_yticks(height * (np.arange(rows) + 0.5), [] if place else names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def _mosaic(pixels: np.ndarray) -> np.ndarray:
    """All images as one, `UInt8[C * H, S * W]` or with three channels."""
    classes, shown, height, width, channels = pixels.shape
    table = pixels.transpose(0, 2, 1, 3, 4).reshape(classes * height, shown * width, channels)
    return table[..., 0] if channels == 1 else table


@style()
def chosen(values: Sequence[tuple[str, tuple[np.ndarray, np.ndarray]]], looks: Looks) -> Figure:
    """Share of the clients that were chosen at most so many times: a stair per method.

    `values` are the name of each method, times `Int[K]` and shares `Float[K]`.
    """
    found = dict(values)
    panels = panels_of(looks, list(found))
    figure, drawn = panelled(panels, 2.7)
    last = max(times[-1] for times, _ in found.values())
    drawn[0].set(xlim=(-0.02 * last, last), ylim=(-2, 103))
    for axes, panel in zip(drawn, panels, strict=True):
        for name in panel.labels:
            times, shares = found[name]
            line = panel.line(looks, name, len(times))
            axes.plot(times, 100 * shares, drawstyle="steps-post", zorder=3, **line)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=True))
    ends = [{name: (found[name][0][-1], 100 * found[name][1][-1]) for name in panel.labels} for panel in panels]
    label(drawn, panels, looks, "times chosen", "share of the clients, %", ends)
    return figure


@style()
def composition(true: np.ndarray, estimated: np.ndarray, method: str, ranks: str) -> Figure:
    """Class shares of clients, estimated by a selector against true: a cloud of dots, and the line on which both agree.

    `true` and `estimated` are shares `Float[K]` of the same classes and clients; `ranks` is the rank correlation in
    words.
    """
    figure = blank(3.5)
    axes = figure.add_subplot()
    ends = [104 * max(float(shares.max(initial=0)), 0.01) for shares in (true, estimated)]
    axes.plot([0, 100], [0, 100], color="#666666", linewidth=1)
    axes.plot(100 * true, 100 * estimated, "o", color=COLOURS[2], markersize=3.4, alpha=0.35, markeredgewidth=0)
    axes.set(xlabel="true share of the class, %", ylabel="estimated share of the class, %")
    axes.set_title(f"{printable(method, 44)}\nrank correlation {ranks}")
    axes.set(xlim=(-0.02 * ends[0], ends[0]), ylim=(-0.02 * ends[1], ends[1]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=ROUND))
    return figure


@style()
def augmentation(before: np.ndarray, after: np.ndarray, classes: Sequence[str]) -> Figure:
    """Samples of each class before and after augmentation, both `Float[C]`.

    A row per class with a ring, a dot and the line between them; for more than 20 classes two lines, each with the
    classes in falling order.
    """
    named = len(classes) <= MOST_NAMED
    figure = blank(0.95 + 0.23 * len(classes) if named else 3.0)
    axes = figure.add_subplot()
    if named:
        _dumbbells(axes, before, after)
        name_classes(axes.yaxis, classes)
        axes.set_ylim(len(classes) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="samples")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=True))
        axes.set_xlim(left=0)
    else:
        _falling(axes, before, after)
    figure.legend(loc="outside lower center", ncols=2, handlelength=2.2)
    return figure


@style()
def batches(before: np.ndarray, after: np.ndarray, clients: Sequence[int], classes: Sequence[str]) -> Figure:
    """Class shares, `Float[S, C]`, of the data that clients hold and that they train on; a column is a client."""
    named = len(classes) <= MOST_NAMED
    figure = blank(1.1 + 0.22 * len(classes) if named else 4.0)
    pair = figure.subplots(1, 2, sharey=True)
    for axes, title, shares in zip(pair, ("what clients hold", "what they train on"), (before, after), strict=True):
        image = axes.imshow(shares.T, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(title=title, xlabel="client")
        axes.grid(False)
        axes.tick_params(length=0)
        number_clients(axes.xaxis, clients)
    if named:
        name_classes(pair[0].yaxis, classes)
    else:
        pair[0].set_ylabel("class")
    figure.colorbar(image, ax=list(pair), label="share", pad=0.02)
    return figure


_BESIDE = {
    "xycoords": ("axes fraction", "data"), "textcoords": "offset points", "size": 9, "annotation_clip": False,
}  # fmt: skip


def _box(axes: Axes, place: int, divergences: np.ndarray, mean: float, line: dict[str, Any]) -> None:
    low, lower, middle, upper, high = np.percentile(divergences, [WHISKERS[0], 25, 50, 75, WHISKERS[1]])
    axes.hlines(place, low, high, color=line["color"], linewidth=1.1, zorder=2)
    axes.vlines([low, high], place - 0.12, place + 0.12, color=line["color"], linewidth=1.1, zorder=2)
    axes.barh(place, upper - lower, 0.5, lower, facecolor="white", edgecolor=line["color"], linewidth=1.3, zorder=3)
    axes.barh(place, upper - lower, 0.5, lower, color=line["color"], alpha=0.18, linewidth=0, zorder=4)
    axes.vlines(middle, place - 0.25, place + 0.25, color=line["color"], linewidth=1.8, zorder=5)
    marker = {**line, "linestyle": "none", "markersize": 6.5, "markeredgewidth": 0.9, "clip_on": False}
    axes.plot(mean, place, zorder=6, **marker)
    axes.annotate(nats(mean), (1, place), (6, 0), **_BESIDE, color=INK, va="center")


def _dumbbells(axes: Axes, before: np.ndarray, after: np.ndarray) -> None:
    at = np.arange(len(before))
    axes.hlines(at, before, after, color="#9a9a9a", linewidth=2.2, zorder=2)
    ring = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.4, "zorder": 4, "clip_on": False}
    axes.plot(before, at, "o", color=BEFORE, label="before", linestyle="none", **ring)
    axes.plot(after, at, "D", color=AFTER, label="after", linestyle="none", markersize=4.2, zorder=3, clip_on=False)


def _falling(axes: Axes, before: np.ndarray, after: np.ndarray) -> None:
    ranks = np.arange(1, len(before) + 1)
    for counts, name, colour, dash in ((before, "before", BEFORE, "-"), (after, "after", AFTER, (0, (5, 2)))):
        axes.plot(ranks, np.sort(counts)[::-1], label=name, color=colour, linestyle=dash)
    axes.set(xlabel="rank of the class, from most to fewest samples", ylabel="samples")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=True))
