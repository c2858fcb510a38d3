"""How evenly a global model serves the clients: their accuracies in rising order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_bal.report.styles import legend, legend_rows, method_style
from fedjax_bal.report.svg import blank, style

SHARES = np.linspace(0.0, 1.0, 101)


def ranked_clients(lines: Sequence[Mapping[str, Any]], method: str) -> np.ndarray | None:
    """Accuracy of the clients at the last evaluation, worst to best: mean over seeds at every hundredth of the clients.

    >>> found = ranked_clients([{"method": "a", "seed": 0, "round": 9, "client_accuracies": [0.0, 0.5, 1.0]}], "a")
    >>> found[[0, 25, 100]].tolist()
    [0.0, 0.25, 1.0]
    """
    last = {line["seed"]: line for line in sorted(lines, key=lambda line: line["round"]) if line["method"] == method}
    known = [np.sort(line["client_accuracies"]) for line in last.values() if line.get("client_accuracies")]
    if not known:
        return None
    return np.mean([np.interp(SHARES, np.linspace(0, 1, len(own)), own) for own in known], axis=0)


@style()
def accuracy_by_client(values: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """The clients' accuracies from worst to best, a line for each method.

    Args:
        values: name of each method, and what `ranked_clients` returns.

    Returns:
        The figure, in percent.

    >>> accuracy_by_client([("fedavg", SHARES)]).axes[0].get_ylabel()
    'client accuracy, %'
    """
    figure = blank(2.9 + 0.19 * legend_rows([name for name, _ in values]))
    axes = figure.add_subplot()
    for place, (_, accuracies) in enumerate(values):
        axes.plot(100 * SHARES, 100 * accuracies, **method_style(place, len(SHARES)))
    axes.set(xlabel="clients from worst to best, %", ylabel="client accuracy, %", ylim=(-2, 102))
    legend(figure, [name for name, _ in values])
    return figure
