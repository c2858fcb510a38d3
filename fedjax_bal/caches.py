"""The package's folder in the user's cache, for compiled programs."""

import errno
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs


def keep_compiled_programs(note: Callable[[str], object] = lambda text: None) -> None:
    """Makes XLA keep compiled programs in the user's cache folder, so that the next run starts without compiling.

    Changes no setting if the user has chosen another folder, or switched jax's cache off. `note` receives a message if
    the folder can't be used.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        folder = cache_folder("xla")
    except OSError as error:
        note(f"compiled programs are not kept: {error.filename}: {error.strerror}")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs < math.inf:  # infinity means that none may be written
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def cache_folder(name: str) -> Path:
    """Creates and returns a folder in the package's cache folder, such as ~/.cache/fedjax_bal/NAME.

    Programs from there are executed, so only this user may have write access.

    Raises:
        OSError: there is no home folder, the folder isn't writable, or other users can write to it.
    """
    try:
        cache = platformdirs.user_cache_path("fedjax_bal", appauthor=False)
    except RuntimeError as error:  # no home folder, as in some containers
        raise OSError(errno.ENOENT, str(error), "~/.cache") from error
    for folder in (cache, cache / name):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "belongs to another user; set XDG_CACHE_HOME to your own folder", str(folder))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "can be written by other users; run chmod go-w on it", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "permission denied", str(folder))
    return folder
