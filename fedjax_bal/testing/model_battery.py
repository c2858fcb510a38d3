"""The checks of models, and their entry point `check_model`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.models import SwitchError, check_is_model, from_linen, linen_interceptor
from fedjax_bal.testing import report
from fedjax_bal.testing.workbench import compile_quickly, stack
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import finite_number

_ROWS = 6
_REAL = 4  # of these rows
_DRAWS = 8  # number of random perturbations of the last digits
_RATES = (1e-4, 1.0)  # limits of the rate at which a running mean moves towards a batch's mean


def _to_host(function: Callable) -> Callable:
    """Compiles a function, whose results are moved to the host."""
    # Comparing, slicing and stacking them there compiles nothing; jax would compile a program for every shape.
    compiled = compile_quickly(function)
    return lambda *arguments: jax.device_get(compiled(*arguments))


@dataclass(frozen=True)
class _Specimen:
    """A model with a batch to test it on."""

    model: Model
    images: np.ndarray
    tolerance: float

    @functools.cached_property
    def init(self) -> Callable[[Key], Variables]:
        return _to_host(self.model.init)

    @functools.cached_property
    def variables(self) -> Variables:
        return self.init(jax.random.key(0))

    @property
    def real(self) -> np.ndarray:
        return np.arange(_ROWS) < _REAL

    @property
    def others(self) -> np.ndarray:
        """The batch with other padded rows."""
        return np.concatenate([self.images[:_REAL], self.images[: _ROWS - _REAL]])

    def apply(
        self,
        images: np.ndarray,
        train: bool,
        real: np.ndarray | None = None,
        key: int = 1,
        variables: Variables | None = None,
    ) -> tuple[Outputs, Variables]:
        real = np.ones(_ROWS, bool) if real is None else real
        return self._apply[train](variables or self.variables, images, jax.random.key(key), real)

    @functools.cached_property
    def _apply(self) -> dict[bool, Callable]:
        def run(train: bool, variables: Variables, images: Array, key: Key, real: Array) -> Any:
            given = {"key": key, "real": real} if train else {}
            return self.model.apply(variables, images, train=train, **given)

        return {train: _to_host(functools.partial(run, train)) for train in (True, False)}

    def differentiate(self, params: PyTree, stats: PyTree, images: Array) -> tuple[tuple[Array, PyTree], PyTree]:
        """Returns the cross-entropy with the new statistics, and the gradient."""
        labels = jnp.arange(_ROWS) % self.model.num_classes

        def loss(params: PyTree) -> tuple[Array, PyTree]:
            outputs, after = self.model.apply(Variables(params, stats), images, train=True, key=jax.random.key(1))
            return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels).mean(), after.stats

        return jax.value_and_grad(loss, has_aux=True)(params)

    @functools.cached_property
    def step(self) -> Callable:
        return _to_host(self.differentiate)

    def statistics(self) -> list[Array]:
        """Returns the running statistics; raises `NotApplicableError` if there are none."""
        leaves = jax.tree.leaves(self.variables.stats)
        if not leaves:
            raise report.NotApplicableError("the model has no running statistics")
        return leaves

    def check_same(self, got: PyTree, wanted: PyTree, when: str) -> None:
        report.check_same(got, wanted, self.tolerance, when)


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise report.FaultError(f"received {message}")


def _equal(one: PyTree, other: PyTree) -> bool:
    same = jax.tree.structure(one) == jax.tree.structure(other)
    return same and all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def _real_rows(outputs: Outputs) -> tuple[Array, Array]:
    return outputs.logits[:_REAL], outputs.features[:_REAL]


def shapes(specimen: _Specimen) -> None:
    """Logits `[B, C]` and features `[B, F]` are float32; variables keep their structure, shapes and types."""
    wanted = (_ROWS, specimen.model.num_classes)
    kinds = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    for train in (True, False):
        outputs, after = specimen.apply(specimen.images, train)
        logits = outputs.logits
        features = outputs.features
        _require(logits.shape == wanted, f"logits of shape {logits.shape}, must be {wanted}")
        flat = features.ndim == 2 and len(features) == _ROWS
        _require(flat, f"features of shape {features.shape}, must be ({_ROWS}, F), the classifier's input")
        for name, leaf in (("logits", logits), ("features", features)):
            rule = "must be float32: convert them in the model"
            _require(leaf.dtype == jnp.float32, f"{name} of type {leaf.dtype}, {rule}")
        rule = "must be the same: a loop over steps carries them"
        message = f"variables of another structure, shape or type from apply than from init, {rule}"
        _require(kinds(after) == kinds(specimen.variables), message)
    for path, leaf in jax.tree_util.tree_leaves_with_path(specimen.variables):
        _require(leaf.dtype == jnp.float32, f"{jax.tree_util.keystr(path)} that isn't float32, must be")


def switches(specimen: _Specimen) -> None:
    """Layers of flax.linen are in training where the model is, and in evaluation otherwise."""
    model = specimen.model
    if model.apply.__module__ == from_linen.__module__:
        return  # `from_linen` and `from_nnx` have checked it
    calls = []

    def watch(next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
        calls.append(context.module)
        return next_fun(*args, **kwargs)

    variables = specimen.variables  # drawn before layers are watched
    for train in (True, False):
        apply = functools.partial(model.apply, train=train, key=jax.random.key(1) if train else None)
        try:
            with nn.intercept_methods(watch), nn.intercept_methods(linen_interceptor(model.name, train)):
                jax.eval_shape(apply, variables, specimen.images)
        except SwitchError as error:
            raise report.FaultError(str(error)) from error
    if not calls:
        raise report.NotApplicableError("the model calls no module of flax.linen")


def classifier(specimen: _Specimen) -> None:
    """The head computes the logits from the features, and its parameters are `params["head"]`."""
    params = specimen.variables.params
    named = isinstance(params, dict) and "head" in params
    _require(named, "parameters without 'head', must be a dict with the classifier's under that name")
    outputs, _ = specimen.apply(specimen.images, False)
    logits = _to_host(specimen.model.head)(params, outputs.features)
    specimen.check_same(logits, outputs.logits, "between head(params, features) and logits")


def initialization(specimen: _Specimen) -> None:
    """The same key draws the same variables, and another key draws others."""
    first, other = (specimen.init(jax.random.key(seed)) for seed in (0, 1))
    # Traced a second time: a draw from the host's generator would be a constant of the first trace.
    again = _to_host(specimen.model.init)(jax.random.key(0))
    rule = "must be equal: draw from the key alone"
    _require(_equal(first, again), f"other variables from init for the same key, {rule}")
    if _equal(first.params, other.params):
        raise report.NotApplicableError("init gives the same variables for every key, so all seeds start equal")


def evaluation(specimen: _Specimen) -> None:
    """Evaluation changes no variables, and a row's result doesn't depend on the other rows."""
    outputs, after = specimen.apply(specimen.images, False)
    rule = "must be the same: change them where train is True only"
    _require(_equal(after, specimen.variables), f"other variables after evaluation, {rule}")
    beside, _ = specimen.apply(specimen.others, False)
    when = "in evaluation when other rows change: use running statistics where train is False"
    specimen.check_same(_real_rows(beside), _real_rows(outputs), when)


def training(specimen: _Specimen) -> None:
    """Applying the model in training mode changes no parameters: only the optimizer does."""
    _, after = specimen.apply(specimen.images, True)
    _require(_equal(after.params, specimen.variables.params), "other parameters from apply, must be the same")


def running_statistics(specimen: _Specimen) -> None:
    """Training updates the running statistics."""
    before = specimen.statistics()
    after = jax.tree.leaves(specimen.apply(specimen.images, True)[1].stats)
    still = sum(np.array_equal(new, old) for new, old in zip(after, before, strict=True))
    _require(not still, f"{still} running statistics that training doesn't move, must be none")


def padded_rows(specimen: _Specimen) -> None:
    """Rows that `real` doesn't mark change neither the statistics nor the results of the real rows."""
    runs = [specimen.apply(images, True, specimen.real) for images in (specimen.images, specimen.others)]
    remedy = "leave rows that `real` doesn't mark out of batch statistics"
    when = f"in training when rows that are not real change: {remedy}"
    usual, changed = ((_real_rows(outputs), after.stats) for outputs, after in runs)
    specimen.check_same(changed, usual, when)


def no_real_rows(specimen: _Specimen) -> None:
    """A batch without real rows changes no statistics and gives finite results."""
    specimen.statistics()
    _, before = specimen.apply(specimen.images, True)  # not the initial statistics, which may be zeros
    outputs, after = specimen.apply(specimen.images, True, np.zeros(_ROWS, bool), variables=before)
    message = "other running statistics after a batch without real rows, must be the same"
    _require(_equal(after.stats, before.stats), message)
    _require(np.isfinite(outputs.logits).all(), "logits that aren't finite, must be")


def normalised_inputs(specimen: _Specimen) -> None:
    """`norm_inputs` has the moments of each normalisation's input, in the order of the running statistics."""
    before = specimen.statistics()
    outputs, after = specimen.apply(specimen.images, True)
    if not outputs.norm_inputs:
        raise report.NotApplicableError("the model has no norm_inputs, so CBFL's generator can't learn from it")
    given, wanted = ([leaf.shape for leaf in leaves] for leaves in (jax.tree.leaves(outputs.norm_inputs), before))
    _require(given == wanted, f"norm_inputs of shapes {given}, must be those of the running statistics, {wanted}")
    moved = jax.tree.leaves(after.stats)[::2]
    for (mean, _), new, old in zip(outputs.norm_inputs, moved, before[::2], strict=True):
        way = np.asarray(mean - old, float)
        rate = float((way * (new - old)).sum() / max(float((way**2).sum()), 1e-30))
        towards = _RATES[0] < rate <= _RATES[1] and not report.difference(new, old + rate * way, 1e-4)
        _require(towards, "a running mean that doesn't move towards its norm_inputs, must: mind the order")


def dropout(specimen: _Specimen) -> None:
    """In training the same key gives the same result, and another key a different one."""
    first, other = (specimen.apply(specimen.images, True, key=seed)[0].logits for seed in (1, 2))
    # Traced a second time, as in `initialization`.
    apply = functools.partial(specimen.model.apply, train=True)
    again, _ = _to_host(lambda *given: apply(*given, key=jax.random.key(1)))(specimen.variables, specimen.images)
    when = "between two calls with the same key: draw from that key alone"
    specimen.check_same(again.logits, first, when)
    if np.array_equal(first, other):
        raise report.NotApplicableError("the model draws nothing in training, so no key matters")


def gradients(specimen: _Specimen) -> None:
    """The gradient of the cross-entropy is finite, and reaches the classifier and the layers before it."""
    params, stats = specimen.variables
    rng = np.random.default_rng(4)
    # Parameters are perturbed, because a classifier that starts with zeros passes no gradient on.
    moved = jax.tree.map(lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32), params)
    _, slopes = specimen.step(moved, stats, specimen.images)
    for path, leaf in jax.tree_util.tree_leaves_with_path(slopes):
        message = f"a gradient that isn't finite in {jax.tree_util.keystr(path)}, must be finite"
        _require(np.isfinite(leaf).all(), message)
    for name, below in slopes.items():
        reached = any(np.any(leaf) for leaf in jax.tree.leaves(below))
        _require(reached, f"a gradient of zero in all of {name!r}, must be another: use it, or leave it out")


def several_clients(specimen: _Specimen) -> None:
    """`vmap` over variables and batches gives each client's own result, up to rounding."""
    step = specimen.step
    images = specimen.images
    clients = [(*specimen.init(jax.random.key(seed)), batch) for seed, batch in enumerate((images, images[::-1]))]
    together = _to_host(jax.vmap(specimen.differentiate))(*stack(clients))
    for index, (params, stats, batch) in enumerate(clients):
        got = jax.tree.map(lambda leaf, index=index: leaf[index], together)
        gap = report.difference(got, step(params, stats, batch), specimen.tolerance)
        # The last digit decides whether a ReLU with an input near 0 is active, and many layers amplify this to a
        # visible change of the gradient. Images with perturbed last digits then reproduce the result of vmap.
        rounded = (_rounded_otherwise(batch, draw) for draw in range(_DRAWS))
        if gap and all(report.difference(got, step(params, stats, other), specimen.tolerance) for other in rounded):
            raise report.FaultError(f"received {gap} with vmap over two clients")


def _rounded_otherwise(images: np.ndarray, draw: int) -> Array | np.ndarray:
    """Moves the last digit of each number up or down; returns token ids unchanged."""
    if not jnp.issubdtype(images.dtype, jnp.floating):
        return images
    up = jax.random.bernoulli(jax.random.key(draw), shape=images.shape)
    return jnp.nextafter(images, jnp.where(up, jnp.inf, -jnp.inf))


STAGES: tuple[tuple[Callable[[_Specimen], None], ...], ...] = (
    (switches, shapes),
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
"""Checks in stages; the second stage runs only if the first one passed."""


def _draw_inputs(model: Model) -> np.ndarray:
    shape, rng = (_ROWS, *model.input_shape), np.random.default_rng(3)
    if np.dtype(model.input_dtype).kind == "i":
        return rng.integers(0, model.vocabulary or 2, shape, np.int32)
    return rng.standard_normal(shape, np.float32)


@package_settings()
def check_model(model: Model, *, images: Any = None, tolerance: float = 1e-4) -> report.ConformanceReport:
    """Checks that a model meets the requirements of recipes and the engine.

    It checks training switches, shapes and the classifier; that evaluation changes nothing, and training only the
    running statistics; that padded rows of a batch have no effect; that gradients are finite; and that several clients
    at once, with `vmap`, get the same results as each alone. Checks of features that the model lacks, such as running
    statistics or dropout, are reported as skipped, not passed.

    Args:
        model: the model, from `fedjax_bal.models.build`, `from_linen` or `from_nnx`, or user-defined.
        images: six different inputs `[6, ...]`; by default normal draws, or token ids below the model's vocabulary (0
            and 1 if it is unknown).
        tolerance: largest difference due to rounding, relative to a leaf's largest number or to 1.

    Returns:
        All checks, none of which failed; `skipped` lists those that could not be made.

    Raises:
        ConformanceError: a check failed; the message lists each failure with its remedy.

    Example:
        >>> from fedjax_bal import models
        >>> report = check_model(models.build("mlp", 10, (4, 4, 1)))
        >>> report.failed, report.skipped
        ((), ('running statistics', 'no real rows', 'normalised inputs', 'dropout'))
    """
    start_jax()
    check_is_model(model)
    if images is None:
        images = _draw_inputs(model)
    images = jax.device_get(jnp.asarray(images))
    if images.shape != (_ROWS, *model.input_shape):
        raise ValueError(f"images: received shape {images.shape}, must be {(_ROWS, *model.input_shape)}")
    return report.run_checks(STAGES, model.name, _Specimen(model, images, finite_number("tolerance", tolerance)))
