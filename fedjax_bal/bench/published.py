"""The figures of `benchmarks/README.md` for the workloads, by kind of machine, to which `fedjax-bal bench` points."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fedjax_bal.jax_setup import cores
from fedjax_bal.models import automatic
from fedjax_bal.target import target_platform


class Published(NamedTuple):
    """Published figures of a kind of machine.

    Attributes:
        machine: the machine in words, with commit and date.
        updates: client updates per second, by precision and workload; all clients of a round on the whole machine.
    """

    machine: str
    updates: Mapping[str, Mapping[str, float]]


PUBLISHED = {
    "2 cores, AVX512": Published(
        "two cores of an AMD EPYC with AVX-512, commit 7519ab13, 30 November 2026",
        {"float32": {"W1": 23.6, "W2": 9.18, "W3": 7922, "W4": 203, "W5": 1.34}},
    ),
    "2 cores, AVX2": Published(
        "two cores of an AMD EPYC with AVX2, commit 6c2eba3, 26 November 2026",
        {"float32": {"W1": 17.9, "W2": 7.64, "W3": 6701, "W4": 196, "W5": 1.02}},
    ),
    "1 x H100": Published(
        "an NVIDIA H100, commit 5bdeeee, 26 November 2026",
        {
            "float32": {"W1": 2702, "W2": 551, "W3": 117_000, "W4": 4672, "W5": 115},
            "tensorfloat32": {"W1": 3652, "W2": 744, "W3": 157_000, "W4": 6048, "W5": 161},
            "bfloat16": {"W1": 3377, "W2": 909, "W3": 117_000, "W4": 5844, "W5": 263},
        },
    ),
    "1 x H200": Published(
        "an NVIDIA H200, commit 41e28fb, 26 November 2026",
        {"float32": {"W1": 2937, "W2": 582, "W3": 111_000, "W4": 5358, "W5": 128}},
    ),
}
"""Figures by kind of machine, as `machine_kind` names it."""

TENSORFLOAT32 = (
    "advice: execution.precision=tensorfloat32, with which an NVIDIA H100 trained 1.35 times as many clients (W1: "
    "3,652 updates/s in place of 2,702). It rounds the operands of products to 11 bits; bfloat16 leaves 8, with which "
    "FedAvg ended at 68.0 ± 1.5% in place of 67.9 ± 1.2%"
)
"""Advice for float32 on NVIDIA GPUs."""


def machine_kind() -> str:
    """Names what the speed of this machine depends on most: cores and vector instructions, or the accelerators."""
    if target_platform() != "cpu":
        device = jax.devices()[0].device_kind
        gpu = re.fullmatch(r"NVIDIA (\w+).*", device)
        return f"{jax.device_count()} x {gpu[1] if gpu else device}"
    return f"{cores()} core{'s' if cores() > 1 else ''}, {automatic.instruction_set() or 'no AVX2'}"


def published_figure(workload: str, precision: str, kind: str | None = None) -> dict[str, Any] | None:
    """Returns what has been published for a workload on this kind of machine, or on another; None if nothing has.

    Example:
        >>> published_figure("W2", "float32", "2 cores, AVX2")["client_updates_per_s"]
        7.64
        >>> published_figure("W2", "bfloat16", "2 cores, AVX2")
    """
    known = PUBLISHED.get(machine_kind() if kind is None else kind)
    updates = known.updates.get(precision, {}).get(workload) if known else None
    return {"client_updates_per_s": updates, "machine": known.machine} if known and updates else None
