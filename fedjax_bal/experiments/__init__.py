"""From a configuration to trained simulations: runs and sweeps."""

from fedjax_bal.experiments.display import Progress
from fedjax_bal.experiments.environment import device_name, numeric_settings, versions
from fedjax_bal.experiments.loaded_run import LoadedRun, load_run
from fedjax_bal.experiments.outline import dry_run
from fedjax_bal.experiments.plan import load_sweep
from fedjax_bal.experiments.ray_cluster import RayBackend, connected
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.setup import set_up
from fedjax_bal.experiments.splits import split_rows
from fedjax_bal.experiments.summary import cost_of
from fedjax_bal.experiments.sweep import run_sweep
from fedjax_bal.experiments.training import Stopped
