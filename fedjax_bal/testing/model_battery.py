"""The checks of models."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.models import check_is_model
from fedjax_bal.testing.battery import concluded, run_stage
from fedjax_bal.testing.messages import difference
from fedjax_bal.testing.outcome import CheckResult, ConformanceReport, NotApplicableError
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import finite_number

_ROWS, _REAL = 6, 4
_DRAWS = 8  # of roundings
_RATES = (1e-4, 1.0)  # of what a running mean moves towards a batch's


@dataclass(frozen=True)
class _Specimen:
    """A model, and what it does with a batch."""

    model: Model
    images: Array
    tolerance: float

    @functools.cached_property
    def variables(self) -> Variables:
        return self.model.init(jax.random.key(0))

    @property
    def real(self) -> Array:
        return jnp.arange(_ROWS) < _REAL

    @property
    def others(self) -> Array:
        """The batch with other rows in place of those that aren't real."""
        return jnp.concatenate([self.images[:_REAL], self.images[: _ROWS - _REAL]])

    def apply(
        self, images: Array, train: bool, real: Array | None = None, key: int = 1, variables: Variables | None = None
    ) -> tuple[Outputs, Variables]:
        real = jnp.ones(_ROWS, bool) if real is None else real
        return self._apply[train](variables or self.variables, images, jax.random.key(key), real)

    @functools.cached_property
    def _apply(self) -> dict[bool, Callable]:
        def run(train: bool, variables: Variables, images: Array, key: Key, real: Array) -> Any:
            given = {"key": key, "real": real} if train else {}
            return self.model.apply(variables, images, train=train, **given)

        return {train: jax.jit(functools.partial(run, train)) for train in (True, False)}

    @functools.cached_property
    def step(self) -> Callable:
        """From parameters, statistics and a batch to the cross-entropy, the new statistics and the gradient."""
        labels = jnp.arange(_ROWS) % self.model.num_classes

        def loss(params: PyTree, stats: PyTree, images: Array) -> tuple[Array, PyTree]:
            outputs, after = self.model.apply(Variables(params, stats), images, train=True, key=jax.random.key(1))
            return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels).mean(), after.stats

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    @property
    def stats(self) -> list[Array]:
        """The running statistics; without any, what is asked of them can't be checked."""
        leaves = jax.tree.leaves(self.variables.stats)
        if not leaves:
            raise NotApplicableError("the model has no running statistics")
        return leaves

    def difference(self, got: PyTree, wanted: PyTree) -> str | None:
        return difference(got, wanted, self.tolerance)


def shapes(specimen: _Specimen) -> str | None:
    """Logits are [B, C] and features [B, F], both float32; parameters are float32 too."""
    model = specimen.model
    for train in (False, True):
        outputs, after = specimen.apply(specimen.images, train)
        if outputs.logits.shape != (_ROWS, model.num_classes):
            return f"received logits of shape {outputs.logits.shape}, must be {(_ROWS, model.num_classes)}"
        if outputs.features.ndim != 2 or len(outputs.features) != _ROWS:
            return f"received features of shape {outputs.features.shape}, must be ({_ROWS}, F), the classifier's input"
        for name, leaf in (("logits", outputs.logits), ("features", outputs.features)):
            if leaf.dtype != jnp.float32:
                return f"received {name} of type {leaf.dtype}, must be float32: convert them in the model"
        if jax.tree.map(_kind, after) != jax.tree.map(_kind, specimen.variables):
            return (
                "received variables of another structure, shape or type from apply than from init, must be the same: "
                "a loop over steps carries them"
            )
    wrong = [
        path for path, leaf in jax.tree_util.tree_leaves_with_path(specimen.variables) if leaf.dtype != jnp.float32
    ]
    return f"received {jax.tree_util.keystr(wrong[0])} that isn't float32, must be" if wrong else None


def classifier(specimen: _Specimen) -> str | None:
    """The head turns the features into the logits, and its parameters are `params["head"]`."""
    params = specimen.variables.params
    if not isinstance(params, dict) or "head" not in params:
        return "received parameters without 'head', must be a dict with the classifier's under that name"
    outputs, _ = specimen.apply(specimen.images, False)
    changed = specimen.difference(jax.jit(specimen.model.head)(params, outputs.features), outputs.logits)
    return f"received {changed} between head(params, features) and logits, must be none" if changed else None


def initialization(specimen: _Specimen) -> str | None:
    """The same key draws the same variables, another key others."""
    one, again, other = (specimen.model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    if not _equal(one, again):
        return "received other variables from init for the same key, must be equal: draw from the key alone"
    if _equal(one.params, other.params):
        raise NotApplicableError("init gives the same variables for every key, so that all seeds start alike")
    return None


def evaluation(specimen: _Specimen) -> str | None:
    """Evaluation leaves all variables as they are, and a row's result doesn't depend on the other rows."""
    outputs, after = specimen.apply(specimen.images, False)
    if not _equal(after, specimen.variables):
        return "received other variables after evaluation, must be the same: change them where train is True only"
    beside, _ = specimen.apply(specimen.others, False)
    changed = specimen.difference(_rows(beside), _rows(outputs))
    remedy = "use running statistics where train is False"
    return f"received {changed} in evaluation when other rows change, must be none: {remedy}" if changed else None


def training(specimen: _Specimen) -> str | None:
    """Training changes no parameters: that is the optimizer's part."""
    _, after = specimen.apply(specimen.images, True)
    return None if _equal(after.params, specimen.variables.params) else "received other parameters from apply"


def running_statistics(specimen: _Specimen) -> str | None:
    """Training moves the running statistics."""
    before = specimen.stats
    after = jax.tree.leaves(specimen.apply(specimen.images, True)[1].stats)
    still = [old.shape for new, old in zip(after, before, strict=True) if np.array_equal(new, old)]
    return f"received {len(still)} running statistics that training doesn't move, must be none" if still else None


def padded_rows(specimen: _Specimen) -> str | None:
    """Rows that `real` doesn't mark change neither the statistics nor what becomes of the real rows."""
    found = [specimen.apply(images, True, specimen.real) for images in (specimen.images, specimen.others)]
    changed = specimen.difference(*((_rows(outputs), after.stats) for outputs, after in found))
    remedy = "leave rows that `real` doesn't mark out of batch statistics"
    return (
        f"received {changed} in training when rows that are not real change, must be none: {remedy}"
        if changed
        else None
    )


def no_real_rows(specimen: _Specimen) -> str | None:
    """A batch without a real row leaves the statistics as they are, and gives finite results."""
    specimen.stats  # noqa: B018
    _, before = specimen.apply(specimen.images, True)  # statistics that aren't the first ones, which may be zeros
    outputs, after = specimen.apply(specimen.images, True, jnp.zeros(_ROWS, bool), variables=before)
    if not _equal(after.stats, before.stats):
        return "received other running statistics after a batch without real rows, must be the same"
    return None if np.isfinite(outputs.logits).all() else "received logits that aren't finite, must be"


def normalised_inputs(specimen: _Specimen) -> str | None:
    """`norm_inputs` has the moments of each normalisation's input, in the order of the running means and variances."""
    before = specimen.stats
    outputs, after = specimen.apply(specimen.images, True)
    if not outputs.norm_inputs:
        raise NotApplicableError("the model has no norm_inputs, so that CBFL's generator can't learn from it")
    shown, wanted = (
        [leaf.shape for leaf in jax.tree.leaves(pairs)] for pairs in (outputs.norm_inputs, specimen.variables.stats)
    )
    if shown != wanted:
        return f"received norm_inputs of shapes {shown}, must be those of the running statistics, {wanted}"
    moved = jax.tree.leaves(after.stats)[::2]
    for (mean, _), new, old in zip(outputs.norm_inputs, moved, before[::2], strict=True):
        way = np.asarray(mean - old, float)
        rate = float((way * (new - old)).sum() / max(float((way**2).sum()), 1e-30))
        if not _RATES[0] < rate <= _RATES[1] or difference(new, old + rate * way, 1e-4):
            return "received a running mean that doesn't move towards its norm_inputs, must: mind the order"
    return None


def dropout(specimen: _Specimen) -> str | None:
    """In training the same key gives the same result, and another key another."""
    one, other = (specimen.apply(specimen.images, True, key=seed)[0].logits for seed in (1, 2))
    again, _ = specimen.model.apply(specimen.variables, specimen.images, train=True, key=jax.random.key(1))
    changed = specimen.difference(again.logits, one)
    if changed:
        return f"received {changed} between two calls with the same key, must be none: draw from that key alone"
    if np.array_equal(one, other):
        raise NotApplicableError("the model draws nothing in training, so that no key matters")
    return None


def gradients(specimen: _Specimen) -> str | None:
    """The gradient of the cross-entropy is finite, and reaches the classifier and the layers before it."""
    params, stats = specimen.variables
    noise = jax.random.normal(jax.random.key(4), (sum(leaf.size for leaf in jax.tree.leaves(params)),))
    # Moved, for a classifier that starts with zeros passes no gradient on.
    moved = jax.tree.map(lambda leaf: leaf + 0.1 * noise[: leaf.size].reshape(leaf.shape), params)
    _, of_params = specimen.step(moved, stats, specimen.images)
    for path, leaf in jax.tree_util.tree_leaves_with_path(of_params):
        if not np.isfinite(leaf).all():
            return f"received a gradient that isn't finite in {jax.tree_util.keystr(path)}, must be finite"
    reached = {name: any(np.any(leaf) for leaf in jax.tree.leaves(below)) for name, below in of_params.items()}
    missed = [name for name, any_of_it in reached.items() if not any_of_it]
    return (
        f"received a gradient of zero in all of {missed[0]!r}, must be another: use it, or leave it out"
        if missed
        else None
    )


def several_clients(specimen: _Specimen) -> str | None:
    """`vmap` over variables and batches computes what each client computes by itself, but for rounding."""
    step, images = specimen.step, specimen.images
    clients = [(*specimen.model.init(jax.random.key(seed)), batch) for seed, batch in enumerate((images, images[::-1]))]
    together = jax.jit(jax.vmap(step))(*jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients))
    for place, (params, stats, batch) in enumerate(clients):
        got = jax.tree.map(operator.itemgetter(place), together)
        changed = specimen.difference(got, step(params, stats, batch))
        # A ReLU whose input is nearly 0 turns on the last digit, and many layers make that a change of the gradient
        # that can be seen. Then images that are rounded otherwise give exactly what vmap gave.
        rounded = (_rounded_otherwise(batch, draw) for draw in range(_DRAWS))
        if changed and all(specimen.difference(got, step(params, stats, other)) for other in rounded):
            return f"received {changed} with vmap over two clients, must be none"
    return None


def _rounded_otherwise(images: Array, draw: int) -> Array:
    """Images with the last digit of each number moved up or down; token ids stay."""
    if not jnp.issubdtype(images.dtype, jnp.floating):
        return images
    up = jax.random.bernoulli(jax.random.key(draw), shape=images.shape)
    return jnp.nextafter(images, jnp.where(up, jnp.inf, -jnp.inf))


def _rows(outputs: Outputs) -> tuple[Array, Array]:
    """Logits and features of the real rows."""
    return outputs.logits[:_REAL], outputs.features[:_REAL]


def _kind(leaf: Array) -> tuple[Any, ...]:
    return leaf.shape, leaf.dtype


def _equal(one: PyTree, other: PyTree) -> bool:
    same = jax.tree.structure(one) == jax.tree.structure(other)
    return same and all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


STAGES: tuple[tuple[Callable[[_Specimen], str | None], ...], ...] = (
    (shapes,),
    (
        classifier,
        initialization,
        evaluation,
        training,
        running_statistics,
        padded_rows,
        no_real_rows,
        normalised_inputs,
        dropout,
        gradients,
        several_clients,
    ),
)
"""Checks in stages, each of which needs the one before."""


@package_settings()
def check_model(model: Model, *, images: Any = None, tolerance: float = 1e-4) -> ConformanceReport:
    """Checks that a model does what recipes and the engine expect of one.

    Shapes and the classifier; that evaluation changes nothing and training the running statistics alone; that padded
    rows of a batch count for nothing; that gradients are finite; that several clients at once, with `vmap`, compute
    what each computes by itself. What a model doesn't have, running statistics or dropout, is skipped, not passed.

    Args:
        model: the model, from `fedjax_bal.models.build`, `from_linen` or `from_nnx`, or made by hand.
        images: six different inputs `[6, ...]`; by default normal draws, token ids need others.
        tolerance: largest difference that rounding may make, in units of a leaf's largest number or of 1.

    Returns:
        All checks, none of which failed; `skipped` has those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each one with what was found and what to do.

    Example:
        >>> from fedjax_bal import models
        >>> report = check_model(models.build("mlp", 10, (4, 4, 1)))
        >>> report.failed, report.skipped
        ((), ('running statistics', 'no real rows', 'normalised inputs', 'dropout'))
    """
    start_jax()
    check_is_model(model)
    if images is None:
        images = jax.random.normal(jax.random.key(3), (_ROWS, *model.input_shape))
    images = jnp.asarray(images)
    if images.shape != (_ROWS, *model.input_shape):
        raise ValueError(f"images: received shape {images.shape}, must be {(_ROWS, *model.input_shape)}")
    specimen = _Specimen(model, images, finite_number("tolerance", tolerance))
    checks: list[CheckResult] = []
    for stage in STAGES:
        checks += run_stage(stage, specimen, checks)
    return concluded(ConformanceReport(model.name, tuple(checks)))
