"""The names under which reports show methods."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from fedjax_bal.config import name_in_results, nearest_choices
from fedjax_bal.lab import RunRecord

NO_NAMES: Mapping[str, str] = {}
# As in Pandoc: "from $5 to $10" has no formula.
_FORMULA = re.compile(r"(\$(?![\s$])[^$]*(?<![\s\\])\$(?!\d))")


def with_labels(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a configuration, or a sweep's sheet, whose methods have other labels, by their names in results.

    Raises:
        ValueError: two methods would have the same label.
    """
    for label in names.values():
        for formula in _FORMULA.findall(label):
            if fault := _formula_fault(formula):
                raise ValueError(
                    f"--names: received {label!r:.80}; figures can't show the formula {formula:.80}: {fault}"
                )
    methods = []
    for entry in entries(config, "methods"):
        label = names.get(name_in_results(entry))
        whole = entry if isinstance(entry, dict) else {"recipe": entry}
        methods.append({**whole, "label": label} if label else entry)
    labels = list(map(display_name, methods))
    for label in names.values():
        if labels.count(label) > 1:
            raise ValueError(f"--names: received {label!r:.80} for several methods; give each its own name")
    return {**config, "methods": methods} if names else dict(config)


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names in reports of the methods of a configuration, or of a sweep's sheet, by their names in results.

    Where an axis of a sweep replaces the methods, a method that has several labels keeps its name.
    """
    axes = config.get("sweep")
    swept = [axis["methods"] for axis in axes if "methods" in axis] if isinstance(axes, list | tuple) else []
    listed = [entries({"methods": value}, "methods") for values in swept for value in values]
    labels: dict[str, str] = {}
    for entry in chain.from_iterable(listed or [entries(config, "methods")]):
        name, label = name_in_results(entry), display_name(entry)
        labels[name] = label if labels.get(name, label) == label else name
    # A configuration that was edited by hand may have a label twice.
    return labels if len({*labels.values()}) == len(labels) else {name: name for name in labels}


def split_math(text: str) -> list[str]:
    r"""Splits a label into text and formulas, `$...$` with the dollars, in turn, starting and ending with text.

    All of it is text if matplotlib can't set one of the formulas, of which it knows a part of LaTeX's.

    >>> split_math(r"Smooth, $\beta=0.9$, from $5 to $10")
    ['Smooth, ', '$\\beta=0.9$', ', from $5 to $10']
    """
    pieces = _FORMULA.split(text)
    return [text] if any(map(_formula_fault, pieces[1::2])) else pieces


@lru_cache
def _formula_fault(formula: str) -> str:
    """Describes why matplotlib can't set a formula; empty if it can."""
    from matplotlib.mathtext import MathTextParser  # matplotlib is imported late, see page.py

    try:
        MathTextParser("path").parse(formula)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def check_names(names: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Raises `ValueError` if `names` has a method that `labels` lacks."""
    for name in names:
        if name not in labels:
            raise ValueError(f"--names: received {name!r:.80}; {nearest_choices(name, labels)}")


def renamed(run: RunRecord, new: Callable[[str], str]) -> RunRecord:
    """Returns a run's record with other names of its methods; the configuration keeps the old ones."""
    summary = dict(run.summary)
    summary["runs"] = [{**entry, "method": new(entry["method"])} for entry in summary["runs"]]
    for key in ("partitions", "batches"):
        parts = summary.get(key, [])
        summary[key] = [{**part, "methods": [new(str(method)) for method in part["methods"]]} for part in parts]
    lines = [{**line, "method": new(line["method"])} for line in run.lines]
    pictures = {new(method): shown for method, shown in run.pictures.items()}
    clients = [of_run._replace(method=new(of_run.method)) for of_run in run.clients]
    findings = {
        name: {new(method): found for method, found in by_method.items()} for name, by_method in run.findings.items()
    }
    return run._replace(summary=summary, lines=lines, pictures=pictures, clients=clients, findings=findings)


def entries(config: Mapping[str, Any], key: str) -> list[Any]:
    """The entries of a list in a configuration; tolerates a damaged one."""
    listed = config.get(key)
    return [entry for entry in listed if isinstance(entry, dict | str | int)] if isinstance(listed, list) else []


def display_name(entry: Any) -> str:
    """The name in reports of the method in an entry of `methods`."""
    label = entry.get("label") if isinstance(entry, dict) else None
    return str(label or name_in_results(entry))
