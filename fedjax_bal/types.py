"""The data that host, engine and parts exchange: plain, immutable tuples of arrays.

Letters in shapes: D examples, N clients, R rows, G chains, L clients of a chain, B batch, C classes, F features.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any
Key = jax.Array


class Variables(NamedTuple):
    """A model's trainable parameters and running statistics.

    Attributes:
        params: trainable parameters; optimizers, penalties and control variates see nothing else.
        stats: running statistics of batch normalisation; an empty dict for a model without it.
    """

    params: PyTree
    stats: PyTree


class Outputs(NamedTuple):
    """The results of a forward pass.

    Attributes:
        logits: `Float[B, C]`.
        features: `Float[B, F]`, the input of the classifier.
        taps: attention taps, feature maps `Float[B, H, W, K]`.
        norm_inputs: mean and biased variance, `Float[K]`, of each batch normalisation's input.
        projection: `Float[B, P]`, a projection of the features for contrastive losses; None if the model has none.
        levels: a residual network's feature maps before their activation, `Float[B, H, W, K]`: of the first layer and
            of each stage. Empty for other models.
    """

    logits: Array
    features: Array
    taps: tuple[Array, ...] = ()
    norm_inputs: tuple[tuple[Array, Array], ...] = ()
    projection: Array | None = None
    levels: tuple[Array, ...] = ()


class Model(NamedTuple):
    """A network as pure functions.

    Attributes:
        init: `init(key) -> Variables`.
        apply: `apply(variables, images, *, train, key=None, real=None) -> (Outputs, Variables)` for inputs `[B, ...]`,
            normalised images for instance; `real: Bool[B]` marks the rows that may enter batch statistics.
        head: `head(params, features) -> logits`, the classifier alone.
        name: its name in the list of models.
        num_classes: C.
        input_shape: the shape of one input, `(H, W, K)` for an image.
        options: names and values of the options that it was built with, sorted by name.
        input_dtype: "float32", or "int32" for a network that takes token ids.
        classifier: name of the classifier in the network's own parameters, where it isn't "head".
        vocabulary: the number of token ids V that it takes, 0 to V - 1; None if it takes other inputs, or V is unknown.
        torch_names: of a model from a PyTorch module, the names of its arrays here and there, such as
            `("params.head.kernel", "fc.weight")`; empty for other models.
    """

    init: Callable[[Key], Variables]
    apply: Callable[..., tuple[Outputs, Variables]]
    head: Callable[[PyTree, Array], Array]
    name: str
    num_classes: int
    input_shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    input_dtype: str = "float32"
    classifier: str = "head"
    vocabulary: int | None = None
    torch_names: tuple[tuple[str, str], ...] = ()


class Dataset(NamedTuple):
    """A labelled data set in memory.

    Attributes:
        train_images: `UInt8[D, H, W, K]`, or other inputs `[D, ...]`: floats, or integers, which are token ids.
        train_labels: `Int32[D]`.
        test_images: the same, `[T, ...]`.
        test_labels: `Int32[T]`.
        class_names: C names, in the order of the labels.
        train_clients: number of the writer or user of each training image, `Int32[D]`; None if unknown.
        mean: K numbers that `federate` subtracts from pixels scaled to [0, 1], or from other numbers, K on their last
            axis; None for those of the training images. `load` fills them in.
        std: K divisors of the difference; None for the training images' deviations.
        test_share: the share of each class of the given rows that was held out as the test set; None if a test set was
            given, or whole users were held out.
        test_users: how many users have test rows only, where test rows were held out; they are no training clients.
        input_names: F names of a table's columns, or of categories (`sex=F`), in the order of `train_images`; None for
            other inputs.
        client_names: names of the writers or users, in the order of their numbers: first those with training rows, then
            those with test rows only; None if unknown.
        test_clients: number of the writer or user of each test image, `Int32[T]`; None if unknown.
        official_order: whether rows are in the order of their files; those of TensorFlow Datasets are shuffled.
    """

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any
    class_names: tuple[str, ...]
    train_clients: Any = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    test_share: float | None = None
    test_users: int = 0
    input_names: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None
    test_clients: Any = None
    official_order: bool = True

    def __repr__(self) -> str:
        """Summarises the data set, whose arrays would fill pages.

        Example:
            >>> import numpy as np
            >>> rows, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
            >>> Dataset(rows, labels, rows[:2], labels[:2], ("no", "yes"), np.array([0, 0, 1, 1]))
            Dataset(inputs=float32[2], train=4, test=2, classes=2 (no, yes), clients=2)
        """
        if not hasattr(self.train_images, "dtype"):  # a tree of something else, such as axes for `jax.vmap`
            return f"Dataset{tuple(self)}"
        clients = "None" if self.train_clients is None else len(np.unique(self.train_clients))
        return (
            f"Dataset(inputs={self.train_images.dtype}{list(self.train_images.shape[1:])}"
            f"{_in_brief(self.input_names)}, train={len(self.train_images)}, test={len(self.test_images)}, "
            f"classes={len(self.class_names)}{_in_brief(self.class_names)}, "
            f"clients={clients}{_in_brief(self.client_names)})"
        )


class Warp(NamedTuple):
    """The affine maps of augmented copies: `seed`, `UInt32[]`, and a copy's row and number select its map.

    The table `maps` is `Float32[M, 2, 3]`, for `fedjax_bal.balance.warp`.
    """

    seed: Any
    maps: Any


class ClientTests(NamedTuple):
    """Clients' own test rows, kept out of training: client i's are `rows[offsets[i]:offsets[i + 1]]`.

    `rows`, `Int32[Q]`, are row numbers into the federation's images and labels; `offsets` are `Int32[N + 1]`.
    """

    rows: Any
    offsets: Any

    @property
    def sizes(self) -> Any:
        """The number of each client's rows, `Int32[N]`."""
        return self.offsets[..., 1:] - self.offsets[..., :-1]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Names:
    """The names that a data set gives its classes, the columns of its inputs and its clients; None for unknown ones.

    In a pytree they are static. The engine leaves them on the host, so that no program depends on them.
    """

    classes: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None
    clients: tuple[str, ...] | None = None


class Federation(NamedTuple):
    """A partitioned data set in CSR form: every image is stored once, and a client is a span of row numbers.

    Client i owns `rows[offsets[i]:offsets[i + 1]]`, sorted by class.

    Attributes:
        images: `UInt8[D, H, W, K]`; or `Float[D, ...]`; or token ids `Int32[D, ...]`, which are not normalised.
        labels: `Int32[D]`.
        rows: `Int32[R]`, row numbers into images and labels.
        offsets: `Int32[N + 1]`.
        class_counts: `Int32[N, C]`.
        copy: `Int32[R]`: 0 for an original, j > 0 for its j-th augmented copy.
        auxiliary: named sets of rows of the server, which no client owns, each `Int32[A]`; the global model is
            evaluated on the set `validation`, if there is one.
        mean: `Float32[K]`, subtracted from pixels scaled to [0, 1], or from floats, K on their last axis.
        std: `Float32[K]`, the divisor of the difference.
        warp: affine maps of augmented copies; None without copies, or if their pixels are stored among the images.
        tests: the clients' own test rows; None if they have none.
        names: names of classes, inputs and clients; None if none of them is known.
    """

    images: Any
    labels: Any
    rows: Any
    offsets: Any
    class_counts: Any
    copy: Any
    auxiliary: Mapping[str, Any]
    mean: Any
    std: Any
    warp: Warp | None = None
    tests: ClientTests | None = None
    names: Names | None = None

    def __repr__(self) -> str:
        """Summarises the federation, whose images would fill pages.

        Example:
            >>> import numpy as np
            >>> from fedjax_bal import data
            >>> data.federate(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]), [[0, 1], [2, 3]], num_classes=2)
            Federation(inputs=float32[4, 2], clients=2, rows=4, classes=2, auxiliary=[])
        """
        if not hasattr(self.images, "dtype"):  # a tree of something else, such as axes for `jax.vmap`
            return f"Federation{tuple(self)}"
        shown = {
            "inputs": f"{self.images.dtype}{list(self.images.shape)}{_in_brief(self.input_names)}",
            "clients": f"{self.num_clients}{_in_brief(self.client_names)}",
            "rows": self.rows.shape[-1],
            "classes": f"{self.num_classes}{_in_brief(self.class_names)}",
            "auxiliary": [*self.auxiliary],
        }
        if self.tests is not None:
            shown["tests"] = self.tests.rows.shape[-1]
        return f"Federation({', '.join(f'{key}={value}' for key, value in shown.items())})"

    @property
    def num_clients(self) -> int:
        """N."""
        return self.offsets.shape[-1] - 1

    @property
    def sizes(self) -> Any:
        """The number of each client's rows, copies included, `Int32[N]`."""
        return self.offsets[..., 1:] - self.offsets[..., :-1]

    @property
    def num_classes(self) -> int:
        """C."""
        return self.class_counts.shape[-1]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """C names, in the order of the labels; None if unknown."""
        return None if self.names is None else self.names.classes

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """F names of the columns of a table; None for other inputs."""
        return None if self.names is None else self.names.inputs

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """N names, in the order of the clients; None if unknown."""
        return None if self.names is None else self.names.clients

    def client_name(self, client: int) -> str:
        """Returns the name of a client, or its number if the clients have no names."""
        return str(client) if self.client_names is None else self.client_names[client]

    def without_names(self) -> "Federation":
        """Returns the federation as programs take it: they neither read names nor depend on them."""
        return self._replace(names=None)


def _in_brief(names: Sequence[str] | None) -> str:
    """Lists the first of some names in parentheses."""
    if names is None or not len(names):
        return ""
    return f" ({', '.join(map(str, names[:3]))}{', ...' if len(names) > 3 else ''})"


class Batch(NamedTuple):
    """A mini-batch.

    Attributes:
        images: `Float[B, H, W, K]`, or other inputs `[B, ...]`, normalised unless they are token ids.
        labels: `Int32[B]`.
        rows: `Int32[B]`, row numbers into the federation's images.
        real: `Bool[B]`; False marks rows that losses over labels must ignore.
        extra: `Bool[B]`, rows that a part has added to the client's own, with `real` False: the model and batch
            statistics see them, the cross-entropy doesn't. None for no such rows.
    """

    images: Array
    labels: Array
    rows: Array
    real: Array
    extra: Array | None = None

    @property
    def seen(self) -> Array:
        """Rows that may enter batch statistics, `Bool[B]`: all but padding."""
        return self.real if self.extra is None else self.real | self.extra


class Context(NamedTuple):
    """Everything that a part may read during one client's local training.

    Attributes:
        round: the round number from 0, `Int32[]`.
        client: the client's id, `Int32[]`.
        class_counts: of the client's rows, `Int32[C]`; within a local step, of what Draw parts draw on average, with
            the labels that Batches parts give.
        size: the number of the client's rows, `Int32[]`.
        start: the variables received, but the client's own values of leaves that stay with it (see `parts.Personal`).
        broadcast: the value that each Server part sent, by slot.
        memory: the value that each Memory part keeps for this client, by slot.
        prepared: the value that each Prepare part computed before training, by slot.
        model: the model.
        federation: the federation, on the device.
        learning_rate: the local learning rate of this round, or, within a local step, of that step, `Float[]`.
            None, as the momentum, for an optax transformation, from which it can't be read.
        momentum: the local optimizer's momentum, 0 if it has none.
        batch_size: B, a Python int.
        steps: the number of local steps that the client takes, `Int32[]`.
        max_size: rows of the largest client, a Python int; None unless loops have a static length.
        row_length: rows of the largest client, rounded up to whole batches, a Python int: the length of an array with
            an entry for each row of a client.
        steps_state: the value that each Steps part carries, by slot; empty before training.
        trained: for each leaf of the parameters whether this local step trains it, as a Python bool or `Bool[]`; None
            if all leaves are trained, and outside of local steps.
        shift: how far a Shift part has moved the parameters in this local step, shaped like them; None without such a
            part, in the pass that computes the gradient for it, and outside of local steps.
    """

    round: Array
    client: Array
    class_counts: Array
    size: Array
    start: Variables
    broadcast: Mapping[str, PyTree]
    memory: Mapping[str, PyTree]
    prepared: Mapping[str, PyTree]
    model: Model
    federation: Federation
    learning_rate: Array
    momentum: Any
    batch_size: int
    steps: Any = None
    max_size: int | None = None
    row_length: int = 0
    steps_state: Mapping[str, PyTree] = {}
    trained: PyTree = None
    shift: PyTree = None

    def only_trained(self, tree: PyTree) -> PyTree:
        """Sets the leaves that this local step doesn't train to zero, in a tree like the parameters."""
        if self.trained is None:
            return tree
        return jax.tree.map(lambda on, leaf: jnp.where(on, leaf, jnp.zeros_like(leaf)), self.trained, tree)


class Outcome(NamedTuple):
    """The result of one client's local training.

    Attributes:
        start: the variables received.
        end: the variables after local training.
        steps: the number of local steps taken, `Int32[]`.
        learning_rate_sum: the sum of the learning rate over these steps, `Float[]`.
        ctx: the context of the local training.
        memory: the result of the part's `remember`, for its `report`; None for a part without memory.
        trained: the variables after local training, before Deliver parts changed them; None only in an outcome that the
            engine hasn't made.
    """

    start: Variables
    end: Variables
    steps: Array
    learning_rate_sum: Array
    ctx: Context
    memory: PyTree = None
    trained: Variables | None = None


class Cohort(NamedTuple):
    """The chains of a round as the server sees them before training; clients that don't deliver don't count.

    Attributes:
        sizes: number of samples of each chain, `Float[G]`.
        class_counts: `Float[G, C]`.
        steps: local steps taken along each chain, `Int32[G]`.
        local_steps: local steps of each client in one pass, `Int32[G, L]`; 0 for a client that doesn't deliver.
        passes: passes of a chain over its clients, a Python int.
        learning_rate: the local learning rate of this round, `Float[]`.
        momentum: the local optimizer's momentum, 0 if it has none.
        delivered: `Bool[G]`, whether any client of the chain delivers.
        num_clients: number of clients that can take a local step, `Int32[]`; those without rows can't, nor those with
            less than a batch if short batches are dropped.
        total_size: samples of these clients, `Float[]`.
        full_steps: `local_steps` expressed in steps at `learning_rate`, `Float[G, L]`, if the learning rate changes
            from step to step; otherwise None.
        clients: ids of each chain's clients, `Int32[G, L]`; `federation.num_clients` marks an empty place.
        staleness: the number of rounds since each chain received its model, `Int32[G]`; None in synchronous rounds.
    """

    sizes: Array
    class_counts: Array
    steps: Array
    local_steps: Array
    passes: int
    learning_rate: Array
    momentum: Any
    delivered: Array
    num_clients: Array
    total_size: Array
    full_steps: Array | None = None
    clients: Any = None
    staleness: Array | None = None


class Aggregate(NamedTuple):
    """The aggregated result of a round, as server parts receive it.

    Attributes:
        delta: the reduced parameter change, like params; for Reduce parts the weighted mean.
        reports: the sum of each report part's reports over the cohort, by slot; or all of them, leaves `[G, L, ...]`,
            if the part is `by_client`.
        weights: the normalised cohort weights, `Float[G]`.
        cohort: the cohort.
        losses: mean training loss of each client, `Float[G, L]`; nan if it didn't deliver.
        deltas: every chain's parameter change, leaves `[G, ...]`; None if no part has `needs_deltas`.
    """

    delta: PyTree
    reports: Mapping[str, PyTree]
    weights: Array
    cohort: Cohort
    losses: Any = None
    deltas: PyTree = None


class ServerContext(NamedTuple):
    """Everything that a part may read on the server.

    Attributes:
        round: the round number from 0, `Int32[]`.
        state: the part's own state on the server; None if it has none.
        variables: the global model: the broadcast one and, from the server optimizer's step on, the new one.
        aggregate: the `Aggregate`; None until clients have trained, and in evaluation.
        cohort: the `Cohort`; None while the round's broadcast is made, and in evaluation.
        model: the model.
        federation: the federation; of its rows, a part may read only the auxiliary ones.
        key: the part's random key in `init_server`, and its key of this round in `reduce` and `step`; None elsewhere.
    """

    round: Array
    state: PyTree
    variables: Variables
    aggregate: Any
    cohort: Any
    model: Model
    federation: Federation
    key: Any = None


class Exhibit(NamedTuple):
    """A method's knowledge of the clients' images, for reports and privacy attacks.

    Attributes:
        images: generated images of the first classes, normalised, `Float[c, S, H, W, K]`, or None.
        prototypes: a feature vector of each class `Float[C, F]`, and which of them are known, `Bool[C]`, or None.
    """

    images: Array | None = None
    prototypes: tuple[Array, Array] | None = None


class Plan(NamedTuple):
    """The chains of a round, and the clients that deliver.

    Attributes:
        clients: client ids, `Int32[G, L]`; N marks an empty place.
        delivered: `Bool[G, L]`, whether the client's update arrives; False for an empty place.
        limits: the most local steps that each client can take in one pass, `Int32[G, L]`; None for no limits.
        staleness: the number of rounds since the client's chain received its model, `Int32[G, L]`, 0 for a client that
            doesn't deliver; None in synchronous rounds, in which all clients receive the current model.
    """

    clients: Any
    delivered: Any
    limits: Any = None
    staleness: Any = None


class EvaluationResult(NamedTuple):
    """The global model's results on the test set.

    Attributes:
        confusion: test images by true and predicted class, `Int32[C, C]`.
        loss: mean cross-entropy in nats, `Float[]`.
        validation: the same for the validation rows; None if there are none.
        client_hits: number of each client's test rows that it classifies correctly, by true class, `Int32[N, C]`; for
            very many clients in all classes together, `Int32[N, 1]`. None without such rows.
    """

    confusion: Array
    loss: Array
    validation: "EvaluationResult | None" = None
    client_hits: Array | None = None


def size_in_bytes(tree: PyTree) -> int:
    """Computes the size in bytes of all arrays, or of their shapes, in a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


for _kind in (Variables, Outputs, Batch, Plan, ClientTests, Warp, EvaluationResult, Aggregate, Cohort):
    # Programs whose arguments or results have these types can be written to a file by `jax.export`.
    jax.export.register_namedtuple_serialization(_kind, serialized_name=f"fedjax_bal.{_kind.__name__}")
