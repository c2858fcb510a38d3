"""Describes the environment of a run: device, versions and settings that its numbers depend on."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import jax

from fedjax_bal._version import __version__
from fedjax_bal.config import Config
from fedjax_bal.lab.copies import PLUGIN_COPIES
from fedjax_bal.lab.records import Command
from fedjax_bal.plugins import loaded_plugins, plugin_sources


def device_name() -> str:
    """Describes the device for people."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    return f"{processor}, {os.cpu_count()} cores"


def command_options(config: Config, data_dir: str | os.PathLike[str] | None) -> Command:
    """Returns the options that make `fedjax-bal run` repeat a configuration in a folder with copies of its plug-ins.

    The path of the data is absolute.
    """
    modules = [target for target in loaded_plugins() if os.sep not in target]
    datasets = [method.dataset.parameters for method in config.methods]
    paths = [str(parameters["path"]) for parameters in datasets if "path" in parameters]
    if data_dir is None and not all(map(os.path.isabs, paths)):
        data_dir = os.curdir  # a relative path is relative to the data folder, or without one to the current folder
    return {
        "plugins": [
            *(f"{PLUGIN_COPIES}/{name}" for name in plugin_sources(config.plugins)),
            *(module for module in modules if {module, module.partition(".")[0]} & config.plugins.keys()),
        ],
        "data_dir": None if data_dir is None else os.path.abspath(data_dir),
    }


def versions() -> dict[str, str]:
    """Returns the versions of this package and of libraries that affect results."""
    libraries = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    return {"fedjax_bal": __version__, **libraries}


_SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_default_matmul_precision",
    "jax_enable_x64",
)


def numeric_settings() -> dict[str, str]:
    """Returns jax's settings that affect random numbers and rounding, by name.

    All processes of a run must have the same settings, and a run resumes only with the settings that it started with.

    Example:
        >>> numeric_settings()["jax_random_seed_offset"]
        '0'
    """
    return {name: str(getattr(jax.config, name)) for name in _SETTINGS}


def differing_settings(here: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describes the settings that have changed since the run started, and how to set them; empty if none have.

    Example:
        >>> differing_settings({"jax_enable_x64": "False"}, {"jax_enable_x64": "True"})
        'jax_enable_x64: False then, True now (JAX_ENABLE_X64 sets it)'
    """
    return ", ".join(
        f"{name}: {here.get(name)} then, {now.get(name)} now ({name.upper()} sets it)"
        for name in sorted({*here, *now})
        if here.get(name) != now.get(name)
    )


def with_earlier(now: str, earlier: str | None) -> str:
    """Appends a device or version to the list of those used by earlier sessions of a run.

    Example:
        >>> with_earlier("0.10.2", None), with_earlier("0.12.0", "0.10.2"), with_earlier("0.10.2", "0.10.2; 0.12.0")
        ('0.10.2', '0.10.2; 0.12.0', '0.10.2; 0.12.0')
    """
    names = earlier.split("; ") if earlier else []
    return "; ".join(dict.fromkeys([*names, now]))
