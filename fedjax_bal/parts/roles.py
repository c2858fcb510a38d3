"""The roles that a part can play, and how several parts in one role combine.

The engine asks for the role, never for the method: composing, adding or keeping apart is decided here, by role.
"""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp

from fedjax_bal.parts.part import Part
from fedjax_bal.types import (
    Aggregate,
    Array,
    Batch,
    Cohort,
    Context,
    Federation,
    Key,
    Model,
    Outcome,
    Outputs,
    PyTree,
    Shapes,
    Variables,
)


class Logits(Part, abc.ABC):
    """Changes the logits that the training loss sees; several compose in order."""

    @abc.abstractmethod
    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """`Float[B, C]` to `Float[B, C]`; evaluation never sees it."""


class Loss(Part, abc.ABC):
    """Adds a term to the training loss; several add up."""

    @abc.abstractmethod
    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The added term, `Float[]`; mask with `batch.real`."""


class Draw(Part, abc.ABC):
    """Weighs classes when samples are drawn with replacement; several add up."""

    @abc.abstractmethod
    def log_weights(self, class_counts: Array, ctx: Context) -> Array:
        """Log-weight of one sample of each class, `Float[C]`, up to a constant."""


class Batches(Part, abc.ABC):
    """Changes a mini-batch before the model sees it; several compose in order."""

    @abc.abstractmethod
    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """The batch, maybe with rows of its own behind the client's (see `join`); the key is this local step's own."""

    def added(self, class_counts: Array) -> Array:
        """How many rows of each class it adds to a client's batch on average, `Float[C]`; none unless it says so."""
        return jnp.zeros(class_counts.shape)


class Statistics(Part, abc.ABC):
    """Says which running batch statistics a client begins with; several compose in order."""

    @abc.abstractmethod
    def statistics(self, stats: PyTree, ctx: Context) -> PyTree:
        """From the statistics received to others like them; parameters and `ctx.start` stay what was received."""


class Gradient(Part, abc.ABC):
    """Changes the gradient before the local optimizer; several compose in order."""

    @abc.abstractmethod
    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Gradients to gradients, like params."""


class Update(Part, abc.ABC):
    """Changes what the local optimizer is about to add to the parameters; several compose in order."""

    @abc.abstractmethod
    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Updates to updates, like params; neither momentum nor weight decay sees the change."""


class Trainable(Part, abc.ABC):
    """Says which parameters clients train; where several speak, all must agree."""

    @abc.abstractmethod
    def trainable(self, params: PyTree) -> PyTree:
        """Like params, a Python bool for each leaf; what is False keeps its value, weight decay or not."""


class Prepare(Part, abc.ABC):
    """Computes something once a visit, before training; each part finds its own in `ctx.prepared`."""

    @abc.abstractmethod
    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """From the received variables to whatever the part needs while training."""


class Deliver(Part, abc.ABC):
    """Changes the model that a client hands back after training; several compose in order."""

    @abc.abstractmethod
    def deliver(self, outcome: Outcome) -> Variables:
        """From `outcome.end` to others like it; memory, reports and probes are made from what comes out."""

    def outdated(self, outcome: Outcome) -> Array:
        """Whether what is handed back is of an earlier round, `Bool[]`; `outcome` is that before `deliver`."""
        del outcome
        return jnp.zeros((), bool)


class Memory(Part, abc.ABC):
    """Keeps something for each client from visit to visit; each part finds its own in `ctx.memory`."""

    @abc.abstractmethod
    def init_memory(self, variables: Variables) -> PyTree:
        """What a client remembers that was never visited."""

    @abc.abstractmethod
    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """What it remembers after a visit, if its update is delivered."""


class Report(Part, abc.ABC):
    """Sends the server something beside the update; summed over the cohort, each part on its own."""

    @abc.abstractmethod
    def report(self, outcome: Outcome) -> PyTree:
        """Arrays that add up over clients."""


class Probe(Part, abc.ABC):
    """Finds out something about a trained client for the selector on the host; kept per client, each part on its own.

    It goes to the host every round, so keep it small.
    """

    @abc.abstractmethod
    def probe(self, outcome: Outcome) -> PyTree:
        """Small arrays, which the selector's `update` finds under the part's slot."""


class Weigh(Part, abc.ABC):
    """Weighs the chains of a cohort; several compose in order, the engine normalises once.

    Attributes:
        weighs_statistics: whether batch statistics are averaged with these weights too.
    """

    weighs_statistics: ClassVar[bool] = True

    @abc.abstractmethod
    def weigh(self, weights: Array, cohort: Cohort) -> Array:
        """`Float[G]` to `Float[G]`; begins with the number of samples, 0 for a chain that doesn't deliver."""


class Reduce(Part, abc.ABC):
    """Makes one update of all chains' updates, instead of their weighted mean; there is only one such part."""

    @abc.abstractmethod
    def reduce(self, deltas: PyTree, weights: Array) -> PyTree:
        """From leaves `[G, ...]` and weights `Float[G]`, 0 for a chain that doesn't count, to leaves like params."""


class Step(Part, abc.ABC):
    """Changes the aggregated update before the server optimizer; several compose in order."""

    @abc.abstractmethod
    def step(self, delta: PyTree, cohort: Cohort, aggregate: Aggregate, state: Any, params: PyTree) -> PyTree:
        """The update, like params; `state` is the part's own server state, None where it has none."""


class Refine(Part, abc.ABC):
    """Trains the global model on after the server optimizer; several compose in order."""

    @abc.abstractmethod
    def refine(self, key: Key, variables: Variables, model: Model, federation: Federation) -> Variables:
        """The model that goes on to the next round."""


class Present(Part, abc.ABC):
    """Changes the global model for its evaluation only; several compose in order."""

    @abc.abstractmethod
    def present(self, key: Key, variables: Variables, model: Model, federation: Federation) -> Variables:
        """The model that the test set sees; the next round goes on without the change."""


class Extend(Part, abc.ABC):
    """Adds something to the network; several compose in order, once, before anything is compiled."""

    @abc.abstractmethod
    def extend(self, model: Model) -> Model:
        """The model that is trained; what both have in common should start alike."""


class Enlarge(Part, abc.ABC):
    """Adds to what clients hold; several compose in order, once, on the host, before anything is compiled."""

    @abc.abstractmethod
    def enlarge(self, federation: Federation) -> Federation:
        """The federation that is trained on; selectors see its class counts."""


class Server(Part, abc.ABC):
    """Keeps state on the server and sends something to the clients; each part on its own.

    Attributes:
        travels: whether what it sends counts as traffic; not if clients could make it from the model that they get.
    """

    travels: ClassVar[bool] = True

    @abc.abstractmethod
    def init_server(self, variables: Variables, shapes: Shapes) -> PyTree:
        """The state before the first round."""

    @abc.abstractmethod
    def broadcast(self, key: Key, round: Array, state: PyTree, variables: Variables) -> tuple[PyTree, PyTree]:
        """At the start of a round: the new state, and what the clients find in `ctx.broadcast`."""

    @abc.abstractmethod
    def update(self, key: Key, round: Array, state: PyTree, aggregate: Aggregate, variables: Variables) -> PyTree:
        """At the end of a round: the new state; `variables` is the updated global model."""


class Illustrate(Part, abc.ABC):
    """Shows what it has learnt as pictures, for the report."""

    @abc.abstractmethod
    def illustrate(self, key: Key, state: PyTree) -> Array:
        """From the part's state on the server to images of the first classes, normalised, `Float[c, S, H, W, K]`.

        Nobody asks before the part's `first_round` is over.
        """


class Disclose(Part, abc.ABC):
    """Shares something about images beside parameters, from which an attacker may try to get them back."""

    @abc.abstractmethod
    def disclosed(self, state: PyTree) -> tuple[Array, Array]:
        """From the part's state on the server to a feature vector of each class, `Float[C, F]`, and which are known."""
