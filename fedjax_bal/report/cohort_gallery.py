"""The figures of a run with their titles and captions: partitions, cohorts, generated images and attacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.metrics import divergences
from fedjax_bal.report import cohort_plots, plots
from fedjax_bal.report.cohorts import (
    Composition,
    chain_divergences,
    chosen_at_most,
    differ,
    mean_divergence,
    pooled,
    pooled_composition,
    times_chosen,
)
from fedjax_bal.report.styles import Looks
from fedjax_bal.report.svg import Drawn
from fedjax_bal.report.wording import LONGEST_NAME, MINUS, megabytes, printable
from fedjax_bal.runs import RunRecord

_MOST_ALIKE = 20  # pictures of partitions, augmentations or mini-batches; of the rest there is one a method at most
_BESIDE_FAKES = {"real": "real", "generated": "generated", "nearest": "nearest real"}
_ATTACKS = {"upcnn": "UpCNN", "vae": "VAE", "grnn": "GRNN"}
_ATTACKED = {
    "mean": "mean",
    **{f"prototype/{attack}": title for attack, title in _ATTACKS.items()},
    "single": "single",
    **{f"single/{attack}": title for attack, title in _ATTACKS.items()},
    "gradient/grnn": "gradient",
}


def draw_partitions(run: RunRecord) -> Iterator[Drawn]:
    """The partitions, the classes before and after augmentation, and those of the clients' mini-batches."""
    yield from _partitions(run)
    yield from _augmentations(run)
    yield from _batches(run)


def draw_cohorts(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    """The evenness of the averaged models, how often clients were chosen, and what selectors estimate.

    The evenness is left out where all methods train on the same cohorts and nothing is augmented, the choice where all
    methods choose the same; a single method is the same as itself.
    """
    yield from _evenness(run, looks)
    yield from _chosen(run, looks)
    yield from _compositions(run, list(looks))


def draw_pictures(run: RunRecord) -> Iterator[Drawn]:
    """Generated images beside real ones, and the results of attacks."""
    yield from _fakes(run)
    yield from _attacks(run)


def _partitions(run: RunRecord) -> Iterator[Drawn]:
    parts, rest = _some([part for part in run.summary["partitions"] if np.size(part.get("class_counts") or [])])
    for place, part in enumerate(parts):
        counts = np.array(part["class_counts"], dtype=float)
        shown = len(part["shown"])
        which = "All clients" if shown == part["clients"] else f"{shown} of {part['clients']} clients"
        own = " This is the partition of the first seed; each has its own." * bool(run.config.get("partition_seeds"))
        caption = (
            f"{which}: a column is a client, its colours how many samples of each class it holds, blank none; columns "
            f"that differ are label skew.{own}{rest}"
        )
        figure = plots.partition(counts, part["shown"], run.summary["class_names"])
        yield f"partition-{place + 1}", f"Partition{_whose(run, part['methods'])}", caption, figure


def _some(entries: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """As many as a page shows pictures of a kind, and a sentence on the others, to stand below each."""
    rest = len(entries) - _MOST_ALIKE
    return entries[:_MOST_ALIKE], f" The page shows the first {_MOST_ALIKE}, {rest:,} more are left out." * (rest > 0)


def _whose(run: RunRecord, methods: Iterable[Any]) -> str:
    if len(run.summary["partitions"]) == 1:
        return ""
    return f" of {', '.join(printable(str(method), LONGEST_NAME) for method in methods)}"


def _augmentations(run: RunRecord) -> Iterator[Drawn]:
    classes = run.summary["class_names"]
    # Methods that differ in their cohorts only have a partition each, but the same copies.
    shared: dict[tuple[Any, ...], list[Any]] = {}
    for part in run.summary["partitions"]:
        found = part.get("augmentation")
        if found and sum(found["before"]):
            key = (tuple(found["before"]), tuple(found["after"]), found["extra_rows"], found["extra_bytes"])
            shared.setdefault(key, []).extend(part["methods"])
    some, rest = _some(list(shared.items()))
    for place, ((before, after, rows, size), methods) in enumerate(some):
        order = "" if len(classes) <= plots.MOST_NAMED else ", each line in an order of its own"
        caption = (
            f"Samples of each class that all clients together hold{order}; the closer to each other the classes, the "
            f"better. The {rows:,} copies would take {megabytes(size)} MB to store, {100 * rows / sum(before):.1f}% "
            f"more than the originals (1 MB = 10⁶ bytes).{rest}"
        )
        title = f"Classes before and after augmentation{_whose(run, methods)}"
        figure = cohort_plots.augmentation(np.array(before, dtype=float), np.array(after, dtype=float), classes)
        yield f"augmentation-{place + 1}", title, caption, figure


def _batches(run: RunRecord) -> Iterator[Drawn]:
    entries, rest = _some([entry for entry in run.summary.get("batches", []) if np.size(entry["before"])])
    for place, entry in enumerate(entries):
        before, after = (np.array(entry[key], dtype=float) for key in ("before", "after"))
        change = " to ".join(f"{mean:.2f}" for mean in (divergences(before).mean(), divergences(after).mean()))
        names = ", ".join(printable(str(method), LONGEST_NAME) for method in entry["methods"])
        caption = (
            "The share of each class, by client, before the method fills up mini-batches and once it does; darker is "
            f"more, and even columns are balanced. The mean divergence from equal shares goes from {change} nats."
            f"{rest}"
        )
        figure = cohort_plots.batches(before, after, entry["shown"], run.summary["class_names"])
        yield f"batches-{place + 1}", f"Classes in the clients' mini-batches, {names}", caption, figure


def _evenness(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    found = [(method, chain_divergences(run.lines, method), mean_divergence(run.lines, method)) for method in looks]
    values = [(method, value, mean) for method, value, mean in found if value and mean is not None]
    augmented = any(part.get("augmentation") for part in run.summary["partitions"])
    if not values or not (augmented or differ([value for _, value, _ in values])):
        return
    classes = len(run.summary["class_names"])
    low, high = cohort_plots.WHISKERS
    caption = (
        "How uneven the classes are that each averaged model was trained on (by a client, or by the clients of a "
        f"mediator): 0 is an equal share of each class, {np.log(max(classes, 1)):.2f} a single class; further left is "
        "better. Boxes hold the middle half of the values of all evaluated rounds and seeds, with a line at the "
        f"median; whiskers reach from {low}% to {high}% of them; the marker and the number are the mean."
    )
    figure = cohort_plots.evenness([(method, pooled(value), mean) for method, value, mean in values], looks)
    yield "evenness", "Evenness of what is averaged", caption, figure


def _chosen(run: RunRecord, looks: Looks) -> Iterator[Drawn]:
    values = [(method, counts) for method in looks if (counts := times_chosen(run.summary["runs"], method))]
    if not differ([counts for _, counts in values]):
        return
    most = max(each[-1][0] for _, counts in values for each in counts.values())
    caption = (
        "The share of clients that were asked to train at most that many times, mean over seeds. A line that begins "
        "high leaves many clients out, one that rises in a single step asks all equally often, and a long way to 100% "
        "means that a few are asked again and again; methods that choose the same share one line."
    )
    shares = [(method, chosen_at_most(list(counts.values()), most)) for method, counts in values]
    figure = cohort_plots.chosen(shares, looks)
    yield "chosen", "How often clients were chosen", caption, figure


def _compositions(run: RunRecord, methods: Sequence[str]) -> Iterator[Drawn]:
    for place, method in enumerate(methods):
        found = pooled_composition(run.summary["runs"], method)
        if found is None:
            continue
        caption = (
            "A dot is one class of one client: its share of the client's samples as the selector estimates it, against "
            f"the true one, for some of the {found.clients:g} clients (mean over seeds) that it has an estimate of; on "
            "the line both agree. The rank correlation is Spearman's over the classes of a client, mean over clients "
            f"and seeds: {_ranks(found)}, where 1 is the right order of the classes and 0 is chance."
        )
        figure = cohort_plots.composition(found.true, found.estimated, method, _ranks(found))
        name = f"Estimated and true class composition of {printable(method, LONGEST_NAME)}"
        yield f"composition-{place + 1}", name, caption, figure


def _ranks(found: Composition) -> str:
    mean, std, _ = found.rank_correlation
    if mean is None:
        return "not known"
    return (f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")).replace("-", MINUS)


def _fakes(run: RunRecord) -> Iterator[Drawn]:
    for place, (method, shown) in enumerate(_with(run, "generated")):
        kinds = [(title, shown[name]) for name, title in _BESIDE_FAKES.items() if name in shown]
        caption = (
            "A row is a class: images of clients, and what the generator makes for this class at the end of the first "
            "seed's run. Fakes need not please the eye: they are what the model remembers." + _nearness(run, method)
        )
        figure = cohort_plots.images(kinds, run.summary["class_names"])
        yield f"pictures-{place + 1}", f"Real images and fakes of {printable(method, LONGEST_NAME)}", caption, figure


def _with(run: RunRecord, name: str) -> list[tuple[str, Mapping[str, np.ndarray]]]:
    return [(method, shown) for method, shown in run.pictures.items() if name in shown]


def _nearness(run: RunRecord, method: str) -> str:
    found = _leaks(run, method).get("nearest")
    if not found:
        return ""
    made, tested = (found[kind] for kind in ("generated", "test"))
    return (
        " On the right, for each fake, the client's image that is nearest: "
        f"{made['mean']:.1f} away on average, the nearest of all {made['least']:.1f}, root mean squares over pixels "
        f"of 0 to 255; test images, which no client has, are {tested['mean']:.1f} away from their nearest ones, the "
        f"nearest {tested['least']:.1f}. A fake that lies much nearer than these would be a copy."
    )


def _attacks(run: RunRecord) -> Iterator[Drawn]:
    for place, (method, shown) in enumerate(_with(run, "prototype/upcnn")):
        kinds = [(title, shown[name]) for name, title in _ATTACKED.items() if name in shown]
        found = _leaks(run, method).get("inversion") or {}
        ends = "; ".join(f"{name} {value['truth']:.2f}, {value['others']:.2f}" for name, value in found.items())
        ends = ends.replace(" -", f" {MINUS}")
        caption = (
            "A row is a class. From the left: the mean of the clients' images, what three attacks make of the shared "
            "prototype, a single test image, what they make of its features, and of its gradient (the first four). "
            f"Correlation of the pixels with the truth, and with other classes' truth: {ends}. An attack gives "
            "something away where the first is clearly above the second."
        )
        figure = cohort_plots.images(kinds, run.summary["class_names"])
        yield f"attacks-{place + 1}", f"Attacks on prototypes of {printable(method, LONGEST_NAME)}", caption, figure


def _leaks(run: RunRecord, method: str) -> dict[str, Any]:
    return next((entry["leaks"] for entry in run.summary["runs"] if entry["method"] == method and entry["leaks"]), {})
