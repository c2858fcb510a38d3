"""Metrics shown elsewhere too: TensorBoard, Weights & Biases, or a tracker of one's own.

`metrics.jsonl` is what a run is written down in and goes on from. A `Tracker` shows the same lines in a tool of the
user's; `Mirror` keeps trackers level with the lines, also when a run goes on after a stop, and when a tracker fails.
Trackers write into the run folder only, and are no part of a run's identity: they can be added or left out at any time.
"""

from fedjax_bal.contrib.trackers.mirror import Mirror
from fedjax_bal.contrib.trackers.opening import TRACKERS, open_trackers
from fedjax_bal.contrib.trackers.protocol import Tracker
from fedjax_bal.contrib.trackers.runs import TrackedRun, tracked_runs
from fedjax_bal.contrib.trackers.scalars import scalars
from fedjax_bal.contrib.trackers.tensorboard import TensorBoard
from fedjax_bal.contrib.trackers.wandb import WeightsAndBiases

__all__ = [
    "TRACKERS",
    "Mirror",
    "TensorBoard",
    "TrackedRun",
    "Tracker",
    "WeightsAndBiases",
    "open_trackers",
    "scalars",
    "tracked_runs",
]
