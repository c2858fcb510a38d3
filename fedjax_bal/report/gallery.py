"""Which figures a run gets, with what titles and captions."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedjax_bal.report import plots
from fedjax_bal.report.folder import RunFolder
from fedjax_bal.report.statistics import Curve, class_accuracies, cumulate_traffic, curve, pooled_confusion
from fedjax_bal.report.svg import inline, to_svg
from fedjax_bal.report.words import LONGEST_NAME, printable

BAND = "Bands are one standard deviation either side of the mean over seeds."
ONE_SEED = "One seed, so there is no band."


class Picture(NamedTuple):
    """A finished figure.

    Attributes:
        name: of its file, without ending.
        title: a few words.
        caption: a sentence or two on how to read it.
        document: the SVG file.
        html: the same to stand inside a page.
    """

    name: str
    title: str
    caption: str
    document: str
    html: str


def draw(run: RunFolder) -> list[Picture]:
    """Draws all the figures that the run's data allow.

    Args:
        run: the run folder's content.

    Returns:
        The figures in the order of the page; what has no data is left out.

    >>> draw(RunFolder({}, "", [], {"runs": [], "class_names": [], "partitions": []}))
    []
    """
    return [
        Picture(name, title, caption, document, inline(document))
        for name, title, caption, figure in _figures(run)
        for document in [to_svg(figure, name, title, caption)]
    ]


def _figures(run: RunFolder) -> Iterator[tuple[str, str, str, Figure]]:
    methods = list(dict.fromkeys([entry["method"] for entry in [*run.summary["runs"], *run.lines]]))
    yield from _over_rounds(run, methods)
    yield from _over_classes(run, methods)
    yield from _partitions(run)
    yield from _confusions(run, methods)


def _over_rounds(run: RunFolder, methods: list[str]) -> Iterator[tuple[str, str, str, Figure]]:
    lines = cumulate_traffic(run.lines)
    curves = [(method, curve(lines, method, "test_accuracy")) for method in methods]
    curves = [(method, values) for method, values in curves if len(values.rounds)]
    if not curves:
        return
    band = BAND if any(values.low is not None for _, values in curves) else ONE_SEED
    yield (
        "accuracy",
        "Accuracy by round",
        f"Test accuracy after that many rounds, mean over seeds; higher and further left is better. {band}",
        plots.accuracy_by_round(curves, run.summary.get("target_accuracy")),
    )
    sent = [_at_common_rounds(values, curve(lines, method, "traffic_bytes")) for method, values in curves]
    kept = [(method, pair) for (method, _), pair in zip(curves, sent, strict=True) if pair is not None]
    if kept:
        yield (
            "traffic",
            "Accuracy by traffic",
            "Test accuracy against all that server and clients have sent each other until then (1 MB = 10⁶ bytes), "
            f"both means over seeds; higher and further left is better. {band}",
            plots.accuracy_by_traffic([(m, pair[0]) for m, pair in kept], [pair[1] for _, pair in kept]),
        )


def _at_common_rounds(accuracy: Curve, traffic: Curve) -> tuple[Curve, np.ndarray] | None:
    rounds, ours, theirs = np.intersect1d(accuracy.rounds, traffic.rounds, return_indices=True)
    if not len(rounds):
        return None
    low, high = (None if edge is None else edge[ours] for edge in (accuracy.low, accuracy.high))
    return Curve(rounds, accuracy.mean[ours], low, high), traffic.mean[theirs]


def _over_classes(run: RunFolder, methods: list[str]) -> Iterator[tuple[str, str, str, Figure]]:
    found = [(method, class_accuracies(run.lines, method)) for method in methods]
    values = [(method, value) for method, value in found if value is not None]
    classes = run.summary["class_names"]
    if not values:
        return
    if len(classes) <= plots.MOST_NAMED:
        caption = (
            "A dot is the accuracy on one class at the last evaluation, mean over seeds; the further right the better"
        )
        spread = len(values) <= plots.MOST_WITH_SPREAD and any(value[1] is not None for _, value in values)
        lines = ", lines one standard deviation either side." if spread else "."
    else:
        caption = (
            "The classes of each method in rising order of their accuracy at the last evaluation, mean over seeds: the "
            "left end shows the classes that it serves worst, and a flat line serves all alike"
        )
        lines = "."
    yield "classes", "Accuracy by class", caption + lines, plots.accuracy_by_class(values, classes)


def _confusions(run: RunFolder, methods: list[str]) -> Iterator[tuple[str, str, str, Figure]]:
    classes = run.summary["class_names"]
    for place, method in enumerate(methods):
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            caption = (
                "A row shows how the test examples of one true class were classified, in percent of that class, over "
                "all seeds; the diagonal is right, and a dark column is a class predicted too often."
            )
            yield (
                f"confusion-{place + 1}",
                f"Confusion of {printable(method, LONGEST_NAME)}",
                caption,
                plots.confusion(matrix, method, classes),
            )


def _partitions(run: RunFolder) -> Iterator[tuple[str, str, str, Figure]]:
    several = len(run.summary["partitions"]) > 1
    for place, part in enumerate(run.summary["partitions"]):
        counts = np.array(part.get("class_counts") or [], dtype=float)
        if not counts.size:
            continue
        shown = len(part["shown"])
        which = "All clients" if shown == part["clients"] else f"{shown} of {part['clients']} clients"
        whose = (
            f" of {', '.join(printable(str(method), LONGEST_NAME) for method in part['methods'])}" if several else ""
        )
        caption = (
            f"{which}: a column is a client, its colours how many samples of each class it holds, white none; columns "
            "that differ are label skew."
        )
        figure = plots.partition(counts, part["shown"], run.summary["class_names"])
        yield f"partition-{place + 1}", f"Partition{whose}", caption, figure
