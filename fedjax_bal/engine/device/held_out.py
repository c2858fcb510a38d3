"""Evaluation on rows held out of training: the validation rows, and the clients' own test rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_bal.data import normalised
from fedjax_bal.engine.device.evaluation import CHUNK
from fedjax_bal.engine.device.layout import CLIENTS, Layout
from fedjax_bal.engine.device.personal import own_model, with_leaves
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.types import (
    Array,
    ClientTests,
    EvaluationResult,
    Federation,
    Model,
    Outcome,
    Outputs,
    PyTree,
    Variables,
)

VALIDATION = "validation"
"""The name of the auxiliary set on which the global model is evaluated."""


def evaluate_held_out(
    model: Model, variables: Variables, federation: Federation, layout: Layout | None = None
) -> tuple[EvaluationResult | None, Array | None]:
    """Evaluates the global model on the validation rows and the clients' test rows; None if there are no such rows."""
    validation = clients = None
    if VALIDATION in federation.auxiliary:
        validation = evaluate_rows(model, variables, federation, federation.auxiliary[VALIDATION], layout)
    if federation.tests is not None:
        clients = hits_by_client(model, variables, federation, federation.tests, layout)
    return validation, clients


def evaluate_rows(
    model: Model, variables: Variables, federation: Federation, rows: Array, layout: Layout | None = None
) -> EvaluationResult:
    """Confusion matrix and loss of a model on some rows of a federation, `Int32[A]`, at least one."""
    classes = model.num_classes

    def add(sums: PyTree, places: Array, real: Array, variables: Variables, rows: Array, store: Federation) -> PyTree:
        confusion, loss = sums
        outputs, labels = _seen(model, variables, store, rows.at[places].get(mode="clip"))
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels)
        confusion = confusion.at[labels, outputs.logits.argmax(-1)].add(real.astype(jnp.int32))
        return confusion, loss + jnp.where(real, losses, 0.0).sum()

    zeros = (jnp.zeros((classes, classes), jnp.int32), jnp.zeros(()))
    confusion, loss = fold_in_chunks(add, zeros, len(rows), layout, variables, rows, federation)
    return EvaluationResult(confusion, loss / len(rows))


def hits_by_client(
    model: Model, variables: Variables, federation: Federation, tests: ClientTests, layout: Layout | None = None
) -> Array:
    """Number of test rows of each client that one model classifies correctly, `Int32[N]`; 0 without test rows."""

    def add(
        hits: Array, places: Array, real: Array, variables: Variables, tests: ClientTests, store: Federation
    ) -> Array:
        outputs, labels = _seen(model, variables, store, tests.rows.at[places].get(mode="clip"))
        owners = jnp.searchsorted(tests.offsets, places, side="right") - 1
        correct = real & (outputs.logits.argmax(-1) == labels)
        return hits.at[owners].add(correct.astype(jnp.int32), mode="drop")

    none = jnp.zeros(federation.num_clients, jnp.int32)
    return fold_in_chunks(add, none, len(tests.rows), layout, variables, tests, federation)


def own_hits(outcome: Outcome) -> Array:
    """Number of its own test rows that a client's trained model classifies correctly, `Int32[]`."""
    ctx = outcome.ctx
    return _hits_of_client(ctx.model, outcome.end, ctx.federation, ctx.client, ctx.batch_size)


def hits_of_own_models(setting: Setting, variables: Variables, kept: dict[str, Array], federation: Federation) -> Array:
    """Number of its own test rows that each client's model classifies correctly, `Int32[N]`.

    It is the global model with the client's own leaves, of `kept`, by path, `[N, ...]`.
    """

    def add(hits: Array, clients: Array, real: Array, setting: Setting, *given: Any) -> Array:
        variables, kept, store = given

        def one(hits: Array, client: Array) -> tuple[Array, None]:
            leaves = jax.tree.map(lambda leaf: leaf.at[client].get(mode="clip"), kept)
            model = own_model(setting, with_leaves(variables, leaves))
            found = _hits_of_client(setting.model, model, store, client, setting.batch_size)
            return hits.at[client].set(found, mode="drop"), None

        return lax.scan(one, hits, jnp.where(real, clients, federation.num_clients))[0]

    none = jnp.zeros(federation.num_clients, jnp.int32)
    return fold_in_chunks(add, none, len(none), setting.layout, setting, variables, kept, federation)


def _hits_of_client(model: Model, variables: Variables, federation: Federation, client: Array, size: int) -> Array:
    """Number of a client's test rows that a model classifies correctly, `Int32[]`, `size` rows at a time."""
    none = jnp.zeros((), jnp.int32)
    if federation.tests is None:
        return none
    rows, offsets = federation.tests
    first, end = (offsets.at[client + shift].get(mode="clip") for shift in (0, 1))

    def add(index: Array, hits: Array) -> Array:
        places = first + index * size + jnp.arange(size)
        outputs, labels = _seen(model, variables, federation, rows.at[places].get(mode="clip"))
        return hits + ((places < end) & (outputs.logits.argmax(-1) == labels)).sum(dtype=hits.dtype)

    return lax.fori_loop(0, -(-(end - first) // size), add, none)


def _seen(model: Model, variables: Variables, federation: Federation, rows: Array) -> tuple[Outputs, Array]:
    """A model's outputs for some rows, and their labels."""
    images = federation.images.at[rows].get(mode="clip")
    outputs, _ = model.apply(variables, normalised(images, federation.mean, federation.std), train=False)
    return outputs, federation.labels.at[rows].get(mode="clip")


def fold_in_chunks(add: Callable[..., PyTree], zeros: PyTree, count: int, layout: Layout | None, *given: Any) -> PyTree:
    """Folds `add(sums, places, real, *given)` over the places 0 to count - 1, a chunk at a time, on all devices."""
    size = min(CHUNK, count)
    chunks = -(-count // size)

    def total(numbers: Array, *given: Any) -> PyTree:
        def one(sums: PyTree, number: Array) -> tuple[PyTree, None]:
            places = number * size + jnp.arange(size)
            return add(sums, places, places < count, *given), None

        return lax.scan(one, zeros, numbers)[0]

    if layout is None or layout.devices == 1:
        return total(jnp.arange(chunks), *given)
    numbers = jnp.arange(chunks + -chunks % layout.devices)
    whole, cut = PartitionSpec(), PartitionSpec(CLIENTS)
    on_each = lambda numbers, *given: lax.psum(total(numbers, *given), CLIENTS)
    specs = (cut, *[whole] * len(given))
    return jax.shard_map(on_each, mesh=layout.mesh, in_specs=specs, out_specs=whole, check_vma=False)(numbers, *given)
