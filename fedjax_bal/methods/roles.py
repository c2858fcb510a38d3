"""Parts, how they are declared, and the roles that they play.

The engine looks only at roles, never at methods: the role decides whether several parts compose, add up or stay
separate. Client roles receive a `Context`; server roles receive a `ServerContext` that holds the part's state.

A round may yield no update: no client is available or selected, all updates are lost or excluded, no client has rows,
or all updates have weight 0. Then the model, the server optimizer's state and the states of Server parts stay
unchanged: the results of Reduce, Step, `Server.update` and of Refine parts that change the model itself are discarded.
Only `Server.broadcast` may change a part's state, because it precedes the clients' training.
"""

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from fedjax_bal.models import Normalisation
from fedjax_bal.optim import Optimizer
from fedjax_bal.types import (
    Array,
    Batch,
    Cohort,
    Context,
    Exhibit,
    Federation,
    Key,
    Model,
    Outcome,
    Outputs,
    PyTree,
    ServerContext,
    Variables,
)

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Turns a class into a part: a frozen dataclass whose fields are pytree leaves.

    Numbers are leaves, so that they can be swept without another compilation. Declare a field with `static` if it
    changes a shape or decides what is computed.

    Example:
        >>> import jax
        >>> @part
        ... class Scale(Part):
        ...     factor: float = 2.0
        >>> jax.tree.leaves(Scale(3.0))
        [3.0]
    """
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)
    leaves = [field.name for field in fields if not field.metadata.get("static")]
    others = [field.name for field in fields if field.metadata.get("static")]

    # The class must be part of the tree structure. `register_dataclass` ignores it when it compares structures: parts
    # of two classes with equally many leaves compare equal, and one method could get another's compiled program.
    def flatten(own: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(own, name)) for name in leaves]
        return keyed, (made, *(getattr(own, name) for name in others))

    def unflatten(structure: tuple[Any, ...], values: Any) -> Any:
        return made(**dict(zip(leaves, values, strict=True)), **dict(zip(others, structure[1:], strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made


def static(default: Any) -> Any:
    """Declares a part's field as structure, not a pytree leaf: every new value compiles another program."""
    return dataclasses.field(default=default, metadata={"static": True})


def parts_with(parts: "Iterable[Part]", *roles: type[T]) -> list[T]:
    """Returns the parts that play at least one of the roles, in order."""
    return [part for part in parts if isinstance(part, roles)]


def keeps_model(part: "Part") -> bool:
    """Returns whether a part gives each client a model or leaves of its own."""
    return isinstance(part, (Personal, Adapt))


def changes_for_evaluation(parts: "Iterable[Part]") -> bool:
    """Returns whether a part changes the model for evaluation only, so that the tested model isn't the trained one."""
    return any(isinstance(part, Closing) or (isinstance(part, Refine) and part.evaluation_only) for part in parts)


class NeedsContext(NamedTuple):
    """The run as `Need.check` sees it: its configuration, before the data are loaded.

    Attributes:
        parts: all parts, in order.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on the optimizer's state.
        rounds: the number of rounds.
        clients: N; None if the data set has to be loaded to know it.
        auxiliary: the names of the auxiliary sets, whose rows clients don't have.
        model: the network's name.
        normalisation: the network's normalisation; None if the network has to be built to know it.
        clips: whether long updates are scaled down to a multiple of the round's median norm.
    """

    parts: "tuple[Part, ...]"
    local: Optimizer
    carried: bool
    rounds: int
    clients: int | None
    auxiliary: Collection[str]
    model: str
    normalisation: Normalisation | None
    clips: bool = False


class Need(NamedTuple):
    """A requirement of a part on the rest of the run, e.g. plain SGD.

    Attributes:
        name: its name in lists of methods; empty if they omit it.
        check: raises `ValueError` for a run that doesn't meet it; the message says what to change.
    """

    name: str
    check: Callable[[NeedsContext], None]


class CheckContext(NamedTuple):
    """The run as `Part.check` sees it.

    Attributes:
        parts: all parts, in order.
        model: the network, with the additions of all parts.
        federation: the federation, without excluded rows, before parts prepare it.
        local: the clients' optimizer.
        carried: whether the clients of a chain pass on the optimizer's state.
        rounds: the number of rounds.
    """

    parts: "tuple[Part, ...]"
    model: Model
    federation: Federation
    local: Optimizer
    carried: bool
    rounds: int


class RoundsSoFar(NamedTuple):
    """The rounds of a run until now, as `Part.round_metrics` sees them.

    Attributes:
        rounds: the number of rounds.
        clients: the number of clients that can train.
        clients_per_round: the maximum number that train in a round.
        drawn_evenly: whether each cohort is a uniform draw of these clients, independent of earlier rounds.
        closed_loop: whether a cohort depends on the clients' reports in earlier rounds.
        chain_length: the maximum number of clients in a chain, which contributes one update to the average.
    """

    rounds: int
    clients: int
    clients_per_round: int
    drawn_evenly: bool
    closed_loop: bool
    chain_length: int


class Part:
    """A unit of behaviour of a client or the server during a round.

    A part subclasses one or more roles (`fedjax_bal.methods.roles`) and is final: wrap it, don't subclass it. The
    methods of this class run once, on the host, before anything is compiled; by default they change nothing. They raise
    `ValueError` for a model, a federation or a run that doesn't suit the part; the message says what to change.

    Attributes:
        needs_deltas: whether the server keeps the update of every chain of a round, in `server.aggregate.deltas`.
        needs_losses: whether the server uses the clients' training losses, `server.aggregate.losses`; each client then
            sends its loss.
        needs_same_start: whether the server adds updates to the current model to find the clients' own models, which is
            wrong in asynchronous rounds, where clients have received different models.
        forbids_chains: whether each client must train alone and once a round, because the part replaces the model that
            a client of a chain passes on to the next one, or keeps one update of each client.
    """

    needs_deltas: ClassVar[bool] = False
    needs_losses: ClassVar[bool] = False
    needs_same_start: ClassVar[bool] = False
    forbids_chains: ClassVar[bool] = False

    def __init__(self, *values: Any, **named: Any) -> None:
        # The decorator `part` replaces this constructor. A docstring would be that of every part in the API reference.
        name = type(self).__name__
        raise ValueError(f"{name}: not declared as a part: put @part, from fedjax_bal.parts, above class {name}")

    @property
    def needs(self) -> "tuple[Need, ...]":
        """Requirements on the rest of the run, checked when its configuration is read."""
        return ()

    @property
    def first_round(self) -> int:
        """The first round, counted from 0, in which the part changes local steps; earlier rounds skip it."""
        return 0

    @property
    def slot(self) -> str:
        """The name under which the engine keeps the part's state, broadcasts and reports."""
        return type(self).__name__

    def bind(self, model: Model) -> Model:
        """Returns the network with the part's additions; weights that both have must be initialised equally."""
        return model

    def prepare_federation(self, federation: Federation) -> Federation:
        """Returns the federation with the part's additions; selectors see the result's class counts."""
        return federation

    def check(self, context: CheckContext) -> None:
        """Rejects a model or a federation with which the part would not work as documented."""

    def caution(self, context: CheckContext, cohort: int) -> str:
        """Warns if the part would learn next to nothing in this run, with at most `cohort` clients in a round.

        The text is shown before training; by default it is empty. `check` rejects runs that can't be right.
        """
        return ""

    def round_metrics(self, past: RoundsSoFar) -> dict[str, float]:
        """Computes the part's metrics for an evaluated round, by name, on the host; by default none.

        They go to `RoundResult.reported`, where a metric of the same name finds them.
        """
        return {}


class Criterion(Part, abc.ABC):
    """Replaces the cross-entropy of local training; a run has at most one Criterion.

    The engine applies it to the logits that Logits parts return, averages over the real rows of the batch, and adds the
    terms of Loss parts. The test loss remains the cross-entropy.

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
        """Returns the loss of each row, `Float[B]`, from `Float[B, C]` and `Int32[B]`; padded rows are ignored."""


class Logits(Part, abc.ABC):
    """Changes the logits that the training loss sees; several compose in order.

    A part receives the logits that the previous part returned, which may differ from the network's: `PriorCalibration`
    sets those of classes that a client lacks to -1e9. A part that needs the network's logits, for instance to compute a
    norm, must come first.
    """

    @abc.abstractmethod
    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`; evaluation uses the unchanged logits."""


class Loss(Part, abc.ABC):
    """Adds a term to the training loss; several add up."""

    @abc.abstractmethod
    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the added term, `Float[]`; mask padded rows with `batch.real`."""


class Draw(Part, abc.ABC):
    """Weights classes when samples are drawn with replacement; several add up.

    In local steps `ctx.class_counts` are those that an epoch draws on average, in whole rows.
    """

    @abc.abstractmethod
    def log_weights(self, class_counts: Array, ctx: Context) -> Array:
        """Returns the log-weight of a single sample of each class, `Float[C]`, up to a constant."""


class Batches(Part, abc.ABC):
    """Changes a mini-batch before the model sees it; several compose in order."""

    @abc.abstractmethod
    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch, to which the part may append rows (`append_rows`); each local step has another key."""

    def added(self, class_counts: Array) -> Array:
        """Returns the mean number of rows of each class added to a client's batch, `Float[C]`; by default 0."""
        return jnp.zeros(class_counts.shape)

    def labelled(self, class_counts: Array, ctx: Context) -> Array:
        """Returns the class counts with this part's labels instead of a client's own, `Int32[C]`; by default the same.

        In local steps they are the other parts' `ctx.class_counts`.
        """
        return class_counts


class Shift(Part, abc.ABC):
    """Chooses the parameters at which a local step takes its gradient; a run has at most one Shift.

    The step itself still starts from the unshifted parameters. Its loss and batch statistics are those at the shifted
    ones. Parameters that the local step doesn't train, or that have a separate loss (see `Separate`), stay unshifted:
    their gradient is 0 here, and `ctx.trained` is False for them.

    Attributes:
        needs_gradient: whether it needs the gradient at the unshifted parameters, which costs another pass through the
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
        """Returns the shifted parameters; `grads` (None if not needed) are the gradients before Gradient parts."""

    def rows(self, batch: Batch, use: Literal["shift", "step", "correct"]) -> Array:
        """Returns which rows of the batch count, `Bool[B]`, among those that are real; by default all of them.

        `use` is "shift" for the gradient that `shift` gets, "step" for the one that counts, and "correct" for those
        that `correct` asks for.
        """
        return batch.real

    def correct(self, grads: PyTree, gradient: Callable[[PyTree], PyTree], params: PyTree, ctx: Context) -> PyTree:
        """Returns the gradient that counts, given the one at the shifted parameters; by default the latter.

        `gradient` computes the gradient at other parameters; each call costs another pass through the model.
        """
        return grads


class Gradient(Part, abc.ABC):
    """Changes the gradient before the local optimizer; several compose in order."""

    @abc.abstractmethod
    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Maps gradients to gradients, both with the structure of `params`."""


class Update(Part, abc.ABC):
    """Changes the local optimizer's updates before they are added to the parameters; several compose in order."""

    @abc.abstractmethod
    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Maps updates to updates, both with the structure of `params`; momentum and decay don't see the change."""


class Freeze(Part, abc.ABC):
    """Freezes leaves of the model in all local steps or in some; the leaves of several parts are united.

    Like a PyTorch parameter without `requires_grad`, a frozen leaf keeps its value and its optimizer state: it has no
    gradient, is not counted in norms, and gets neither weight decay nor momentum. Leaves that are frozen in the same
    steps share an optimizer state. An optax transformation is applied to each of these sets separately.

    A leaf that is always frozen starts with the same value everywhere: no client sends it, and it is only sent to
    clients if a Refine part may change it.

    Attributes:
        always: whether the leaves are frozen in all local steps and for the server's optimizer; if not, `trained`
            decides for each step.

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
        """Returns a Python bool for each leaf, or for whole branches, of the parameters."""

    def trained(self, ctx: Context) -> tuple[Array | bool, Array | bool]:
        """Returns whether a local step trains the frozen leaves, and whether it trains the others, each `Bool[]`."""
        return False, True


class Start(Part, abc.ABC):
    """Chooses the model that a client starts from; several compose in order."""

    @abc.abstractmethod
    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Maps the received variables to the initial ones; `ctx.start` still holds the received ones."""


class Steps(Part, abc.ABC):
    """Carries state from local step to local step; `ctx.steps_state` holds the part's state.

    The state is reset at the start of every local training; `outcome.ctx.steps_state` holds its last value.
    """

    @abc.abstractmethod
    def init_steps(self, ctx: Context) -> PyTree:
        """Returns the state for the first local step."""

    @abc.abstractmethod
    def next_steps(self, carry: PyTree, outputs: Outputs, batch: Batch, ctx: Context) -> PyTree:
        """Returns the next step's state, shaped like `carry`; it gets no gradient. Mask with `batch.real`.

        `ctx.shift` is how far a Shift part has moved the parameters, if there is one. If that part needs a gradient
        first, this method also runs in the pass for it, where `ctx.shift` is None; the result is then discarded.
        """

    def observe(self, carry: PyTree, grads: PyTree, ctx: Context) -> PyTree:
        """Returns the next step's state, given the gradient that this part's `gradient` is about to change.

        Only for a part that is a Gradient, too, such as one with a momentum: `carry` is the result of `next_steps`, and
        in the rest of this local step `ctx.steps_state` already holds the result of this method.
        """
        return carry


class Prepare(Part, abc.ABC):
    """Computes something once, before local training; `ctx.prepared` holds the part's result."""

    @abc.abstractmethod
    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """Computes from the received variables the pytree that the part uses during training."""


class Deliver(Part, abc.ABC):
    """Changes the model that a client returns after training; several compose in order."""

    @abc.abstractmethod
    def deliver(self, outcome: Outcome) -> Variables:
        """Maps `outcome.end` to the variables to return, from which memory, reports and probes are computed.

        `outcome.trained` keeps those before any Deliver part.
        """

    def outdated(self, outcome: Outcome) -> Array:
        """Returns whether the update is stale (from an earlier round), `Bool[]`; called before `deliver`."""
        return jnp.zeros((), bool)

    def sent_bits(self, params: PyTree, model: Model) -> PyTree:
        """Returns the bits of each number that a client sends, an int for each leaf or for whole branches of `params`.

        Only the counted traffic depends on it. 0, the default, stands for the bits of the leaf's dtype.
        """
        return 0


class Memory(Part, abc.ABC):
    """Keeps state for each client between its local trainings; `ctx.memory` holds the part's state."""

    @abc.abstractmethod
    def init_memory(self, variables: Variables) -> PyTree:
        """Returns the memory of a client that has never trained."""

    @abc.abstractmethod
    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the memory after local training; it is kept if the update is delivered."""

    def synchronise(self, memory: PyTree, variables: Variables) -> PyTree:
        """Returns the memory of a client that delivered, at the end of the round; by default unchanged.

        `memory` is the result of `remember`, and `variables` is the new global model.
        """
        return memory


class Personal(Part, abc.ABC):
    """Chooses leaves of the model that stay with the client; the leaves of several parts are united.

    They start with the initial model's values. Each client then starts from its own values, keeps the trained ones if
    its update is delivered, and never sends them: in the global model these leaves never change, and they don't
    count as traffic. A client's test rows are classified by the global model with the client's leaves, the test set by
    the global model itself. In training they are ordinary leaves of the client's model: other parts see them, with
    the client's value in `ctx.start`, and norms count them. Leaves that belong to another model or classifier are
    declared with `Separate` instead.

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
        """Returns a Python bool for each leaf, or for whole branches, of the parameters."""

    def exchange(self, models: Variables, server: ServerContext) -> Variables:
        """Returns the models of a round's clients at its end, leaves `[G, L, ...]`; by default as they are.

        Each is the new global model with the leaves that stay with the client. Those of the result are kept for clients
        that delivered, where `server.cohort.local_steps > 0`; other leaves are ignored. The leaves of a part with this
        method count as traffic.
        """
        return models

    def own_model(self, variables: Variables) -> Variables:
        """Returns the client's personal model, given its variables; by default these variables."""
        return variables


class Separate(Personal, abc.ABC):
    """Trains another model or classifier along with the model, on a loss that the part adds.

    Its parameters are entries of `params`, which the part adds in `bind`; the model must also work without them. The
    part's loss has a gradient only for these entries, and other losses have none for them. Each entry is clipped
    separately and has its own optimizer state; Shift and Freeze parts don't affect it. An optax transformation is
    applied to each entry, and to the model, separately. The training losses by which clients are weighted, selected and
    reported exclude the part's loss.

    The entries that stay with the client are invisible to other parts, on clients and on the server: parameters,
    gradients, updates and the variables in contexts and outcomes don't contain them.

    Attributes:
        own: names of the entries that stay with the client, see `Personal`.
        shared: names of the entries that are averaged like the model. Other parts see them.
    """

    own: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()

    def personal(self, params: PyTree) -> PyTree:
        """Selects the entries that stay with the client."""
        return {name: name in self.own for name in params}

    @abc.abstractmethod
    def own_model(self, variables: Variables) -> Variables:
        """Returns the client's personal model, given its variables."""


class Adapt(Part, abc.ABC):
    """Changes the model by which a client classifies its own test rows; several compose in order.

    It runs in evaluation, for each client with such rows, and when a trained client's model is measured. Leaves that no
    client ever trains keep their values. Nothing that it does reaches the server or the next training.
    """

    @abc.abstractmethod
    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Maps the global model, with the leaves that stay with the client, to the client's personal model.

        `ctx` has the client, its rows (`fedjax_bal.data.over_rows`) and its memory, but in evaluation no broadcasts and
        nothing prepared.
        """


class Report(Part, abc.ABC):
    """Sends the server a report in addition to the update; each part's reports are summed over the cohort.

    Attributes:
        travels: whether the report counts as traffic; False if the server can compute it from the client's updates.
        by_client: whether the server gets each client's report instead of their sum, leaves `[G, L, ...]`, zeros where
            none was delivered. All of them must fit into memory.
    """

    travels: ClassVar[bool] = True
    by_client: ClassVar[bool] = False

    @abc.abstractmethod
    def report(self, outcome: Outcome) -> PyTree:
        """Returns arrays that are summed over clients; `outcome.memory` is the result of the part's `remember`.

        `outcome.ctx.memory` is the memory at the start of the round. A client that trains several times in a round, as
        with Astraea's mediators, sends only its last report.
        """


class Probe(Part, abc.ABC):
    """Measures a trained client for the selector on the host; each part's results are kept per client.

    The result goes to the host every round, so keep it small.

    Attributes:
        travels: whether the result counts as traffic; False if the server can compute it from the client's model.
    """

    travels: ClassVar[bool] = True

    @abc.abstractmethod
    def probe(self, outcome: Outcome) -> PyTree:
        """Returns small arrays, which the selector's `update` finds under the part's slot."""


class Weigh(Part, abc.ABC):
    """Weights the chains of a cohort; several compose in order, then the engine normalises once.

    Attributes:
        weighs_statistics: whether batch statistics are averaged with these weights, too.
        ignores_sizes: whether all chains weigh the same before any part weights them, regardless of their size.
    """

    weighs_statistics: ClassVar[bool] = True
    ignores_sizes: bool = False

    @abc.abstractmethod
    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Maps weights `Float[G]` to weights `Float[G]`.

        The first part receives each chain's number of samples; or 1, if a part ignores sizes or the selector draws
        clients by size. The weight of a chain that doesn't deliver is 0. A client of a chain delivers where
        `cohort.local_steps > 0`; after training, in `Aggregate`, where `losses` isn't nan.
        """


class Reduce(Part, abc.ABC):
    """Combines all chains' updates into one, in place of their weighted mean; a run has at most one Reduce.

    Attributes:
        unweighted: whether it ignores the weights, except for chains of weight 0, which are excluded.
    """

    unweighted: ClassVar[bool] = False

    needs_deltas = True

    @abc.abstractmethod
    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Maps leaves `[G, ...]` and weights `Float[G]`, 0 for excluded chains, to an update shaped like the model."""


class Step(Part, abc.ABC):
    """Changes the aggregated update before the server optimizer; several compose in order.

    `server.aggregate` has the clients' reports and losses. `server.variables` has the model at the beginning of the
    round, which the clients received unless rounds are asynchronous.
    """

    @abc.abstractmethod
    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the update, shaped like the model, and the part's new state.

        A part without state, or with unchanged state, returns `server.state`. `update` of a Server part sees the new
        state.
        """


class Refine(Part, abc.ABC):
    """Changes the global model after the server optimizer; several compose in order.

    Attributes:
        evaluation_only: whether only evaluation uses the changed model, and training continues with the unchanged one.
            Such a part runs before each evaluation, also after a round without updates, with a new key each time.
    """

    evaluation_only: bool = False

    @abc.abstractmethod
    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the model for the next round, or only for evaluation."""


class Closing(Part, abc.ABC):
    """Collects every client's report on the global model, without training, and changes the model to be evaluated.

    Such a closing round precedes every evaluation; training continues with the unchanged model. It costs a pass over
    all clients' rows: if that takes too long, evaluate less often. All clients take part, available or not: each
    receives the model and sends its report, which counts as traffic. Several parts compose in order, each with its own
    reports.
    """

    @abc.abstractmethod
    def closing_report(self, outcome: Outcome) -> PyTree:
        """Returns arrays that are summed over clients; `outcome.end` is the model to be evaluated, as received."""

    @abc.abstractmethod
    def close(self, key: Key, variables: Variables, reports: PyTree, server: ServerContext) -> Variables:
        """Computes the model to be evaluated from the sum of all clients' reports."""


class Server(Part, abc.ABC):
    """Keeps state on the server and broadcasts to the clients; each part has its own state and broadcast.

    Attributes:
        travels: whether the broadcast counts as traffic; False if clients could compute it from the received model.
        adds_reports: whether `update` only adds the sum of the reports to the state. In a round without updates it then
            adds zeros; the states of other parts are kept.
    """

    travels: ClassVar[bool] = True
    adds_reports: ClassVar[bool] = False

    @abc.abstractmethod
    def init_server(self, server: ServerContext) -> PyTree:
        """Returns the state before the first round; random values are drawn with `server.key`."""

    @abc.abstractmethod
    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the new state and the clients' `ctx.broadcast`, at the start of a round."""

    @abc.abstractmethod
    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the new state at the end of a round; `server.variables` is the updated global model."""

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Returns images or prototypes for a report or an analysis, after `first_round`; by default none."""
        return Exhibit()
