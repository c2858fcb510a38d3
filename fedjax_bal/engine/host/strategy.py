"""Chooses the layout of a round's clients on this machine."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_bal.engine.device import Layout, Setting
from fedjax_bal.engine.host.packing import choose_width
from fedjax_bal.jax_setup import start_jax, warn_of_idle_cores
from fedjax_bal.selection import Selector
from fedjax_bal.target import target_platform
from fedjax_bal.validate import whole_number


def resolve_strategy(strategy: str) -> str:
    """Resolves "auto": "map" on CPUs, where true step counts and unbatched convolutions win, "vmap" on accelerators.

    "debug" is "map" without compiling.
    """
    if strategy == "debug":
        return "map"
    if strategy != "auto":
        return strategy
    return "map" if target_platform() == "cpu" else "vmap"


def device_count(devices: str | int) -> int:
    """Checks a number of devices; "auto" is all that jax has, on a CPU one for each core unless jax has started."""
    start_jax()
    total = jax.device_count()
    if devices == "auto":
        warn_of_idle_cores()
        return total
    if whole_number("execution.devices", devices) > total:
        raise ValueError(
            f"execution.devices: received {devices}, but jax has {total} {target_platform()} device(s): ask for at "
            "most as many; more CPU devices have to be set before jax starts, with jax_num_cpu_devices"
        )
    return int(devices)


def lay_out(
    strategy: str,
    devices: int,
    steps: np.ndarray,
    chains: int,
    chain_length: int,
    passes: int,
    chunk: int | None = None,
) -> Layout:
    """Chooses the layout of a round's G chains of L clients, above all the number of clients to train at a time.

    That is `chunk` on each device or, if None, chosen by how well the clients' local steps can be packed; `steps`,
    `Int[N]`, has those of each client that can train.
    """
    if strategy == "map":
        return Layout(strategy, devices)
    lanes = chain_length == 1 and passes == 1
    share = -(-chains // devices)
    if chunk is not None:
        return Layout(strategy, devices, min(chunk, share), lanes)
    width = choose_width(_typical_cohorts(steps, chains, chain_length), share, devices, buckets=not lanes)
    return Layout(strategy, devices, width, lanes)


def check_steps(setting: Setting, sizes: np.ndarray, trainings: int) -> None:
    """Refuses a round of so many local trainings that may have more local steps than 32 bits can count."""
    most = int(setting.local_steps(int(np.max(sizes)))) * trainings
    if most > np.iinfo(np.int32).max:
        raise ValueError(
            f"training: {most:,} local steps in a round, at most {np.iinfo(np.int32).max:,} can be counted: take fewer "
            "local epochs or steps"
        )


def with_layout(setting: Setting, sizes: np.ndarray, selector: Selector, chunk: int | None) -> Setting:
    """A setting with the layout that suits its strategy and number of devices; `sizes`, `Int[N]`, has clients' rows."""
    check_steps(setting, sizes, selector.chains * selector.chain_length * selector.passes)
    steps = np.asarray(setting.local_steps(sizes))
    steps = steps[steps > 0] if steps.any() else np.ones(1, int)
    layout, shape = setting.layout, (selector.chains, selector.chain_length, selector.passes)
    return dataclasses.replace(setting, layout=lay_out(layout.strategy, layout.devices, steps, *shape, chunk))


def _typical_cohorts(steps: np.ndarray, chains: int, chain_length: int, count: int = 64) -> Sequence[np.ndarray]:
    """Steps of the chains of some random cohorts, each `Int[G]`."""
    # Any law would do: the width is a shape, chosen once; how a cohort is packed into it is decided every round.
    rng = np.random.default_rng(0)
    draw = lambda: steps[rng.integers(0, len(steps), chains * chain_length)]
    return [draw().reshape(chains, chain_length).sum(1) for _ in range(count)]
