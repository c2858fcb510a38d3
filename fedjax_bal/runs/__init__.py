"""The run folder: its files, and checkpoints."""

from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.folder import LARGEST_NOTES, LOCK, FolderError, RunFolder, keep_others_out, writable

__all__ = [
    "LARGEST_NOTES",
    "LOCK",
    "FolderError",
    "RunFolder",
    "checkpoint",
    "keep_others_out",
    "writable",
]
