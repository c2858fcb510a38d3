"""What runs end with: the leaves of the final state and the metrics of every round, in each layout."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from golden import cases, texts
from golden.cases import CASES, Case

from fedjax_bal import models
from fedjax_bal.engine.host import build
from fedjax_bal.engine.host.fine_tuning import FineTuner
from fedjax_bal.engine.host.stack import Member, Stack

SEEDS = (0, 1)
ENTRIES = 8
CONVOLUTION = "fast"
"""The form of convolution of all records, the same on all machines."""
MAP = {"strategy": "map", "devices": 1}
"""One client after another on one device."""
LAYOUTS = {
    "three lanes": {"strategy": "vmap", "devices": 1, "chunk": 3},
    "two devices": {"strategy": "map", "devices": 2},
    "two seeds in one program": MAP,
    "two seeds in one program, two lanes on each of two devices": {"strategy": "vmap", "devices": 2, "chunk": 2},
}
AS_MAP = "as one client after another"
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


def record(name: str, *, layouts: bool = True) -> texts.Record:
    """A case's record, with its layouts or without."""
    case, found = CASES[name], {}
    base = _outcomes(name)
    if layouts:
        found["layouts"] = []
        for layout in case.layouts:
            other = _deviating(name, layout)
            found["layouts"].append(f"{layout}: {AS_MAP if other is None else 'another result, below'}")
            found |= {} if other is None else _sections(other, f", {layout}")
    found |= _sections(base[0])
    if case.fine_tuning:
        end = _run(_base(name), SEEDS[0], _starts(name)[SEEDS[0]])[1]
        accuracies = FineTuner(_base(name), case.fine_tuning).run(SEEDS[0], end).accuracies
        found["accuracies of fine-tuned models"] = [f"clients: {' '.join(map(_shown, map(float, accuracies)))}"]
    return found


def alike(name: str) -> texts.Alike:
    """How lines of a case are compared."""
    return functools.partial(texts.numbers_alike, tolerance=CASES[name].tolerance)


def differences(name: str) -> dict[str, float]:
    """The largest difference from a case's record, one client after another and in lanes, as in `texts.difference`."""
    recorded, found = texts.read(file_of(name)), {}
    for layout, options in {"map": MAP, "lanes": LAYOUTS["three lanes"]}.items():
        outcome, _ = _run(_simulation(CASES[name], **options), SEEDS[0], _starts(name)[SEEDS[0]])
        sections = _sections(_kept(CASES[name], outcome)).items()
        pairs = [pair for section, lines in sections for pair in zip(recorded[section], lines, strict=True)]
        found[layout] = max(texts.difference(*pair) for pair in pairs)
    return found


@functools.lru_cache(4)
def _base(name: str) -> Any:
    return _simulation(CASES[name])


@functools.lru_cache(4)
def _starts(name: str) -> dict[int, Any]:
    """The snapshots from which the runs begin, on the host, for simulations of any layout."""
    starts = {seed: _base(name).init(seed) for seed in SEEDS}
    return {seed: start._replace(state=jax.device_get(start.state)) for seed, start in starts.items()}


@functools.lru_cache(4)
def _outcomes(name: str) -> list[Outcome]:
    """What a case comes to with each seed, one client after another on one device."""
    runs = (_run(_base(name), seed, start) for seed, start in _starts(name).items())
    return [_kept(CASES[name], outcome) for outcome, _ in runs]


def _kept(case: Case, outcome: Outcome) -> Outcome:
    """An outcome without leaves that aren't compared."""
    kept = {path: leaf for path, leaf in outcome.state.items() if not any(own in path for own in case.left_out)}
    return outcome._replace(state=kept)


def _simulation(case: Case, **layout: Any) -> Any:
    (name, arguments), federation = case.model, cases.federation(case.held_out)
    model = models.build(name, cases.CLASSES, federation.images.shape[1:], convolution=CONVOLUTION, **arguments)
    return build(case.recipe(), model, federation, cases.test_set(), **case.options(layout or MAP))


def _run(sim: Any, seed: int, snapshot: Any) -> tuple[Outcome, Any]:
    """A run by itself, from its start: how it ends, and the last snapshot."""
    history, chosen = [], []
    while snapshot.round < sim.rounds:
        advance = sim.advance(seed, snapshot)
        snapshot, history, chosen = advance.snapshot, history + advance.records, chosen + advance.chosen.tolist()
    return Outcome(_leaves(snapshot), history, chosen), snapshot


def _run_together(sim: Any, starts: Mapping[int, Any]) -> list[Outcome]:
    """Runs that are trained in one program, as those of a sweep are."""
    stack = Stack([Member(sim, seed) for seed in starts], list(starts.values()))
    found = [Outcome({}, [], []) for _ in starts]
    while stack.round < sim.rounds:
        for own, advance in zip(found, stack.advance(), strict=True):
            own.history.extend(advance.records)
            own.chosen.extend(advance.chosen.tolist())
    return [own._replace(state=_leaves(stack.snapshot(place))) for place, own in enumerate(found)]


def _leaves(snapshot: Any) -> dict[str, np.ndarray]:
    kept = jax.device_get({**snapshot.state._asdict(), "selector": snapshot.selector})
    paths = jax.tree_util.tree_leaves_with_path(kept)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in paths}


def _deviating(name: str, layout: str) -> Outcome | None:
    """What a case comes to in a layout, the first seed that isn't as in the base; None where all are."""
    sim, starts = _simulation(CASES[name], **LAYOUTS[layout]), _starts(name)
    together = layout.startswith("two seeds")
    found = _run_together(sim, starts) if together else [_run(sim, SEEDS[0], starts[SEEDS[0]])[0]]
    pairs = zip((_kept(CASES[name], own) for own in found), _outcomes(name), strict=False)
    return next((own for own, wanted in pairs if not _same(own, wanted, CASES[name].tolerance)), None)


def _same(own: Outcome, wanted: Outcome, tolerance: float) -> bool:
    """Whether two runs agree, every entry to a tolerance relative to its size or its leaf's root mean square."""
    lines = zip(_history(own), _history(wanted), strict=True)
    if own.state.keys() != wanted.state.keys() or not all(texts.numbers_alike(*pair, tolerance) for pair in lines):
        return False
    return all(_close(own.state[path], leaf, tolerance) for path, leaf in wanted.state.items())


def _close(own: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    if own.shape != wanted.shape or own.dtype != wanted.dtype:
        return False
    own, wanted = own.astype(float), wanted.astype(float)
    finite = wanted[np.isfinite(wanted)]
    floor = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    return np.allclose(own, wanted, tolerance, tolerance * floor, equal_nan=True)


def _sections(outcome: Outcome, where: str = "") -> texts.Record:
    return {
        f"metrics by round{where}": list(_history(outcome)),
        f"final state{where}": [_leaf(path, leaf) for path, leaf in sorted(outcome.state.items())],
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
