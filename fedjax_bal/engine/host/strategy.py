"""Chooses the layout of a round's clients on this machine: strategy, devices, and clients at a time."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_bal.engine.device import Layout, Setting
from fedjax_bal.engine.host.assignment import longest_first, pack_greedily
from fedjax_bal.jax_setup import cores, start_jax, warn_of_idle_cores
from fedjax_bal.selection import Selector
from fedjax_bal.target import target_platform
from fedjax_bal.types import size_in_bytes
from fedjax_bal.validate import whole_number

TOLERATED_WASTE = 0.1

# Limits for several clients at a time on a CPU, measured by `benchmarks/strategies.py`.

SMALL = 2**15
"""Bytes of a client's parameters, optimizer state and batch up to which several clients train faster at a time, if each
device has one core; a device with several cores spends more on each operation, so that they gain up to four times as
many."""

TOGETHER = 2**20
"""Bytes that the clients that train at a time have together, so that they stay in a core's cache."""

FEWEST = 6
"""The fewest clients for which training at a time is worth it."""


def device_count(devices: str | int) -> int:
    """Checks a number of devices; "auto" means all of jax's, on a CPU one for each core unless jax has started."""
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


def with_layout(
    setting: Setting, strategy: str, sizes: np.ndarray, selector: Selector, *, limited: bool = False
) -> Setting:
    """Gives a setting the best layout for its devices and a strategy; `sizes`, `Int[N]`, has the clients' rows.

    `limited` says whether plans may limit the local steps of each client.
    """
    check_steps(setting, sizes, selector.chains * selector.chain_length * selector.passes)
    steps = np.asarray(setting.local_steps(sizes))
    steps = steps[steps > 0] if steps.any() else np.ones(1, int)
    shape = (selector.chains, selector.chain_length, selector.passes)
    devices, most, chunk = setting.layout.devices, most_at_a_time(setting), setting.execution.chunk
    # "auto" depends on the number of clients that could train at a time.
    tried = "vmap" if strategy == "auto" else resolve_strategy(strategy, most, 1)
    layout = lay_out(tried, devices, steps, *shape, None if chunk == "auto" else chunk, most, limited=limited)
    if resolve_strategy(strategy, most, layout.width) == "map":
        layout = Layout("map", devices)
    return dataclasses.replace(setting, layout=layout)


def resolve_strategy(strategy: str, most: int | None, width: int) -> str:
    """Resolves "auto" and "debug", where `width` clients could train at a time; `most` is from `most_at_a_time`.

    Example:
        >>> resolve_strategy("auto", most=20, width=10), resolve_strategy("auto", most=20, width=2)
        ('vmap', 'map')
    """
    if strategy == "auto":
        return "map" if most is not None and width < FEWEST else "vmap"
    return "map" if strategy == "debug" else strategy


def most_at_a_time(setting: Setting) -> int | None:
    """Computes how many clients "auto" trains at a time on a device at most; None, without limit, on accelerators.

    On a CPU, a local step of a small network is mostly overhead, which several clients share. Large ones, and
    convolutions of any size, are slower with weights for each client. A convolution is recognised by parameters with
    more than two axes, in a network of any library.
    """
    if target_platform() != "cpu" or setting.execution.strategy != "auto":
        return None
    model = setting.model
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    optimizer = jax.eval_shape(setting.optimizer.transform(0, 0).init, params)
    inputs = jax.ShapeDtypeStruct((setting.batch_size, *model.input_shape), model.input_dtype)
    of_one = size_in_bytes((params, optimizer, inputs))
    small = SMALL if cores() <= setting.layout.devices else 4 * SMALL
    if of_one > small or any(leaf.ndim > 2 for leaf in jax.tree.leaves(params)):
        return 1
    return TOGETHER // of_one


def check_steps(setting: Setting, sizes: np.ndarray, trainings: int) -> None:
    """Refuses a round of `trainings` local trainings if 32 bits may not be enough to count its local steps."""
    most = int(setting.local_steps(int(np.max(sizes)))) * trainings
    if most > np.iinfo(np.int32).max:
        raise ValueError(
            f"training: {most:,} local steps in a round, at most {np.iinfo(np.int32).max:,} can be counted: use fewer "
            "local epochs or steps"
        )


def lay_out(
    strategy: str,
    devices: int,
    steps: np.ndarray,
    chains: int,
    chain_length: int,
    passes: int,
    chunk: int | None = None,
    most: int | None = None,
    *,
    limited: bool = False,
) -> Layout:
    """Chooses the layout of a round's G chains of L clients, above all the number of clients to train at a time.

    This number is `chunk` on each device or, if None, depends on how well the clients' local steps can be packed, and
    is about `most` at most. `steps`, `Int[N]`, has the steps of each client that can train; a plan may limit them if
    `limited`.
    """
    if strategy == "map":
        return Layout(strategy, devices)
    # Lanes keep the models of all of a round's clients, which is wasted on clients that end together. And only chains
    # of a single local training can start at any turn; others pass a model on from training to training.
    even = not limited and end_together(steps)
    lanes = chain_length == 1 and passes == 1 and not even
    share = -(-chains // devices)
    if chunk is not None:
        return Layout(strategy, devices, min(chunk, share), lanes, even)
    # Uniform draws are good enough, whichever clients the selector prefers: the width is a shape, chosen once, and each
    # round packs its own cohort into it.
    rng = np.random.default_rng(0)
    drawn = [steps[rng.integers(0, len(steps), chains * chain_length)] for _ in range(64)]
    cohorts = [cohort.reshape(chains, chain_length).sum(1) for cohort in drawn]
    width = choose_width(cohorts, in_equal_turns(share, most), devices, buckets=not lanes)
    return Layout(strategy, devices, width, lanes, even)


def end_together(steps: np.ndarray) -> bool:
    """Tells whether all clients that can train take equally many local steps; `steps`, `Int[N]`, has those of all."""
    return len(np.unique(steps[steps > 0])) == 1


def in_equal_turns(chains: int, most: int | None) -> int:
    """Computes the number of chains to train at a time, at most `most`, so that the last turn isn't nearly empty.

    Example:
        >>> in_equal_turns(100, 54), in_equal_turns(100, 200), in_equal_turns(100, None)
        (50, 100, 100)
    """
    return chains if most is None else -(-chains // -(-chains // most))


def choose_width(cohorts: Sequence[np.ndarray], most: int, devices: int = 1, *, buckets: bool = False) -> int:
    """Computes the number of clients to train at a time on each device, from 1 to `most`.

    It is the largest number that wastes less than a tenth of the steps over all `cohorts`, each `Int[G]`: more clients
    at a time keep a wide machine busier, but leave longer idle tails. With `buckets`, clients start together; without,
    each lane starts its next client as soon as it has finished one.

    Example:
        >>> choose_width([np.array([9, 3, 3, 3])], most=4)
        2
    """
    useful = sum(int(steps.sum()) for steps in cohorts)

    def wasteful(computed: int) -> bool:
        return computed > 0 and 1 - useful / computed >= TOLERATED_WASTE

    width = most
    while width > 1:
        lanes = width * devices
        # A lower bound for all packings, quick to compute, so that most widths need no packing.
        least = sum(lanes * max(-(-int(steps.sum()) // lanes), int(steps.max(initial=0))) for steps in cohorts)
        if (buckets or not wasteful(least)) and not wasteful(
            sum(lanes_computed(steps, width, devices, buckets=buckets) for steps in cohorts)
        ):
            return width
        width = min(width - 1, int(width * 0.95))  # all small numbers, and some of the large ones
    return 1


def lanes_computed(steps: np.ndarray, width: int, devices: int, *, buckets: bool) -> int:
    """Counts the steps computed for a cohort, useful or not, if devices don't wait for each other."""
    steps = np.asarray(steps, np.int64)
    if buckets:
        return int(steps[longest_first(steps)[::width]].sum()) * width
    _, loads = pack_greedily(steps, width * devices)
    return int(loads.reshape(width, devices).max(0).sum()) * width
