"""The roles that a part can play, and how several parts in one role combine.

The engine asks for the role, never for the method: composing, adding or keeping apart is decided here, by role. What a
client plays sees a `Context`, what the server plays a `ServerContext` with the part's own state in it.
"""

import abc
from typing import ClassVar

import jax.numpy as jnp

from fedjax_bal.parts.part import Part
from fedjax_bal.types import (
    Array,
    Batch,
    Cohort,
    Context,
    Exhibit,
    Key,
    Outcome,
    Outputs,
    PyTree,
    ServerContext,
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
        """Mean number of rows of each class that it adds to a client's batch, `Float[C]`; none unless overridden."""
        return jnp.zeros(class_counts.shape)


class Gradient(Part, abc.ABC):
    """Changes the gradient before the local optimizer; several compose in order."""

    @abc.abstractmethod
    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Gradients to gradients, like params."""


class Update(Part, abc.ABC):
    """Changes what the local optimizer is about to add to the parameters; several compose in order."""

    @abc.abstractmethod
    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Updates to updates, like params, zeros for what isn't trained; momentum and decay don't see the change."""


class Start(Part, abc.ABC):
    """Chooses the model that a client begins with; several compose in order."""

    @abc.abstractmethod
    def start(self, variables: Variables, ctx: Context) -> Variables:
        """From the variables received to others like them; `ctx.start` stays what was received."""


class Prepare(Part, abc.ABC):
    """Computes something once, before local training; each part finds its own in `ctx.prepared`."""

    @abc.abstractmethod
    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """From the received variables to whatever the part needs while training."""


class Deliver(Part, abc.ABC):
    """Changes the model that a client returns after training; several compose in order."""

    @abc.abstractmethod
    def deliver(self, outcome: Outcome) -> Variables:
        """From `outcome.end` to others like it; memory, reports and probes are made from the result."""

    def outdated(self, outcome: Outcome) -> Array:
        """Whether the returned update is of an earlier round, `Bool[]`; `outcome` is that before `deliver`."""
        return jnp.zeros((), bool)


class Memory(Part, abc.ABC):
    """Keeps something for each client between its local trainings; each part finds its own in `ctx.memory`."""

    @abc.abstractmethod
    def init_memory(self, variables: Variables) -> PyTree:
        """The memory of a client that has never trained."""

    @abc.abstractmethod
    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """The memory after local training, kept if the update is delivered."""


class Report(Part, abc.ABC):
    """Sends the server something beside the update; summed over the cohort, each part on its own."""

    @abc.abstractmethod
    def report(self, outcome: Outcome) -> PyTree:
        """Arrays that add up over clients."""


class Probe(Part, abc.ABC):
    """Measures a trained client for the selector on the host; kept per client, each part on its own.

    The result goes to the host every round, so keep it small.
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
    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """`Float[G]` to `Float[G]`; begins with the number of samples, 0 for a chain that doesn't deliver."""


class Reduce(Part, abc.ABC):
    """Makes one update of all chains' updates, instead of their weighted mean; there is only one such part."""

    @abc.abstractmethod
    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """From leaves `[G, ...]` and weights `Float[G]`, 0 for a chain that doesn't count, to leaves like params."""


class Step(Part, abc.ABC):
    """Changes the aggregated update before the server optimizer; several compose in order."""

    @abc.abstractmethod
    def step(self, delta: PyTree, server: ServerContext) -> PyTree:
        """The update, like params."""


class Refine(Part, abc.ABC):
    """Changes the global model after the server optimizer; several compose in order.

    Attributes:
        evaluation_only: whether only the test set sees the change, and the next round goes on without it.
    """

    evaluation_only: bool = False

    @abc.abstractmethod
    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The model that goes on to the next round, or to its evaluation."""


class Server(Part, abc.ABC):
    """Keeps state on the server and sends something to the clients; each part on its own.

    Attributes:
        travels: whether what it sends counts as traffic; not if clients could make it from the model that they get.
    """

    travels: ClassVar[bool] = True

    @abc.abstractmethod
    def init_server(self, server: ServerContext) -> PyTree:
        """The state before the first round."""

    @abc.abstractmethod
    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """At the start of a round: the new state, and what the clients find in `ctx.broadcast`."""

    @abc.abstractmethod
    def update(self, key: Key, server: ServerContext) -> PyTree:
        """At the end of a round: the new state; `server.variables` is the updated global model."""

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Images or prototypes for a report or an attack once `first_round` is over; none unless overridden."""
        return Exhibit()
