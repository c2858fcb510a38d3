"""Running batch statistics that a client begins with, other than the global model's."""

import jax

from fedjax_bal.methods.part import Part, part
from fedjax_bal.methods.roles import Memory, Start
from fedjax_bal.types import Context, Outcome, PyTree, Variables


@part
class OwnStatistics(Start, Memory):
    """Starts each client with the running statistics that it had after its last local training.

    The global model has the mean of those delivered, as ever, and is evaluated with it.

    References:
        Statistics that stay with the clients are those of SiloBN (Andreux et al., 2020); its parameters of batch
        normalisation are shared, as here.
    """

    def init_memory(self, variables: Variables) -> PyTree:
        """The initial statistics."""
        return variables.stats

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Those at the end of local training."""
        return outcome.end.stats

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """With the client's own statistics."""
        return variables._replace(stats=ctx.memory[self.slot])


@part
class FreshStatistics(Start):
    """Starts each client with initial running statistics, mean 0 and variance 1.

    The global model's are therefore those of the last cohort alone, as far as its steps have moved them.
    """

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """With the initial statistics."""
        return variables._replace(stats=ctx.model.init(jax.random.key(0)).stats)


BATCH_STATISTICS: dict[str, tuple[Part, ...]] = {
    "average": (),
    "local": (OwnStatistics(),),
    "server_reset": (FreshStatistics(),),
}
"""The parts for each way to treat running statistics, by its name."""
