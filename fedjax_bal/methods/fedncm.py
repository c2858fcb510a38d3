"""FedNCM: before each evaluation the classifier is computed from the mean features of the classes, in closed form."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.heads import check_dense, with_dense_head
from fedjax_bal.methods.prototypes import FeatureSums, feature_sums, prototypes_of
from fedjax_bal.methods.roles import CheckContext, Closing, part
from fedjax_bal.models import unit
from fedjax_bal.types import Key, Outcome, ServerContext, Variables


@part
class NearestMean(Closing):
    r"""Classifies by the cosine to the mean feature of each class over all clients, in evaluation only.

    Every client computes its rows' features with the global model and reports, by class, their number and sum. The
    class vector is the direction $m_c / \|m_c\|$ of the mean feature, the bias 0. A class that no client has gets a
    vector of zeros. Training continues with the unchanged classifier.

    References:
        FedNCM (Legate et al., 2023), on a network with pretrained features, where this classifier is all
        that is trained, or is fine-tuned afterwards. Here each evaluation shows it on the features of that round: with
        `simulate(..., variables=...)` and a local learning rate of 0 it is the paper's. The authors' code leaves the
        bias of the new layer as drawn, which the paper doesn't mention, and divides by 0 for a class without rows.
    """

    def check(self, context: CheckContext) -> None:
        """Rejects a model that doesn't end in a dense layer, or of which layers below it stay with the clients."""
        check_dense("fedncm", context)

    def closing_report(self, outcome: Outcome) -> FeatureSums:
        """Computes the sums of the client's features, by class."""
        return feature_sums(outcome.end, outcome.ctx)

    def close(self, key: Key, variables: Variables, reports: FeatureSums, server: ServerContext) -> Variables:
        """Returns the global model with the directions of the classes' means as its classifier."""
        vectors = unit(prototypes_of(reports).means).T
        return with_dense_head(variables, vectors, jnp.zeros(vectors.shape[-1]))


@recipe("heads", "legate2023fedncm")
def fedncm() -> Recipe:
    """FedAvg that is evaluated with another classifier: the directions of the classes' mean features.

    Every evaluation takes a pass over all clients' rows: evaluate less often if there are many.

    Example:
        >>> fedncm().parts
        (NearestMean(),)
    """
    return Recipe("fedncm", (NearestMean(),))
