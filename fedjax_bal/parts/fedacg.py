"""FedACG: clients start where the server's momentum leads; evaluation sees the model before that."""

import jax

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Refine, Server
from fedjax_bal.types import Key, PyTree, ServerContext, Variables


@part
class BeforeLookahead(Server, Refine):
    r"""Shows, of a server with Nesterov momentum, the model without the part of the step that looks ahead.

    Such a server sends $\phi_t = w_t + \lambda (w_t - w_{t-1})$. With the mean of the clients' models,
    $w_{t+1}$, it goes on to $\phi_{t+1} = (1 + \lambda) w_{t+1} - \lambda w_t$, from which this part has $w_{t+1}$.

    Attributes:
        momentum: lambda, that of the server's optimizer.

    References:
        FedACG (Kim et al., 2024), Algorithm 1.
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
