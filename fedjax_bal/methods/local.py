"""Training without others: every client has a model of its own.

A client's own test rows, `evaluation.client_test` in a configuration, show what its model is worth: `client_accuracy`
is that of all clients' own models. The test set sees the global model, whose personal leaves stay as initialised.

Centralised training is FedAvg with one client that has all rows and always takes part: `data.partition.iid(rng, labels,
1)`, or beside other methods of a configuration (availability and delivery are round by round, which no recipe decides)

    {name: centralised, recipe: fedavg, partition: {scheme: iid, clients: 1}, selection: {clients_per_round: 1},
     availability: {name: always}, delivery: {name: always}}
"""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Personal
from fedjax_bal.types import PyTree


@part
class OwnModel(Personal):
    """Every client has a model of its own, with its running statistics, and nothing is shared."""

    keeps_statistics = True

    def personal(self, params: PyTree) -> PyTree:
        """All of it."""
        return True


@recipe("personal", "smith2017mocha")
def local() -> Recipe:
    """Every client trains a model of its own on its own rows; nothing is sent.

    Example:
        >>> local().parts
        (OwnModel(),)

    References:
        The baseline that federated learning should beat, as in Smith et al., 2017, section 5.
    """
    return Recipe("local", (OwnModel(),))
