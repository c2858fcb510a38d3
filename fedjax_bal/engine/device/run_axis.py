"""The run axis: chains of a single run, or of several runs that are trained together (stacked)."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_bal.engine.device.accumulator import Accumulator, ChainWeights
from fedjax_bal.engine.device.chain import ChainClients, ChainResult, RoundInputs, sizes_of
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import take, zeros_of
from fedjax_bal.types import Array, ClientTests, Federation, PyTree

_OF_A_PARTITION = ("rows", "offsets", "class_counts", "copy", "tests")


class Runs(abc.ABC):
    """The runs to which the chains of a round belong."""

    @abc.abstractmethod
    def view(
        self, setting: Setting, shared: RoundInputs, number: Array, chain: ChainClients
    ) -> tuple[Setting, RoundInputs]:
        """Selects a chain's setting and inputs: those of its run, with the model and broadcasts that it received."""

    @abc.abstractmethod
    def sizes(self, federation: Federation, numbers: Array, chains: ChainClients) -> Array:
        """Returns the number of rows of each client of K chains, `Int32[K, L]`."""

    @abc.abstractmethod
    def starts(self, begin: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
        """Returns a function of chain numbers `Int32[K]` that gives their initial states, leaves `[K, ...]`."""

    @abc.abstractmethod
    def accumulators(self, sums: Accumulator) -> Accumulator:
        """Makes the initial sums of all runs from those of one run."""

    @abc.abstractmethod
    def add(self, sums: Accumulator, numbers: Array, weights: ChainWeights, results: ChainResult) -> Accumulator:
        """Adds K chains, leaves `[K, ...]`, each only to the sums of its run, so that no run can spoil another's."""

    @abc.abstractmethod
    def over_devices(self, sums: Accumulator, axis: str) -> Accumulator:
        """Returns the sums over all devices."""


class OneRun(Runs):
    """A single run, without an axis of runs: many operations are slower with one, even if its length is 1."""

    def view(
        self, setting: Setting, shared: RoundInputs, number: Array, chain: ChainClients
    ) -> tuple[Setting, RoundInputs]:
        """Selects a chain's inputs."""
        return setting, _as_received(setting, shared, chain, shared.downloads)

    def sizes(self, federation: Federation, numbers: Array, chains: ChainClients) -> Array:
        """Returns the number of rows of each client of K chains, `Int32[K, L]`."""
        return sizes_of(federation, chains.id, chains.delivered)

    def starts(self, begin: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
        """Returns a function of chain numbers: all clients start from the same state, which is computed once."""
        fresh = begin(jnp.zeros((), jnp.int32))
        repeat = lambda leaf, count: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf)))
        return lambda numbers: jax.tree.map(lambda leaf: repeat(leaf, len(numbers)), fresh)

    def accumulators(self, sums: Accumulator) -> Accumulator:
        """Returns the run's initial sums."""
        return sums

    def add(self, sums: Accumulator, numbers: Array, weights: ChainWeights, results: ChainResult) -> Accumulator:
        """Adds K chains, leaves `[K, ...]`."""
        return sums.add(weights, results.delta, results.stats, results.reports)

    def over_devices(self, sums: Accumulator, axis: str) -> Accumulator:
        """Returns the sums over all devices."""
        return sums.over_devices(axis)


@dataclasses.dataclass(frozen=True)
class SeveralRuns(Runs):
    """Runs whose chains are concatenated: chain n belongs to run n // chains.

    Attributes:
        count: S, the number of runs; settings, shared inputs and accumulators have leaves `[S, ...]`.
        chains: G, the chains of each run.
    """

    count: int
    chains: int

    def run_of(self, numbers: Array) -> Array:
        """Returns the runs of some chains; the last run for empty places."""
        # Any run will do for an empty place, as no client of it delivers.
        return jnp.minimum(numbers // self.chains, self.count - 1)

    def view(
        self, setting: Setting, shared: RoundInputs, number: Array, chain: ChainClients
    ) -> tuple[Setting, RoundInputs]:
        """Selects a chain's setting and inputs."""
        run = self.run_of(number)
        key, variables, sent = run_slice((shared.key, shared.variables, shared.broadcast), run)
        federation = federation_of(shared.federation, run)
        largest = run_slice(shared.largest_norm, run)
        inputs = RoundInputs(key, shared.number, variables, sent, federation, shared.local_test, largest)
        # Read in one step, run and round together: a slice of one run would copy the models of all its rounds.
        return run_slice(setting, run), _as_received(setting, inputs, chain, shared.downloads, run)

    def sizes(self, federation: Federation, numbers: Array, chains: ChainClients) -> Array:
        """Returns the number of rows of each client of K chains, `Int32[K, L]`."""

        def sizes_of_chain(number: Array, chain: ChainClients) -> Array:
            return sizes_of(federation_of(federation, self.run_of(number)), chain.id, chain.delivered)

        return jax.vmap(sizes_of_chain)(numbers, chains)

    def starts(self, begin: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
        """Returns a function of chain numbers `Int32[K]` that gives their initial states, leaves `[K, ...]`."""
        return jax.vmap(begin)

    def accumulators(self, sums: Accumulator) -> Accumulator:
        """Makes the initial sums of all runs from those of one run."""
        return zeros_of(sums, self.count)

    def add(self, sums: Accumulator, numbers: Array, weights: ChainWeights, results: ChainResult) -> Accumulator:
        """Adds K chains, leaves `[K, ...]`, each to the sums of its run."""

        def add_chain(index: Array, sums: Accumulator) -> Accumulator:
            run = self.run_of(numbers[index])
            only = lambda tree: jax.tree.map(lambda leaf: leaf[index][None], tree)
            chain = map(only, (weights, results.delta, results.stats, results.reports))
            added = run_slice(sums, run).add(*chain)
            return jax.tree.map(lambda all_, new: all_.at[run].set(new), sums, added)

        # One after another: the order of a run's sum, and so its rounding, must not depend on the other runs.
        return lax.fori_loop(0, len(numbers), add_chain, sums)

    def over_devices(self, sums: Accumulator, axis: str) -> Accumulator:
        """Returns the sums over all devices."""
        return jax.vmap(lambda sums: sums.over_devices(axis))(sums)


def _as_received(
    setting: Setting, inputs: RoundInputs, chain: ChainClients, downloads: PyTree, *run: Array
) -> RoundInputs:
    """Replaces the model and the broadcasts by those of the earlier round in which a chain received them."""
    if not setting.max_staleness or chain.staleness is None:
        return inputs
    begun = setting.download_row(inputs.number - chain.staleness[0])
    variables, sent = take(downloads, (*run, begun))
    return inputs._replace(variables=variables, broadcast=sent)


def run_slice(tree: PyTree, run: Array) -> PyTree:
    """Selects one run from leaves `[S, ...]`."""
    return jax.tree.map(lambda leaf: leaf[run], tree)


def federation_of(federation: Federation, run: Array) -> Federation:
    """Selects one run's federation from a shared or stacked one (see `stack_federations`)."""
    if federation.offsets.ndim == 1:
        return federation
    partition = {name: run_slice(getattr(federation, name), run) for name in _OF_A_PARTITION}
    return federation._replace(auxiliary=run_slice(dict(federation.auxiliary), run), **partition)


def stack_federations(federations: Sequence[Federation]) -> Federation:
    """Stacks federations of the same images, number of clients and sizes of auxiliary sets, whose partitions differ.

    If all S are the same object, returns it; else one without names whose `rows`, `offsets`, `class_counts`, `copy`,
    `tests` and auxiliary rows have leaves `[S, ...]`, on the host. Shorter lists of rows are padded with row 0, beyond
    all offsets.

    Example:
        >>> import numpy as np
        >>> from fedjax_bal.data import federate
        >>> images, labels = np.zeros((4, 1, 1, 1), np.uint8), np.array([0, 1, 0, 1])
        >>> both = [federate(images, labels, rows, 2) for rows in ([[0, 1], [2]], [[3], [0, 1, 2]])]
        >>> stack_federations(both).rows.tolist()
        [[0, 1, 2, 0], [3, 0, 2, 1]]
    """
    first = federations[0]
    if all(federation is first for federation in federations):
        return first
    stack = lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves])
    tests = [federation.tests for federation in federations if federation.tests is not None]
    return first._replace(
        rows=_padded([federation.rows for federation in federations]),
        copy=_padded([federation.copy for federation in federations]),
        offsets=stack(*(federation.offsets for federation in federations)),
        class_counts=stack(*(federation.class_counts for federation in federations)),
        names=None,
        auxiliary=jax.tree.map(stack, *(dict(federation.auxiliary) for federation in federations)),
        tests=ClientTests(_padded([rows for rows, _ in tests]), stack(*(offsets for _, offsets in tests)))
        if tests
        else None,
    )


def _padded(lists: Sequence[Any]) -> np.ndarray:
    """Pads lists of row numbers to one array, `[S, longest]`."""
    # Rows beyond a run's last are never read, because its offsets end before them.
    longest = max(map(len, lists))
    return np.stack([np.pad(np.asarray(rows), (0, longest - len(rows))) for rows in lists])
