"""From a configuration to trained simulations: runs and sweeps."""

from fedjax_bal.experiments import display
from fedjax_bal.experiments.backends.backend import Backend, Stopped
from fedjax_bal.experiments.backends.ray.backend import RayBackend
from fedjax_bal.experiments.backends.ray.connection import connected
from fedjax_bal.experiments.display.sweep import SweepProgress
from fedjax_bal.experiments.environment import device_name, versions
from fedjax_bal.experiments.interim_table import InterimTable
from fedjax_bal.experiments.outline import batch_title, sweep_outline
from fedjax_bal.experiments.plan import Sweep, load_sweep
from fedjax_bal.experiments.results_table import result_rows
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.setup import set_up, take_auxiliary, take_client_tests, take_validation
from fedjax_bal.experiments.sweep_work import SweepWork
