"""Initial running batch statistics for a client's training that replace the global model's."""

import jax

from fedjax_bal.methods.roles import Memory, Part, Start, part
from fedjax_bal.types import Context, Outcome, PyTree, Variables


@part
class OwnStatistics(Start, Memory):
    """Starts each client with the running statistics that it had after its last local training.

    The global model still gets the mean of the delivered statistics, and is evaluated with it.

    References:
        SiloBN (Andreux et al., 2020) keeps the statistics with the clients and shares the parameters of batch
        normalisation, as here.
    """

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns the initial statistics."""
        return variables.stats

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the statistics at the end of local training."""
        return outcome.end.stats

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the statistics by the client's own."""
        return variables._replace(stats=ctx.memory[self.slot])


@part
class FreshStatistics(Start):
    """Starts each client with the model's initial running statistics: mean 0 and variance 1, or pretrained ones.

    The global model's statistics therefore reflect only the last cohort, as far as its local steps have moved them.
    """

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the statistics by the initial ones."""
        return variables._replace(stats=ctx.model.init(jax.random.key(0)).stats)


BATCH_STATISTICS: dict[str, tuple[Part, ...]] = {
    "average": (),
    "local": (OwnStatistics(),),
    "server_reset": (FreshStatistics(),),
}
"""The parts for each treatment of running statistics, by its name."""
