"""The compiled library behind `convolution="onednn"`: an optional part, for CPUs.

It has oneDNN's convolutions, and the sums of batch normalisation.

    pip install 'fedjax_bal[onednn]'
    python -m fedjax_bal.models.onednn

The second line compiles it into the user's cache folder; it needs a C++ compiler such as g++. `--prefix DIR`
takes the oneDNN 3 that is installed there, a sequential build for instance, in place of the one of the first line.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jaxlib.version

from fedjax_bal.caches import cache_folder

TARGETS = {name: f"fedjax_bal_onednn_{name}" for name in ("convolve", "weight_gradient", "moments", "slopes")}
"""Maps the names of the handler's functions to their names in XLA."""

_SOURCES = [Path(__file__).with_name(name) for name in ("handler.cc", "reductions.cc")]
_PACKAGE = "onednn-cpu-gomp"
_LIBRARY = "libdnnl.so.3"
_HEADER = "oneapi/dnnl/dnnl.hpp"
_REMEDY = "pip install 'fedjax_bal[onednn]', then python -m fedjax_bal.models.onednn; or choose another convolution"


def check_built() -> None:
    """Raises a `ValueError` with the remedy if the handler isn't built."""
    if not _place().exists():
        raise ValueError(f"convolution='onednn': its compiled part isn't built for this Python and jaxlib: {_REMEDY}")


@functools.cache
def load() -> str:
    """Loads the handler, gives its functions to XLA, and returns the version of oneDNN."""
    check_built()
    try:
        library = ctypes.CDLL(str(_place()))
    except OSError as error:
        raise ValueError(f"convolution='onednn': its compiled part can't be loaded ({error}): {_REMEDY}") from error
    for name, target in TARGETS.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(library[name]), platform="cpu")
    # Without the type, ctypes would cut the pointer to 32 bits.
    library.version.restype = ctypes.c_char_p
    return library.version().decode()


def onednn_version() -> str | None:
    """Returns the version of oneDNN if a program of this process calls it, else None."""
    return load() if load.cache_info().currsize else None


def build(prefix: Path | None = None) -> Path:
    """Compiles the handler into the user's cache folder, and returns its path.

    Args:
        prefix: the folder of a oneDNN 3, with `include` and `lib`; None for the installed package's.

    Raises:
        ValueError: a missing compiler, a missing oneDNN, or an error of the compiler.
    """
    prefix = (prefix or _installed()).absolute()
    headers = prefix / "include"
    folder = _folder_of(prefix)
    if not (headers / _HEADER).exists():
        raise ValueError(f"{headers / _HEADER} is missing: pip install 'fedjax_bal[onednn]', or pass another --prefix")
    handler = _place()
    with tempfile.TemporaryDirectory(dir=handler.parent) as scratch:
        made = Path(scratch) / handler.name
        flags = ("-std=c++17", "-O3", "-w", "-fPIC", "-shared", "-fopenmp")
        included = (f"-I{jax.ffi.include_dir()}", f"-I{headers}")
        # With its folder in the handler, the library is found again when the handler is loaded.
        linked = (f"-L{folder}", f"-l:{_LIBRARY}", "-Wl,--as-needed", f"-Wl,-rpath,{folder}")
        result = subprocess.run(
            [_compiler(), *flags, *included, *map(str, _SOURCES), "-o", str(made), *linked], capture_output=True
        )
        if result.returncode:
            raise ValueError(f"the compiler failed:\n{result.stderr.decode(errors='replace').strip()}")
        # Renamed when it is complete, as other processes may look for it.
        made.replace(handler)
    return handler


def _place() -> Path:
    """Returns the handler's path; its name depends on its sources, jaxlib's version and the Python environment."""
    try:
        folder = cache_folder("onednn")
    except OSError as error:
        raise ValueError(
            f"convolution='onednn': the user's cache folder, the place of its compiled part, can't be used ({error})"
        ) from error
    # Another source, jaxlib or Python needs another build; an old file of the cache is then never loaded.
    parts = *(source.read_text(encoding="utf-8") for source in _SOURCES), jaxlib.version.__version__, sys.prefix
    return folder / f"handler-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.so"


def _compiler() -> str:
    wanted = (os.environ["CXX"],) if os.environ.get("CXX") else ("g++", "c++", "clang++")
    compiler = next(filter(None, map(shutil.which, wanted)), None)
    if compiler is None:
        raise ValueError(f"no C++ compiler ({', '.join(wanted)}): install g++, or name another one in CXX")
    return compiler


def _installed() -> Path:
    """Returns the folder into which pip installed oneDNN."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
        library = next(file for file in files if file.name == _LIBRARY)
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise ValueError(
            "oneDNN isn't installed: pip install 'fedjax_bal[onednn]' (Linux on x86-64), or pass the folder of "
            "another one with --prefix"
        ) from None
    return Path(os.path.normpath(library.locate())).parents[1]


def _folder_of(prefix: Path) -> Path:
    """Finds the folder of the library under a prefix."""
    folders = [prefix / "lib", prefix / "lib64", *sorted(prefix.glob("lib/*-linux-gnu"))]
    folder = next((folder for folder in folders if (folder / _LIBRARY).exists()), None)
    if folder is None:
        raise ValueError(f"{prefix} holds no {_LIBRARY}: pass the folder of a oneDNN 3")
    return folder
