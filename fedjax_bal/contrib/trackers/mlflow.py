"""MLflow: one MLflow run for each run, in a folder or on a tracking server."""

import importlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.lab.trackers import TrackedRun, leaves, scalars

_ID = "fedjax_bal.id"
_ALWAYS_LOGGED = "test_accuracy"
# MLflow's defaults wait for minutes if the server can't be reached.
_DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class OpenRun(NamedTuple):
    """A run of MLflow's: its id, and the rounds that earlier sessions have logged."""

    id: str
    rounds: frozenset[int]


class MLflow:
    """Writes to `MLFLOW_TRACKING_URI`, or else into the folder `mlflow` of the comparison or sweep.

    A comparison or sweep is an experiment of MLflow's. The settings of a run are its parameters, as they are when it is
    first tracked. A resumed run continues the MLflow run that has its id as the tag `fedjax_bal.id`. Raises
    `ImportError` without MLflow; the package `mlflow-skinny` is enough.
    """

    def __init__(self, folder: Path) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or str(folder.absolute() / "mlflow")
        self._mlflow = importlib.import_module("mlflow")

    def begin(self, run: TrackedRun) -> OpenRun:
        """Finds the run, or creates it."""
        client = self._client()
        experiment = client.get_experiment_by_name(run.project)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.project)
        for found in client.search_runs([experiment_id], f"tags.`{_ID}` = '{run.id}'"):
            id = found.info.run_id
            client.update_run(id, status="RUNNING")
            return OpenRun(id, frozenset(metric.step for metric in client.get_metric_history(id, _ALWAYS_LOGGED)))
        tags = {_ID: run.id, "group": run.group}
        id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        parameters = [self._mlflow.entities.Param(key, str(value)) for key, value in leaves(run.config.items(), ".")]
        client.log_batch(id, params=parameters)
        return OpenRun(id, frozenset())

    def log(self, opened: OpenRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Logs the scalars of each line that isn't there yet, its round as the step."""
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(name, value, now, line["round"])
            for line in lines
            if line["round"] not in opened.rounds
            for name, value in scalars(line).items()
        ]
        self._client().log_batch(opened.id, metrics=metrics)

    def finish(self, opened: OpenRun) -> None:
        """Ends the MLflow run."""
        self._client().set_terminated(opened.id)

    def hint(self) -> str:
        """Returns the command that shows the metrics."""
        return f"look with: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {shlex.quote(self._uri)}"

    def _client(self) -> Any:
        return self._mlflow.MlflowClient(self._uri)
