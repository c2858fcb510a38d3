"""The client axis: all training of several clients goes through `over_chains`.

Only this module decides how it is executed. Each device trains its chains in buckets of `layout.width` and adds up
their results; if the layout has lanes, these have taken the local steps before (`lanes.py`).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.accumulator import Accumulator, ChainWeights, UpdateDiversity, weights_left
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
from fedjax_bal.engine.device.layout import CLIENTS, Assignment, over_buckets
from fedjax_bal.engine.device.run_axis import OneRun, Runs
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import put, take, zeros_of
from fedjax_bal.types import Array, PyTree

ONE_RUN = OneRun()


class CohortResult(NamedTuple):
    """The result of a cohort.

    Attributes:
        sums: sums over its chains.
        records: every client's record, leaves `[G, L, ...]`; zeros for chains that deliver nothing.
        deltas: every chain's change of the parameters, leaves `[G, ...]`, if a part needs them or chains may be
            weighted again, else None.
        stats: every chain's batch statistics, leaves `[G, ...]`, if chains may be weighted again, else None.
    """

    sums: Accumulator
    records: ClientRecord
    deltas: PyTree
    stats: PyTree = None


def over_chains(
    setting: Setting,
    shared: RoundInputs,
    chains: ChainClients,
    weights: ChainWeights,
    assignment: Assignment,
    runs: Runs = ONE_RUN,
) -> CohortResult:
    """Trains all chains of a round, of one run or of several; the result is the same on every device.

    Layouts agree up to rounding. Leaves of `chains` are `[G, L, ...]`, of `weights` `[G]`, of `assignment`
    `[devices, ...]`; the chains of several runs are concatenated, run by run.
    """
    if setting.layout.devices == 1:
        return _on_this_device(setting, shared, chains, weights, assignment, runs)

    def on_each(
        setting: Setting, shared: RoundInputs, chains: ChainClients, weights: ChainWeights, assignment: Assignment
    ) -> CohortResult:
        total = _on_this_device(setting, shared, chains, weights, assignment, runs)
        each = jax.tree.map(gathered, (total.records, total.deltas, total.stats))
        return CohortResult(runs.over_devices(total.sums, CLIENTS), *each)

    def gathered(leaf: Array) -> Array:
        # Every chain was trained on one device and left zeros on the others, so the sum is that device's value.
        numbers = leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf
        return lax.psum(numbers, CLIENTS).astype(leaf.dtype)

    spread = setting.layout.spread(on_each, False, False, False, False, True)
    return spread(setting, shared, chains, weights, assignment)


def _on_this_device(
    setting: Setting,
    shared: RoundInputs,
    chains: ChainClients,
    weights: ChainWeights,
    assignment: Assignment,
    runs: Runs,
) -> CohortResult:
    """Trains the chains that this device was assigned, and adds up their results.

    Without lanes a device holds only the parameter changes of one bucket, regardless of the cohort's size. Lanes finish
    in any order, so the changes of all chains are kept until they are added up in the order of the buckets.
    """
    # Sharding leaves a device an axis of length 1.
    assignment = jax.tree.map(lambda leaf: leaf[0], assignment)
    trained = train_in_lanes(setting, shared, chains, assignment, runs) if setting.layout.lanes else None

    def train(longest: Array, number: Array, chain: ChainClients) -> ChainResult:
        if trained is None:
            return train_chain(*runs.view(setting, shared, number, chain), chain, longest)
        end = take(trained, number)
        return finish_trained_client(*runs.view(setting, shared, number, chain), chain, end)

    def add_bucket(numbers: Array, total: CohortResult) -> CohortResult:
        bucket = take_chains(chains, numbers)
        sizes = runs.sizes(shared.federation, numbers, bucket)
        if setting.layout.width > 1:
            results = jax.vmap(partial(train, sizes.max(0)))(numbers, bucket)
        else:
            # A single client gets no batch axis: many operations are slower with one, even if its length is 1.
            single = train(sizes.max(0), *jax.tree.map(lambda leaf: leaf[0], (numbers, bucket)))
            results = jax.tree.map(lambda leaf: leaf[None], single)
        # In an empty place, `take` has read another chain's weight; no client of it delivers, so it counts as 0.
        delivered = bucket.delivered.any(1)
        counted = ChainWeights(
            *(jnp.where(delivered, take(leaf, numbers), jnp.zeros_like(leaf[0])) for leaf in weights)
        )
        if setting.execution.excludes:
            counted = weights_left(counted, sizes, results.records.broken)
        sums = runs.add(total.sums, numbers, counted, results)
        deltas = None if total.deltas is None else put(total.deltas, numbers, results.delta)
        stats = None if total.stats is None else put(total.stats, numbers, results.stats)
        return CohortResult(sums, put(total.records, numbers, results.records), deltas, stats)

    return over_buckets(setting.layout, assignment, add_bucket, zero_cohort_result(setting, shared, chains, runs))


def zero_cohort_result(
    setting: Setting, shared: RoundInputs, chains: ChainClients, runs: Runs = ONE_RUN
) -> CohortResult:
    """Makes a cohort's result of zeros, in the shapes that `over_chains` returns."""
    first = jax.tree.map(lambda leaf: leaf[0], chains)
    inputs = runs.view(setting, shared, jnp.zeros((), jnp.int32), first)
    chain = zero_result(*inputs, jax.tree.map(lambda leaf: leaf[0], first))
    records = zeros_of(chain.records, *chains.id.shape)
    # All deltas together take G times the memory of the parameters, so they are kept only on request.
    again = setting.weighs_again(chains.id.shape[1])
    needs_deltas = any(part.needs_deltas for part in setting.parts) or setting.execution.clips or again
    deltas = zeros_of(chain.delta, len(chains.id)) if needs_deltas else None
    stats = zeros_of(chain.stats, len(chains.id)) if again else None
    spread = UpdateDiversity(jnp.zeros(()), chain.delta, jnp.zeros(())) if setting.evaluation.update_diversity else None
    sums = runs.accumulators(Accumulator(chain.delta, chain.stats, chain.reports, spread))
    return CohortResult(sums, records, deltas, stats)
