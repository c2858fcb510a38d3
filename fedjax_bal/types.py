"""The data that moves between host, engine and parts: plain, immutable tuples of arrays.

Letters in shapes: D examples, N clients, R rows, G chains, L clients of a chain, B batch, C classes, F features.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

Array = jax.Array
PyTree = Any
Key = jax.Array


class Variables(NamedTuple):
    """What a model consists of.

    Attributes:
        params: trainable parameters; the only thing that optimizers, penalties and control variates see.
        stats: running statistics of batch normalisation; an empty dict for a model without it.
    """

    params: PyTree
    stats: PyTree


class Outputs(NamedTuple):
    """What a forward pass yields.

    Attributes:
        logits: `Float[B, C]`.
        features: `Float[B, F]`, the input of the classifier.
        taps: attention taps, a tuple of feature maps `Float[B, H, W, K]`; empty where a model has none.
        norm_inputs: mean and biased variance of each batch normalisation's input, a tuple of
            `(Float[K], Float[K])`; empty where a model has none.
        projection: `Float[B, P]`, a projection of the features for contrastive losses; None where a model has none.
    """

    logits: Array
    features: Array
    taps: tuple[Array, ...] = ()
    norm_inputs: tuple[tuple[Array, Array], ...] = ()
    projection: Array | None = None


class Model(NamedTuple):
    """A network as pure functions.

    Attributes:
        init: `init(key) -> Variables`.
        apply: `apply(variables, images, *, train, key=None, real=None) -> (Outputs, Variables)` for normalised
            images `Float[B, H, W, K]`; `real: Bool[B]` marks the rows that may enter batch statistics.
        head: `head(params, features) -> logits`, the classifier alone.
        name: its name in the list of models.
        num_classes: C.
        input_shape: `(H, W, K)`.
        options: names and values of the options that it was built with, sorted by name.
    """

    init: Callable[[Key], Variables]
    apply: Callable[..., tuple[Outputs, Variables]]
    head: Callable[[PyTree, Array], Array]
    name: str
    num_classes: int
    input_shape: tuple[int, int, int]
    options: tuple[tuple[str, Any], ...] = ()


class Dataset(NamedTuple):
    """A labelled image data set in memory.

    Attributes:
        train_images: `UInt8[D, H, W, K]`.
        train_labels: `Int32[D]`.
        test_images: `UInt8[T, H, W, K]`.
        test_labels: `Int32[T]`.
        class_names: C names, in the order of the labels.
        train_clients: whose each training image is, the number of a writer or user, `Int32[D]`; None where the data set
            doesn't say.
        mean: K numbers, subtracted from pixels scaled to [0, 1], which `federate` normalises with; None for those of
            the training images. `load` fills them in.
        std: K numbers that the difference is divided by, or None in the same way.
    """

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any
    class_names: tuple[str, ...]
    train_clients: Any = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None


class Warp(NamedTuple):
    """How augmented copies differ from their originals: each one takes a map from a table, by its row and its number.

    Attributes:
        seed: decides which map each copy takes, `UInt32[]`.
        maps: `Float32[M, 2, 3]`, for `fedjax_bal.balance.warp`.
    """

    seed: Any
    maps: Any


class ClientTests(NamedTuple):
    """Rows on which clients are tested and nobody is trained: client i's are `rows[offsets[i]:offsets[i + 1]]`.

    Attributes:
        rows: `Int32[Q]`, row numbers into the federation's images and labels.
        offsets: `Int32[N + 1]`.
    """

    rows: Any
    offsets: Any


class Federation(NamedTuple):
    """A partitioned data set: every image stored once, a client is a span of row numbers (CSR).

    Client i owns `rows[offsets[i]:offsets[i + 1]]`, sorted by class.

    Attributes:
        images: `UInt8[D, H, W, K]` (or floats, taken as they are).
        labels: `Int32[D]`.
        rows: `Int32[R]`, row numbers into images and labels.
        offsets: `Int32[N + 1]`.
        class_counts: `Int32[N, C]`.
        copy: `Int32[R]`: 0 for an original, j > 0 for its j-th augmented copy.
        auxiliary: named row sets that the server holds, kept out of clients, each `Int32[A]`; the global model is
            evaluated on the one called `validation`, where there is one.
        mean: `Float32[K]`, subtracted from pixels scaled to [0, 1].
        std: `Float32[K]`, what the difference is divided by.
        warp: what augmented copies look like; None where there are none, or their pixels are among the images.
        tests: the clients' own test rows, kept out of training; None where they have none.
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

    @property
    def num_clients(self) -> int:
        """N."""
        return self.offsets.shape[-1] - 1

    @property
    def num_classes(self) -> int:
        """C."""
        return self.class_counts.shape[-1]


class Batch(NamedTuple):
    """A mini-batch.

    Attributes:
        images: `Float[B, H, W, K]`, normalised.
        labels: `Int32[B]`.
        rows: `Int32[B]`, row numbers into the federation's images.
        real: `Bool[B]`; False marks rows that must count for nothing in losses over labels.
        extra: `Bool[B]`, rows that a part has added to the client's own, none of them real: the model sees them, batch
            statistics too, and the cross-entropy doesn't. None where there are none.
    """

    images: Array
    labels: Array
    rows: Array
    real: Array
    extra: Array | None = None

    @property
    def seen(self) -> Array:
        """The rows that may enter batch statistics, `Bool[B]`; what is left is padding."""
        return self.real if self.extra is None else self.real | self.extra


class Context(NamedTuple):
    """What a part may know during one visit to one client.

    Attributes:
        round: the round number from 0, `Int32[]`.
        client: the client's id, `Int32[]`.
        class_counts: `Int32[C]`.
        size: the number of the client's rows, `Int32[]`.
        start: the `Variables` received.
        broadcast: what each server part sent, by slot.
        memory: what each memory part keeps for this client, by slot.
        prepared: what each prepare part computed before training, by slot.
        model: the `Model`.
        federation: the `Federation`, on the device.
        learning_rate: the local learning rate of this round, within a step that of the step, `Float[]`.
        momentum: the local optimizer's momentum, 0 where it has none.
        batch_size: B, a Python int.
        steps: the number of local steps of this visit, `Int32[]`.
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


class Outcome(NamedTuple):
    """What one visit to one client produced.

    Attributes:
        start: the `Variables` received.
        end: the `Variables` after local training.
        steps: the number of local steps taken, `Int32[]`.
        learning_rate_sum: the sum of the learning rate over these steps, `Float[]`.
        ctx: the visit's `Context`.
    """

    start: Variables
    end: Variables
    steps: Array
    learning_rate_sum: Array
    ctx: Context


class Cohort(NamedTuple):
    """The chains of a round as the server sees them, known before training.

    A chain counts with those of its clients that deliver.

    Attributes:
        sizes: samples behind each chain, `Float[G]`.
        class_counts: `Float[G, C]`.
        steps: local steps taken along each chain, `Int32[G]`.
        visit_steps: local steps of each visit, once for every pass, `Int32[G, L]`; 0 for a client that doesn't deliver.
        passes: how often a chain goes through its clients, a Python int.
        learning_rate: the local learning rate of this round, `Float[]`.
        momentum: the local optimizer's momentum, 0 where it has none.
        delivered: `Bool[G]`, whether anybody in the chain delivers.
        num_clients: N, a Python int.
        total_size: samples of the whole federation, `Float[]`.
        full_steps: what `visit_steps` amount to in steps at `learning_rate`, `Float[G, L]`, where the learning rate
            changes from step to step; None where it does not.
    """

    sizes: Array
    class_counts: Array
    steps: Array
    visit_steps: Array
    passes: int
    learning_rate: Array
    momentum: Any
    delivered: Array
    num_clients: int
    total_size: Array
    full_steps: Array | None = None


class Aggregate(NamedTuple):
    """What reaches the server at the end of a round.

    Attributes:
        delta: the reduced parameter change, like params.
        reports: the sum over the cohort of what each report part sent, by slot.
        weights: the normalised cohort weights, `Float[G]`.
        cohort: the `Cohort`.
    """

    delta: PyTree
    reports: Mapping[str, PyTree]
    weights: Array
    cohort: Cohort


class Plan(NamedTuple):
    """Who trains in a round, with whom, and who comes back.

    Attributes:
        clients: client ids, `Int32[G, L]`; N marks an empty place.
        delivered: `Bool[G, L]`, whether the client's update arrives; False for an empty place.
        limits: the most local steps that each client can take in a visit, `Int32[G, L]`; None for as many as it should.
        bound: the largest norm of a chain's update, beyond which it is scaled down, `Float32[]`, infinite for no bound;
            None where nobody asks how long updates are.
    """

    clients: Any
    delivered: Any
    limits: Any = None
    bound: Any = None


class Shapes(NamedTuple):
    """The sizes that a server part may need to set up its state.

    Attributes:
        num_clients: N.
        num_classes: C.
        num_features: F.
    """

    num_clients: int
    num_classes: int
    num_features: int


class State(NamedTuple):
    """All that is carried from round to round on the device.

    Attributes:
        variables: the global model.
        optimizer: the server optimizer's state.
        memory: per-client memory by slot, leaves `[N, ...]`.
        server: the server parts' state by slot.
    """

    variables: Variables
    optimizer: PyTree
    memory: Mapping[str, PyTree]
    server: Mapping[str, PyTree]


class Info(NamedTuple):
    """What a round reports; never carried.

    Attributes:
        train_loss: mean training loss over the steps of the clients that delivered, `Float[]`; nan where nobody did.
        update_diversity: mean squared distance of the delivered models from their mean, `Float[]` (ReBaFL eq. 24); nan
            where nobody asked for it.
        local_accuracy: share of the delivering clients' rows that each one's own trained model classifies correctly,
            `Float[]`; 0 where nobody asked for it, nan where nobody delivered.
        local_test_accuracy: mean accuracy of the delivering clients' own trained models on test images, `Float[]`;
            0 in rounds that aren't evaluated, nan where nobody asked for it or delivered.
        steps: local steps of each visit, `Int32[G, L]`.
        broken: what is wrong with what each client delivered, `Int32[G, L]`, 0 for nothing, 1 where it is not finite, 2
            where it is of an earlier round; in each chain only of the first with which something is wrong.
        model_finite: whether the new global model is finite, `Bool[]`.
        losses: mean training loss of each visit, `Float[G, L]`; nan where nobody delivered.
        probes: what each probe part found out about each client that delivered, by slot, leaves `[G, L, ...]`.
        own_hits: how many of its own test rows each client's own trained model classifies correctly, `Int32[G, L]`; 0
            in rounds that aren't evaluated, and without test rows.
        norms: the norm of the parameters that each visit of the first pass hands back, `Float[G, L]`; where updates
            may be scaled down, that of its chain's update before it is. Where nothing is delivered it means nothing.
    """

    train_loss: Array
    update_diversity: Array
    local_accuracy: Array
    local_test_accuracy: Array
    steps: Array
    broken: Array
    model_finite: Array
    losses: Array
    probes: Mapping[str, PyTree]
    own_hits: Array
    norms: Array


class TestResult(NamedTuple):
    """The global model on the test set.

    Attributes:
        confusion: test images by true and predicted class, `Int32[C, C]`.
        loss: mean cross-entropy in nats, `Float[]`.
        validation: the same of the validation rows; None where there are none.
        client_hits: how many of each client's test rows it classifies correctly, `Int32[N]`; None where there are none.
    """

    confusion: Array
    loss: Array
    validation: "TestResult | None" = None
    client_hits: Array | None = None


def size_in_bytes(tree: PyTree) -> int:
    """The size of all arrays in a tree, or of their shapes.

    Example:
        >>> import numpy as np
        >>> size_in_bytes({"w": np.zeros((2, 3), np.float32)})
        24
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
