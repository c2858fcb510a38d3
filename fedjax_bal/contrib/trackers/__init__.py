"""Metrics shown in other tools: TensorBoard, Weights & Biases, or a user's tracker.

A run is recorded in `metrics.jsonl` and resumes from it. A `Tracker` shows the same lines in another tool; `Mirror`
keeps trackers in step with the lines, even after a resume or a tracker's failure. Trackers write into the run folder
only, and are not part of a run's identity: they can be added or left out at any time.
"""

from fedjax_bal.contrib.trackers.mirror import Mirror
from fedjax_bal.contrib.trackers.opening import TRACKERS, open_trackers
from fedjax_bal.contrib.trackers.protocol import TrackedRun, Tracker, scalars, tracked_runs
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
