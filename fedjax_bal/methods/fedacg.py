"""FedACG: clients start from the server's lookahead model; evaluation uses the model before the lookahead."""

import jax

from fedjax_bal.methods.combine import BelowOne, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedprox import Proximal
from fedjax_bal.methods.needs import Unshifted
from fedjax_bal.methods.roles import Server, part
from fedjax_bal.optim import optimizer
from fedjax_bal.types import Key, PyTree, ServerContext, Variables


@part
class BeforeLookahead(Server, Unshifted):
    r"""Evaluates the model of a server with Nesterov momentum before the lookahead.

    Such a server sends $\phi_t = w_t + \lambda (w_t - w_{t-1})$. With the mean of the clients' models, $w_{t+1}$, its
    next model is $\phi_{t+1} = (1 + \lambda) w_{t+1} - \lambda w_t$, from which this part recovers $w_{t+1}$.

    Attributes:
        momentum: lambda, the momentum of the server's optimizer.

    References:
        FedACG (Kim et al., 2024), Algorithm 1, which is Nesterov's momentum evaluated before the lookahead. The
        defaults are those of the authors' code, whose proximal term lacks the factor 1/2. Updates are averaged by
        number of samples; the code averages them uniformly.
    """

    momentum: float = 0.85

    travels = False

    method = "fedacg"

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns w, shaped like the parameters."""
        return server.variables.params

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends nothing: clients only need the model."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the next w."""
        share = 1.0 / (1.0 + self.momentum)
        return jax.tree.map(lambda ahead, w: share * ahead + (1.0 - share) * w, server.variables.params, server.state)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the model to be evaluated."""
        return variables._replace(params=server.state)


@recipe("averaging", "kim2024fedacg")
def fedacg(momentum: BelowOne = 0.85, mu: NonNegative = 0.002) -> Recipe:
    """FedAvg whose clients start from the server's lookahead model, and stay near it.

    Args:
        momentum: lambda, the server's momentum, in [0, 1).
        mu: weight of the proximal term, at least 0.

    Example:
        >>> fedacg().parts
        (Proximal(mu=0.002), BeforeLookahead(momentum=0.85))
        >>> fedacg().server_optimizer.flags
        (('nesterov', True),)
    """
    return Recipe(
        "fedacg",
        (Proximal(mu), BeforeLookahead(momentum)),
        server_optimizer=optimizer("sgd", 1.0, momentum=momentum, nesterov=True),
    )
