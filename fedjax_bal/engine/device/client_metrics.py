"""The metrics of the clients' own models, each declared once."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import over_rows
from fedjax_bal.engine.device.evaluation import TestSet, hits, own_hits
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.types import Array, Batch, Cohort, Federation, Outcome


class LocalTest(NamedTuple):
    """The test images on which clients' own models are measured, if any, and whether it is due this round, `Bool[]`."""

    test: TestSet | None
    due: Array


class ClientMetric(NamedTuple):
    """A number measured for each client that trained, and the value that a round reports for its cohort.

    Attributes:
        name: its key in `Info.metrics`.
        asked: `asked(setting, federation)`, known when the program is traced: a metric that isn't asked for costs
            nothing and is not reported.
        of_client: `of_client(outcome, test)`, the client's number, a scalar. It is computed in evaluated rounds only,
            and is 0 in other rounds and for clients that don't deliver.
        of_cohort: `of_cohort(values, cohort, setting)`, the reported value, from the clients' numbers `[G, L]`.
    """

    name: str
    asked: Callable[[Setting, Federation], bool]
    of_client: Callable[[Outcome, TestSet | None], Array]
    of_cohort: Callable[[Array, Cohort, Setting], Array]


def zero_metrics(setting: Setting, federation: Federation, local_test: LocalTest | None) -> dict[str, Array]:
    """Zeros for the metrics that a round measures, by name; none where `local_test` is None."""
    if local_test is None:
        return {}
    asked = [metric for metric in CLIENT_METRICS if metric.asked(setting, federation)]
    return {metric.name: jnp.zeros((), jnp.int32) for metric in asked}


def measure(setting: Setting, local_test: LocalTest | None, outcome: Outcome, delivered: Array) -> dict[str, Array]:
    """The metrics of one client, by name."""
    zeros = zero_metrics(setting, outcome.ctx.federation, local_test)
    if local_test is None or not zeros:
        return zeros
    asked = [metric for metric in CLIENT_METRICS if metric.name in zeros]
    compute = lambda: {metric.name: metric.of_client(outcome, local_test.test) for metric in asked}
    values = lax.cond(local_test.due, compute, lambda: zeros)
    return {name: jnp.where(delivered, value, zeros[name]) for name, value in values.items()}


def summarise_cohort(setting: Setting, cohort: Cohort, values: dict[str, Array]) -> dict[str, Array]:
    """The round's reported values, from its clients' metrics, `[G, L]` by name."""
    measured = [metric for metric in CLIENT_METRICS if metric.name in values]
    return {metric.name: metric.of_cohort(values[metric.name], cohort, setting) for metric in measured}


def _own_training_hits(outcome: Outcome, test: TestSet | None) -> Array:
    """Number of its own rows that a client's trained model classifies correctly."""

    def add(total: Array, batch: Batch) -> Array:
        outputs, _ = outcome.ctx.model.apply(outcome.end, batch.images, train=False)
        return total + (batch.real & (outputs.logits.argmax(-1) == batch.labels)).sum()

    return over_rows(add, jnp.zeros((), jnp.int32), outcome.ctx)


def _test_hits(outcome: Outcome, test: TestSet | None) -> Array:
    """Number of test images that a client's trained model classifies correctly; 0 if it took no step."""
    ctx = outcome.ctx
    correct = jnp.zeros((), jnp.int32)
    if test is not None:
        correct = hits(ctx.model, outcome.end, test, ctx.federation.mean, ctx.federation.std)
    return jnp.where(outcome.steps > 0, correct, 0)


OWN_HITS = ClientMetric(
    "own_hits",
    lambda setting, federation: federation.tests is not None,
    lambda outcome, test: own_hits(outcome),
    lambda values, cohort, setting: values,
)
CLIENT_METRICS = (
    ClientMetric(
        "local_accuracy",
        lambda setting, federation: setting.evaluation.local_accuracy,
        _own_training_hits,
        lambda values, cohort, setting: values.sum() / cohort.sizes.sum(),
    ),
    ClientMetric(
        "local_test_accuracy",
        lambda setting, federation: setting.evaluation.local_test_images > 0,
        _test_hits,
        lambda values, cohort, setting: (
            values.sum() / (setting.evaluation.local_test_images * (cohort.local_steps > 0).sum())
        ),
    ),
    OWN_HITS,
)
