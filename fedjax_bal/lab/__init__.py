"""Trains simulations from a configuration: runs, sweeps and their folders. Only this package names files in folders."""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_bal.lab import checkpoint
from fedjax_bal.lab.csv_text import as_csv
from fedjax_bal.lab.errors import FolderError, writing
from fedjax_bal.lab.folder import PYTHON, RunFolder, chosen_form
from fedjax_bal.lab.records import ClientResults, RunRecord
from fedjax_bal.lab.search_folder import SearchFolder
from fedjax_bal.lab.search_plan import Search, plan_search, tuned_name
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Point, Sweep, load_sweep, plan_sweep, shortest_ends, shown
from fedjax_bal.lab.training_line import training_line

if TYPE_CHECKING:
    from fedjax_bal.lab.claim import claim_run_folder, claim_search_folder, claim_sweep_folder
    from fedjax_bal.lab.compare import Comparison, run_comparison
    from fedjax_bal.lab.display import Progress
    from fedjax_bal.lab.environment import device_name, numeric_settings, versions
    from fedjax_bal.lab.exports import export_model, load_weights
    from fedjax_bal.lab.loaded_run import (
        LoadedRun,
        LoadedSweep,
        TrainedModel,
        chosen_run,
        load_run,
        predict,
        trained_model,
    )
    from fedjax_bal.lab.loop import Stopped
    from fedjax_bal.lab.methods import Method, train_methods
    from fedjax_bal.lab.outline import dry_run
    from fedjax_bal.lab.search import run_search, show_value
    from fedjax_bal.lab.setup import SharedInputs, set_up
    from fedjax_bal.lab.splits import split_rows
    from fedjax_bal.lab.summary import Cost
    from fedjax_bal.lab.sweep import run_sweep
    from fedjax_bal.lab.trackers import TRACKERS, Trackers, open_trackers

# Imported on first use, because they need jax, which reports do without.
_LATE = {
    "claim": ("claim_run_folder", "claim_search_folder", "claim_sweep_folder"),
    "display": ("Progress",),
    "environment": ("device_name", "numeric_settings", "versions"),
    "exports": ("export_model", "load_weights"),
    "loaded_run": ("LoadedRun", "LoadedSweep", "TrainedModel", "chosen_run", "load_run", "predict", "trained_model"),
    "outline": ("dry_run",),
    "compare": ("Comparison", "run_comparison"),
    "loop": ("Stopped",),
    "methods": ("Method", "train_methods"),
    "search": ("run_search", "show_value"),
    "setup": ("SharedInputs", "set_up"),
    "splits": ("split_rows",),
    "summary": ("Cost",),
    "sweep": ("run_sweep",),
    "trackers": ("TRACKERS", "Trackers", "open_trackers"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(importlib.import_module(f"fedjax_bal.lab.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
