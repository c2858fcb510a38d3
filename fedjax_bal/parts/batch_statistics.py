"""Running batch statistics that a client begins with, other than the global model's."""

import jax

from fedjax_bal.parts.part import Part, part
from fedjax_bal.parts.roles import Memory, Start
from fedjax_bal.types import Context, Outcome, PyTree, Variables


@part
class OwnStatistics(Start, Memory):
    """Each client goes on from the running statistics that it had after its last visit.

    The global model has the mean of those delivered, as ever, and is evaluated with it.

    References:
        Statistics that stay with the clients are those of SiloBN (Andreux et al., 2020); its parameters of batch
        normalisation are shared, as here.
    """

    def init_memory(self, variables: Variables) -> PyTree:
        """The initial statistics."""
        return variables.stats

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Those at the end of the visit."""
        del memory
        return outcome.end.stats

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """With the client's own statistics."""
        return variables._replace(stats=ctx.memory[self.slot])


@part
class FreshStatistics(Start):
    """Each visit begins with initial running statistics, mean 0 and variance 1.

    So the global model's are those of the last cohort alone, as far as its steps have moved them from there.
    """

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """With the initial statistics."""
        return variables._replace(stats=ctx.model.init(jax.random.key(0)).stats)


BATCH_STATISTICS: dict[str, tuple[Part, ...]] = {
    "average": (),
    "local": (OwnStatistics(),),
    "server_reset": (FreshStatistics(),),
}
"""Name of each way to treat running statistics -> the parts that bring it about."""
