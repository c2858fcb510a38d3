"""A comparison of methods in Python, as `fedjax-bal run` makes one from a configuration."""

import importlib
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from fedjax_bal.jax_setup import package_settings
from fedjax_bal.lab import (
    Comparison,
    Method,
    RunRecord,
    TrainedModel,
    chosen_run,
    predict,
    train_methods,
    trained_model,
)
from fedjax_bal.metrics import Difference, EarlyStopping, apply_holm, is_imbalanced, paired_difference, seed_values
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.recipes import Recipe
from fedjax_bal.report.comparison import compare_runs
from fedjax_bal.report.gallery import run_figures, to_pictures
from fedjax_bal.report.page import page_of_run, write_run_page, write_to
from fedjax_bal.report.paper import find_metrics, latex_table
from fedjax_bal.report.reading import ReportedRuns, completed
from fedjax_bal.report.tables import BOOKTABS
from fedjax_bal.report.terminal import results_of
from fedjax_bal.status import StatusLine
from fedjax_bal.types import Dataset, Federation, Model, Variables
from fedjax_bal.validate import finite_number, one_of, whole_number

_WIDTH = 80  # of a terminal, in characters
_STYLE = "<style>.fedjax-bal .best{font-weight:bold}</style>"


class ComparisonResult:
    """The results of a comparison; printing it shows its table. Methods are compared with the first one.

    Attributes:
        methods: the names of the methods.
        seeds: the seeds.
        history: a dict of metrics for each evaluated round of each run, with `method`, `seed` and `round`.
    """

    def __init__(
        self, comparison: Comparison, record: RunRecord, methods: Sequence[str], seeds: Sequence[int], out: Path | None
    ) -> None:
        record = completed(record)
        self.methods = tuple(methods)
        self.seeds = tuple(seeds)
        self.history = record.lines
        self._comparison = comparison
        self._runs = ReportedRuns(record, {"": record.config})
        self._out = out

    def __repr__(self) -> str:
        _, sentences = results_of(self._runs)
        return "\n\n".join([self.table(), *(textwrap.fill(text, _WIDTH) for text in sentences)])

    def _repr_html_(self) -> str:
        tables, sentences = results_of(self._runs)
        shown = [table.html("h4" if table.title else "") for table in tables]
        shown += [Markup("<p>{}</p>").format(text) for text in sentences]
        return f'<div class="fedjax-bal">{_STYLE}{"".join(shown)}</div>'

    def table(self, width: int = _WIDTH) -> str:
        """Formats the table that `fedjax-bal run` prints, and tables of failed runs and of named clients if any."""
        tables, _ = results_of(self._runs)
        return "\n\n".join(table.text(width) for table in tables)

    def frame(self) -> Any:
        """Returns `history` as a pandas `DataFrame`, a row for each method, seed and evaluated round.

        Raises:
            ImportError: pandas isn't installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise ImportError(
                "frame: needs pandas: pip install pandas; without it, `history` has the same rows as dicts"
            ) from error
        return pandas.DataFrame(self.history)

    def differences(self, baseline: str | None = None, metric: str | None = None) -> dict[str, Difference]:
        """Computes how far the methods are above a baseline, the mean over paired seeds, with its 95% interval.

        Args:
            baseline: the name of a method; the first one by default.
            metric: a metric of whole runs, by a name of `fedjax-bal list metrics` or a heading of the tables: "final
                accuracy", "worst class", ... By default the one by which the table compares methods: the mean over
                classes on an imbalanced test set, otherwise "last 5", the mean of the last five evaluations.

        Returns:
            The difference of each other method, by name, with its p-value: as it is, and corrected for the number of
            methods (Holm).

        Raises:
            ValueError: an unknown method or metric.
        """
        first = one_of("baseline", self.methods[0] if baseline is None else baseline, self.methods)
        runs = self._runs.record.summary["runs"]
        if metric is None:
            metric = "balanced_accuracy" if is_imbalanced(runs) else "last5_accuracy"
        [found] = find_metrics([metric], "metric")
        values = seed_values(runs, found.name)
        others = [method for method in self.methods if method != first]
        differences = [paired_difference(values[method], values[first]) for method in others]
        return dict(zip(others, apply_holm(differences), strict=True))

    def figure(self, name: str = "curves") -> Figure:
        """Draws a figure of the report: "curves" (accuracy by round), "classes", "confusion", "partition", ...

        Raises:
            ValueError: there is no figure of this name; the message lists those that there are.
        """
        names = {}
        for full, _, _, figure in run_figures(self._runs):
            short = re.sub(r"-\d+$", "", full).replace("accuracy", "curves")
            names[short] = full
            if name in (short, full):
                return figure
        one_of("figure", name, names)
        raise AssertionError  # a known name has been returned

    def to_latex(self, metrics: Sequence[str] = (), *, against: str | None = None, bold: bool = False) -> str:
        """Formats a table for a paper, which needs the package booktabs.

        Args:
            metrics: names of metrics, a column each, as for `fedjax-bal report --table`; by default the columns of the
                report's table.
            against: with `metrics`, the method from which each has a column of differences.
            bold: print in bold the best mean of each column, and underline those that don't clearly differ from it.

        Raises:
            ValueError: an unknown metric or method.
        """
        if not metrics:
            return BOOKTABS + compare_runs(self._runs).table.latex()
        return latex_table(self._runs, metrics, bold=bold, against=against, arguments=("metrics", "against"))

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the page that `fedjax-bal run` writes, one HTML file, and its tables next to it.

        Args:
            path: the file; by default `report.html` in the comparison's folder, with the figures in `plots`.

        Returns:
            The file.

        Raises:
            ValueError: the file can't be written, or neither it nor a folder is given.
        """
        if path is not None:
            return write_to(Path(path), page_of_run(self._runs, to_pictures(lambda: run_figures(self._runs))))
        if self._out is None:
            raise ValueError("path: received None, but the comparison has no folder: give a file, 'report.html'")
        return write_run_page(self._out)

    def variables(self, method: str | None = None, seed: int | None = None) -> Variables:
        """Returns the global model of a run as it was tested after the last round, as NumPy arrays.

        Args:
            method: the method's name; None if there is only one.
            seed: the seed; the first one by default.

        Raises:
            ValueError: an unknown method or seed, no method among several, or a run that diverged before anything was
                saved.
        """
        return self._trained(method, seed).variables

    @package_settings()
    def predict(
        self,
        inputs: Any,
        method: str | None = None,
        seed: int | None = None,
        *,
        names: bool = False,
        probabilities: bool = False,
    ) -> np.ndarray:
        """Predicts the classes of new rows or images; arguments and result are those of `LoadedRun.predict`."""
        classes = self._runs.record.summary["class_names"]
        return predict(self._trained(method, seed), inputs, classes, names=names, probabilities=probabilities)

    @package_settings()
    def _trained(self, method: str | None, seed: int | None) -> TrainedModel:
        chosen = chosen_run(method, seed, self.methods, self.seeds)
        run = next(run for run in self._comparison.runs if run.id == chosen)
        saved = self._comparison.last_state(run)
        if saved is None:
            raise ValueError(f"{run.title}: has no model, because it diverged in {run.failure}")
        return trained_model(self.methods.index(chosen.method), run, saved.snapshot)


@package_settings()
def compare(
    methods: Mapping[str, Recipe | Method],
    model: Model,
    federation: Federation,
    test: tuple[Any, Any] | Dataset,
    *,
    seeds: int | Sequence[int],
    rounds: int,
    local: LocalTraining = LocalTraining(),
    participation: Participation = Participation(),
    evaluation: Evaluation = Evaluation(),
    execution: Execution = Execution(),
    server_optimizer: AnyOptimizer | None = None,
    variables: Variables | None = None,
    early_stopping: EarlyStopping | None = None,
    target_accuracy: float | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> ComparisonResult:
    """Trains methods with several seeds each on one federation, and compares them, as `fedjax-bal run` does.

    A seed decides initial weights, availability, selection, delivery and batches, so that methods with the same seed
    have them in common: differences are taken between them, and are more certain than those of separate runs. The
    partition is the federation's, whatever the seed. A run that diverges is listed as failed, and the others continue.
    On a CPU every run gives the numbers of `simulate` and of `fedjax-bal run` to the bit. On accelerators, where it is
    faster, runs that one program can train, such as the seeds of a method, are trained together, which rounds
    differently.

    Args:
        methods: the methods by name; the first one is the baseline. A `Method` has settings of its own.
        model: as for `simulate`, like the arguments without a description below.
        federation: the federation, which all runs share.
        test: the test set.
        seeds: the number of seeds, which are then 0, 1, ...; or a list of seeds.
        rounds: communication rounds.
        local: how clients train.
        participation: which clients train.
        evaluation: when the global model is tested.
        execution: how to lay out the work.
        server_optimizer: the server's optimizer.
        variables: the model that all runs start from; by default each seed draws its own.
        early_stopping: ends a run.
        target_accuracy: a test accuracy, from 0 to 1; the table then has the rounds and the traffic until it.
        out: a folder for the results, which `fedjax-bal report` and `load_run(...).metrics()` read. The same call
            resumes there, or returns what is finished; with more rounds, seeds or methods it goes on. A call that
            differs otherwise is refused. Functions that a part of yours calls aren't compared: after you change one,
            choose another folder. By default nothing is written.
        progress: show a line on standard error; by default in a terminal and in a notebook.

    Returns:
        The results: table, differences, figures, page and trained models.

    Raises:
        ValueError: values don't fit together; or the folder has another comparison, or can't be used.

    Example:
        >>> import numpy as np
        >>> from fedjax_bal import data, models, recipes
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 20)
        >>> images = (labels[:, None, None, None] * 90 + rng.integers(0, 99, (40, 2, 2, 1))).astype(np.uint8)
        >>> federation = data.federate(images, labels, data.partition.iid(rng, labels, 4), num_classes=2)
        >>> methods = {"fedavg": recipes.fedavg(), "fedprox": recipes.fedprox(mu=0.1)}
        >>> model = models.build("mlp", 2, (2, 2, 1), hidden=[4])
        >>> result = compare(methods, model, federation, (images, labels), seeds=2, rounds=3)
        >>> sorted(result.differences("fedavg")), result.figure("curves").axes[0].get_xlabel()
        (['fedprox'], 'round')
        >>> len(result.history), result.variables("fedprox", seed=1).params["head"]["dense"]["bias"].shape
        (12, (2,))
    """
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError(f"methods: received {methods!r:.100}, must be recipes by name: {{'fedavg': recipes.fedavg()}}")
    described: dict[str, Method] = {}
    for name, method in methods.items():
        method = method if isinstance(method, Method) else Method(method)
        if not isinstance(name, str) or not name.strip() or not isinstance(method.recipe, Recipe):
            raise ValueError(
                f"methods: received {name!r:.80}: {method.recipe!r:.80}, must be a name and a recipe from "
                "fedjax_bal.recipes, or a fedjax_bal.Method"
            )
        described[name] = method
    if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str):
        numbers = [whole_number("seeds", seed, low=0) for seed in seeds]
    else:
        numbers = list(range(whole_number("seeds", seeds)))
    if not numbers or len(set(numbers)) < len(numbers) or max(numbers) >= 2**32:
        raise ValueError(f"seeds: received {seeds!r:.100}, must be one or more different numbers below 2**32 = {2**32}")
    if not isinstance(early_stopping, EarlyStopping | None):
        raise ValueError(f"early_stopping: received {early_stopping!r}, must be a fedjax_bal.EarlyStopping")
    if target_accuracy is not None:
        target_accuracy = finite_number("target_accuracy", target_accuracy, 0, 1)
    with StatusLine("compare", progress) as status:
        comparison, record = train_methods(
            described,
            model,
            federation,
            test,
            seeds=numbers,
            rounds=rounds,
            local=local,
            participation=participation,
            evaluation=evaluation,
            execution=execution,
            server_optimizer=server_optimizer,
            variables=variables,
            early_stopping=early_stopping or EarlyStopping(),
            target_accuracy=target_accuracy,
            out=out,
            status=status,
        )
    return ComparisonResult(comparison, record, list(described), numbers, None if out is None else Path(out))
