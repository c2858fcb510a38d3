"""The figures of a run with their titles and captions: accuracy by round, traffic, class and client, and confusion."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from fedjax_bal.metrics import (
    Curve,
    class_accuracies,
    cumulate_traffic,
    curve,
    pooled_confusion,
    predicted_shares,
    ranked_clients,
)
from fedjax_bal.report import plots
from fedjax_bal.report.cohort_gallery import draw_cohorts, draw_partitions, draw_pictures
from fedjax_bal.report.cohorts import class_samples
from fedjax_bal.report.panels import panels_in_words, panels_of, shows_seeds
from fedjax_bal.report.styles import Looks, looks_of
from fedjax_bal.report.svg import Drawn, Picture, to_pictures
from fedjax_bal.report.wording import LONGEST_NAME, printable
from fedjax_bal.runs import RunRecord

BAND = "Bands are one standard deviation either side of the mean over seeds"
ONE_SEED = "One seed, so there is no band."
_MOST_CONFUSED = 200  # classes of a confusion matrix that a page can show
Found = TypeVar("Found")


def draw(run: RunRecord, origins: Mapping[str, tuple[str, str]] | None = None) -> list[Picture]:
    """Draws all the figures that the run's data allow, in the order of the page; see `run_figures`."""
    return to_pictures(run_figures(run, origins))


def run_figures(run: RunRecord, origins: Mapping[str, tuple[str, str]] | None = None) -> Iterator[Drawn]:
    """All the figures that the run's data allow, in the order of the page; `origins` as `looks_of` takes them."""
    looks = looks_of(list(dict.fromkeys([entry["method"] for entry in [*run.summary["runs"], *run.lines]])), origins)
    yield from _over_rounds(run, looks)
    yield from _local(run, looks)
    yield from _over_classes(run, looks)
    yield from _predictions(run, looks)
    yield from _over_clients(run, looks)
    yield from draw_partitions(run)
    yield from draw_cohorts(run, looks)
    yield from draw_pictures(run)
    yield from _confusions(run, looks)


def _known(methods: Iterable[str], find: Callable[[str], Found | None]) -> list[tuple[str, Found]]:
    """The methods for which something is found, with it."""
    found = [(method, find(method)) for method in methods]
    return [(method, value) for method, value in found if value is not None]


def _curves(run: RunRecord, looks: Looks, metric: str) -> tuple[list[tuple[str, Curve]], str]:
    """The methods' curves, without empty ones, and what a caption says about their bands and panels."""
    found = [(method, curve(run.lines, method, metric)) for method in looks]
    curves = [(method, values) for method, values in found if len(values.rounds)]
    panels = panels_of(looks, [method for method, _ in curves])
    seeds = f"{BAND}{', thin lines the seeds' * shows_seeds(panels)}."
    band = seeds if any(values.low is not None for _, values in curves) else ONE_SEED
    return curves, band + panels_in_words(panels, looks)


def _over_rounds(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    curves, band = _curves(run, looks, "test_accuracy")
    if not curves:
        return
    yield (
        "accuracy",
        "Accuracy by round",
        f"Test accuracy after that many rounds, mean over seeds; higher and further left is better. "
        f"{plots.CLIMB} {band}",
        plots.accuracy_curves(curves, looks, run.summary.get("target_accuracy")),
    )
    lines = cumulate_traffic(run.lines)
    sent = [_at_common_rounds(values, curve(lines, method, "traffic_bytes")) for method, values in curves]
    kept = [(method, pair) for (method, _), pair in zip(curves, sent, strict=True) if pair is not None]
    if any(pair[1][-1] for _, pair in kept):  # `local` sends nothing
        yield (
            "traffic",
            "Accuracy by traffic",
            "Test accuracy against all that server and clients have sent each other until then (1 MB = 10⁶ bytes), "
            f"both means over seeds; higher and further left is better. {plots.CLIMB} {band}",
            plots.accuracy_curves([(m, pair[0]) for m, pair in kept], looks, traffic=[pair[1] for _, pair in kept]),
        )


def _local(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    values, band = _curves(run, looks, "local_test_accuracy")
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
        f"has to make good. At the end, local / global in %: {ends}. {plots.CLIMB} {band}"
    )
    figure = plots.accuracy_curves(values, looks, vertical="mean local test accuracy, %")
    yield "local", "Local models on the test set", caption, figure


def _at_common_rounds(accuracy: Curve, traffic: Curve) -> tuple[Curve, np.ndarray] | None:
    rounds, ours, theirs = np.intersect1d(accuracy.rounds, traffic.rounds, return_indices=True)
    if not len(rounds):
        return None
    low, high = (None if edge is None else edge[ours] for edge in (accuracy.low, accuracy.high))
    seeds = tuple((seed, values[ours]) for seed, values in accuracy.seeds)
    return Curve(rounds, accuracy.mean[ours], low, high, seeds), traffic.mean[theirs]


def _lines_of_lasting_runs(run: RunRecord) -> list[dict[str, Any]]:
    """The lines of the runs that have not failed: what one had reached before is not its end."""
    failed = {(entry["method"], entry["seed"]) for entry in run.summary["runs"] if entry.get("failure")}
    return [line for line in run.lines if (line["method"], line["seed"]) not in failed]


def _over_classes(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    lines = _lines_of_lasting_runs(run)
    values = _known(looks, lambda method: class_accuracies(lines, method))
    if values:
        samples = class_samples(run.summary["partitions"])
        caption = (
            "Test accuracy of each class in % at the last evaluation, mean over seeds; if all classes do equally well, "
            f"the row has one colour. {_in_order(samples)}"
        )
        figure = plots.accuracy_by_class(values, run.summary["class_names"], samples)
        yield "classes", "Accuracy by class", caption, figure


def _predictions(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    found = _known(looks, lambda method: predicted_shares(run.summary["runs"], method))
    if found:
        samples = class_samples(run.summary["partitions"])
        trained = (
            " and the bars those of the training images: a line that follows the bars has learnt how frequent classes "
            "are in training, one that follows the dashes is balanced."
        )
        caption = (
            "The share of the test images that each method puts into each class at the end, over all seeds. The dashes "
            f"are the true shares{'.' if samples is None else trained} {_in_order(samples)}"
        )
        values = [(method, predicted) for method, (predicted, _) in found]
        figure = plots.predicted_classes(values, found[0][1][1], run.summary["class_names"], samples, looks)
        yield "predictions", "Predicted and true classes", caption, figure


def _in_order(samples: np.ndarray | None) -> str:
    """The sentence of a caption on the order of the classes."""
    if samples is None:
        return "Class sizes differ between methods, or are unknown for some."
    if samples.min() == samples.max():
        return f"All classes have {samples[0]:,.0f} training images."
    return (
        f"Classes stand from most training images ({samples.max():,.0f}) to fewest ({samples.min():,.0f}), which all "
        "clients together hold."
    )


def _over_clients(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    lines = _lines_of_lasting_runs(run)
    values = _known(looks, lambda method: ranked_clients(lines, method))
    if values:
        caption = (
            "The model that each client uses, on its own test images at the last evaluation: the global one, or its "
            "own with a method that gives it one. Clients in rising order, mean over seeds: the left end shows those "
            "that the method serves worst, and a flat line serves all alike. A client with few test images can only "
            "have a few values, so that lines have steps."
        )
        yield "clients", "Accuracy by client", caption, plots.accuracy_by_client(values, looks)


def _confusions(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    classes = run.summary["class_names"]
    if len(classes) > _MOST_CONFUSED:
        return
    for place, method in enumerate(looks):
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            caption = (
                "A row shows how the test examples of one true class were classified, in percent of that class, over "
                "all seeds; the diagonal is right, and a dark column is a class predicted too often."
            )
            title = f"Confusion of {printable(method, LONGEST_NAME)}"
            yield f"confusion-{place + 1}", title, caption, plots.confusion(matrix, method, classes)
