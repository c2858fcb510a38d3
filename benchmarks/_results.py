"""Summarises single runs in a table: medians, ratios, and a check that all did equal work.

All functions are pure functions of the records.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

OURS = "fedjax-bal"
AVERAGED = ("W1", "W2", "W3", "W4", "W5")
BAND = 0.15
"""Largest accepted difference of training losses after the same round, relative to the rival's loss. It isn't 0,
because initial weights, shuffles and cohorts differ."""

Record = dict[str, Any]


def summarise(runs: Sequence[Record]) -> Record:
    """Summarises runs: records with `workload`, `contestant`, and either `result` or `error`.

    Returns a record with one entry per workload in `workloads`, and in `geometric_mean` that of the ratios of W1 to W5.
    """
    workloads = [workload_summary(name, runs) for name in dict.fromkeys(run["workload"] for run in runs)]
    ratios = [one["ratio"] for one in workloads if one["workload"] in AVERAGED and one["ratio"] is not None]
    return {"workloads": workloads, "geometric_mean": statistics.geometric_mean(ratios) if ratios else None}


def workload_summary(workload: str, runs: Sequence[Record]) -> Record:
    """Summarises the contestants of a workload, the fastest rival, and our speed relative to it."""
    here = [run for run in runs if run["workload"] == workload]
    names = dict.fromkeys(run["contestant"] for run in here)
    contestants = {name: contestant([run for run in here if run["contestant"] == name]) for name in names}
    ran = [one for one in contestants.values() if one["median"] is not None]
    fastest = max((one for one in ran if one["contestant"] != OURS), key=lambda one: one["median"], default=None)
    for one in ran:
        if one["contestant"] != OURS:
            one["equal_work"] = equal_work(contestants.get(OURS), one)
    ours = contestants[OURS]["median"] if OURS in contestants else None
    return {
        "workload": workload,
        "contestants": list(contestants.values()),
        "fastest_rival": fastest and fastest["contestant"],
        "ratio": ours / fastest["median"] if ours and fastest else None,
    }


def contestant(runs: Sequence[Record]) -> Record:
    """Summarises one contestant's passes: median, minimum and maximum of client updates/s; losses of the first pass."""
    results = [run["result"] for run in runs if "result" in run]
    rates = [result["client_updates_per_s"] for result in results]
    first = results[0] if results else {}
    return {
        "contestant": runs[0]["contestant"],
        "median": statistics.median(rates) if rates else None,
        "lowest": min(rates, default=None),
        "highest": max(rates, default=None),
        "passes": len(rates),
        "params": first.get("params"),
        "train_loss": losses(first.get("train_loss", [])),
        "matmul_peak_share": median_of(results, "matmul_peak_share"),
        "compile_s": median_of(results, "compile_s"),
        "errors": [run["error"] for run in runs if "error" in run],
    }


def median_of(results: Iterable[Record], key: str) -> float | None:
    values = [result[key] for result in results if result.get(key) is not None]
    return statistics.median(values) if values else None


def losses(recorded: Sequence[Any]) -> dict[int, float]:
    """Returns the training loss by round, from 1; accepts a loss per round, or pairs of round and loss."""
    if recorded and isinstance(recorded[0], Sequence):
        return {int(number): loss for number, loss in recorded}
    return dict(enumerate(recorded, 1))


def equal_work(ours: Record | None, rival: Record) -> Record:
    """Compares a rival's model and training loss with ours.

    Returns `params` and `loss`, each True, False, or None if it can't be compared; `round`, the last round that both
    have; `ours` and `theirs`, the losses after that round.
    """
    if ours is None or ours["params"] is None:
        return {"params": None, "loss": None, "round": None, "ours": None, "theirs": None}
    common = sorted(ours["train_loss"].keys() & rival["train_loss"].keys())
    pairs = [(ours["train_loss"][number], rival["train_loss"][number]) for number in common]
    last = pairs[-1] if pairs else (None, None)
    return {
        "params": ours["params"] == rival["params"],
        "loss": all(abs(mine - theirs) <= BAND * abs(theirs) for mine, theirs in pairs) if pairs else None,
        "round": common[-1] if common else None,
        "ours": last[0],
        "theirs": last[1],
    }


def markdown(summary: Record) -> str:
    """Formats the table of all workloads, followed by notes on single runs."""
    heads = ["workload", "contestant", "client updates/s", "lowest to highest", "passes", f"{OURS} / it", "equal work"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for workload in summary["workloads"]:
        lines += [_row(workload, one) for one in _ordered(workload["contestants"])]
    lines += ["", *_notes(summary)]
    return "\n".join(lines)


def _ordered(contestants: Sequence[Record]) -> list[Record]:
    return sorted(contestants, key=lambda one: (one["contestant"] != OURS, -(one["median"] or 0)))


def _row(workload: Record, one: Record) -> str:
    name = one["contestant"]
    cells = [workload["workload"], f"**{name}**" if name in (OURS, workload["fastest_rival"]) else name]
    if one["median"] is None:
        return f"| {' | '.join([*cells, one['errors'][0], '', '0', '', ''])} |"
    medians = {each["contestant"]: each["median"] for each in workload["contestants"]}
    cells += [figure(one["median"]), f"{figure(one['lowest'])} to {figure(one['highest'])}", str(one["passes"])]
    cells.append(f"{medians[OURS] / one['median']:.2f}" if medians.get(OURS) and name != OURS else "")
    return f"| {' | '.join([*cells, _work(one['equal_work']) if 'equal_work' in one else ''])} |"


def _work(check: Record) -> str:
    if check["params"] is None:
        return "not compared"
    if not check["params"]:
        return "NO: another model"
    if check["loss"] is None:
        return "same model; no round in common"
    verdict = "yes" if check["loss"] else "NO"
    return f"{verdict}: loss after round {check['round']} {check['ours']:.3f}, its {check['theirs']:.3f}"


def _notes(summary: Record) -> list[str]:
    notes = [
        f"- {workload['workload']}: {workload['ratio']:.2f} times {workload['fastest_rival']}{_own(workload)}"
        for workload in summary["workloads"]
        if workload["ratio"] is not None
    ]
    if summary["geometric_mean"] is not None:
        notes.append(f"- geometric mean over W1 to W5, of those that ran: {summary['geometric_mean']:.2f}")
    notes.append(
        f"- equal work: the same number of parameters, and training losses within {BAND:.0%} at every round in common"
    )
    failed = [(one, each) for one in summary["workloads"] for each in one["contestants"] if each["errors"]]
    return notes + [f"- {one['workload']}, {each['contestant']}: {each['errors'][0]}" for one, each in failed]


def _own(workload: Record) -> str:
    ours = next(one for one in workload["contestants"] if one["contestant"] == OURS)
    share, compiling = ours["matmul_peak_share"], ours["compile_s"]
    parts = [
        f"{share:.0%} of the measured matmul peak" if share else "",
        f"compiled in {compiling:.1f} s" if compiling else "",
    ]
    return "".join(f"; {part}" for part in parts if part)


def figure(value: float) -> str:
    """Formats a number with three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
