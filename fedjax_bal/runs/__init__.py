"""The folders of runs and of sweeps: the only place where their files are named, written and read."""

from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.folder import Execution, RunFolder, choose_folder
from fedjax_bal.runs.model_files import MODEL_FORMATS, write_model
from fedjax_bal.runs.output_files import START_OVER, FolderError, FolderInUseError, RemoteFiles, unreadable
from fedjax_bal.runs.record import LARGEST, RunRecord
from fedjax_bal.runs.sweep_folder import SweepFolder, as_csv
from fedjax_bal.runs.verification import Finding, verify
