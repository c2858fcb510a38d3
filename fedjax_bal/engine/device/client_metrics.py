"""Measures clients' own models in the compiled program: the `measured` of each metric in `METRICS`."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import over_rows
from fedjax_bal.engine.device.evaluation import TestSet, hits, own_hits
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.metrics import METRICS, Measured
from fedjax_bal.types import Array, Batch, Cohort, Federation, Outcome


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
        """Number of the client's training rows that its model classifies correctly, `Int32[]`."""
        outcome = self.outcome

        def add(total: Array, batch: Batch) -> Array:
            outputs, _ = outcome.ctx.model.apply(outcome.end, batch.images, train=False)
            return total + (batch.real & (outputs.logits.argmax(-1) == batch.labels)).sum()

        return over_rows(add, jnp.zeros((), jnp.int32), outcome.ctx)

    def hits_on_test_images(self) -> Array:
        """Number of test images that its model classifies correctly, `Int32[]`; 0 if it took no step."""
        ctx = self.outcome.ctx
        correct = jnp.zeros((), jnp.int32)
        if self.test is not None:
            correct = hits(ctx.model, self.outcome.end, self.test, ctx.federation.mean, ctx.federation.std)
        return jnp.where(self.outcome.steps > 0, correct, 0)

    def hits_on_own_test_rows(self) -> Array:
        """Number of the client's test rows that its model classifies correctly, `Int32[]`."""
        return own_hits(self.outcome)


def zero_metrics(setting: Setting, federation: Federation, local_test: LocalTest | None) -> dict[str, Array]:
    """Makes zeros for the metrics that a round measures, by name; empty if `local_test` is None."""
    if local_test is None:
        return {}
    asked = [measured for measured in _declared() if measured.enabled(setting.evaluation, federation)]
    return {measured.name: jnp.zeros((), measured.dtype) for measured in asked}


def measure(setting: Setting, local_test: LocalTest | None, outcome: Outcome, delivered: Array) -> dict[str, Array]:
    """Measures the metrics of one client, by name; zeros if it didn't deliver or measurement isn't due."""
    zeros = zero_metrics(setting, outcome.ctx.federation, local_test)
    if local_test is None or not zeros:
        return zeros

    def values() -> dict[str, Array]:
        trained = ClientModel(outcome, local_test.test)
        return {measured.name: measured.of_client(trained) for measured in _declared() if measured.name in zeros}

    # `due` has no client axis, so that under `vmap` this stays a branch, and other rounds don't pay for the test.
    shown = lax.cond(local_test.due, values, lambda: zeros)
    return {name: jnp.where(delivered, value, zeros[name]) for name, value in shown.items()}


def summarise_cohort(setting: Setting, cohort: Cohort, values: dict[str, Array]) -> dict[str, Array]:
    """Computes the round's reported values from its clients' metrics, `[G, L]` by name."""
    measured = [each for each in _declared() if each.name in values]
    return {each.name: each.of_cohort(values[each.name], cohort, setting.evaluation) for each in measured}


def _declared() -> list[Measured]:
    return [metric.measured for metric in METRICS.values() if metric.measured is not None]
