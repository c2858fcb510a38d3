"""Trackers that come along: `--track` with `tensorboard`, `wandb`, `mlflow` or `trackio`.

They aren't part of a run's identity: they can be added or left out at any time.
"""

import functools

from fedjax_bal.contrib.trackers.mlflow import MLflow
from fedjax_bal.contrib.trackers.tensorboard import TensorBoard
from fedjax_bal.contrib.trackers.wandb import LikeWandb, WeightsAndBiases
from fedjax_bal.plugins import register

__all__ = ["LikeWandb", "MLflow", "TensorBoard", "WeightsAndBiases"]

register("tracker", "mlflow")(MLflow)
register("tracker", "tensorboard")(TensorBoard)
register("tracker", "trackio")(functools.partial(LikeWandb, "trackio"))
register("tracker", "wandb")(WeightsAndBiases)
