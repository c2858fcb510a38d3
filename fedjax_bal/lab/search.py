"""A search: Optuna proposes trials in batches, and each batch trains as points of a sweep."""

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fedjax_bal.config import ConfigError, dump_yaml
from fedjax_bal.engine.host import program_of
from fedjax_bal.lab.callbacks import Callback
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.errors import FolderError, reading
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.loop import BuiltProgram, RunBatch
from fedjax_bal.lab.search_folder import SearchFolder
from fedjax_bal.lab.search_plan import MethodSearch, Search, SearchedKey
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.sweep import run_sweep
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Axis, Point, Sweep, in_words, point_label
from fedjax_bal.metrics import METRICS, MOST_AVERAGED, NOTHING, SHARE


class SearchResult(NamedTuple):
    """The result of searching one method.

    Attributes:
        search: the search.
        trials: the number of its trials.
        failed: those without a result: they diverged, or their values don't go together.
        best: the values of the best trial, by key.
        value: the validation metric of the best trial.
        own: that of the configuration's own values; None if they aren't within the ranges, or have no result.
    """

    search: MethodSearch
    trials: int
    failed: int
    best: dict[str, Any]
    value: float
    own: float | None

    @property
    def improves(self) -> bool:
        """Returns whether the best values differ from the configuration's."""
        return any(self.best[key.name] != key.own for key in self.search.keys)


class _KeptPrograms(Callback):
    """Keeps the compiled programs of a search, which the next batch of as many trials uses again."""

    def __init__(self) -> None:
        self.programs: list[Any] = []

    def built(self, batch: RunBatch, program: BuiltProgram) -> None:
        """Keeps the batch's program."""
        self.programs.append(program_of(batch.simulations))


def run_search(
    search: Search,
    folder: SearchFolder,
    inputs: SharedInputs,
    display: Progress,
    should_stop: Callable[[], bool],
    *,
    trials: int,
    together: int | None = None,
    verbose: bool = False,
) -> list[SearchResult]:
    """Trains the trials of each method that are left, and returns the best ones.

    The first trial has the configuration's own values, if they are within the ranges. The others of the first batch are
    quasi-random, later ones by Optuna's tree-structured Parzen estimator from the results of all batches before.
    Each batch has its own seed, the number of trials before it, so the same search proposes the same trials, also if it
    has been interrupted.

    Args:
        search: the search.
        folder: its folder, claimed.
        inputs: where the data are, and the devices that share the work.
        display: shows the progress.
        should_stop: called between dispatches; True ends the session.
        trials: the number of trials of each method.
        together: the number of trials that are drawn and trained together; None for a quarter of them, at least 8.
        verbose: shows each compiled program, too.

    Raises:
        FolderError: no trial of a method has a result, or the folder can't be used.
        Stopped: `should_stop` returned True.
    """
    folder.begin(search)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    together = min(together or max(8, -(-trials // 4)), trials)
    results = []
    for method in search.methods:
        study = _open_study(folder.journal, search, method)
        points = folder.sweep(method.name)
        programs = _KeptPrograms()
        announce = True
        while waiting := _next_trials(study, method, trials, together):
            sweep, labels, refused = _sweep_of(method, study.get_trials(deepcopy=False))
            rows: list[dict[str, Any]] = []
            if sweep is not None:
                with points.claimed(sweep) as settled:
                    rows = run_sweep(
                        settled,
                        points,
                        inputs,
                        display,
                        should_stop,
                        callbacks=[programs],
                        verbose=verbose,
                        announce=announce,
                    )
                announce = False
            for number in waiting:
                if number in refused:
                    display.note(f"{method.name}: left out: {refused[number]}")
                statuses = {row["status"] for row in rows if row["point"] == labels.get(number)}
                value = _score(points.point(labels[number]), search.metric) if statuses == {"done"} else None
                if value is not None:
                    study.tell(number, value)
                else:
                    # A trial that diverged counts as worse than all others; one that can't be trained doesn't count.
                    diverged = statuses and statuses <= {"done", "diverged"}
                    study.tell(number, state=TrialState.PRUNED if diverged else TrialState.FAIL)
            display.note(_progress(study, search, method, trials))
        results.append(_result(study, method, points))
    folder.finish()
    return results


def _open_study(journal: Path, search: Search, method: MethodSearch) -> optuna.Study:
    direction = "maximize" if METRICS[search.metric].best is max else "minimize"
    with reading(journal, "choose another folder with --out"):
        storage = JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(storage=storage, study_name=method.name, direction=direction, load_if_exists=True)
        if not study.trials and all(key.has_own for key in method.keys):
            study.enqueue_trial({key.name: _text_or_number(key) for key in method.keys})
    return study


def _text_or_number(key: SearchedKey) -> Any:
    """Returns what a study draws for the configuration's own value."""
    return next((text for text, value in key.by_text.items() if value == key.own), key.own)


def _next_trials(study: optuna.Study, method: MethodSearch, trials: int, together: int) -> list[int]:
    """Returns the numbers of the trials to train next: an interrupted session's, or new ones; none at the end."""
    interrupted = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if len(trial.params) == len(method.keys):
            interrupted.append(trial.number)
        else:  # the process was killed while this trial was drawn
            study.tell(trial.number, state=TrialState.FAIL)
    known = len(study.get_trials(deepcopy=False)) - len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
    if interrupted or known >= trials:
        return interrupted
    distributions = {key.name: _distribution(key) for key in method.keys}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Quasi-random numbers cover the ranges evenly, where few independent draws leave gaps.
        first = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)) == []
        study.sampler = (
            optuna.samplers.QMCSampler(seed=0, scramble=True, warn_independent_sampling=False)
            if first
            else optuna.samplers.TPESampler(seed=known, n_startup_trials=1, constant_liar=True)
        )
    # Batches of equal size share a program.
    batches = -(-(trials - known) // together)
    return [study.ask(distributions).number for _ in range(-(-(trials - known) // batches))]


def _distribution(key: SearchedKey) -> Any:
    kinds = optuna.distributions
    if key.wanted.values:
        return kinds.CategoricalDistribution(list(key.by_text))
    if key.whole:
        return kinds.IntDistribution(int(key.wanted.low), int(key.wanted.high), log=key.wanted.log)
    return kinds.FloatDistribution(key.wanted.low, key.wanted.high, log=key.wanted.log)


def _values(method: MethodSearch, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {key.name: key.value(trial.params[key.name]) for key in method.keys}


def _sweep_of(
    method: MethodSearch, trials: Sequence[optuna.trial.FrozenTrial]
) -> tuple[Sweep | None, dict[int, str], dict[int, str]]:
    """Returns trials as the points of a sweep, whose keys change together along one axis.

    Returns:
        The sweep, None without any point; the points' labels by number of the trial; and why others have no point.
    """
    labels: dict[int, str] = {}
    refused: dict[int, str] = {}
    points: dict[str, Point] = {}
    dotted = {key.name: key.dotted for key in method.keys}
    for trial in trials:
        if len(trial.params) < len(method.keys):
            continue
        values = _values(method, trial)
        label = point_label(values)
        try:
            if label not in points:  # trials with the same values share a point
                config = method.config(values)
                points[label] = Point(label, {dotted[name]: value for name, value in values.items()}, config)
            labels[trial.number] = label
        except ConfigError as error:
            refused[trial.number] = str(error)
    if not points:
        return None, labels, refused
    columns = {key: [point.values[key] for point in points.values()] for key in dotted.values()}
    config = next(iter(points.values())).config
    plugins = {"plugins": config.plugins} if config.plugins else {}
    text = dump_yaml({**method.data, **plugins, "sweep": [columns]})
    axis = Axis(tuple(columns), tuple(map(tuple, columns.values())))
    return Sweep(f"{config.name}-search", (axis,), tuple(points.values()), text), labels, refused


def _score(folder: RunFolder, metric: str) -> float | None:
    """Returns the mean over the seeds of a metric's mean over the last five evaluations; None if one has no value."""
    by_seed: dict[int, list[Any]] = {}
    for line in folder.read_metrics():
        by_seed.setdefault(line["seed"], []).append(line.get(metric))
    means = []
    for values in by_seed.values():
        last = values[-MOST_AVERAGED:]
        if None in last:
            return None
        means.append(statistics.fmean(last))
    return statistics.fmean(means) if means else None


def _progress(study: optuna.Study, search: Search, method: MethodSearch, trials: int) -> str:
    over = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    text = f"{method.name}: {len(over)} of {trials} trials"
    if not any(trial.state == TrialState.COMPLETE for trial in over):
        return f"{text}, none with a result yet"
    best = study.best_trial
    return f"{text}, best {show_value(search.metric, best.value)} with {in_words(_values(method, best))}"


def show_value(metric: str, value: float | None) -> str:
    """Formats a value of a metric with its unit."""
    unit = METRICS[metric].unit
    if value is None:
        return NOTHING
    symbol = unit.symbol if unit is SHARE else f" {unit.symbol}"
    return f"{unit.factor * value:{unit.digits}}{symbol}".rstrip()


def _result(study: optuna.Study, method: MethodSearch, points: SweepFolder) -> SearchResult:
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    every = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    if not complete:
        raise FolderError(
            f"{method.name}: none of {len(every)} trials has a result; {points.results} has the reasons. Search other "
            "values, in another folder with --out"
        )
    best: Mapping[str, Any] = _values(method, study.best_trial)
    own = {key.name: key.own for key in method.keys}
    values = [trial.value for trial in complete if _values(method, trial) == own]
    failed = len(every) - len(complete)
    return SearchResult(method, len(every), failed, dict(best), study.best_value, values[0] if values else None)
