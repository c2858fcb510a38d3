"""Accelerators for ahead-of-time compilation without the device: XLA's descriptions of them, and their peak speeds."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

_HOPPER = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 48 * 1024,
    "shared_memory_per_block_optin": 227 * 1024,
    "shared_memory_per_core": 228 * 1024,
    "threads_per_core_limit": 2048,
    "core_count": 132,
    "fpus_per_core": 128,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "registers_per_core_limit": 2**16,
    "registers_per_block_limit": 2**16,
    "l2_cache_size": 50 * 2**20,
    "clock_rate_ghz": 1.98,
    "device_address_bits": 64,
    "device_vendor": '"NVIDIA Corporation"',
    "cuda_compute_capability": "{ major: 9 feature_extension: ACCELERATED_FEATURES }",
}
# Without versions of driver and runtime, XLA considers them too old to keep branches inside CUDA graphs.
_CUDA = dict.fromkeys(("driver_version", "runtime_version", "compile_time_toolkit_version"), '"13.0.0"')
_H200 = {
    "name": '"NVIDIA H200"',
    "memory_bandwidth": 4_800_000_000_000,
    "device_memory_size": 141 * 2**30,
    "dnn_version": '"9.10.0"',
}
_H200_DESCRIPTION = """gpu_device_info {{ {facts} }}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "NVIDIA H200"
"""
_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Target(NamedTuple):
    """An accelerator.

    Attributes:
        platform: "cuda" or "tpu".
        topology: name of the smallest topology that XLA compiles for; programs use its first device.
        bandwidth: memory bandwidth, in bytes/s.
        peaks: peak operations/s of matrix products, by precision.
        memory: memory size, in bytes.
        clock: cycles/s, for the estimates that the TPU compiler writes into programs; 0 if it writes none.
    """

    platform: str
    topology: str
    bandwidth: float
    peaks: dict[str, float]
    memory: int
    clock: float = 0.0

    @property
    def usable(self) -> int:
        """Bytes of memory that jax reserves by default: on GPUs three quarters."""
        return self.memory * 3 // 4 if self.platform == "cuda" else self.memory


TARGETS = {
    "h200": Target(
        "cuda", "H200", 4.8e12, {"float32": 67e12, "tensorfloat32": 400e12, "bfloat16": 800e12}, 141 * 2**30
    ),
    "v5e": Target("tpu", "v5e:2x2", 0.82e12, {"float32": 33e12, "bfloat16": 197e12}, 16 * 2**30, 1.5e9),
    "v6e": Target("tpu", "v6e:2x2", 1.64e12, {"float32": 153e12, "bfloat16": 918e12}, 32 * 2**30, 1.75e9),
}


def topology_devices(name: str) -> Sequence[Any]:
    """Returns devices of a target to compile for.

    Raises:
        SystemExit: the extra `aot` isn't installed.
    """
    target = TARGETS[name]
    # Otherwise libtpu would ask Google Cloud's metadata server for these, and wait; and allow only one process at a
    # time.
    for variable, value in _LIBTPU.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    options = {}
    if target.platform == "cuda":
        facts = " ".join(_fact(*pair) for pair in (_HOPPER | _CUDA | _H200).items())
        options = {"topology": "1x1x1", "target_config": _H200_DESCRIPTION.format(facts=facts)}
    try:
        return topologies.get_topology_desc(platform=target.platform, topology_name=target.topology, **options).devices
    except Exception as error:  # jax raises several classes of errors for a missing plug-in
        raise SystemExit(
            f"--target {name}: XLA can't compile for it here ({str(error).splitlines()[0]}): install the extra, "
            "pip install 'fedjax_bal[aot]'"
        ) from error


def _fact(name: str, value: Any) -> str:
    return f"{name} {value}" if str(value).startswith("{") else f"{name}: {value}"
