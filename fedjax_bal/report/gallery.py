"""The figures of a run with their titles and captions: accuracy by round, traffic, class and client, and confusion."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from fedjax_bal.metrics import Curve, class_accuracies, cumulate_traffic, curve, pooled_confusion, ranked_clients
from fedjax_bal.report import plots
from fedjax_bal.report.cohort_gallery import draw_cohorts, draw_partitions, draw_pictures
from fedjax_bal.report.svg import Drawn, Picture, to_pictures
from fedjax_bal.report.wording import LONGEST_NAME, printable
from fedjax_bal.runs import RunRecord

BAND = "Bands are one standard deviation either side of the mean over seeds."
ONE_SEED = "One seed, so there is no band."
Found = TypeVar("Found")


def draw(run: RunRecord) -> list[Picture]:
    """Draws all the figures that the run's data allow, in the order of the page."""
    return to_pictures(_figures(run))


def _figures(run: RunRecord) -> Iterator[Drawn]:
    methods = list(dict.fromkeys([entry["method"] for entry in [*run.summary["runs"], *run.lines]]))
    yield from _over_rounds(run, methods)
    yield from _local(run, methods)
    yield from _over_classes(run, methods)
    yield from _over_clients(run, methods)
    yield from draw_partitions(run)
    yield from draw_cohorts(run, methods)
    yield from draw_pictures(run)
    yield from _confusions(run, methods)


def _known(methods: Sequence[str], find: Callable[[str], Found | None]) -> list[tuple[str, Found]]:
    """The methods for which something is found, with it."""
    found = [(method, find(method)) for method in methods]
    return [(method, value) for method, value in found if value is not None]


def _curves(run: RunRecord, methods: Sequence[str], metric: str) -> tuple[list[tuple[str, Curve]], str]:
    """The methods' curves, without empty ones, and what a caption says about their bands."""
    found = [(method, curve(run.lines, method, metric)) for method in methods]
    curves = [(method, values) for method, values in found if len(values.rounds)]
    return curves, BAND if any(values.low is not None for _, values in curves) else ONE_SEED


def _over_rounds(run: RunRecord, methods: list[str]) -> Iterator[Drawn]:
    curves, band = _curves(run, methods, "test_accuracy")
    if not curves:
        return
    yield (
        "accuracy",
        "Accuracy by round",
        f"Test accuracy after that many rounds, mean over seeds; higher and further left is better. {band}",
        plots.accuracy_by_round(curves, run.summary.get("target_accuracy")),
    )
    lines = cumulate_traffic(run.lines)
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


def _local(run: RunRecord, methods: list[str]) -> Iterator[Drawn]:
    values, band = _curves(run, methods, "local_test_accuracy")
    if not values:
        return
    whole = {method: curve(run.lines, method, "test_accuracy") for method, _ in values}
    ends = "; ".join(
        f"{printable(method, LONGEST_NAME)} {100 * local.mean[-1]:.1f} / {100 * whole[method].mean[-1]:.1f}"
        for method, local in values
        if len(whole[method].rounds)
    )
    caption = (
        "Each client's own model after its local training and before averaging, on test images of all classes: the "
        "mean over the clients of the round, and over seeds. How far it lies below the global model is what averaging "
        f"has to make good. At the end, local / global in %: {ends}. {band}"
    )
    yield "local", "Local models on the test set", caption, plots.local_accuracy_by_round(values)


def _at_common_rounds(accuracy: Curve, traffic: Curve) -> tuple[Curve, np.ndarray] | None:
    rounds, ours, theirs = np.intersect1d(accuracy.rounds, traffic.rounds, return_indices=True)
    if not len(rounds):
        return None
    low, high = (None if edge is None else edge[ours] for edge in (accuracy.low, accuracy.high))
    return Curve(rounds, accuracy.mean[ours], low, high), traffic.mean[theirs]


def _over_classes(run: RunRecord, methods: list[str]) -> Iterator[Drawn]:
    values = _known(methods, lambda method: class_accuracies(run.lines, method))
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


def _over_clients(run: RunRecord, methods: list[str]) -> Iterator[Drawn]:
    values = _known(methods, lambda method: ranked_clients(run.lines, method))
    if values:
        caption = (
            "The model that each client uses, on its own test images at the last evaluation: the global one, or its "
            "own with a method that gives it one. Clients in rising order, mean over seeds: the left end shows those "
            "that the method serves worst, and a flat line serves all alike. A client with few test images can only "
            "have a few values, so that lines have steps."
        )
        yield "clients", "Accuracy by client", caption, plots.accuracy_by_client(values)


def _confusions(run: RunRecord, methods: list[str]) -> Iterator[Drawn]:
    classes = run.summary["class_names"]
    for place, method in enumerate(methods):
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            caption = (
                "A row shows how the test examples of one true class were classified, in percent of that class, over "
                "all seeds; the diagonal is right, and a dark column is a class predicted too often."
            )
            title = f"Confusion of {printable(method, LONGEST_NAME)}"
            yield f"confusion-{place + 1}", title, caption, plots.confusion(matrix, method, classes)
