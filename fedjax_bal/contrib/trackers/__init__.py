"""TensorBoard and Weights & Biases as trackers: `--track tensorboard` and `--track wandb`.

They write into the run folder only, and aren't part of a run's identity: they can be added or left out at any time.
"""

from fedjax_bal.contrib.trackers.tensorboard import TensorBoard
from fedjax_bal.contrib.trackers.wandb import WeightsAndBiases
from fedjax_bal.plugins import register

__all__ = ["TensorBoard", "WeightsAndBiases"]

for _tracker in (TensorBoard, WeightsAndBiases):
    register("tracker", _tracker.name)(_tracker)
