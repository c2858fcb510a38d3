"""Evaluation: on the test set, and on rows that are held out of training (validation rows, clients' test rows)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_bal.data import checked_examples, normalised, over_rows
from fedjax_bal.engine.device.layout import CLIENTS, Layout
from fedjax_bal.engine.device.leaves import personal_model
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import put, take
from fedjax_bal.types import (
    Array,
    Batch,
    ClientTests,
    Cohort,
    EvaluationResult,
    Federation,
    Model,
    Outcome,
    Outputs,
    PyTree,
    Variables,
)

TEST_BATCH = 500  # test images per forward pass; larger batches gain nothing on a CPU and take more memory
_MOST_CELLS = 2**20  # numbers by client and class that an evaluated round returns
VALIDATION = "validation"
"""The name of the auxiliary set on which the global model is evaluated."""


class TestSet(NamedTuple):
    """The test images in batches, padded; leaves `[batches, TEST_BATCH, ...]`."""

    __test__ = False  # pytest would collect a class of this name

    images: Any
    labels: Any
    real: Any


def in_batches(images: Any, labels: Any, size: int = TEST_BATCH, name: str = "test ") -> TestSet:
    """Cuts a test set, `[T, ...]` and `[T]`, into batches of equal size; padding in the last one isn't `real`.

    Raises ValueError for arrays that `federate` would refuse; `name` precedes "images" in the message.
    """
    images, labels = checked_examples(images, labels, name)
    size = min(size, len(images))
    batches = -(-len(images) // size)
    index = np.arange(batches * size)
    inside = np.minimum(index, len(images) - 1).reshape(batches, size)
    return TestSet(images[inside], labels[inside], (index < len(images)).reshape(batches, size))


def padded(test: TestSet, multiple: int) -> TestSet:
    """Adds empty batches until their number is a multiple of `multiple`; works on the host and while tracing."""
    short = -len(test.labels) % multiple
    if not short:
        return test
    pad = np.pad if isinstance(test.labels, np.ndarray) else jnp.pad
    return TestSet(*(pad(leaf, [(0, short)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in test))


def some_images(test: TestSet, count: int, total: int, size: int = TEST_BATCH) -> TestSet:
    """Draws a test set of `count` of the `total` real images, the same in every run."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), test)
    size = min(size, count)
    batches = -(-count // size)
    index = np.arange(batches * size)
    # Random, as test sets are often ordered: by class, or with the classes in turn, which a regular stride could hit.
    rows = np.random.default_rng(0).permutation(total)[np.minimum(index, count - 1)]
    fold = lambda leaf: jnp.asarray(leaf)[rows].reshape(batches, size, *leaf.shape[1:])
    return TestSet(fold(flat.images), fold(flat.labels), (index < count).reshape(batches, size))


def evaluate(
    model: Model, variables: Variables, test: TestSet, mean: Array, std: Array, layout: Layout | None = None
) -> EvaluationResult:
    """Computes the confusion matrix and loss of a model; each device of the layout handles its share of the batches.

    Images are normalised with `mean` and `std`, `Float[K]`.
    """
    if layout is None or layout.devices == 1:
        confusion, loss, count = _totals(model, variables, test, mean, std)
        return EvaluationResult(confusion, loss / count)

    def on_each(test: TestSet, variables: Variables, mean: Array, std: Array) -> tuple[Array, Array, Array]:
        return lax.psum(_totals(model, variables, test, mean, std), CLIENTS)

    spread = layout.spread(on_each, True, False, False, False)
    confusion, loss, count = spread(padded(test, layout.devices), variables, mean, std)
    return EvaluationResult(confusion, loss / count)


def _totals(model: Model, variables: Variables, test: TestSet, mean: Array, std: Array) -> tuple[Array, Array, Array]:
    """Computes the confusion matrix, the summed loss and the number of images."""

    def add_batch(sums: tuple[Array, Array], batch: TestSet) -> tuple[tuple[Array, Array], None]:
        outputs, _ = model.apply(variables, normalised(batch.images, mean, std), train=False)
        return _tallied(sums, outputs.logits, batch.labels, batch.real), None

    (confusion, loss), _ = lax.scan(add_batch, _no_tally(model), test)
    return confusion, loss, test.real.sum()


def _no_tally(model: Model) -> tuple[Array, Array]:
    return jnp.zeros((model.num_classes, model.num_classes), jnp.int32), jnp.zeros(())


def _tallied(sums: tuple[Array, Array], logits: Array, labels: Array, real: Array) -> tuple[Array, Array]:
    """Adds a batch to the confusion matrix, `Int32[C, C]` by true and predicted class, and to the summed loss."""
    confusion, loss = sums
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    confusion = confusion.at[labels, logits.argmax(-1)].add(real.astype(jnp.int32))
    return confusion, loss + jnp.where(real, losses, 0.0).sum()


def evaluate_held_out(
    model: Model, variables: Variables, federation: Federation, layout: Layout
) -> tuple[EvaluationResult | None, Array | None]:
    """Evaluates the global model on the validation rows and the clients' test rows; None if there are no such rows."""
    validation = clients = None
    if VALIDATION in federation.auxiliary:
        validation = evaluate_rows(model, variables, federation, federation.auxiliary[VALIDATION], layout)
    if federation.tests is not None:
        clients = hits_by_client(model, variables, federation, federation.tests, layout)
    return validation, clients


def evaluate_rows(
    model: Model, variables: Variables, federation: Federation, rows: Array, layout: Layout
) -> EvaluationResult:
    """Computes the confusion matrix and loss of a model on rows of a federation, `Int32[A]`, at least one."""

    def add(sums: PyTree, places: Array, real: Array, variables: Variables, rows: Array, store: Federation) -> PyTree:
        outputs, labels = _outputs(model, variables, store, take(rows, places))
        return _tallied(sums, outputs.logits, labels, real)

    confusion, loss = fold_in_batches(add, _no_tally(model), len(rows), layout, variables, rows, federation)
    return EvaluationResult(confusion, loss / len(rows))


def client_hits_shape(federation: Federation) -> tuple[int, int]:
    """Returns the shape of the clients' hits: by client and true class, or `[N, 1]` if these would be too many."""
    clients = federation.num_clients
    classes = federation.num_classes
    return clients, classes if clients * classes <= _MOST_CELLS else 1


def hits_by_client(
    model: Model, variables: Variables, federation: Federation, tests: ClientTests, layout: Layout
) -> Array:
    """Counts the test rows of each client that one model classifies correctly, see `client_hits_shape`."""

    def add(
        hits: Array, places: Array, real: Array, variables: Variables, tests: ClientTests, store: Federation
    ) -> Array:
        outputs, labels = _outputs(model, variables, store, take(tests.rows, places))
        owners = jnp.searchsorted(tests.offsets, places, side="right") - 1
        correct = real & (outputs.logits.argmax(-1) == labels)
        # The owner of padding after the last row is N, which `drop` ignores.
        return hits.at[owners, _columns(labels, hits)].add(correct.astype(jnp.int32), mode="drop")

    none = jnp.zeros(client_hits_shape(federation), jnp.int32)
    return fold_in_batches(add, none, len(tests.rows), layout, variables, tests, federation)


def hits_of_personal_models(
    setting: Setting, federation: Federation, model_of: Callable[..., Variables], *given: Any
) -> Array:
    """Counts each client's own test rows that its model classifies correctly, see `client_hits_shape`.

    A client's model is `model_of(setting, federation, client, *given)`.
    """

    def add(hits: Array, clients: Array, real: Array, setting: Setting, store: Federation, *given: Any) -> Array:
        def of_client(hits: Array, client: Array) -> tuple[Array, None]:
            model = model_of(setting, store, client, *given)
            correct = _hits_of_client(setting.model, model, store, client, setting.batch_size, hits[0])
            return put(hits, client, correct), None

        # One client after another, as each has its own model: together they would take N times the memory of one.
        return lax.scan(of_client, hits, jnp.where(real, clients, federation.num_clients))[0]

    none = jnp.zeros(client_hits_shape(federation), jnp.int32)
    return fold_in_batches(add, none, len(none), setting.layout, setting, federation, *given)


def _columns(labels: Array, hits: Array) -> Array:
    """Returns the column of `hits`, `[..., C]` or `[..., 1]`, in which each label counts."""
    return jnp.minimum(labels, hits.shape[-1] - 1)


def _hits_of_client(
    model: Model, variables: Variables, federation: Federation, client: Array, size: int, like: Array
) -> Array:
    """Counts a client's test rows that a model classifies correctly, `size` rows at a time.

    The result is shaped as `like`: `Int32[C]`, by true class, or `Int32[1]`.
    """
    none = jnp.zeros_like(like)
    if federation.tests is None:
        return none
    rows, offsets = federation.tests
    first, end = (take(offsets, client + shift) for shift in (0, 1))

    def add(index: Array, hits: Array) -> Array:
        places = first + index * size + jnp.arange(size)
        outputs, labels = _outputs(model, variables, federation, take(rows, places))
        correct = (places < end) & (outputs.logits.argmax(-1) == labels)
        return hits.at[_columns(labels, hits)].add(correct.astype(hits.dtype))

    return lax.fori_loop(0, -(-(end - first) // size), add, none)


def _outputs(model: Model, variables: Variables, federation: Federation, rows: Array) -> tuple[Outputs, Array]:
    """Returns a model's outputs for some rows, and their labels."""
    images = take(federation.images, rows)
    outputs, _ = model.apply(variables, normalised(images, federation.mean, federation.std), train=False)
    return outputs, take(federation.labels, rows)


def fold_in_batches(add: Callable[..., PyTree], zeros: PyTree, count: int, layout: Layout, *given: Any) -> PyTree:
    """Folds `add(sums, places, real, *given)` over the places 0 to count - 1, a batch at a time, on all devices."""
    size = min(TEST_BATCH, count)
    batches = -(-count // size)

    def total(numbers: Array, *given: Any) -> PyTree:
        def add_batch(sums: PyTree, number: Array) -> tuple[PyTree, None]:
            places = number * size + jnp.arange(size)
            return add(sums, places, places < count, *given), None

        return lax.scan(add_batch, zeros, numbers)[0]

    if layout.devices == 1:
        return total(jnp.arange(batches), *given)
    # Batches beyond the last one contain only padding, and make the devices' shares equal.
    numbers = jnp.arange(batches + -batches % layout.devices)
    on_each = lambda numbers, *given: lax.psum(total(numbers, *given), CLIENTS)
    return layout.spread(on_each, True, *[False] * len(given))(numbers, *given)


class LocalTest(NamedTuple):
    """Test images for the clients' own models, or None, and whether the models are measured this round, `Bool[]`."""

    test: TestSet | None
    due: Array


class ClientModel(NamedTuple):
    """A client's model after local training, to be measured.

    Attributes:
        outcome: the outcome of its local training.
        test: the test images; None if no metric needs them.
    """

    outcome: Outcome
    test: TestSet | None

    def hits_on_own_rows(self) -> Array:
        """Counts the client's training rows that its model classifies correctly, `Int32[]`."""
        outcome = self.outcome

        def add(total: Array, batch: Batch) -> Array:
            outputs, _ = outcome.ctx.model.apply(outcome.end, batch.images, train=False)
            return total + (batch.real & (outputs.logits.argmax(-1) == batch.labels)).sum()

        return over_rows(add, jnp.zeros((), jnp.int32), outcome.ctx)

    def hits_on_test_images(self) -> Array:
        """Counts the test images that the client's model classifies correctly, `Int32[]`; 0 if it took no step."""
        ctx = self.outcome.ctx
        correct = jnp.zeros((), jnp.int32)
        if self.test is not None:
            mean, std = ctx.federation.mean, ctx.federation.std
            correct = jnp.trace(_totals(ctx.model, self.outcome.end, self.test, mean, std)[0])
        return jnp.where(self.outcome.steps > 0, correct, 0)

    def hits_on_own_test_rows(self) -> Array:
        """Counts the client's test rows that its model classifies correctly, `Int32[]`."""
        ctx = self.outcome.ctx
        total = jnp.zeros(1, jnp.int32)
        return _hits_of_client(ctx.model, self.outcome.end, ctx.federation, ctx.client, ctx.batch_size, total)[0]


def zero_metrics(setting: Setting, local_test: LocalTest | None) -> dict[str, Array]:
    """Makes zeros for the metrics that a round measures, by name; empty if `local_test` is None."""
    if local_test is None:
        return {}
    return {measured.name: jnp.zeros((), measured.dtype) for measured in setting.measured}


def measure(setting: Setting, local_test: LocalTest | None, outcome: Outcome, delivered: Array) -> dict[str, Array]:
    """Measures the metrics of one client, by name; zeros if it didn't deliver or measurement isn't due.

    They are of the model that the client uses: as it trained it, before Deliver parts changed it.
    """
    zeros = zero_metrics(setting, local_test)
    if local_test is None or not zeros:
        return zeros

    def values() -> dict[str, Array]:
        used = personal_model(setting, outcome.trained or outcome.end, outcome.ctx)
        trained = ClientModel(outcome._replace(end=used), local_test.test)
        return {measured.name: measured.of_client(trained) for measured in setting.measured}

    # `due` has no client axis, so that under `vmap` this stays a branch, and other rounds don't pay for the test.
    shown = lax.cond(local_test.due, values, lambda: zeros)
    return {name: jnp.where(delivered, value, zeros[name]) for name, value in shown.items()}


def summarise_cohort(setting: Setting, cohort: Cohort, values: dict[str, Array]) -> dict[str, Array]:
    """Computes the round's reported values from its clients' metrics, `[G, L]` by name."""
    return {
        measured.name: measured.of_cohort(values[measured.name], cohort, setting.evaluation)
        for measured in setting.measured
        if measured.name in values
    }
