"""The README's picture of what the package is for: skewed clients, one program a round, a comparison with intervals."""

from collections.abc import Iterator

import numpy as np
from card import box, card, text
from measured import LongTailed, on_long_tail

from fedjax_bal import data

WIDTH, HEIGHT, TOP = 720, 246, 46
PANELS = (12, 228, 458)
PARTS = ("scaffold()", "rebafl(mu=0.1)", "astraea(alpha=0.67)")
METHODS = ("fedprox", "astraea", "iwds", "flcir", "rebafl", "lade+astraea")
PER_POINT = 11  # pixels of a percentage point
ZERO = PANELS[2] + 132
CELL = 8


def picture() -> str:
    """Draws the quickstart's federation, a recipe of several parts, and results of the guide's long tail, as SVG."""
    shapes = [
        *_heading(0, "Skewed clients", "20 clients, 10 classes, a 50:1 long tail"),
        *_federation(PANELS[0] + 12, TOP + 24),
        *_heading(1, "One program a round", "compiled for CPU, GPU or TPU"),
        *_program(PANELS[1], TOP + 16),
        *_heading(2, "Methods compared", "points above FedAvg, paired 95% intervals"),
        *_results(on_long_tail()[1], TOP + 26),
    ]
    return card(WIDTH, HEIGHT, "Skewed clients, one program that trains them, methods compared with intervals", shapes)


def _heading(panel: int, title: str, note: str) -> Iterator[str]:
    yield text(PANELS[panel] + 6, 26, title, "bold")
    yield text(PANELS[panel] + 6, 44, note, "soft small")


def _federation(left: float, top: float) -> Iterator[str]:
    """Draws a dot for each client and class, with an area proportional to the number of rows."""
    labels = data.load("fashion_mnist_small").train_labels
    drawn = data.partition.draw(labels, "dirichlet", 20, 0, {"alpha": 0.3}, 50)
    counts = np.array([np.bincount(labels[rows], minlength=10) for rows in drawn])
    order = np.argsort(-counts.sum(0), kind="stable")
    yield f'<g class="dot" transform="translate({left:g} {top:g})">'
    for client, label in zip(*np.nonzero(counts[:, order]), strict=True):
        radius = max(1.15 * CELL * (counts[client, order[label]] / counts.max()) ** 0.5, 0.8)
        yield f'<circle cx="{client * CELL * 1.15:.1f}" cy="{label * CELL * 1.9:.1f}" r="{radius:.1f}"/>'
    yield "</g>"


def _program(left: float, top: float) -> Iterator[str]:
    """Draws a recipe that combines parts of several methods, in a box that stands for the program."""
    yield box(left + 6, top, 206, 150, "tint edge", 8)
    yield text(left + 18, top + 22, "recipes.combine(", "code")
    for line, name in enumerate(PARTS):
        at = top + 34 + 30 * line
        yield box(left + 30, at, 7.25 * len(name) + 8, 22, "role", 4)
        yield text(left + 34, at + 15, name, "code")
    yield text(left + 18, top + 136, ")", "code")


def _results(measured: dict[str, LongTailed], top: float) -> Iterator[str]:
    """Draws each method's difference from FedAvg with its interval."""
    for tick, label in ((0, "FedAvg"), (5, "+5")):
        at = ZERO + PER_POINT * tick
        yield f'<path class="line" d="M{at} {top - 8}v{26 * len(METHODS) + 4}"/>'
        yield text(at, top + 26 * len(METHODS) + 10, label, "soft small", "middle")
    for line, name in enumerate(METHODS):
        own = measured[name].difference
        y = top + 8 + 26 * line
        yield text(ZERO - 34, y + 4, name, "small", "end")
        low, high = (ZERO + PER_POINT * 100 * end for end in (own.low, own.high))
        yield f'<path class="arrow" d="M{low:.1f} {y}H{high:.1f}"/>'
        yield f'<circle class="dot" cx="{ZERO + PER_POINT * 100 * own.mean:.1f}" cy="{y}" r="4"/>'
