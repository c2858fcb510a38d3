"""What runs end with: the leaves of the final state and the metrics of every round, one client after another.

The public battery compares other layouts with this one, for every recipe.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from golden import cases, texts
from golden.cases import CASES, Case

from fedjax_bal import models
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.fine_tuning import FineTuner

SEED = 0
ENTRIES = 8
CONVOLUTION = "fast"
"""The form of convolution of all records, the same on all machines."""
MAP = {"strategy": "map", "devices": 1}
"""One client after another on one device."""
LANES = {"strategy": "vmap", "devices": 1, "chunk": 3}
"""Three clients at a time."""
HEAD = """{recipe}
{tolerance}
Of each leaf of the final state: path, type and shape, norm of what is finite, and up to {entries} entries at fixed
positions."""


class Outcome(NamedTuple):
    """How a run ends.

    Attributes:
        state: path and value of each leaf of the final state.
        history: the metrics of each evaluated round.
        chosen: the clients that were asked to train, round after round.
    """

    state: dict[str, np.ndarray]
    history: list[dict[str, Any]]
    chosen: list[int]


def file_of(name: str) -> str:
    """Where a case is recorded."""
    return f"states/{name}.txt"


def head(name: str) -> str:
    """What stands at the top of a record."""
    case = CASES[name]
    tolerance = f"Compared to {case.tolerance:g}{f': {case.why}' if case.why else ''}."
    if case.left_out:
        tolerance += f"\nLeft out, for they are rounding alone: {', '.join(case.left_out)}."
    return HEAD.format(recipe=case.about, tolerance=tolerance, entries=ENTRIES)


def record(name: str) -> texts.Record:
    """A case's record."""
    case = CASES[name]
    sim = _simulation(case)
    outcome, end = _run(sim)
    found = _sections(_kept(case, outcome))
    if case.fine_tuning:
        accuracies = FineTuner(sim, case.fine_tuning).run(SEED, end).accuracies
        found["accuracies of fine-tuned models"] = [f"clients: {' '.join(map(_shown, map(float, accuracies)))}"]
    return found


def alike(name: str) -> texts.Alike:
    """How lines of a case are compared."""
    return functools.partial(texts.numbers_alike, tolerance=CASES[name].tolerance)


def differences(name: str) -> dict[str, float]:
    """The largest difference from a case's record, one client after another and in lanes, as in `texts.difference`."""
    recorded, found = texts.read(file_of(name)), {}
    for layout, options in {"map": MAP, "lanes": LANES}.items():
        outcome, _ = _run(_simulation(CASES[name], **options))
        sections = _sections(_kept(CASES[name], outcome)).items()
        pairs = [pair for section, lines in sections for pair in zip(recorded[section], lines, strict=True)]
        found[layout] = max(texts.difference(*pair) for pair in pairs)
    return found


def _kept(case: Case, outcome: Outcome) -> Outcome:
    """An outcome without leaves that aren't compared."""
    kept = {path: leaf for path, leaf in outcome.state.items() if not any(own in path for own in case.left_out)}
    return outcome._replace(state=kept)


def _simulation(case: Case, **layout: Any) -> Any:
    (name, arguments), federation = case.model, cases.federation(case.held_out)
    model = models.build(name, cases.CLASSES, federation.images.shape[1:], convolution=CONVOLUTION, **arguments)
    return build_simulation(case.recipe(), model, federation, cases.test_set(), **case.options(layout or MAP))


def _run(sim: Any) -> tuple[Outcome, Any]:
    """A run: how it ends, and the last snapshot."""
    snapshot, history, chosen = sim.init(SEED), [], []
    while snapshot.round < sim.rounds:
        advance = sim.advance(SEED, snapshot)
        snapshot, history, chosen = advance.snapshot, history + advance.records, chosen + advance.chosen.tolist()
    return Outcome(_leaves(snapshot), history, chosen), snapshot


def _leaves(snapshot: Any) -> dict[str, np.ndarray]:
    kept = jax.device_get({**snapshot.state._asdict(), "selector": snapshot.selector})
    paths = jax.tree_util.tree_leaves_with_path(kept)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in paths}


def _sections(outcome: Outcome) -> texts.Record:
    return {
        "metrics by round": list(_history(outcome)),
        "final state": [_leaf(path, leaf) for path, leaf in sorted(outcome.state.items())],
    }


def _history(outcome: Outcome) -> Iterator[str]:
    yield f"clients asked: {' '.join(map(str, outcome.chosen))}"
    for key in outcome.history[0]:
        yield f"{key}: {' | '.join(_shown(line[key]) for line in outcome.history)}".rstrip()


def _leaf(path: str, leaf: np.ndarray) -> str:
    flat = leaf.astype(float).ravel()
    places = np.arange(leaf.size)
    if leaf.size > ENTRIES:
        places = np.sort(np.random.RandomState(leaf.size).choice(leaf.size, ENTRIES, replace=False))
    shape = ",".join(map(str, leaf.shape))
    entries = " ".join(_shown(float(value)) for value in flat[places])
    return f"{path} {leaf.dtype}[{shape}]: {_shown(float(np.linalg.norm(flat[np.isfinite(flat)])))}; {entries}".rstrip()


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(f"( {_shown(own)} )" if isinstance(own, list | tuple) else _shown(own) for own in value)
    return "-" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
