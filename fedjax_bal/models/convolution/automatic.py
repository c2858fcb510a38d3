"""The form behind `convolution="auto"`: jaxlib's oneDNN if this machine can use it, else "fast".

If jaxlib's oneDNN can't be called in the way that `builtin` does, the call ends the process. It is therefore tried in
another process, once for each jaxlib and CPU, and the verdict is kept in the user's cache folder.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__ as jaxlib_version

from fedjax_bal.caches import cache_folder
from fedjax_bal.files import read_bytes, write_atomically
from fedjax_bal.models.convolution import builtin
from fedjax_bal.models.convolution.geometry import Geometry, plain_convolution
from fedjax_bal.target import target_platform

LONGEST_S = 120.0
"""Seconds after which the other process counts as hanging."""

CANNOT = "jaxlib's own oneDNN can't be used here"
_RIGHT = "right"
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_LIMITS = {"SSE41": "", "AVX": "", "AVX2": "AVX2", "AVX2_VNNI": "AVX2", "AVX2_VNNI_2": "AVX2"}
"""Values of oneDNN's variable that forbid AVX-512, and the instruction set that each allows."""


def choice() -> tuple[str, str]:
    """Returns the form that "auto" stands for, and the reason why it isn't "builtin" on this CPU, or an empty text."""
    if target_platform() != "cpu":
        return "fast", ""
    reason = why_not_builtin()
    return ("fast", reason) if reason else ("builtin", "")


def form() -> str:
    """Returns the form that "auto" stands for; logs the reason for the slower form once."""
    chosen, reason = choice()
    if reason:
        _note(note(reason))
    return chosen


def note(reason: str) -> str:
    """Returns the note for users whose CPU gets "fast" for "auto"."""
    return f"convolution: fast, as {CANNOT}: {reason}"


def check_builtin() -> None:
    """Raises `ValueError`, with the reason, if this machine can't use the form "builtin"."""
    reason = why_not_builtin()
    if reason:
        raise ValueError(f"convolution='builtin': {CANNOT}: {reason}; choose another, such as 'fast'")


@functools.cache
def why_not_builtin() -> str:
    """Returns the reason why this machine's CPU can't use the form "builtin"; empty if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"it needs Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    if not instruction_set():
        return f"it needs a CPU with AVX2, and this has none{' that ONEDNN_MAX_CPU_ISA allows' if _limit() else ''}"
    # A call with a wrong configuration ends the process, so it is tried in another one, once for each installation.
    verdict = _verdict(sys.executable)
    return "" if verdict == _RIGHT else verdict


def instruction_set() -> str:
    """Returns the vector instructions that oneDNN may use, on which rounding depends: "AVX512", "AVX2", or "".

    Like oneDNN, it obeys the environment variable ONEDNN_MAX_CPU_ISA.
    """
    flags = _cpu_flags()
    # The variable can narrow what the CPU offers, never widen it.
    widest = "AVX512" if flags >= _AVX512 else "AVX2" if "avx2" in flags else ""
    return min(widest, _LIMITS.get(_limit(), widest), key=["", "AVX2", "AVX512"].index)


def _limit() -> str:
    return next(filter(None, (os.environ.get(f"{name}_MAX_CPU_ISA") for name in ("ONEDNN", "DNNL"))), "").upper()


@functools.cache
def _cpu_flags() -> frozenset[str]:
    """Returns the CPU's features by Linux's names; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def _verdict(python: str) -> str:
    """Returns "right", or what was wrong when it was tried, perhaps by an earlier process, from the cache folder."""
    # The name depends on everything that can change the result.
    sources = [Path(file).read_text(encoding="utf-8") for file in (__file__, builtin.__file__)]
    depends = jaxlib_version, sorted(_cpu_flags()), _limit(), python, sources
    name = f"verdict-{hashlib.sha256(repr(depends).encode()).hexdigest()[:16]}.txt"
    try:
        file = cache_folder("builtin") / name
    except OSError:  # tried again in every process
        return _tried(python)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        kept = read_bytes(file, 1000).decode()
        if kept.endswith("\n"):  # or else it was cut off
            return kept.strip()
    verdict = _tried(python)
    if verdict != _RIGHT:
        verdict += f" (remove {file} to try again)"
    with contextlib.suppress(OSError):
        write_atomically(file, f"{verdict}\n".encode())
    return verdict


def _tried(python: str) -> str:
    """Tries it in another process; returns "right", or what was wrong."""
    program = f"from {__name__} import probe; probe()"
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    try:
        done = subprocess.run(
            [python, "-c", program],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST_S,
            start_new_session=True,  # or else Ctrl-C would end it, and be taken for a crash
        )
    except OSError as error:
        return f"it has to be tried in another process first, which can't be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"jaxlib {jaxlib_version}'s oneDNN did not end within {LONGEST_S:.0f} s"
    if done.returncode:
        return f"jaxlib {jaxlib_version}'s oneDNN ended a process with code {done.returncode}"
    right = done.stdout.decode(errors="replace").split() == [_RIGHT]
    return _RIGHT if right else f"jaxlib {jaxlib_version}'s oneDNN computes something else than a convolution"


def probe() -> None:
    """Prints whether convolution and weight gradients are right where pads, strides and channels all differ."""
    geometry = Geometry((2, 1), ((1, 2), (0, 1)))
    rng = np.random.default_rng(0)
    images, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 9, 6, 20), (3, 2, 20, 24)))
    result, back = jax.vjp(lambda images, kernel: plain_convolution(images, kernel, geometry), images, kernel)
    cotangent = jnp.cos(jnp.arange(result.size)).reshape(result.shape)
    computed: Sequence[jax.Array] = (
        jax.jit(lambda images, kernel: builtin.convolve(images, kernel, geometry))(images, kernel),
        jax.jit(lambda images, other: builtin.weight_gradient(images, other, (3, 2), geometry))(images, cotangent),
        jax.jit(lambda images, other: builtin.gradient_by_depth(images, other, (3, 2), geometry))(images, cotangent),
    )
    gradient = back(cotangent)[1]
    right = True
    for array, expected in zip(computed, (result, gradient, gradient), strict=True):
        right &= array.shape == expected.shape
        right = right and bool(jnp.abs(array - expected).max() < 1e-5 * jnp.abs(expected).max())
    print(_RIGHT if right else "wrong")


@functools.cache
def _note(text: str) -> None:
    logging.getLogger("fedjax_bal").warning(text)
