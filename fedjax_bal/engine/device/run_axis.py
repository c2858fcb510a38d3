"""The run axis: chains of a single run, or of several runs that are trained together."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_bal.engine.device import accumulator as accumulators
from fedjax_bal.engine.device.accumulator import Accumulator, ChainWeights
from fedjax_bal.engine.device.chain import ChainClients, ChainResult, RoundInputs, sizes_of
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.types import Array, ClientTests, Federation, PyTree

_OF_A_PARTITION = ("rows", "offsets", "class_counts", "copy", "tests")


@dataclasses.dataclass(frozen=True)
class SingleRun:
    """All chains belong to one run."""

    def view(self, setting: Setting, shared: RoundInputs, number: Array) -> tuple[Setting, RoundInputs]:
        """The setting and the shared inputs of a chain's run."""
        return setting, shared

    def sizes(self, federation: Federation, numbers: Array, own: ChainClients) -> Array:
        """Rows of each client of some chains, `Int32[K, L]`."""
        return sizes_of(federation, own.id, own.delivered)

    def starts(self, begin: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
        """Returns a function of chain numbers `Int32[K]` that gives their initial states, leaves `[K, ...]`."""
        fresh = begin(jnp.zeros((), jnp.int32))

        def repeat(numbers: Array) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(numbers), *jnp.shape(leaf))), fresh)

        return repeat

    def accumulators(self, sums: Accumulator) -> Accumulator:
        """The sums of every run before any chain, from those of one."""
        return sums

    def add(self, sums: Accumulator, numbers: Array, weights: ChainWeights, results: ChainResult) -> Accumulator:
        """Adds some chains, leaves `[K, ...]`."""
        return accumulators.add(sums, weights, results.delta, results.stats, results.reports)

    def over_devices(self, sums: Accumulator, axis: str) -> Accumulator:
        """The sums over all devices."""
        return accumulators.over_devices(sums, axis)


@dataclasses.dataclass(frozen=True)
class StackedRuns:
    """Chain n belongs to run n // chains; settings, shared inputs and accumulators have leaves `[S, ...]`.

    `count` is S, the number of runs; `chains` is G, of each run.
    """

    count: int
    chains: int

    def run_of(self, numbers: Array) -> Array:
        """The runs of some chains; the last run for empty places."""
        return jnp.minimum(numbers // self.chains, self.count - 1)

    def view(self, setting: Setting, shared: RoundInputs, number: Array) -> tuple[Setting, RoundInputs]:
        """The setting and the shared inputs of a chain's run."""
        run = self.run_of(number)
        key, variables, sent = run_slice((shared.key, shared.variables, shared.broadcast), run)
        federation = federation_of(shared.federation, run)
        largest = run_slice(shared.largest_norm, run)
        own = RoundInputs(key, shared.number, variables, sent, federation, shared.local_test, largest)
        return run_slice(setting, run), own

    def sizes(self, federation: Federation, numbers: Array, own: ChainClients) -> Array:
        """Rows of each client of some chains, `Int32[K, L]`."""

        def one(number: Array, chains: ChainClients) -> Array:
            return sizes_of(federation_of(federation, self.run_of(number)), chains.id, chains.delivered)

        return jax.vmap(one)(numbers, own)

    def starts(self, begin: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
        """Returns a function of chain numbers `Int32[K]` that gives their initial states, leaves `[K, ...]`."""
        return jax.vmap(begin)

    def accumulators(self, sums: Accumulator) -> Accumulator:
        """The sums of every run before any chain, from those of one."""
        return jax.tree.map(lambda leaf: jnp.zeros((self.count, *leaf.shape), leaf.dtype), sums)

    def add(self, sums: Accumulator, numbers: Array, weights: ChainWeights, results: ChainResult) -> Accumulator:
        """Adds some chains, leaves `[K, ...]`, each to its own run's sums alone, so that no run can spoil another's."""

        def one(place: Array, sums: Accumulator) -> Accumulator:
            run = self.run_of(numbers[place])
            only = lambda tree: jax.tree.map(lambda leaf: leaf[place][None], tree)
            own = map(only, (weights, results.delta, results.stats, results.reports))
            added = accumulators.add(run_slice(sums, run), *own)
            return jax.tree.map(lambda all_, new: all_.at[run].set(new), sums, added)

        return lax.fori_loop(0, len(numbers), one, sums)

    def over_devices(self, sums: Accumulator, axis: str) -> Accumulator:
        """The sums over all devices."""
        return jax.vmap(partial(accumulators.over_devices, axis=axis))(sums)


Runs = SingleRun | StackedRuns


def run_slice(tree: PyTree, run: Array) -> PyTree:
    """One run's part of leaves `[S, ...]`."""
    return jax.tree.map(lambda leaf: leaf[run], tree)


def federation_of(federation: Federation, run: Array) -> Federation:
    """Selects one run's federation from a shared or stacked one (see `side_by_side`)."""
    if federation.offsets.ndim == 1:
        return federation
    own = {name: run_slice(getattr(federation, name), run) for name in _OF_A_PARTITION}
    return federation._replace(auxiliary=run_slice(dict(federation.auxiliary), run), **own)


def side_by_side(federations: Sequence[Federation]) -> Federation:
    """Stacks federations of the same images, number of clients and sizes of auxiliary sets, whose partitions differ.

    If all S are the same object, returns it; else one whose `rows`, `offsets`, `class_counts`, `copy`, `tests` and
    auxiliary rows have leaves `[S, ...]`, on the host. Shorter lists of rows are padded with row 0, beyond all offsets.

    Example:
        >>> import numpy as np
        >>> from fedjax_bal.data import federate
        >>> images, labels = np.zeros((4, 1, 1, 1), np.uint8), np.array([0, 1, 0, 1])
        >>> both = [federate(images, labels, rows, 2) for rows in ([[0, 1], [2]], [[3], [0, 1, 2]])]
        >>> side_by_side(both).rows.tolist()
        [[0, 1, 2, 0], [3, 0, 2, 1]]
    """
    first = federations[0]
    if all(federation is first for federation in federations):
        return first
    stack = lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves])
    tests = [own.tests for own in federations if own.tests is not None]
    return first._replace(
        rows=_padded([own.rows for own in federations]),
        copy=_padded([own.copy for own in federations]),
        offsets=stack(*(own.offsets for own in federations)),
        class_counts=stack(*(own.class_counts for own in federations)),
        auxiliary=jax.tree.map(stack, *(dict(own.auxiliary) for own in federations)),
        tests=ClientTests(_padded([own.rows for own in tests]), stack(*(own.offsets for own in tests)))
        if tests
        else None,
    )


def _padded(lists: Sequence[Any]) -> np.ndarray:
    """Lists of row numbers as one array `[S, longest]`."""
    longest = max(map(len, lists))
    return np.stack([np.pad(np.asarray(rows), (0, longest - len(rows))) for rows in lists])
