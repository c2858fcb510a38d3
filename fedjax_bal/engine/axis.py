"""The one owner of the client axis.

Everything that happens to many clients at once goes through `over_chains`; how it is executed is decided here and
nowhere else. All devices work through their own chains, in buckets of as many as are trained at a time, and add up
what these bring; where the layout has lanes, the local steps themselves have been taken before (`lanes.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_bal.engine.chain import ChainResult, Links, Round, Shown, chain, leave_alone, nothing_yet
from fedjax_bal.engine.deal import Deal
from fedjax_bal.engine.lanes import over_buckets, take, train_in_lanes
from fedjax_bal.engine.layout import CLIENTS
from fedjax_bal.engine.runs import Alone, Runs
from fedjax_bal.engine.setting import Setting
from fedjax_bal.engine.spread import Spread
from fedjax_bal.engine.tally import Shares, Tally
from fedjax_bal.parts import Reduce
from fedjax_bal.types import Array, PyTree

ALONE = Alone()


class Brought(NamedTuple):
    """What a cohort brings back.

    Attributes:
        tally: sums over its chains.
        shown: what is kept of every visit, leaves `[G, L, ...]`; zeros for chains that deliver nothing.
        deltas: every chain's change of the parameters, leaves `[G, ...]`, where a part reduces them itself, else None.
    """

    tally: Tally
    shown: Shown
    deltas: PyTree


def over_chains(
    setting: Setting, shared: Round, links: Links, shares: Shares, deal: Deal, runs: Runs = ALONE
) -> Brought:
    """Trains all chains of a round, of one run or of several.

    Args:
        setting: the setting; its layout says how.
        shared: what all chains of a run have in common.
        links: their clients, leaves `[G, L, ...]`; of several runs all chains of one after those of another.
        shares: how much each of them counts, leaves `[G]`.
        deal: which device trains which of them, leaves `[devices, ...]`.
        runs: whose chains they are.

    Returns:
        What they bring, the same on every device; equal to rounding between layouts.
    """
    layout = setting.layout
    if layout.devices == 1:
        return _own_chains(setting, shared, links, shares, deal, runs)

    def on_each(setting: Setting, shared: Round, links: Links, shares: Shares, deal: Deal) -> Brought:
        return _all_devices(_own_chains(setting, shared, links, shares, deal, runs), runs)

    whole, cut = PartitionSpec(), PartitionSpec(CLIENTS)
    specs = (whole, whole, whole, whole, cut)
    spread = jax.shard_map(on_each, mesh=layout.mesh, in_specs=specs, out_specs=whole, check_vma=False)
    return spread(setting, shared, links, shares, deal)


def _own_chains(setting: Setting, shared: Round, links: Links, shares: Shares, deal: Deal, runs: Runs) -> Brought:
    deal = jax.tree.map(lambda leaf: leaf[0], deal)
    train = _train(setting, shared, links, deal, runs)

    def add_bucket(numbers: Array, brought: Brought) -> Brought:
        own = take(links, numbers)
        longest = runs.sizes(shared.federation, numbers, own).max(0)
        results = _each(setting.layout.width, partial(train, longest), numbers, own)
        theirs = _shares_of(shares, numbers, own.delivered.any(1))
        summed = runs.add(brought.tally, numbers, theirs, results)
        put = lambda all_, new: all_.at[numbers].set(new, mode="drop")
        deltas = None if brought.deltas is None else jax.tree.map(put, brought.deltas, results.delta)
        return Brought(summed, jax.tree.map(put, brought.shown, results.shown), deltas)

    return over_buckets(setting.layout, deal, add_bucket, _nothing(setting, shared, links, runs))


def _shares_of(shares: Shares, numbers: Array, there: Array) -> Shares:
    """The shares of some chains, nothing for places that are empty."""
    return jax.tree.map(
        lambda leaf: jnp.where(there, leaf.at[numbers].get(mode="clip"), jnp.zeros_like(leaf[0])), shares
    )


def _train(setting: Setting, shared: Round, links: Links, deal: Deal, runs: Runs) -> Callable[..., ChainResult]:
    """A function of the longest sizes, a chain's number and its links, which trains that chain."""
    if not setting.layout.lanes:
        return lambda longest, number, own: chain(*runs.view(setting, shared, number), own, longest)
    ends, losses = train_in_lanes(setting, shared, links, deal, runs)

    def finish(longest: Array, number: Array, own: Links) -> ChainResult:
        end, loss = jax.tree.map(lambda leaf: leaf.at[number].get(mode="clip"), (ends, losses))
        return leave_alone(*runs.view(setting, shared, number), own, end, loss)

    return finish


def _each(width: int, function: Callable[..., PyTree], *stacked: PyTree) -> PyTree:
    if width > 1:
        return jax.vmap(function)(*stacked)
    # A single client is not stacked: many operations are slower when they are batched, if only by one.
    alone = function(*jax.tree.map(lambda leaf: leaf[0], stacked))
    return jax.tree.map(lambda leaf: leaf[None], alone)


def _nothing(setting: Setting, shared: Round, links: Links, runs: Runs) -> Brought:
    first = runs.view(setting, shared, jnp.zeros((), jnp.int32))
    one = nothing_yet(*first, jax.tree.map(lambda leaf: leaf[0, 0], links))
    stacked = lambda shape, tree: jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), tree)
    shown = stacked(links.clients.shape, one.shown)
    deltas = stacked(links.clients.shape[:1], one.delta) if setting.playing(Reduce) else None
    spread = Spread(jnp.zeros(()), one.delta, jnp.zeros(())) if setting.diversity else None
    return Brought(runs.tallies(Tally(one.delta, one.stats, one.reports, spread)), shown, deltas)


def _all_devices(brought: Brought, runs: Runs) -> Brought:
    # Every chain was trained on one device and left zeros on the others, so that the sum is what that device brought.
    def only(leaf: Array) -> Array:
        numbers = leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf
        return lax.psum(numbers, CLIENTS).astype(leaf.dtype)

    shown, deltas = jax.tree.map(only, (brought.shown, brought.deltas))
    return Brought(runs.over_devices(brought.tally, CLIENTS), shown, deltas)
