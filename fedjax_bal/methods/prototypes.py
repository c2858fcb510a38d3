"""Prototypes: mean features by class, which clients report and the server broadcasts."""

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
    """Sums of features by class, which are added up over clients to compute prototypes.

    Attributes:
        sums: `Float[C, F]`.
        counts: `Float[C]`.
    """

    sums: Array
    counts: Array


def feature_sums(
    variables: Variables, ctx: Context, change: Callable[[Array], Array] = lambda features: features
) -> FeatureSums:
    """Sums features, after `change`, and counts rows by class, in an evaluation pass over a client's rows."""
    classes = ctx.federation.num_classes

    def add(carry: FeatureSums, batch: Batch) -> FeatureSums:
        outputs, _ = ctx.model.apply(variables, batch.images, train=False)
        sums, counts = class_sums(change(outputs.features), batch.labels, batch.real, classes)
        return FeatureSums(carry.sums + sums, carry.counts + counts)

    width = num_features(ctx.model, variables)
    return over_rows(add, FeatureSums(jnp.zeros((classes, width)), jnp.zeros(classes)), ctx)


def num_features(model: Model, variables: Variables) -> int:
    """Returns F, the width of the classifier's input."""
    image = jnp.zeros((1, *model.input_shape), model.input_dtype)
    return jax.eval_shape(lambda: model.apply(variables, image, train=False)[0].features).shape[-1]


def prototypes_of(sums: FeatureSums) -> Prototypes:
    """Computes the means of the classes that have samples."""
    present = sums.counts > 0
    return Prototypes(sums.sums / jnp.where(present, sums.counts, 1.0)[:, None], present)


def keep_absent(new: Prototypes, old: Prototypes) -> Prototypes:
    """Returns the new prototypes, with the old one of a class that has no new one."""
    return Prototypes(jnp.where(new.present[:, None], new.means, old.means), new.present | old.present)


class SharedPrototypes(Report, Server, abc.ABC):
    """The base of parts whose server broadcasts prototypes, computed from the last delivered reports.

    A round without updates keeps them.
    """

    def report(self, outcome: Outcome) -> FeatureSums:
        """Returns feature sums by class, computed with the trained extractor."""
        return feature_sums(outcome.end, outcome.ctx)

    def init_server(self, server: ServerContext) -> Prototypes:
        """Returns empty prototypes."""
        classes = server.federation.num_classes
        width = num_features(server.model, server.variables)
        return Prototypes(jnp.zeros((classes, width)), jnp.zeros(classes, bool))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Prototypes, Prototypes]:
        """Sends the prototypes to every client."""
        return server.state, server.state

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """Returns the prototypes that all clients receive."""
        return Exhibit(prototypes=tuple(server.state))

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Computes means over all samples of the clients that delivered in this round."""
        return prototypes_of(server.aggregate.reports[self.slot])
