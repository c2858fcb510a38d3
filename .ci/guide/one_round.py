"""The guide's picture of a round: its stages, where they run, and the roles of parts in each."""

import inspect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from card import box, card, text

from fedjax_bal import parts

WIDTH, EDGE, INSET = 720, 12, 28
LINE, CHIP, GAP = 19, 26, 22
LABELS = 76  # next to the roles


class Stage(NamedTuple):
    """A box of the picture.

    Attributes:
        title: the stage's name.
        where: who performs it.
        words: a sentence, in lines.
        rows: labels, which may be empty, and names; names of roles get a frame.
    """

    title: str
    where: str
    words: Sequence[str]
    rows: Sequence[tuple[str, str]]


SELECTION = Stage(
    "Selection",
    "host",
    [
        "The selector chooses the cohort from the available clients, some selectors by what clients have",
        "reported; delivery says whose updates will arrive. Together this is the round's plan.",
    ],
    [("", "availability selector delivery")],
)
PROGRAM = (
    Stage("Broadcast", "server", ["The global model and what parts add to it; the clients' weights."],
          [("", "Server Weigh")]),
    Stage(
        "Local training",
        "every client of the cohort",
        ["All chains of the round; a chain is one client, or several that train in turn on one model."],
        [
            ("before", "Personal Separate Freeze Prepare Draw Start"),
            ("every step", "Batches Shift Logits Criterion Loss Steps Gradient optimizer Update"),
            ("after", "Deliver Memory Report Probe"),
        ],
    ),
    Stage("Aggregation", "server", ["The mean of the updates. Lost updates have no weight and leave no trace."],
          [("", "Reduce")]),
    Stage("Server step", "server", ["The next global model."], [("", "Step optimizer Refine Server")]),
    Stage("Evaluation", "in rounds that are evaluated", ["The global model on test rows, the clients' own included."],
          [("", "Refine Closing Personal")]),
)  # fmt: skip
TRAINING, STEP = PROGRAM[1], PROGRAM[3]


def picture() -> str:
    """Draws a round as SVG.

    Raises:
        ValueError: a role is missing, or a name isn't a role.
    """
    _check_roles()
    width, top = WIDTH - 2 * EDGE, EDGE + _height(SELECTION) + GAP
    shapes = [*_stage(SELECTION, EDGE, EDGE, width), *_arrow(top)]
    inner, at, y = [], {}, top + 30
    for stage in PROGRAM:
        at[stage.title] = y
        inner += [*(_arrow(y) if stage is not PROGRAM[0] else ()), *_stage(stage, INSET, y, WIDTH - 2 * INSET)]
        y += _height(stage) + GAP
    shapes += [
        box(EDGE, top, width, y - top - 6, "tint edge", 8),
        text(INSET, top + 20, "one XLA program", "bold"),
        text(WIDTH - INSET, top + 20, "next round", "soft", "end"),
        *inner,
        *_loop(at[STEP.title] + _height(STEP) / 2, at[PROGRAM[0].title] + 20),
        *_legend(y + 12),
    ]
    return card(WIDTH, y + 34, "A round, from selection to evaluation, and the roles of parts at each place", shapes)


def _roles() -> set[str]:
    return {name for name, kind in vars(parts).items() if inspect.isabstract(kind)}


def _check_roles() -> None:
    named = {name for stage in PROGRAM for _, names in stage.rows for name in names.split()}
    wrong = {name for name in named if name[0].isupper()} ^ _roles()
    if wrong:
        raise ValueError(f"{__file__}: {', '.join(sorted(wrong))}: each role, and nothing else, stands in a stage")


def _height(stage: Stage) -> int:
    return 14 + LINE * (1 + len(stage.words)) + CHIP * len(stage.rows)


def _stage(stage: Stage, x: int, y: int, width: int) -> Iterator[str]:
    for behind in (6, 3) if stage is TRAINING else ():
        yield box(x + behind, y + behind, width - 6, _height(stage), "paper edge", 6)
    yield box(x, y, width - 6 * (stage is TRAINING), _height(stage), "paper edge", 6)
    yield text(x + 12, y + 21, stage.title, "bold")
    yield text(x + width - 18, y + 21, stage.where, "soft", "end")
    for number, line in enumerate(stage.words, 1):
        yield text(x + 12, y + 21 + LINE * number, line)
    y += 14 + LINE * (1 + len(stage.words))
    for label, names in stage.rows:
        if label:
            yield text(x + 12, y + 13, label, "soft")
        yield from _names(x + 12 + LABELS * bool(label), y, names.split())
        y += CHIP


def _names(x: float, y: float, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        wide, role = 7.25 * len(name) + 8, name[0].isupper()
        if role:
            yield box(x, y - 1, wide, 20, "role", 4)
        yield text(x + wide / 2, y + 13, name, "code" if role else "code soft", "middle")
        x += wide + 4


def _arrow(y: float) -> Iterator[str]:
    """Draws an arrow down to a height."""
    yield f'<path class="arrow" d="M{WIDTH / 2:g} {y - GAP + 9}v11m-5-5 5 5 5-5"/>'


def _loop(low: float, high: float) -> Iterator[str]:
    """Draws an arrow on the right, from one height up to another."""
    x = WIDTH - INSET
    yield f'<path class="arrow" d="M{x} {low:g}h9V{high:g}h-8m5-5-5 5 5 5"/>'


def _legend(y: float) -> Iterator[str]:
    yield from _names(EDGE, y, ["Role"])
    yield text(
        EDGE + 44, y + 13, "what parts of a method can play there; the rest is chosen in the configuration", "soft"
    )
