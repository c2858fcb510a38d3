"""FedACG: clients start where the server's momentum leads; evaluation sees the model before that."""

import jax

from fedjax_bal.methods.combine import BelowOne, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedprox import Proximal
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Refine, Server
from fedjax_bal.optim import optimizer
from fedjax_bal.types import Key, PyTree, ServerContext, Variables


@part
class BeforeLookahead(Server, Refine):
    r"""Shows, of a server with Nesterov momentum, the model without the part of the step that looks ahead.

    Such a server sends $\phi_t = w_t + \lambda (w_t - w_{t-1})$. With the mean of the clients' models,
    $w_{t+1}$, it goes on to $\phi_{t+1} = (1 + \lambda) w_{t+1} - \lambda w_t$, from which this part has $w_{t+1}$.

    Attributes:
        momentum: lambda, that of the server's optimizer.

    References:
        FedACG (Kim et al., 2024), Algorithm 1. This is Nesterov's momentum, evaluated before it looks ahead. The
        defaults are those of the authors' code, whose proximal term lacks the factor 1/2. Updates are averaged by
        number of samples, in the code without weights.
    """

    momentum: float = 0.85

    travels = False
    evaluation_only = True

    def init_server(self, server: ServerContext) -> PyTree:
        """w, like params."""
        return server.variables.params

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Clients need nothing but the model."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """The next w."""
        share = 1.0 / (1.0 + self.momentum)
        return jax.tree.map(lambda ahead, w: share * ahead + (1.0 - share) * w, server.variables.params, server.state)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The model that is evaluated."""
        return variables._replace(params=server.state)


@recipe("averaging", "kim2024fedacg")
def fedacg(momentum: BelowOne = 0.85, mu: NonNegative = 0.002) -> Recipe:
    """FedAvg whose clients begin where the server's momentum leads, and stay near that model.

    Args:
        momentum: lambda, of the server, in [0, 1).
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
