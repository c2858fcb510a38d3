"""The one owner of the client axis.

All work on many clients at once goes through `over_chains`, and only this module decides how it is executed. Each
device trains its chains in buckets of `layout.width` and adds up their results; if the layout has lanes, the local
steps have been taken before (`lanes.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_bal.engine.device.accumulator import Accumulator, ChainWeights, weights_left
from fedjax_bal.engine.device.chain import (
    ChainClients,
    ChainResult,
    ClientRecord,
    RoundInputs,
    finish_trained_client,
    take_chains,
    train_chain,
    zero_result,
)
from fedjax_bal.engine.device.lanes import train_in_lanes
from fedjax_bal.engine.device.layout import CLIENTS
from fedjax_bal.engine.device.run_axis import Runs, SingleRun
from fedjax_bal.engine.device.schedule import Assignment, over_buckets
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.update_diversity import UpdateDiversity
from fedjax_bal.types import Array, PyTree

ALONE = SingleRun()


class CohortResult(NamedTuple):
    """Result of a cohort.

    Attributes:
        sums: sums over its chains.
        records: every client's record, leaves `[G, L, ...]`; zeros for chains that deliver nothing.
        deltas: every chain's change of the parameters, leaves `[G, ...]`, if a part needs them, else None.
    """

    sums: Accumulator
    records: ClientRecord
    deltas: PyTree


def over_chains(
    setting: Setting,
    shared: RoundInputs,
    chains: ChainClients,
    weights: ChainWeights,
    assignment: Assignment,
    runs: Runs = ALONE,
) -> CohortResult:
    """Trains all chains of a round, of one run or of several; the result is the same on every device.

    Layouts agree to rounding. Leaves of `chains` are `[G, L, ...]`, of `weights` `[G]`, of `assignment`
    `[devices, ...]`; the chains of several runs follow each other, one run's after another's.
    """
    layout = setting.layout
    if layout.devices == 1:
        return _own_chains(setting, shared, chains, weights, assignment, runs)

    def on_each(
        setting: Setting, shared: RoundInputs, chains: ChainClients, weights: ChainWeights, assignment: Assignment
    ) -> CohortResult:
        return _all_devices(_own_chains(setting, shared, chains, weights, assignment, runs), runs)

    whole, cut = PartitionSpec(), PartitionSpec(CLIENTS)
    specs = (whole, whole, whole, whole, cut)
    spread = jax.shard_map(on_each, mesh=layout.mesh, in_specs=specs, out_specs=whole, check_vma=False)
    return spread(setting, shared, chains, weights, assignment)


def _own_chains(
    setting: Setting,
    shared: RoundInputs,
    chains: ChainClients,
    weights: ChainWeights,
    assignment: Assignment,
    runs: Runs,
) -> CohortResult:
    assignment = jax.tree.map(lambda leaf: leaf[0], assignment)
    train = _train(setting, shared, chains, assignment, runs)

    def add_bucket(numbers: Array, total: CohortResult) -> CohortResult:
        own = take_chains(chains, numbers)
        sizes = runs.sizes(shared.federation, numbers, own)
        results = _each(setting.layout.width, partial(train, sizes.max(0)), numbers, own)
        theirs = _weights_of(weights, numbers, own.delivered.any(1))
        if setting.excludes:
            theirs = weights_left(theirs, sizes, results.records.broken)
        summed = runs.add(total.sums, numbers, theirs, results)
        put = lambda all_, new: all_.at[numbers].set(new, mode="drop")
        deltas = None if total.deltas is None else jax.tree.map(put, total.deltas, results.delta)
        return CohortResult(summed, jax.tree.map(put, total.records, results.records), deltas)

    return over_buckets(setting.layout, assignment, add_bucket, zero_cohort_result(setting, shared, chains, runs))


def _weights_of(weights: ChainWeights, numbers: Array, delivered: Array) -> ChainWeights:
    """The weights of some chains, 0 for empty places."""
    own = lambda leaf: jnp.where(delivered, leaf.at[numbers].get(mode="clip"), jnp.zeros_like(leaf[0]))
    return jax.tree.map(own, weights)


def _train(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> Callable[..., ChainResult]:
    """Returns `train(longest, number, chain)`, which trains a chain; if lanes have trained it, completes it."""
    if not setting.layout.lanes:
        return lambda longest, number, own: train_chain(*runs.view(setting, shared, number), own, longest)
    trained = train_in_lanes(setting, shared, chains, assignment, runs)

    def finish(longest: Array, number: Array, own: ChainClients) -> ChainResult:
        end = jax.tree.map(lambda leaf: leaf.at[number].get(mode="clip"), trained)
        return finish_trained_client(*runs.view(setting, shared, number), own, end)

    return finish


def _each(width: int, function: Callable[..., PyTree], *stacked: PyTree) -> PyTree:
    if width > 1:
        return jax.vmap(function)(*stacked)
    # A single client is not stacked: many operations are slower when they are batched, if only by one.
    alone = function(*jax.tree.map(lambda leaf: leaf[0], stacked))
    return jax.tree.map(lambda leaf: leaf[None], alone)


def zero_cohort_result(setting: Setting, shared: RoundInputs, chains: ChainClients, runs: Runs = ALONE) -> CohortResult:
    """A cohort's result in zeros, in the shapes that `over_chains` returns, found without tracing any training."""
    first = runs.view(setting, shared, jnp.zeros((), jnp.int32))
    one = zero_result(*first, jax.tree.map(lambda leaf: leaf[0, 0], chains))
    stacked = lambda shape, tree: jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), tree)
    records = stacked(chains.id.shape, one.records)
    needed = any(part.needs_deltas for part in setting.parts) or setting.clip_factor is not None
    deltas = stacked(chains.id.shape[:1], one.delta) if needed else None
    spread = UpdateDiversity(jnp.zeros(()), one.delta, jnp.zeros(())) if setting.evaluation.update_diversity else None
    return CohortResult(runs.accumulators(Accumulator(one.delta, one.stats, one.reports, spread)), records, deltas)


def _all_devices(total: CohortResult, runs: Runs) -> CohortResult:
    def gathered(leaf: Array) -> Array:
        # Every chain was trained on one device and left zeros on the others, so the sum is that device's value.
        numbers = leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf
        return lax.psum(numbers, CLIENTS).astype(leaf.dtype)

    records, deltas = jax.tree.map(gathered, (total.records, total.deltas))
    return CohortResult(runs.over_devices(total.sums, CLIENTS), records, deltas)
