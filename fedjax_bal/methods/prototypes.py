"""Mean features by class, which clients report and the server sends to all of them."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.balance import class_sums
from fedjax_bal.data import over_rows
from fedjax_bal.methods.roles import Report, Server
from fedjax_bal.types import Array, Batch, Context, Exhibit, Key, Model, Outcome, ServerContext, Variables


class Prototypes(NamedTuple):
    """Mean features by class.

    Attributes:
        means: `Float[C, F]`, zeros where unknown.
        present: `Bool[C]`.
    """

    means: Array
    present: Array


class FeatureSums(NamedTuple):
    """Sums of features by class, which add up over clients and give prototypes.

    Attributes:
        sums: `Float[C, F]`.
        counts: `Float[C]`.
    """

    sums: Array
    counts: Array


def feature_sums(
    variables: Variables, ctx: Context, change: Callable[[Array], Array] = lambda features: features
) -> FeatureSums:
    """One evaluation pass over a client's rows: summed features, maybe changed, and counts by class."""
    classes = ctx.federation.num_classes

    def add(carry: FeatureSums, batch: Batch) -> FeatureSums:
        outputs, _ = ctx.model.apply(variables, batch.images, train=False)
        sums, counts = class_sums(change(outputs.features), batch.labels, batch.real, classes)
        return FeatureSums(carry.sums + sums, carry.counts + counts)

    width = num_features(ctx.model, variables)
    return over_rows(add, FeatureSums(jnp.zeros((classes, width)), jnp.zeros(classes)), ctx)


def num_features(model: Model, variables: Variables) -> int:
    """F, the width of the classifier's input."""
    image = jnp.zeros((1, *model.input_shape), model.input_dtype)
    return jax.eval_shape(lambda: model.apply(variables, image, train=False)[0].features).shape[-1]


def prototypes_of(sums: FeatureSums) -> Prototypes:
    """Means of the classes that have samples."""
    present = sums.counts > 0
    return Prototypes(sums.sums / jnp.where(present, sums.counts, 1.0)[:, None], present)


class SharedPrototypes(Report, Server, abc.ABC):
    """The base of parts whose clients get prototypes from the server, made of those that were delivered last.

    A round in which no update arrives keeps them.
    """

    def report(self, outcome: Outcome) -> FeatureSums:
        """Feature sums by class with the updated extractor."""
        return feature_sums(outcome.end, outcome.ctx)

    def init_server(self, server: ServerContext) -> Prototypes:
        """No prototypes."""
        classes = server.federation.num_classes
        width = num_features(server.model, server.variables)
        return Prototypes(jnp.zeros((classes, width)), jnp.zeros(classes, bool))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Prototypes, Prototypes]:
        """The prototypes go to every client."""
        return server.state, server.state

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """The prototypes that all clients get."""
        return Exhibit(prototypes=tuple(server.state))

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Means over all samples delivered this round."""
        return prototypes_of(server.aggregate.reports[self.slot])
