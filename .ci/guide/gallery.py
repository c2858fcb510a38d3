"""The guide's gallery of partitions: one picture per scheme, and the page that shows them."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from card import box, card, text

from fedjax_bal.data import partition
from fedjax_bal.types import Dataset

CLIENTS, CLASSES, ROWS = 20, 10, 500

EXAMPLES: dict[str, dict[str, Any]] = {
    "imbalance_factor": {"scheme": "dirichlet", "alpha": 0.3, "imbalance_factor": 20},
    "pathological": {"classes_per_client": 2},
    "dirichlet": {"alpha": 0.3},
    "client_dirichlet": {"alpha": 0.3},
    "balanced_dirichlet": {"alpha": 0.3},
    "refilled_dirichlet": {"alpha": 0.3},
    "equal_cut_dirichlet": {"alpha": 0.3},
    "extended_dirichlet": {"classes_per_client": 3, "alpha": 0.5},
    "long_tail": {"alpha": 0.6},
    "local_long_tail": {"local_factor": 20},
    "mixed_long_tail": {"local_factor": 20},
    "class_table": {
        "table": [[max(0.0, 1 - abs(c - k / 2) / 4) for c in range(CLASSES)] for k in range(CLIENTS)],
        "holds": "shares",
    },
    "file": {"file": "counts.txt", "holds": "counts"},
}
"""The options of each picture, by scheme; pictures without an entry use the defaults."""

CELL, BARS, LEFT, TOP = 14, 34, 34, 48
LARGEST = 1.7 * CELL  # diameter of a client that holds a whole class
PAGE = Path(__file__).parents[2] / "fedjax_bal" / "guide" / "partitions.md"

LONG_TAIL = """\
Thins classes out before any scheme divides them, so that the largest has this many times the rows of the smallest.
takes imbalance_profile=exponential, imbalance_order=label"""


def options(name: str) -> dict[str, Any]:
    """The section `partition` of the configuration that a picture shows."""
    return {"scheme": name, **EXAMPLES.get(name, {})}


def names() -> list[str]:
    """The names of all pictures, in page order."""
    return [*partition.SCHEMES, "imbalance_factor"]


def picture(name: str) -> str:
    """Draws the partition of a scheme's example as SVG.

    Raises:
        ValueError: the scheme has options without defaults but no example.
    """
    try:
        counts = _counts(options(name))
    except TypeError as error:
        raise ValueError(f"{name}: give its picture options in EXAMPLES of {__file__} ({error})") from error
    width, height = LEFT + CLIENTS * CELL + 62, TOP + CLASSES * CELL + 30
    return card(width, height, f"{CLIENTS} clients against {CLASSES} classes", _shapes(counts))


def _counts(own: dict[str, Any]) -> np.ndarray:
    """Counts the rows of each client and class, `Int[N, C]`."""
    labels = np.repeat(np.arange(CLASSES), ROWS)
    rng = np.random.default_rng(0)
    writers = rng.choice(CLIENTS, len(labels), p=rng.dirichlet(np.full(CLIENTS, 2.0)))  # for schemes that need writers
    parameters = {key: value for key, value in own.items() if key not in ("scheme", "imbalance_factor")}
    dataset = Dataset(None, labels, None, None, tuple("0123456789"), writers)
    given = partition.from_dataset(partition.SCHEMES[own["scheme"]], dataset, np.arange(len(labels)))
    with contextlib.chdir(Path(__file__).parent):
        drawn = partition.draw(
            labels, own["scheme"], CLIENTS, 0, parameters, own.get("imbalance_factor", 1), given=given
        )
    return np.array([np.bincount(labels[rows], minlength=CLASSES) for rows in drawn])


def _shapes(counts: np.ndarray) -> Iterator[str]:
    across, down = CLIENTS * CELL, CLASSES * CELL
    yield box(LEFT, TOP, across, down, "line")
    sizes, totals = counts.sum(1), counts.sum(0)
    for client, tall in enumerate(BARS * sizes / sizes.max()):
        yield box(LEFT + client * CELL + 2, round(TOP - 3 - tall, 1), CELL - 4, round(tall, 1), "bar")
    for label, long in enumerate(BARS * totals / totals.max()):
        yield box(LEFT + across + 3, TOP + label * CELL + 2, round(long, 1), CELL - 4, "bar")
    yield f'<g class="dot" transform="translate({LEFT + CELL / 2:g} {TOP + CELL / 2:g})">'
    for client, label in zip(*np.nonzero(counts), strict=True):
        radius = max(0.5 * LARGEST * (counts[client, label] / ROWS) ** 0.5, 0.8)
        yield f'<circle cx="{client * CELL}" cy="{label * CELL}" r="{radius:.1f}"/>'
    yield "</g>"
    yield text(LEFT - 4, TOP - BARS + 6, f"{sizes.max():,}", "soft small", "end")
    yield text(LEFT + across + 3 + BARS, TOP - 6, f"{totals.max():,}", "soft small", "end")
    yield text(LEFT + across / 2, TOP + down + 18, f"{CLIENTS} clients", "soft", "middle")
    yield text(LEFT - 12, TOP + down / 2, f"{CLASSES} classes", "soft", "middle", turned=True)


def page() -> str:
    """Builds the text of the guide's page: its introduction from the current file, and a section per scheme."""
    head = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    return "\n".join([head, *map(_section, names())])


def _section(name: str) -> str:
    from fedjax_bal.cli.listing import listing

    first, *more = {**listing("partitions"), "imbalance_factor": LONG_TAIL}[name].split("\n")
    values = {key: "..." if key == "table" else value for key, value in options(name).items()}
    shown = ", ".join(f"{key}: {value}" for key, value in values.items())
    labels = {"takes": "Options:", "also called": "Also called"}
    more = [re.sub("(takes|also called) (.*)", lambda own: f"{labels[own[1]]} `{own[2]}`.", line) for line in more]
    words = " ".join([first, f"Pictured: `{{{shown}}}`.", *more])
    return f"## {name}\n\n![{shown}](pictures/partition_{name}.svg)\n\n{words}\n"


def write(folder: Path) -> None:
    """Writes all pictures into a folder, and writes the page."""
    for name in names():
        (folder / f"partition_{name}.svg").write_text(picture(name), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
