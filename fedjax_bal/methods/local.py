"""Local training: every client trains its own model, without the others.

These models are evaluated on clients' own test rows (`evaluation.client_test` in a configuration), by the metric
`client_accuracy`. The test set is classified by the global model, which stays as initialised.

Centralised training is FedAvg with one client that has all rows and always takes part: `data.partition.iid(rng, labels,
1)`, or next to other methods in a configuration (availability and delivery can't be set by a recipe)

    {name: centralised, recipe: fedavg, partition: {scheme: iid, clients: 1}, selection: {clients_per_round: 1},
     availability: {name: always}, delivery: {name: always}}
"""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.roles import Personal, part
from fedjax_bal.types import PyTree


@part
class OwnModel(Personal):
    """Keeps the whole model, with its running statistics, on each client; nothing is shared."""

    keeps_statistics = True

    def personal(self, params: PyTree) -> PyTree:
        """Selects the whole model."""
        return True


@recipe("personal", "smith2017mocha")
def local() -> Recipe:
    """Every client trains its own model on its own rows; nothing is sent.

    Example:
        >>> local().parts
        (OwnModel(),)

    References:
        The baseline that federated learning should beat, as in Smith et al., 2017, section 5.
    """
    return Recipe("local", (OwnModel(),))
