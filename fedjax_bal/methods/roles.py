"""The roles that a part can play, and how several parts in one role combine.

The engine asks for the role, never for the method: composing, adding or keeping apart is decided here, by role. Roles
of a client get a `Context`, those of the server a `ServerContext` with the part's own state in it.

In a round in which no update arrives (no client is available or selected, all updates are lost or excluded, no client
has rows, or no update has any weight) the model, the server optimizer's state and the states of Server parts stay as
they are: nothing comes of Reduce, Step and `Server.update`, nor of Refine parts that change the model itself.
`Server.broadcast` alone may change a part's state, as it precedes the clients' training.
"""

import abc
from typing import ClassVar

import jax.numpy as jnp

from fedjax_bal.methods.part import Part
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


class Criterion(Part, abc.ABC):
    """Replaces the cross-entropy of local training; there is only one such part.

    The engine takes the mean over the real rows of a batch, of the logits that Logits parts return, and adds the terms
    of Loss parts. The loss on the test set stays the cross-entropy.

    Example:
        >>> import jax
        >>> from fedjax_bal.parts import part
        >>> @part
        ... class Brier(Criterion):
        ...     def losses(self, logits, labels, ctx):
        ...         wanted = jax.nn.one_hot(labels, logits.shape[-1])
        ...         return ((jax.nn.softmax(logits) - wanted) ** 2).sum(-1)
    """

    @abc.abstractmethod
    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """The loss of each row, `Float[B]`, from `Float[B, C]` and `Int32[B]`; those of padded rows are left out."""


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
        """The batch, followed by rows that the part adds, if any (see `join`); every local step has its own key."""

    def added(self, class_counts: Array) -> Array:
        """Mean number of rows of each class that it adds to a client's batch, `Float[C]`; none unless overridden."""
        return jnp.zeros(class_counts.shape)


class Shift(Part, abc.ABC):
    """Chooses the parameters at which a local step takes its gradient; there is only one such part.

    The step itself still starts from the unshifted parameters. Loss and batch statistics of the step are those at the
    shifted ones. Parameters that the local step doesn't train, or that have a loss of their own (see `Separate`), stay
    unshifted: their gradient is 0 here, and `ctx.trained` says False for them.

    Attributes:
        needs_gradient: whether it needs the gradient at the unshifted parameters, which takes another pass through the
            model.

    Example:
        Sharpness-aware minimisation (Foret et al., 2021):

        >>> import optax
        >>> from fedjax_bal.parts import part
        >>> @part
        ... class Sam(Shift):
        ...     rho: float = 0.05
        ...
        ...     def shift(self, params, grads, ctx):
        ...         scale = self.rho / (optax.tree.norm(grads) + 1e-12)
        ...         return optax.tree.add_scale(params, scale, grads)
    """

    needs_gradient: ClassVar[bool] = True

    @abc.abstractmethod
    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Parameters to parameters; `grads` is like them, before Gradient parts, or None if it isn't needed."""


class Gradient(Part, abc.ABC):
    """Changes the gradient before the local optimizer; several compose in order."""

    @abc.abstractmethod
    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Gradients to gradients, like params."""


class Update(Part, abc.ABC):
    """Changes what the local optimizer is about to add to the parameters; several compose in order."""

    @abc.abstractmethod
    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Updates to updates, like params; momentum and decay don't see the change."""


class Freeze(Part, abc.ABC):
    """Keeps leaves of the model from being trained, in all local steps or in some; of several parts, each adds its own.

    As a parameter in PyTorch without `requires_grad`, a frozen leaf keeps its value and its optimizer state: it has no
    gradient, counts in no norm, and gets neither weight decay nor momentum. Leaves that are frozen in the same steps
    share an optimizer state. An optax transformation is applied to each of these sets by itself.

    A leaf that is always frozen begins the same everywhere: no client sends it, and none gets it unless a Refine part
    may change it.

    Attributes:
        always: whether the leaves are frozen in all local steps, and for the server's optimizer, too; if not, `trained`
            says when.

    Example:
        >>> from fedjax_bal.parts import part
        >>> @part
        ... class FrozenStem(Freeze):
        ...     def frozen(self, params):
        ...         return {name: name == "stem" for name in params}
    """

    always: ClassVar[bool] = True

    @abc.abstractmethod
    def frozen(self, params: PyTree) -> PyTree:
        """True or False, in Python, for each leaf or whole branch of the parameters."""

    def trained(self, ctx: Context) -> tuple[Array | bool, Array | bool]:
        """Whether a local step trains the frozen leaves, and whether the others, each `Bool[]`."""
        return False, True


class Start(Part, abc.ABC):
    """Chooses the model that a client begins with; several compose in order."""

    @abc.abstractmethod
    def start(self, variables: Variables, ctx: Context) -> Variables:
        """From the variables received to others like them; `ctx.start` stays what was received."""


class Steps(Part, abc.ABC):
    """Carries something from local step to local step; each part finds its own in `ctx.steps_state`.

    It begins afresh with every local training; `outcome.ctx.steps_state` has its last value.
    """

    @abc.abstractmethod
    def init_steps(self, ctx: Context) -> PyTree:
        """The value that the first local step sees."""

    @abc.abstractmethod
    def next_steps(self, carry: PyTree, outputs: Outputs, batch: Batch, ctx: Context) -> PyTree:
        """The value that the next local step sees, like `carry`; gets no gradient. Mask with `batch.real`."""


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


class Personal(Part, abc.ABC):
    """Chooses leaves of the model that stay with the client; of several parts, each adds its own.

    They begin as in the initial model. From then on a client starts with its own, keeps those that it trained if its
    update is delivered, and sends the others: the global model never changes in these leaves, and they aren't counted
    as traffic. A client's own test rows are classified by the global model with its own leaves, the test set by the
    global model as it is. In training the leaves belong to the client's model like all others: other parts see them,
    with the client's own value in `ctx.start`, and a norm counts them. Leaves that belong to another model or
    classifier are declared with `Separate` instead.

    Attributes:
        keeps_statistics: whether running batch statistics stay with the client, too.

    Example:
        >>> from fedjax_bal.parts import part
        >>> @part
        ... class OwnHead(Personal):
        ...     def personal(self, params):
        ...         return {name: name == "head" for name in params}
    """

    keeps_statistics: ClassVar[bool] = False

    @abc.abstractmethod
    def personal(self, params: PyTree) -> PyTree:
        """True or False, in Python, for each leaf or whole branch of the parameters."""

    def own_model(self, variables: Variables) -> Variables:
        """The model that a client uses itself, from its variables; the same unless overridden."""
        return variables


class Separate(Personal, abc.ABC):
    """Trains another model or classifier along with the model, on a loss that the part adds.

    Its parameters are entries of `params`, which the part adds in `bind`; the model must work without them, too. The
    part's loss has a gradient for them only, and other losses have none. Each entry is clipped by itself, and has its
    own optimizer state; Shift and Freeze parts leave it alone. An optax transformation is applied to each entry, and to
    the model, by itself. Training losses, by which clients are weighed, chosen and reported, are without the part's.

    Other parts work as if entries that stay with the client did not exist, on clients and on the server: neither
    parameters, gradients and updates nor variables in contexts and outcomes have them.

    Attributes:
        own: names of the entries that stay with the client, see `Personal`.
        shared: names of the entries that are averaged like the model. Other parts see them.
    """

    own: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()

    def personal(self, params: PyTree) -> PyTree:
        """The client's entries."""
        return {name: name in self.own for name in params}

    @abc.abstractmethod
    def own_model(self, variables: Variables) -> Variables:
        """The model that a client uses itself, from its variables."""


class Report(Part, abc.ABC):
    """Sends the server something beside the update; summed over the cohort, each part on its own."""

    @abc.abstractmethod
    def report(self, outcome: Outcome) -> PyTree:
        """Arrays that add up over clients; `outcome.memory` is what the part's own `remember` has returned."""


class Probe(Part, abc.ABC):
    """Measures a trained client for the selector on the host; kept per client, each part on its own.

    The result goes to the host every round, so keep it small.

    Attributes:
        travels: whether it counts as traffic; not if the server computes it from the model that the client sends.
    """

    travels: ClassVar[bool] = True

    @abc.abstractmethod
    def probe(self, outcome: Outcome) -> PyTree:
        """Small arrays, which the selector's `update` finds under the part's slot."""


class Weigh(Part, abc.ABC):
    """Weighs the chains of a cohort; several compose in order, the engine normalises once.

    Attributes:
        weighs_statistics: whether batch statistics are averaged with these weights too.
        ignores_sizes: whether the part takes the numbers of samples out of the weights.
    """

    weighs_statistics: ClassVar[bool] = True
    ignores_sizes: ClassVar[bool] = False

    @abc.abstractmethod
    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """`Float[G]` to `Float[G]`.

        The first part gets the number of samples, or 1 with a selector that draws clients by size unless a part ignores
        sizes itself; 0 for a chain that doesn't deliver.
        """


class Reduce(Part, abc.ABC):
    """Makes one update of all chains' updates, instead of their weighted mean; there is only one such part."""

    needs_deltas = True

    @abc.abstractmethod
    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """From leaves `[G, ...]` and weights `Float[G]`, 0 for a chain that doesn't count, to leaves like params."""


class Step(Part, abc.ABC):
    """Changes the aggregated update before the server optimizer; several compose in order.

    Reports and losses of the clients are in `server.aggregate`, the model that they received in `server.variables`.
    """

    @abc.abstractmethod
    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """The update, like params, and the part's new state: `server.state` where it keeps none, or doesn't change it.

        `update` of a Server part sees the new state.
        """


class Refine(Part, abc.ABC):
    """Changes the global model after the server optimizer; several compose in order.

    Attributes:
        evaluation_only: whether only the test set sees the change, and the next round goes on without it. Such a part
            runs before each evaluation, also after a round in which no update arrived; what it draws is drawn again.
    """

    evaluation_only: bool = False

    @abc.abstractmethod
    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The model that goes on to the next round, or to its evaluation."""


class Closing(Part, abc.ABC):
    """Gets a report of every client on the global model, without training, and changes the model that is evaluated.

    Such a closing round precedes every evaluation; training goes on without its result. It takes a pass over all
    clients' rows: where that is too long, evaluate more rarely. All clients take part, available or not: each gets the
    model and sends its reports, which counts as traffic. Several parts compose in order, each with its own reports.
    """

    @abc.abstractmethod
    def closing_report(self, outcome: Outcome) -> PyTree:
        """Arrays that add up over clients; `outcome.end` is the model to be evaluated, after no step."""

    @abc.abstractmethod
    def close(self, key: Key, variables: Variables, reports: PyTree, server: ServerContext) -> Variables:
        """The model that is evaluated, from the sum of all clients' reports."""


class Server(Part, abc.ABC):
    """Keeps state on the server and sends something to the clients; each part on its own.

    Attributes:
        travels: whether what it sends counts as traffic; not if clients could make it from the model that they get.
        adds_reports: whether `update` adds the sum of the reports to the state and does nothing else. In a round
            without updates it then adds zeros; the states of other parts are kept.
    """

    travels: ClassVar[bool] = True
    adds_reports: ClassVar[bool] = False

    @abc.abstractmethod
    def init_server(self, server: ServerContext) -> PyTree:
        """The state before the first round; `server.key` is for what is drawn."""

    @abc.abstractmethod
    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """At the start of a round: the new state, and what the clients find in `ctx.broadcast`."""

    @abc.abstractmethod
    def update(self, key: Key, server: ServerContext) -> PyTree:
        """At the end of a round: the new state; `server.variables` is the updated global model."""

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Images or prototypes for a report or an attack once `first_round` is over; none unless overridden."""
        return Exhibit()
