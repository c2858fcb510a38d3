"""The roles that a part can play, and how several parts in one role combine.

The engine asks for the role, never for the method: composing, adding or keeping apart is decided here, by role.
"""

import abc
from typing import Any, ClassVar

from fedjax_bal.parts.part import Part
from fedjax_bal.types import (
    Aggregate,
    Array,
    Batch,
    Cohort,
    Context,
    Key,
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


class Gradient(Part, abc.ABC):
    """Changes the gradient before the local optimizer; several compose in order."""

    @abc.abstractmethod
    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Gradients to gradients, like params."""


class Prepare(Part, abc.ABC):
    """Computes something once a visit, before training; each part finds its own in `ctx.prepared`."""

    @abc.abstractmethod
    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """From the received variables to whatever the part needs while training."""


class Memory(Part, abc.ABC):
    """Keeps something for each client from visit to visit; each part finds its own in `ctx.memory`."""

    @abc.abstractmethod
    def init_memory(self, params: PyTree) -> PyTree:
        """What a client remembers that was never visited."""

    @abc.abstractmethod
    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """What it remembers after a visit, if its update is delivered."""


class Report(Part, abc.ABC):
    """Sends the server something beside the update; summed over the cohort, each part on its own."""

    @abc.abstractmethod
    def report(self, outcome: Outcome) -> PyTree:
        """Arrays that add up over clients."""


class Weigh(Part, abc.ABC):
    """Weighs the chains of a cohort; several compose in order, the engine normalises once.

    Attributes:
        weighs_statistics: whether batch statistics are averaged with these weights too.
    """

    weighs_statistics: ClassVar[bool] = True

    @abc.abstractmethod
    def weigh(self, weights: Array, cohort: Cohort) -> Array:
        """`Float[G]` to `Float[G]`; begins with the number of samples, 0 for a chain that doesn't deliver."""


class Step(Part, abc.ABC):
    """Changes the aggregated update before the server optimizer; several compose in order."""

    @abc.abstractmethod
    def step(self, delta: PyTree, cohort: Cohort, aggregate: Aggregate, state: Any, params: PyTree) -> PyTree:
        """The update, like params; `state` is the part's own server state, None where it has none."""


class Server(Part, abc.ABC):
    """Keeps state on the server and sends something to the clients; each part on its own."""

    @abc.abstractmethod
    def init_server(self, variables: Variables, shapes: Shapes) -> PyTree:
        """The state before the first round."""

    @abc.abstractmethod
    def broadcast(self, key: Key, round: Array, state: PyTree, variables: Variables) -> tuple[PyTree, PyTree]:
        """At the start of a round: the new state, and what the clients find in `ctx.broadcast`."""

    @abc.abstractmethod
    def update(self, key: Key, round: Array, state: PyTree, aggregate: Aggregate, variables: Variables) -> PyTree:
        """At the end of a round: the new state; `variables` is the updated global model."""
