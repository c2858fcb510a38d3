"""Evaluation of the global model on the test set."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_bal.data import checked_examples, normalised
from fedjax_bal.engine.device.layout import CLIENTS, Layout
from fedjax_bal.types import Array, EvaluationResult, Model, Variables

CHUNK = 500  # test images a forward pass; larger ones gain nothing on a CPU and cost memory


class TestSet(NamedTuple):
    """The test images in chunks, padded; leaves `[chunks, CHUNK, ...]`."""

    __test__ = False  # not a test case, whatever its name looks like to pytest

    images: Any
    labels: Any
    real: Any


def chunked(images: Any, labels: Any, size: int = CHUNK, name: str = "test ") -> TestSet:
    """Cuts a test set, `[T, ...]` and `[T]`, into chunks of equal size; padding in the last one is not real.

    Raises ValueError for arrays that `federate` refuses, too; `name` stands before "images" in its messages.
    """
    images, labels = checked_examples(images, labels, name)
    size = min(size, len(images))
    chunks = -(-len(images) // size)
    index = np.arange(chunks * size)
    inside = np.minimum(index, len(images) - 1).reshape(chunks, size)
    return TestSet(images[inside], labels[inside], (index < len(images)).reshape(chunks, size))


def padded(test: TestSet, multiple: int) -> TestSet:
    """Adds empty chunks until their number is a multiple of `multiple`; on the host or when tracing."""
    short = -len(test.labels) % multiple
    if not short:
        return test
    pad = np.pad if isinstance(test.labels, np.ndarray) else jnp.pad
    return TestSet(*(pad(leaf, [(0, short)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in test))


def some_images(test: TestSet, count: int, total: int, size: int = CHUNK) -> TestSet:
    """A test set of `count` random images of the `total` real ones, the same in every run."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), test)
    size = min(size, count)
    chunks = -(-count // size)
    index = np.arange(chunks * size)
    # Drawn, as test sets are often ordered: by class, or class by class in turn, which a regular stride could follow.
    rows = np.random.default_rng(0).permutation(total)[np.minimum(index, count - 1)]
    fold = lambda leaf: jnp.asarray(leaf)[rows].reshape(chunks, size, *leaf.shape[1:])
    return TestSet(fold(flat.images), fold(flat.labels), (index < count).reshape(chunks, size))


def hits(model: Model, variables: Variables, test: TestSet, mean: Array, std: Array) -> Array:
    """Number of test images that a model classifies correctly, `Int32[]`."""
    confusion, _, _ = _totals(model, variables, test, mean, std)
    return jnp.trace(confusion)


def evaluate(
    model: Model, variables: Variables, test: TestSet, mean: Array, std: Array, layout: Layout | None = None
) -> EvaluationResult:
    """Confusion matrix and loss of a model; each device of the layout takes its share of the chunks.

    Images are normalised with `mean` and `std`, `Float[K]`.
    """
    if layout is None or layout.devices == 1:
        confusion, loss, count = _totals(model, variables, test, mean, std)
        return EvaluationResult(confusion, loss / count)

    def on_each(test: TestSet, variables: Variables, mean: Array, std: Array) -> tuple[Array, Array, Array]:
        return lax.psum(_totals(model, variables, test, mean, std), CLIENTS)

    whole, cut = PartitionSpec(), PartitionSpec(CLIENTS)
    specs = (cut, whole, whole, whole)
    shared = jax.shard_map(on_each, mesh=layout.mesh, in_specs=specs, out_specs=whole, check_vma=False)
    confusion, loss, count = shared(padded(test, layout.devices), variables, mean, std)
    return EvaluationResult(confusion, loss / count)


def _totals(model: Model, variables: Variables, test: TestSet, mean: Array, std: Array) -> tuple[Array, Array, Array]:
    """Confusion matrix, summed loss and number of images."""
    classes = model.num_classes

    def one(carry: tuple[Array, Array], chunk: TestSet) -> tuple[tuple[Array, Array], None]:
        confusion, loss = carry
        outputs, _ = model.apply(variables, normalised(chunk.images, mean, std), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, chunk.labels)
        predicted = outputs.logits.argmax(-1)
        confusion = confusion.at[chunk.labels, predicted].add(chunk.real.astype(jnp.int32))
        return (confusion, loss + jnp.where(chunk.real, losses, 0.0).sum()), None

    init = (jnp.zeros((classes, classes), jnp.int32), jnp.zeros(()))
    (confusion, loss), _ = lax.scan(one, init, test)
    return confusion, loss, test.real.sum()
