"""The run folder: its files, and checkpoints."""

from fedjax_bal.runs import checkpoint
from fedjax_bal.runs.folder import FolderError, LARGEST_NOTES, LOCK, RunFolder, keep_others_out, writable

__all__ = [
    "FolderError",
    "LARGEST_NOTES",
    "LOCK",
    "RunFolder",
    "checkpoint",
    "keep_others_out",
    "writable",
]
