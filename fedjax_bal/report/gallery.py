"""The figures of a run, or of several that are compared, with their titles and captions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_bal.lab import RunRecord
from fedjax_bal.metrics import (
    Curve,
    class_accuracies,
    cumulate_traffic,
    curve,
    evenly_spaced,
    pooled_confusion,
    predicted_shares,
    ranked_clients,
)
from fedjax_bal.report.plots import (
    MOST_NAMED,
    SAMPLES,
    Panel,
    Series,
    curves,
    heat,
    images,
    name_places,
    panels_of,
    percent,
)
from fedjax_bal.report.svg import SOFT, Drawn, Picture, to_pictures
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, printable

CLIMB = "The y-axis starts at the accuracy reached after the first 10% of rounds."
BANDS = "Bands are one standard deviation either side of the mean over seeds."
_MOST_PARTITIONS = 20
_MOST_CONFUSED = 200  # classes of a confusion matrix that a page can show
_BESIDE_FAKES = {"real": "real", "generated": "generated", "nearest": "nearest real"}
_ATTACKS = {"upcnn": "UpCNN", "vae": "VAE", "grnn": "GRNN"}
_ATTACKED = {
    "mean": "mean",
    **{f"prototype/{attack}": title for attack, title in _ATTACKS.items()},
    "single": "single",
    **{f"single/{attack}": title for attack, title in _ATTACKS.items()},
    "gradient/grnn": "gradient",
}


def draw(run: RunRecord, origins: Mapping[str, tuple[str, str]] | None = None) -> list[Picture]:
    """Draws all the figures that the run's data allow, in the order of the page; see `run_figures`."""
    return to_pictures(run_figures(run, origins))


def run_figures(run: RunRecord, origins: Mapping[str, tuple[str, str]] | None = None) -> Iterator[Drawn]:
    """All the figures that the run's data allow, in the order of the page; `origins` as `panels_of` takes them."""
    methods = list(dict.fromkeys(entry["method"] for entry in [*run.summary["runs"], *run.lines]))
    if methods:
        panels = panels_of(methods, origins=origins)
        yield from _over_rounds(run, methods, panels)
        yield from _at_the_end(run, methods, panels)
    yield from _partitions(run)
    for kind, figures in (("generated", _fakes), ("prototype/upcnn", _attacks)):
        shown = [method for method in methods if kind in run.pictures.get(method, {})]
        for place, method in enumerate(shown):
            yield figures(run, method, place + 1)
    classes = run.summary["class_names"]
    for place, method in enumerate(methods if len(classes) <= _MOST_CONFUSED else ()):
        matrix = pooled_confusion(run.summary["runs"], method)
        if matrix is not None and matrix.size:
            caption = (
                "A row shows how the test examples of one true class were classified, in percent of that class, over "
                "all seeds; the diagonal is right, and a dark column is a class predicted too often."
            )
            figure = heat(
                100 * matrix, classes, classes, "share of the true class, %",
                title=method, vertical="true class", horizontal="predicted class",
            )  # fmt: skip
            title = f"Confusion of {printable(method, LONGEST_NAME)}"
            yield f"confusion-{place + 1}", title, caption, figure


def with_series(panels: Sequence[Panel], series: Mapping[str, Series]) -> list[tuple[Panel, Mapping[str, Series]]]:
    """The panels that have any of the series, each with these."""
    return [(panel, series) for panel in panels if any(name in series for name in panel.lines)]


def panels_in_words(panels: Sequence[Panel]) -> str:
    """The sentence of a caption on what several panels show; empty where there is nothing to say."""
    first = next(iter(panels[0].lines))
    if len(panels) > 1 and panels[0].title == panels[1].title and all(first in panel.lines for panel in panels):
        return " Each panel shows some of the methods, and the first one in grey."
    return ""


def _over_rounds(run: RunRecord, methods: Sequence[str], panels: Sequence[Panel]) -> Iterator[Drawn]:
    """Accuracy by round and by traffic, and that of the clients' models by round."""
    found = {method: curve(run.lines, method, "test_accuracy") for method in methods}
    known = {method: own for method, own in found.items() if len(own.rounds)}
    if not known:
        return
    bands = BANDS if any(own.low is not None for own in known.values()) else "One seed, so there is no band."
    words = f"{CLIMB} {bands}{panels_in_words(panels)}"
    target = run.summary.get("target_accuracy")
    target = None if target is None else 100 * target
    series = {method: percent(own) for method, own in known.items()}
    text = f"Test accuracy after that many rounds, mean over seeds; higher and further left is better. {words}"
    figure = curves(with_series(panels, series), "round", "test accuracy, %", target=target, late=True)
    yield "accuracy", "Accuracy by round", text, figure

    lines = cumulate_traffic(run.lines)
    sent = {method: _against(own, curve(lines, method, "traffic_bytes")) for method, own in known.items()}
    series = {method: own for method, own in sent.items() if own is not None}
    if any(own.x[-1] for own in series.values()):  # `local` sends nothing
        text = (
            "Test accuracy against all that server and clients have sent each other until then (1 MB = 10⁶ bytes), "
            f"both means over seeds; higher and further left is better. {words}"
        )
        across = "traffic up and down, MB"
        figure = curves(with_series(panels, series), across, "test accuracy, %", late=True)
        yield "traffic", "Accuracy by traffic", text, figure

    local = {method: curve(run.lines, method, "local_test_accuracy") for method in known}
    local = {method: own for method, own in local.items() if len(own.rounds)}
    if local:
        ends = "; ".join(
            f"{printable(method, LONGEST_NAME)} {100 * own.mean[-1]:.1f} / {100 * known[method].mean[-1]:.1f}"
            for method, own in local.items()
        )
        text = (
            "Each client's own model after its local training and before averaging, on test images of all classes: the "
            "mean over the clients of the round, and over seeds. How far it lies below the global model is what "
            f"averaging has to make good. At the end, local / global in %: {ends}. {words}"
        )
        series = {method: percent(own) for method, own in local.items()}
        figure = curves(with_series(panels, series), "round", "mean local test accuracy, %", late=True)
        yield "local", "Local models on the test set", text, figure


def _against(accuracy: Curve, traffic: Curve) -> Series | None:
    """The accuracy against the traffic in MB, at the rounds that both have."""
    rounds, ours, theirs = np.intersect1d(accuracy.rounds, traffic.rounds, return_indices=True)
    low, high = (None if edge is None else edge[ours] for edge in (accuracy.low, accuracy.high))
    kept = Curve(rounds, accuracy.mean[ours], low, high)
    return percent(kept, traffic.mean[theirs] / 1e6) if len(rounds) else None


def _at_the_end(run: RunRecord, methods: Sequence[str], panels: Sequence[Panel]) -> Iterator[Drawn]:
    """Accuracy and predictions by class, and accuracy by client, at the last evaluation."""
    # What a run that failed had reached before is not its end.
    failed = {(entry["method"], entry["seed"]) for entry in run.summary["runs"] if entry.get("failure")}
    lines = [line for line in run.lines if (line["method"], line["seed"]) not in failed]
    classes = run.summary["class_names"]
    samples = class_samples(run.summary["partitions"])
    order = np.arange(len(classes)) if samples is None else np.argsort(-samples, kind="stable")
    names = [classes[place] for place in order]
    if samples is None:
        sizes = "Class sizes differ between methods, or are unknown for some."
    elif samples.min() == samples.max():
        sizes = f"All classes have {samples[0]:,.0f} training images."
    else:
        sizes = (
            f"Classes stand from most training images ({samples.max():,.0f}) to fewest ({samples.min():,.0f}), which "
            "all clients together hold."
        )

    found = {method: values[0] for method in methods if (values := class_accuracies(lines, method)) is not None}
    if found:
        counted = (
            names if samples is None else [f"{name}, {samples[at]:,.0f}" for name, at in zip(names, order, strict=True)]
        )
        text = (
            "Test accuracy of each class in % at the last evaluation, mean over seeds; if all classes do equally well, "
            f"the row has one colour. {sizes}"
        )
        values = 100 * np.array(list(found.values()))[:, order]
        across = "class and its training images" if samples is not None else "class"
        figure = heat(values, list(found), counted, "test accuracy, %", horizontal=across)
        yield "classes", "Accuracy by class", text, figure

    shares = {method: pair for method in methods if (pair := predicted_shares(run.summary["runs"], method)) is not None}
    if shares:
        trained = (
            " and the bars those of the training images: a line that follows the bars has learnt how frequent classes "
            "are in training, one that follows the dashes is balanced."
        )
        text = (
            "The share of the test images that each method puts into each class at the end, over all seeds. The dashes "
            f"are the true shares{'.' if samples is None else trained} {sizes}"
        )
        at = np.arange(len(classes))
        true = next(iter(shares.values()))[1][order]

        def finish(axes: Axes) -> None:
            if samples is not None:
                axes.bar(at, 100 * samples[order] / samples.sum(), 0.8, color="#bcbcbc", zorder=1)
            axes.step(
                at, 100 * true, where="mid", color=SOFT, linestyle=(0, (2, 1)), linewidth=2, zorder=2, label="true"
            )
            axes.set(xlim=(-0.6, len(at) - 0.4), ylim=(0, None))
            name_places(axes.xaxis, names)

        series = {method: Series(at, 100 * predicted[order]) for method, (predicted, _) in shares.items()}
        across = "" if len(classes) <= MOST_NAMED else "classes, some of them named"
        figure = curves(with_series(panels, series), across, "share of the images, %", finish=finish)
        yield "predictions", "Predicted and true classes", text, figure

    ranked = {method: values for method in methods if (values := ranked_clients(lines, method)) is not None}
    if ranked:
        text = (
            "The model that each client uses, on its own test images at the last evaluation: the global one, or its "
            "own with a method that gives it one. Clients in rising order, mean over seeds: the left end shows those "
            "that the method serves worst, and a flat line serves all alike. A client with few test images can only "
            "have a few values, so that lines have steps."
        )
        series = {name: Series(np.linspace(0, 100, len(own)), 100 * own) for name, own in ranked.items()}
        figure = curves(with_series(panels, series), "clients from worst to best, %", "client accuracy, %")
        yield "clients", "Accuracy by client", text, figure


def class_samples(partitions: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Training images of each class that all clients together hold, `Float[C]`, copies left out.

    None where they differ between methods, or are not known.
    """
    found = set()
    for part in partitions:
        whole = part.get("class_counts") and len(part["shown"]) == part["clients"]
        found.add(tuple(part.get("samples") or (np.sum(part["class_counts"], axis=0).tolist() if whole else ())))
    only = found.pop() if len(found) == 1 else ()
    return np.array(only, dtype=float) if any(only) else None


def _partitions(run: RunRecord) -> Iterator[Drawn]:
    parts = [part for part in run.summary["partitions"] if np.size(part.get("class_counts") or [])]
    rest = len(parts) - _MOST_PARTITIONS
    left_out = f" The page shows the first {_MOST_PARTITIONS}, {rest:,} more are left out." * (rest > 0)
    seeds = " This is the partition of the first seed; each has its own." * bool(run.config.get("partition_seeds"))
    for place, part in enumerate(parts[:_MOST_PARTITIONS]):
        shown = len(part["shown"])
        which = "All clients" if shown == part["clients"] else f"{shown} of {part['clients']} clients"
        methods = ", ".join(printable(str(method), LONGEST_NAME) for method in part["methods"])
        text = (
            f"{which}: a column is a client, its colours how many samples of each class it holds, blank none; columns "
            f"that differ are label skew.{seeds}{left_out}"
        )
        title = "Partition" if len(run.summary["partitions"]) == 1 else f"Partition of {methods}"
        clients = [f"{number:,}" for number in part["shown"]]
        figure = partition(np.array(part["class_counts"], float), clients, run.summary["class_names"])
        yield f"partition-{place + 1}", title, text, figure


def partition(counts: np.ndarray, clients: Sequence[str], classes: Sequence[str], title: str = "") -> Figure:
    """Samples of each class on each client, `Float[M, C]`: a column for each client, blank for no sample."""
    ticks = evenly_spaced(len(clients), 8 if len(clients) > 10 else len(clients)).tolist()
    clients = [name if place in ticks else "" for place, name in enumerate(clients)]
    return heat(
        np.where(counts > 0, counts, np.nan).T, classes, clients, "samples",
        title=title, horizontal="client", vertical="class", scale=(0, counts.max(initial=1)), colours=SAMPLES,
    )  # fmt: skip


def _fakes(run: RunRecord, method: str, number: int) -> Drawn:
    shown = run.pictures[method]
    text = (
        "A row is a class: images of clients, and what the generator makes for this class at the end of the first "
        "seed's run. Fakes need not please the eye: they are what the model remembers."
    )
    found = _leaks(run, method).get("nearest")
    if found:
        made = found["generated"]
        tested = found["test"]
        text += (
            " On the right, for each fake, the client's image that is nearest: "
            f"{made['mean']:.1f} away on average, the nearest of all {made['least']:.1f}, root mean squares over "
            f"pixels of 0 to 255; test images, which no client has, are {tested['mean']:.1f} away from their nearest "
            f"ones, the nearest {tested['least']:.1f}. A fake that lies much nearer than these would be a copy."
        )
    kinds = [(title, shown[name]) for name, title in _BESIDE_FAKES.items() if name in shown]
    figure = images(kinds, run.summary["class_names"])
    return f"pictures-{number}", f"Real images and fakes of {printable(method, LONGEST_NAME)}", text, figure


def _attacks(run: RunRecord, method: str, number: int) -> Drawn:
    shown = run.pictures[method]
    found = _leaks(run, method).get("inversion") or {}
    ends = "; ".join(f"{name} {value['truth']:.2f}, {value['others']:.2f}" for name, value in found.items())
    text = (
        "A row is a class. From the left: the mean of the clients' images, what three attacks make of the shared "
        "prototype, a single test image, what they make of its features, and of its gradient (the first four). "
        f"Correlation of the pixels with the truth, and with other classes' truth: {ends.replace(' -', f' {MINUS}')}. "
        "An attack gives something away where the first is clearly above the second."
    )
    kinds = [(title, shown[name]) for name, title in _ATTACKED.items() if name in shown]
    figure = images(kinds, run.summary["class_names"])
    return f"attacks-{number}", f"Attacks on prototypes of {printable(method, LONGEST_NAME)}", text, figure


def _leaks(run: RunRecord, method: str) -> dict[str, Any]:
    return next((entry["leaks"] for entry in run.summary["runs"] if entry["method"] == method and entry["leaks"]), {})
