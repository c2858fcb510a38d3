"""The device and the versions on which a run was trained, and what repeats it, for its summary."""

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_bal._version import __version__
from fedjax_bal.config import Config
from fedjax_bal.models import onednn_version
from fedjax_bal.plugins import loaded_plugins


def device_name() -> str:
    """The device, in words."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    return f"{_processor()}, {os.cpu_count()} cores"


def command_options(config: Config, data_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The options, as absolute paths, with which `fedjax-bal run` repeats a configuration from any folder."""
    plugin = lambda target: Path(target.removesuffix("/__init__.py")).stem if "/" in target else target.split(".")[0]
    methods = [config.for_method(index) for index in range(len(config.methods))]
    paths = [str(own.dataset.parameters["path"]) for own in methods if "path" in own.dataset.parameters]
    if data_dir is None and not all(map(os.path.isabs, paths)):
        data_dir = os.curdir  # a relative path counts from the folder of the data, or else from the current one
    return {
        "plugins": [target for target in loaded_plugins() if plugin(target) in config.plugins],
        "data_dir": None if data_dir is None else os.path.abspath(data_dir),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """The versions of this package and of what its results may depend on; oneDNN's only where it is called."""
    import flax
    import jaxlib
    import optax

    return {
        "fedjax_bal": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "numpy": np.__version__,
        **({"oneDNN": onednn} if (onednn := onednn_version()) else {}),
    }
