"""The setting of a run: its parts, numbers and shapes after all choices are made, and its precision."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.data import are_tokens
from fedjax_bal.engine.device.layout import Layout
from fedjax_bal.metrics import Measured
from fedjax_bal.optim import Optimizer, as_optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, derived, trusted
from fedjax_bal.parts import Part, Weigh, parts_with
from fedjax_bal.types import Array, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of

R = TypeVar("R")
_STATIC = {"static": True}  # part of the pytree's structure: another value is another program
_PRODUCTS = {"float32": "highest", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"}

# A pytree, so that the optimizer's numbers are leaves; registered here, because `options` doesn't import jax, and by
# functions, because `register_dataclass` would call the constructor, which checks all values, for every traced copy.
_STATIC_OPTIONS = [field.name for field in dataclasses.fields(LocalTraining) if field.name != "optimizer"]


def _flatten(local: LocalTraining) -> tuple[list[Any], tuple[Any, ...]]:
    optimizer = (jax.tree_util.GetAttrKey("optimizer"), local.optimizer)
    return [optimizer], tuple(getattr(local, name) for name in _STATIC_OPTIONS)


def _unflatten(static: tuple[Any, ...], leaves: Any) -> LocalTraining:
    (optimizer,) = leaves
    return trusted(LocalTraining, optimizer=optimizer, **dict(zip(_STATIC_OPTIONS, static, strict=True)))


jax.tree_util.register_pytree_with_keys(LocalTraining, _flatten, _unflatten)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The numbers and parts of a run; its leaves can change without another compilation.

    No field has a default, so that fine-tuning, which builds a setting too, must choose each value.

    Attributes:
        parts: the parts, in order.
        local: how clients train, with an `Optimizer`; its batches are no larger than the largest client, its drawing is
            chosen, and its `lone_rows` is "keep" or "drop".
        server: the server's optimizer, which takes the negative aggregated update as a gradient.
        model: the model.
        drawn_by_size: whether clients are drawn in proportion to their sizes, so that sizes don't weigh updates, too.
        passes: how often a chain goes through its clients.
        carried: whether the local optimizer's state is passed on from client to client of a chain, and to later passes.
        max_staleness: the largest number of rounds since a chain received its model; 0 in synchronous rounds.
        max_size: the number of rows of the largest client.
        evaluation: which metrics are reported.
        measured: what the program measures of each client that trained.
        test_images: number of test images.
        layout: how the clients are laid out on the devices.
        execution: precision, whether loops have a static length, and what to do with broken clients; the model itself
            has been cast already, and `layout` says where clients are executed.
    """

    parts: tuple[Part, ...]
    local: LocalTraining
    server: Optimizer
    model: Model = dataclasses.field(metadata=_STATIC)
    drawn_by_size: bool = dataclasses.field(metadata=_STATIC)
    passes: int = dataclasses.field(metadata=_STATIC)
    carried: bool = dataclasses.field(metadata=_STATIC)
    max_staleness: int = dataclasses.field(metadata=_STATIC)
    max_size: int = dataclasses.field(metadata=_STATIC)
    evaluation: Evaluation = dataclasses.field(metadata=_STATIC)
    measured: tuple[Measured, ...] = dataclasses.field(metadata=_STATIC)
    test_images: int = dataclasses.field(metadata=_STATIC)
    layout: Layout = dataclasses.field(metadata=_STATIC)
    execution: Execution = dataclasses.field(metadata=_STATIC)

    def traced(self, function: Callable) -> Callable:
        """Wraps a function of a setting for jax, so that it computes in the setting's precision."""
        return _in_precision(function)

    @property
    def optimizer(self) -> Optimizer:
        """The clients' optimizer."""
        return as_optimizer("optimizer", self.local.optimizer)

    def learning_rate(self, round: Any, step: Any = None) -> Any:
        """Returns the clients' rate in a round, before step schedules or at a step, `Float[]`; None if unknown."""
        rate = self.optimizer.rate(round) if step is None else self.optimizer.rate_at(round, step)
        return jax.tree.map(lambda rate: jnp.asarray(rate, float), rate)

    @property
    def batch_size(self) -> int:
        """The local training's batch size."""
        return self.local.batch_size

    @property
    def epochs(self) -> int:
        """The number of local epochs; 1 if the number of local steps is given instead."""
        return self.local.epochs or 1

    @property
    def row_length(self) -> int:
        """Length of an epoch's row order: the size of the largest client, rounded up to whole batches."""
        return max(1, -(-self.max_size // self.batch_size)) * self.batch_size

    def parts_with(self, *roles: type[R]) -> list[R]:
        """Returns the parts that play a role, or one of several, in order."""
        return parts_with(self.parts, *roles)

    def weighs_again(self, length: int) -> bool:
        """Returns whether weights are computed again after a broken client is left out of a chain of `length` clients.

        The round then keeps the results of all chains. Weights by number of rows needn't be computed again: they are
        scaled by the share of the chain's rows that is left.
        """
        by_rows = not self.parts_with(Weigh) and not (self.drawn_by_size and length > 1)
        return self.execution.excludes and not by_rows

    @property
    def first_rounds(self) -> list[int]:
        """The rounds (from 0) in which parts begin, ascending; the first is always 0."""
        return sorted({0, *(part.first_round for part in self.parts)})

    def since(self, round: int) -> "Setting":
        """Returns the setting without the parts that begin after a round (from 0)."""
        return dataclasses.replace(self, parts=tuple(part for part in self.parts if part.first_round <= round))

    def with_room(self, max_size: int, batch_size: int) -> "Setting":
        """Returns the setting for another size of the largest client, and another batch size."""
        local = derived(self.local, batch_size=batch_size)
        return dataclasses.replace(self, local=local, max_size=max_size)

    def steps_per_epoch(self, size: Any) -> Any:
        """Counts a client's local steps in an epoch, given its size; works on host and device."""
        if self.local.drop_last:
            steps = size // self.batch_size
        else:
            # Rows are shuffled in every epoch, so a different row is left out each time. With a batch size of 1 the
            # remainder is never 1.
            lone = (size % self.batch_size == 1) & (size > 1) & (self.local.lone_rows == "drop")
            steps = -(-size // self.batch_size) - lone
        return steps if self.local.batches_per_epoch is None else _at_most(steps, self.local.batches_per_epoch)

    def local_steps(self, size: Any, limit: Any = None) -> Any:
        """Counts a client's local steps in a pass, given its size, at most `limit`; works on host and device."""
        epoch = self.steps_per_epoch(size)
        wanted = self.local.steps
        # A client without a batch in an epoch takes no step, even if the number of steps is given.
        steps = self.epochs * epoch if wanted is None else wanted * _at_most(epoch, 1)
        return steps if limit is None else _at_most(steps, limit)

    def download_row(self, round: Any) -> Any:
        """Returns a round's row in `State.downloads`, where it replaces the oldest round; works on host and device."""
        return round % (self.max_staleness + 1)

    def samples(self, size: Any, steps: Any) -> Any:
        """Counts the rows processed in `steps` local steps, repeats included (host only)."""
        epoch = self.steps_per_epoch(size)
        seen = _at_most(size, epoch * self.batch_size)
        epochs, rest = np.divmod(steps, np.maximum(epoch, 1))
        return epochs * seen + _at_most(rest * self.batch_size, seen)

    @property
    def most_steps(self) -> int:
        """The local steps of the largest client."""
        return int(self.local_steps(self.max_size))


def _at_most(value: Any, most: Any) -> Any:
    """Returns the smaller number in the type of `value`, which may be Python's, NumPy's or jax's."""
    return value - (value > most) * (value - most)


# Cached, because jax finds a trace by the function object: a new closure of the same code would be traced and compiled
# again.
@functools.cache
def _in_precision(function: Callable) -> Callable:
    @functools.wraps(function)
    def precise(setting: Setting, *arguments: Any, **named: Any) -> Any:
        # Also for evaluation: by default GPUs round the operands of float32 products to TensorFloat-32.
        with jax.default_matmul_precision(matmul_precision(setting.execution.precision)):
            return function(setting, *arguments, **named)

    return precise


def matmul_precision(precision: str) -> str:
    """Returns JAX's name for a precision of `Execution`, for `jax.default_matmul_precision`.

    "float32" requests full float32, which is not every accelerator's default.
    """
    return _PRODUCTS[one_of("precision", precision, _PRODUCTS)]


def at_precision(model: Model, precision: str) -> Model:
    """Returns the same model, with the same parameters, computing in another precision of `Execution`.

    With "bfloat16", images (but not token ids) and a copy of the parameters are rounded to bfloat16 and every layer
    computes in it; logits, features and all statistics are returned in float32, and so are gradients, because the
    parameters stay float32 (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1). With "float32"
    and "tensorfloat32" the model is unchanged: these two differ in `matmul_precision` alone, which the engine sets
    while it traces a round.
    """
    one_of("precision", precision, _PRODUCTS)
    return _in_bfloat16(model) if precision == "bfloat16" else model


@functools.lru_cache(maxsize=64)  # equal models must be one object, so that their runs share a program
def _in_bfloat16(model: Model) -> Model:
    def apply(variables: Variables, images: Array, **mode: Any) -> tuple[Outputs, Variables]:
        rounded = variables._replace(params=_cast(variables.params, jnp.bfloat16))
        inputs = images if are_tokens(images) else images.astype(jnp.bfloat16)  # which has no id between 256 and 258
        outputs, after = model.apply(rounded, inputs, **mode)
        return _cast(outputs, jnp.float32), after._replace(params=variables.params)

    def head(params: PyTree, features: Array) -> Array:
        return model.head(_cast(params, jnp.bfloat16), features.astype(jnp.bfloat16)).astype(jnp.float32)

    return model._replace(apply=apply, head=head)


def _cast(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
