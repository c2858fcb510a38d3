"""Writes papers_pages and the guide's overview from results/papers: claims with verdicts, and the results."""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from _claims import (
    DECIDED,
    EXACT,
    FULL,
    LEAST_SHARE,
    METRICS,
    SAFE_POINTS,
    SETTINGS,
    SHORTENED,
    STAND_IN,
    TO_TARGET,
    VERDICTS,
    Metric,
    Outcome,
    Pair,
    Result,
    draw_of,
    name_of,
    outcome,
    papers,
    replicates,
    results,
    rounds_of,
    run_of,
    short,
    unrun,
)
from _common import with_part
from matplotlib.figure import Figure

from fedjax_bal.config import builtin_configs, read_command
from fedjax_bal.lab import load_sweep
from fedjax_bal.metrics import SeededDraw, Spread, curve, spread_of_draws
from fedjax_bal.report.plots import (
    COLOURS,
    GREY,
    WIDTH,
    Panel,
    Series,
    curves,
    panels_of,
    percent,
    style,
    to_svg,
    with_series,
)

OVERVIEW = Path(__file__).parents[1] / "fedjax_bal" / "guide" / "papers.md"
PAGES = Path(__file__).parent / "papers_pages"
WITH_RUNS = VERDICTS[:4]
STATES = {EXACT: "by a formula", FULL: "full protocol", SHORTENED: "shortened, or one seed", STAND_IN: "stand-in"}
BEFORE = {**dict(zip(STATES.values(), (0, 0, 33, 28), strict=True)), "open": 35, "could not be tested": 18}
"""The claims by state at commit 3c4984b5, counted from its papers.yaml and results by this module's rules."""
PICTURED = "the mean over runs, and a band of one standard deviation where there are several"
COLUMNS = {
    "last5_accuracy": "last five, %",
    "final_accuracy": "final, %",
    "best_accuracy": "best, %",
    "local_models": "clients' models, %",
    "own_data": "own data, %",
    "diversity": "distance of models",
    "rounds_to_target": "rounds to target",
    "traffic_to_target": "MB to target",
    "chain_kl": "KL, nats",
    "cohort_kl": "KL of the cohort, nats",
    "worst_class": "worst class, %",
    "rank_correlation": "rank correlation",
    "nearest_image": "nearest image",
    "truth_correlation": "correlation",
}


def write() -> list[Path]:
    """Writes all pages; returns their files."""
    known = results()
    made = pages()
    made[PAGES / "scatter.svg"] = _scatter(cells(known))
    for outcomes in _decided(known).values():
        for result in _pictured(outcomes, known):
            made[PAGES / _picture_name(result)] = _picture(result)
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")
    return list(made)


def pages() -> dict[Path, str]:
    """Returns the text of each page by file."""
    known = results()
    decided = _decided(known)
    text = OVERVIEW.read_text(encoding="utf-8")
    made = {"headlines": _headlines(decided), "states": state_table(), "counts": _counts(decided)}
    made["differences"] = _differences(decided)
    for name, own in made.items():
        text = with_part(text, "papers.py", name, own)
    return {OVERVIEW: text} | {
        PAGES / f"{key}.md": _page(key, papers()[key], own, known) for key, own in decided.items()
    }


def _decided(known: Mapping[str, list[Result]]) -> dict[str, list[Outcome]]:
    return {key: [outcome(paper, claim, known) for claim in paper["claims"]] for key, paper in papers().items()}


def _headlines(decided: Mapping[str, Sequence[Outcome]]) -> str:
    """Lists the papers' promises: the paper's number, ours, what it rests on, and the verdict."""
    rows = []
    for key, outcomes in decided.items():
        for own in outcomes:
            if "headline" in own.claim:
                title = f"[{papers()[key]['title']}](../../benchmarks/{PAGES.name}/{key}.md), {own.claim['where']}"
                rows.append((title, own.claim["headline"], own.claim["theirs"], *_evidence(own)))
    head = ("paper", "promise", "the paper's", "ours", "rounds", "runs", "partitions", "data", "verdict")
    table = _table(head, rows)
    whole = [cell for cell in cells(results()) if cell.whole]
    apart = fmean(abs(cell.paper - cell.ours) for cell in whole)
    words = (
        f"The papers' tables against our runs. {len(whole)} accuracies were run with all rounds: on average ours are"
        f" {apart:.1f} points away. Those of fewer rounds are hollow."
    )
    parts = [table, _text(words), f"![Accuracies in the papers and here](../../benchmarks/{PAGES.name}/scatter.svg)"]
    parts.append(_text(f"Test accuracy where a promise is kept in part, not kept or not decided: {PICTURED}."))
    disputed = [own for outcomes in decided.values() for own in outcomes if own.verdict in VERDICTS[1:4]]
    for result in _pictured(disputed, results()):
        link = f"![{_picture_title(result)}](../../benchmarks/{PAGES.name}/{_picture_name(result)})"
        parts.append(f"{_short(result.experiment)}, {_length(result.experiment, result.rounds)}:\n\n{link}")
    return "\n\n".join(parts)


class Cell(NamedTuple):
    """An accuracy of a paper's table and ours, in %; `of` is the paper, `whole` tells whether ours had all rounds."""

    of: str
    whole: bool
    paper: float
    ours: float


def cells(known: Mapping[str, list[Result]]) -> list[Cell]:
    """Lists the cells of the papers' tables that were run, each with its longest runs and the paper's own metric."""
    found = []
    for experiment, own in known.items():
        result, published = own[0], _published(experiment)
        metric = {"best": "best_accuracy", "final": "final_accuracy"}.get(_which(experiment), "last5_accuracy")
        for group in dict.fromkeys((*(row[key] for key in result.axes), row["method"]) for row in result.rows):
            side = dict(zip((*result.axes, "method"), group, strict=True))
            point = next(row.get("point", "") for row in result.rows_of(side))
            mean = spread_of_draws(result.values(side, metric)).mean
            if mean is not None and (point, side["method"]) in published:
                title = papers()[experiment.split("/")[1]]["title"]
                whole = result.rounds >= rounds_of(experiment)
                found.append(Cell(title, whole, 100 * published[point, side["method"]], mean))
    return found


def _scatter(found: Sequence[Cell]) -> str:
    """Draws the papers' accuracies against ours, with a diagonal."""
    with style():
        figure = Figure(figsize=(WIDTH, WIDTH), layout="constrained")
        axes = figure.add_subplot()
        values = [value for cell in found for value in (cell.paper, cell.ours)]
        ends = min(values) - 2, max(values) + 2
        axes.plot(ends, ends, color=GREY, linewidth=1)
        kinds = dict.fromkeys((cell.of, cell.whole) for cell in found)
        for colour, (title, whole) in zip(COLOURS, kinds, strict=False):
            own = [cell for cell in found if (cell.of, cell.whole) == (title, whole)]
            rounds = "all rounds" if whole else "fewer rounds"
            fill = colour if whole else "none"
            x, y = [cell.paper for cell in own], [cell.ours for cell in own]
            axes.scatter(x, y, 26, facecolors=fill, edgecolors=colour, label=f"{title}, {rounds}")
        axes.set(xlim=ends, ylim=ends, xlabel="accuracy in the paper, %", ylabel="accuracy here, %", aspect="equal")
        axes.legend()
    return _rounded(to_svg(figure, "Accuracies in the papers and here"))


def _evidence(own: Outcome) -> tuple[str, ...]:
    """Returns our difference, its rounds, runs, partitions and data, and the verdict.

    Of several differences it is the one that is least as claimed.
    """
    if not own.pairs:
        return own.reason, *[""] * 4, own.verdict
    pair = min(own.pairs, key=lambda pair: ((False, None, True).index(pair.as_claimed), pair.difference.mean or 0))
    few = len(own.pairs) - 1
    more = f"; {few} more comparisons" if few > 1 else "; another comparison" if few else ""
    result = pair.result
    assert result is not None  # pairs without a result were left out
    rounds = f"{result.rounds:,} of {rounds_of(result.experiment):,}"
    return _pair(pair) + more, rounds, str(len(pair.common)), str(pair.partitions), own.setting, f"**{own.verdict}**"


def states(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Counts claims by state: what decides it, open, or could not be tested."""
    counts = dict.fromkeys(BEFORE, 0)
    for own in outcomes:
        state = STATES[own.setting] if own.verdict in DECIDED else "open"
        counts[own.verdict if own.verdict in counts else state] += 1
    return counts


def state_table() -> str:
    """Returns the claims by state before and now, as a table in Markdown."""
    now = states(own for outcomes in _decided(results()).values() for own in outcomes)
    rows = [(state, BEFORE[state], number) for state, number in now.items()]
    rows.append(("all", sum(BEFORE.values()), sum(now.values())))
    return _table(("state", "before", "now"), rows)


def _counts(decided: Mapping[str, Sequence[Outcome]]) -> str:
    """Counts the claims of each paper by verdict, those with runs also by setting, and sums them up in a sentence."""
    link = lambda key: f"[{papers()[key]['title']}](../../benchmarks/{PAGES.name}/{key}.md)"
    rows = [(link(key), outcomes) for key, outcomes in decided.items()]
    everything = [own for outcomes in decided.values() for own in outcomes]
    rows.append(("all", everything))
    cells = [(name, len(outcomes), *(_count(outcomes, verdict) for verdict in VERDICTS)) for name, outcomes in rows]
    return f"{_table(('paper', 'claims', *VERDICTS), cells)}\n\n{_summary(everything)}"


def _count(outcomes: Sequence[Outcome], verdict: str) -> str:
    counts = Counter(own.setting for own in outcomes if own.verdict == verdict)
    formulas = f" + {counts[EXACT]}" if counts[EXACT] else ""
    return " / ".join(str(counts[own]) for own in SETTINGS) + formulas if verdict in WITH_RUNS else str(counts.total())


def _summary(outcomes: Sequence[Outcome]) -> str:
    tested = [own for own in outcomes if own.setting in SETTINGS]
    settings = Counter(own.setting for own in tested)
    holding = Counter(own.setting for own in tested if own.verdict == VERDICTS[0])
    listed = lambda counts: (
        f"{counts[FULL]} in full, {counts[SHORTENED]} shortened and {counts[STAND_IN]} on a stand-in"
    )
    words = (
        f"Of {len(outcomes)} claims, {len(tested)} have runs: {listed(settings)}. {holding.total()} of them hold:"
        f' {listed(holding)}. "+ 1" is a claim that a formula decides.'
    )
    return _text(words)


def _differences(decided: Mapping[str, Sequence[Outcome]]) -> str:
    """Lists the claims that don't hold, with the result of their examination."""
    found = [
        f"- {papers()[key]['title']}, {own.claim['where']} ({own.setting}): {own.claim['claim']} {_why(own)}"
        for key, outcomes in decided.items()
        for own in outcomes
        if own.verdict == "does not hold"
    ]
    return "\n".join(_text(item, "  ") for item in found)


def _why(own: Outcome) -> str:
    """Returns the examination of a claim that doesn't hold, and the ranking that any verdict may come with."""
    why = f"{own.claim.get('why', '')} {own.claim.get('open', '')}".strip() if own.verdict != "holds" else ""
    return f"{why} {own.ranking}".strip() if own.pairs else ""


def _page(key: str, paper: Mapping[str, Any], outcomes: Sequence[Outcome], known: Mapping[str, list[Result]]) -> str:
    parts = [
        f"# {paper['title']}: the paper's claims and our runs",
        _text(
            f"{paper['source']}. {paper['note']} How verdicts are computed is "
            "[on the overview](../../fedjax_bal/guide/papers.md)."
        ),
        "## Claims\n\nEach line opens: the paper's numbers, ours, and, if it does not hold, why.",
        *map(_claim, outcomes),
    ]
    if "fidelity" in paper:
        parts.append(f"## Stand-ins\n\nHow far they are from what they stand for.\n\n{_fidelity(paper['fidelity'])}")
    if pictured := _pictured(outcomes, known):
        parts.append(f"## Curves\n\nTest accuracy of the runs that test the paper's promises: {PICTURED}.")
        for result in pictured:
            title = f"{_short(result.experiment)}, {_length(result.experiment, result.rounds)}"
            parts.append(f"{title}:\n\n![{_picture_title(result)}]({_picture_name(result)})")
    if any(name.startswith(f"papers/{key}/") for name in known):
        over = "over seeds, or over partitions where there are several"
        parts.append(f"## Results\n\nMean and standard deviation {over}.")
    for name in sorted(known):
        if name.startswith(f"papers/{key}/"):
            parts += [_results(result, paper.get("notes", {}).get(name, "")) for result in known[name]]
    return "\n\n".join([*parts, *_not_run(key, paper, known)]) + "\n"


def _fidelity(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lists each stand-in beside what it stands for."""
    head = {"data": "data and model", "classes": "classes", "rows": "rows", "nats": "nats from even"}
    head["steps"] = "local steps a round"
    return _table(tuple(head.values()), [tuple(row[key] for key in head) for row in rows])


def _pictured(outcomes: Iterable[Outcome], known: Mapping[str, list[Result]]) -> list[Result]:
    """Selects the longest runs with curves of each experiment that a promise's comparisons rest on."""
    promises = (own for own in outcomes if "headline" in own.claim)
    tested = dict.fromkeys(pair.result.experiment for own in promises for pair in own.pairs if pair.result)
    longest = (next((own for own in known[name] if own.curves), None) for name in tested)
    return [result for result in longest if result]


def _picture_name(result: Result) -> str:
    return f"{_short(result.experiment).replace('/', '_')}.svg"


def _picture_title(result: Result) -> str:
    return f"Test accuracy by round, {_short(result.experiment)}"


def _picture(result: Result) -> str:
    """Draws the curves as a report does: a panel for each point of a sweep, or several if methods outnumber colours."""
    shown: list[tuple[Panel, Mapping[str, Series]]] = []
    names = list(dict.fromkeys(row["method"] for row in result.rows))
    for values in dict.fromkeys(tuple(row[key] for key in result.axes) for row in result.rows):
        point = dict(zip(result.axes, values, strict=True))
        lines = [
            {"method": row["method"], "seed": draw_of(row)}
            | {"round": int(at["round"]), "test_accuracy": float(at["test_accuracy"])}
            for row in result.rows_of(point)
            for at in result.curves.get(run_of(row), [])
        ]
        series = {name: percent(curve(lines, name, "test_accuracy")) for name in {line["method"] for line in lines}}
        shown += with_series(panels_of(names, name_of(point)), series)
    figure = curves(shown, "round", "test accuracy, %", late=True)
    return _rounded(to_svg(figure, _picture_title(result)))


def _rounded(text: str) -> str:
    """Rounds the coordinates of a figure, to keep the file small."""
    return re.sub(r"(?<= )-?\d+\.\d{2,}(?= )", lambda number: f"{float(number[0]):.1f}", text)


def _claim(own: Outcome) -> str:
    """Formats a claim as one line with its verdict, which opens with the paper's numbers, ours, and the examination."""
    setting = f" ({own.setting})" if own.setting else ""
    line = f"<summary><b>{own.verdict}</b>{setting}: {own.claim['where']}. {_html(own.claim['claim'])}</summary>"
    runs = _run(own)
    parts = [f"The paper: {own.claim['theirs']}."]
    parts += [f"{'Run here' if own.pairs else 'Experiment'}: {runs}."] if runs else []
    parts += [f"{own.reason[0].upper()}{own.reason[1:]}."] if own.reason else []
    parts += ["\n".join(f"- {line}" for line in _compared(own))] if own.pairs or own.failures else []
    parts += filter(None, [_why(own), own.claim.get("note", "") if own.pairs else ""])
    return "\n\n".join(["<details markdown>", line, *map(_wrapped, parts), "</details>"])


def _html(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)


def _wrapped(part: str) -> str:
    return "\n".join(_text(line, "  " if line.startswith("- ") else "") for line in part.split("\n"))


def _run(own: Outcome) -> str:
    claim = own.claim
    if not own.pairs:
        return "" if {"untested", "exact"} & claim.keys() else f"`{_short(claim['run'])}`"
    lines = []
    for pair in own.pairs:
        if pair.result:
            experiment, rounds = pair.result.experiment, pair.result.rounds
            few = rounds < LEAST_SHARE * rounds_of(experiment)
            suffice = f" ({pair.comparison['rounds']} rounds suffice: {pair.comparison['because']})" if few else ""
            lines.append(f"`{_short(experiment)}`, {_length(experiment, rounds)}, {replicates(pair.common)}{suffice}")
    return "; ".join(dict.fromkeys(lines))


def _compared(own: Outcome) -> Iterator[str]:
    """Yields the comparisons of a claim, those that are least as claimed first, each with its metric."""
    for pair in sorted(own.pairs, key=lambda pair: (False, None, True).index(pair.as_claimed)):
        metric = "" if pair.metric == "last5_accuracy" else f"{METRICS[pair.metric].meaning}: "
        yield metric + _pair(pair)
    if own.pairs and own.missing:
        yield f"{own.missing} more not run yet"
    yield from own.failures


def _pair(pair: Pair) -> str:
    metric = METRICS[pair.metric]
    point = "".join(f"{part}: " for part in (pair.comparison.get("with"), pair.point) if part)
    if pair.difference.mean is None:
        return f"{point}neither `{pair.higher}` nor `{pair.lower}` reaches the target in a way that can be compared"
    unit = f" {metric.unit}" if metric.unit and metric.unit != "%" else metric.unit
    sides = []
    times = f"{pair.comparison['times']:g} times " if "times" in pair.comparison else ""
    for side, value, runs in zip((pair.higher, pair.lower), pair.values, pair.runs, strict=True):
        figure = "" if _is_number(side) else f" {_figure(value, metric)}"
        more = f" ({replicates(runs)})" if len(runs) > len(pair.common) else ""
        sides.append(f"{_name(side)}{figure}{unit if sides else ''}{more}")
    return f"{point}{times}{sides[0]} against {sides[1]}: {_difference(pair, metric)}{_limit(pair)}"


def _limit(pair: Pair) -> str:
    """Names the limit that a difference must keep, unless it is 0."""
    if "within" in pair.comparison:
        return f" (must be within {pair.comparison['within']})"
    return f" (must be above {pair.margin:.3g})" if pair.margin else ""


def _difference(pair: Pair, metric: Metric) -> str:
    mean, low, high = pair.difference.mean, pair.difference.low, pair.difference.high
    if pair.across:
        least, most = (_figure(value, metric, "+") for value in pair.across)
        kind = "partitions" if pair.partitions > 1 else "seeds"
        common = "the common seed" if pair.difference.pairs == 1 else f"{pair.difference.pairs} common {kind}"
        return f"{_figure(mean or 0, metric, '+')} with {common}, {least} to {most} between any two"
    if mean is None or low is None or high is None:
        close = f", less than {SAFE_POINTS:g} points{' from the limit' * bool(pair.margin)}" if pair.is_close else ""
        return f"{_figure(mean or 0, metric, '+')}, one seed{close}"
    limits = (pair.margin, *((-own, own) if (own := pair.comparison.get("within")) else ()))
    ends = (_figure(end, metric, "+", limits) for end in (low, high))
    return f"{_figure(mean, metric, '+')} [{', '.join(ends)}]"


def _results(result: Result, note: str = "") -> str:
    rows = result.rows
    published = _published(result.experiment) if result.rounds >= rounds_of(result.experiment) else {}
    axes = result.axes
    groups = list(dict.fromkeys((*(row[key] for key in axes), row["method"]) for row in rows))
    counted = " to " not in result.seeds
    lines = []
    for group in groups:
        side = dict(zip((*axes, "method"), group, strict=True))
        point = next(row.get("point", "") for row in rows if all(row[key] == value for key, value in side.items()))
        values = {key: result.values(side, key) for key in COLUMNS}
        paper = published.get((point, side["method"]))
        # The line above the table says how many runs there are, unless methods differ in it.
        seeds = "" if counted else str(sum(side.items() <= row.items() for row in rows))
        names = (*group[:-1], f"`{side['method']}`", seeds)
        lines.append((*names, values, "" if paper is None else f"{100 * paper:.2f}"))
    # A column is left out if no run has a value, and a target if no run reaches it.
    least = lambda key: 0.0 if key in TO_TARGET else -math.inf
    shown = [key for key in COLUMNS if any(value > least(key) for line in lines for value in line[-2][key].values())]
    cells = [(*line[:-2], *(_spread(line[-2][key], key) for key in shown), line[-1]) for line in lines]
    table = _table(
        (*map(short, axes), "method", "runs", *(COLUMNS[key] for key in shown), "paper, %"),
        cells,
        ("runs", "paper, %"),
    )
    title = f"### {_short(result.experiment)}, {_length(result.experiment, result.rounds)}"
    return "\n\n".join((title, f"{_about(result)} {note}".rstrip(), table))


def _about(result: Result) -> str:
    rows = result.rows
    machines = ", ".join(dict.fromkeys(f"{row['machine']}, jax {row['jax']}" for row in rows))
    notes = ", then".join(f" {note}" for note in dict.fromkeys(row["note"] for row in rows if row.get("note")))
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows if row.get("commit")))
    target = next((f" The target is {100 * float(row['target']):g}%." for row in rows if row.get("target")), "")
    changes = "; ".join(dict.fromkeys(row["changes"] for row in rows if row.get("changes")))
    with_changes = f" With `{changes}`." if changes else ""
    return f"{result.seeds.capitalize()}; {machines}{notes}; commit {commits}.{target}{with_changes}"


def _not_run(key: str, paper: Mapping[str, Any], known: Mapping[str, list[Result]]) -> Iterator[str]:
    names = [name for name in builtin_configs() if name.startswith(f"papers/{key}/") and name not in known]
    reasons: dict[str, list[str]] = {}
    for name in names:
        reasons.setdefault(unrun(paper, name) or "not run yet", []).append(f"`{_short(name)}`")
    if reasons:
        rows = [(why, ", ".join(listed)) for why, listed in reasons.items()]
        yield "## Experiments without results\n\n" + _table(("why", "experiments"), rows)


@cache
def _which(experiment: str) -> str:
    """Returns which accuracy of a run the paper's table has, from the configuration."""
    return (read_command(builtin_configs()[experiment]).stated.get("paper") or {}).get("which") or ""


@cache
def _published(experiment: str) -> dict[tuple[str, str], float]:
    """Returns the paper's accuracies by point and method, from the configuration."""
    file = builtin_configs()[experiment]
    read = read_command(file)
    if not read.is_sweep:
        return {("", name): value for name, value in ((read.stated.get("paper") or {}).get("accuracy") or {}).items()}
    configs = load_sweep(file).configs
    return {(at, name): v for at, own in configs.items() if own.paper for name, v in own.paper.accuracy.items()}


def _text(prose: str, indent: str = "") -> str:
    return textwrap.fill(prose, 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], may_lack: Sequence[str] = ()) -> str:
    """Formats a table in Markdown, without the columns of `may_lack` that are empty."""
    kept = [place for place, name in enumerate(head) if name not in may_lack or any(row[place] for row in rows)]
    line = lambda cells: "| " + " | ".join(str(cells[place]).replace("|", r"\|") for place in kept) + " |"
    return "\n".join([line(head), "|---" * len(kept) + "|", *map(line, rows)])


def _spread(values: Mapping[SeededDraw, float], key: str) -> str:
    """Formats mean and standard deviation; for a target, of the runs that reached it, and their number."""
    reached = {draw: value for draw, value in values.items() if key not in TO_TARGET or value > 0}
    own: Spread = spread_of_draws(reached)
    if own.mean is None:
        return "not reached" if values else ""
    of = f" ({len(reached)} of {len(values)})" if len(reached) < len(values) else ""
    return _figure(own.mean, METRICS[key]) + ("" if own.std is None else f" ± {_figure(own.std, METRICS[key])}") + of


def _figure(value: float, metric: Metric, sign: str = "", limits: Sequence[float] = ()) -> str:
    """Formats a value; a signed one has enough decimals to differ from 0 and from `limits`, which can decide."""
    for places in range(metric.places, metric.places + 5):
        text = f"{value:{sign},.{places}f}"
        if not sign or float(text.replace(",", "")) not in {0, *limits} - {value}:
            break
    return text if value or not sign else text.lstrip("+-")


def _length(experiment: str, rounds: int) -> str:
    whole = rounds_of(experiment)
    return f"{rounds:,} rounds" if rounds >= whole else f"{rounds:,} of {whole:,} rounds"


def _short(experiment: str) -> str:
    return experiment.removeprefix("papers/")


def _name(side: str) -> str:
    return side if _is_number(side) else f"`{side}`"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
