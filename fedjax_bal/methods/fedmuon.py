"""Local Muon and FedMuon: clients step along orthogonalised momenta, which FedMuon's server averages and sends back."""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import BelowOne, Count, Positive, Recipe, recipe
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.needs import plain_sgd
from fedjax_bal.methods.roles import Gradient, Need, NeedsContext, Report, Server, Steps, part, static
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext

_POLYNOMIAL = (3.4445, -4.775, 2.0315)
_ADAM = (0.9, 0.95, 1e-10)


class Moments(NamedTuple):
    """The state that a client carries from step to step.

    Attributes:
        first: moving averages of the gradients, shaped like the parameters.
        second: those of the squared gradients for vectors; scalars 0 for matrices and convolutions.
        steps: the number of steps, `Int32[]`.
    """

    first: PyTree
    second: PyTree
    steps: Array


class MatrixSteps(Gradient, Steps, abc.ABC):
    """The base of parts that replace a gradient by Muon's direction; their attributes are those of `LocalMuon`."""

    beta: float
    scale: float
    nesterov: bool
    iterations: int

    @property
    def slot(self) -> str:
        """The same name for all of these parts, so that no two of them can be combined."""
        return "LocalMuon"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires plain steps along the direction."""
        return plain_sgd("muon", "it has its own momentum"), Need("no local momentum", _check_momentum)

    def init_steps(self, ctx: Context) -> Moments:
        """Returns zeros."""
        first = jax.tree.map(jnp.zeros_like, ctx.start.params)
        second = jax.tree.map(lambda leaf: jnp.zeros(() if leaf.ndim > 1 else leaf.shape, leaf.dtype), first)
        return Moments(first, second, jnp.zeros((), jnp.int32))

    def next_steps(self, carry: Moments, outputs: Outputs, batch: Batch, ctx: Context) -> Moments:
        """Changes nothing, because the moments follow the gradient."""
        return carry

    def observe(self, carry: Moments, grads: PyTree, ctx: Context) -> Moments:
        """Adds the gradient to the moments."""
        first = lambda m, g: _mixed(self.beta if g.ndim > 1 else _ADAM[0], m, g)
        second = lambda v, g: v if g.ndim > 1 else _mixed(_ADAM[1], v, g**2)
        return Moments(
            jax.tree.map(first, carry.first, grads), jax.tree.map(second, carry.second, grads), carry.steps + 1
        )

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the direction, shaped like the parameters."""
        moments: Moments = ctx.steps_state[self.slot]

        def one(g: Array, m: Array, v: Array) -> Array:
            if g.ndim > 1:
                ahead = _mixed(self.beta, m, g) if self.nesterov else m
                return self.scale * orthogonalised(ahead, self.iterations)
            b1, b2, epsilon = _ADAM
            return m / (1.0 - b1**moments.steps) / (_root(v / (1.0 - b2**moments.steps)) + epsilon)

        return jax.tree.map(one, grads, moments.first, moments.second)


@part
class LocalMuon(MatrixSteps):
    r"""Steps along orthogonalised momenta instead of gradients.

    The momentum of a matrix is $M \leftarrow \beta M + (1 - \beta) g$, zeros at the start of a local training, and its
    direction $s \sqrt{\max(1, n_{out} / n_{in})} \, U V^T$ with the singular vectors of M, or of
    $\beta M + (1 - \beta) g$ with Nesterov's form. $U V^T$ is approximated by Newton-Schulz iterations. A convolution
    is the matrix with a column for each output channel. Vectors, such as biases, take Adam's direction with decays of
    0.9 and 0.95, whose moments also start at zero. Classifiers and embeddings are matrices like others.

    The local optimizer, plain SGD, multiplies the direction by its learning rate and adds its weight decay, which is
    therefore decoupled from the momentum.

    Attributes:
        beta: decay of the momentum.
        scale: s, the length of a matrix's step relative to that of a vector.
        nesterov: whether the direction is that of Nesterov's form.
        iterations: Newton-Schulz iterations.

    References:
        Muon (Jordan et al., 2024), in clients as in the authors' code of FedMuon (Liu et al., 2025), which iterates in
        bfloat16, multiplies a matrix's weight decay by s, too, and takes the ratio of a convolution's sides from its
        height and width, so that it is 1 for square kernels. The paper writes the momentum as $\beta M + g$, without
        Nesterov's form, and $U V^T$ as exact: directions don't depend on the length of M.
    """

    beta: float = 0.95
    scale: float = 1.0
    nesterov: bool = static(True)
    iterations: int = static(5)


@part
class SharedMuon(MatrixSteps, Report, Server):
    r"""Muon whose momenta start at the mean of those with which the last cohort ended.

    Attributes:
        beta: see `LocalMuon`, as for all attributes.
        scale: length of a matrix's step.
        nesterov: whether the direction is that of Nesterov's form.
        iterations: Newton-Schulz iterations.

    References:
        FedMuon (Liu et al., 2025), Algorithm 2, without the compression of momenta by a singular value decomposition.
        The mean is that over the clients that deliver, with equal weights; Adam's moments of vectors start at zero, as
        in the authors' code. There a process that trains its first client starts from zeros, too.
    """

    beta: float = 0.98
    scale: float = 1.0
    nesterov: bool = static(True)
    iterations: int = static(5)

    def init_steps(self, ctx: Context) -> Moments:
        """Returns the server's momenta, and zeros for vectors."""
        fresh = super().init_steps(ctx)
        begin = lambda mean, zeros: zeros if mean is None else mean
        first = jax.tree.map(begin, ctx.broadcast[self.slot], fresh.first, is_leaf=lambda leaf: leaf is None)
        return fresh._replace(first=first)

    def report(self, outcome: Outcome) -> PyTree:
        """Returns the client's last momenta, without those of vectors."""
        return _of_matrices(outcome.ctx.steps_state[self.slot].first)

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns zeros, shaped like a report."""
        return jax.tree.map(jnp.zeros_like, _of_matrices(server.variables.params))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends the mean momenta to every client."""
        return server.state, server.state

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the mean of the reported momenta."""
        count = jnp.maximum((server.cohort.local_steps > 0).sum(), 1)
        return jax.tree.map(lambda total: total / count, server.aggregate.reports[self.slot])


def orthogonalised(array: Array, iterations: int) -> Array:
    r"""Replaces the singular values of a matrix, or of a convolution, by numbers near $\sqrt{\max(1, n_{out}/n_{in})}$.

    Args:
        array: `Float[..., out]`, a matrix with a column for each output.
        iterations: Newton-Schulz iterations, which bring the singular values into about [0.7, 1.2].
    """
    matrix = array.reshape(-1, array.shape[-1])
    inputs, outputs = matrix.shape
    # The polynomial commutes with transposition, and costs less with the shorter side first.
    x = matrix.T if inputs > outputs else matrix
    x = x / (_root((x * x).sum()) + 1e-7)
    a, b, c = _POLYNOMIAL
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if inputs > outputs else x
    return max(1.0, outputs / inputs) ** 0.5 * x.reshape(array.shape)


def _mixed(decay: Array | float, old: Array, new: Array) -> Array:
    return decay * old + (1.0 - decay) * new


def _root(squares: Array) -> Array:
    return jnp.sqrt(jnp.maximum(squares, 1e-30))  # with a finite gradient at 0


def _of_matrices(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf if leaf.ndim > 1 else None, tree)


def _check_momentum(context: NeedsContext) -> None:
    if context.local.options.get("momentum"):
        raise ValueError(
            f"muon: received a local momentum of {context.local.momentum} besides its own: set "
            "training.optimizer.momentum to 0, and beta for the momentum of matrices"
        )


@recipe("drift", "jordan2024muon", "liu2025fedmuon")
def local_muon(beta: BelowOne = 0.95, scale: Positive = 1.0, nesterov: bool = True, iterations: Count = 5) -> Recipe:
    """FedAvg whose clients step along orthogonalised momenta, which weight all directions of a matrix equally.

    Args:
        beta: decay of the momentum, in [0, 1).
        scale: length of a matrix's step relative to that of a vector, above 0.
        nesterov: whether the direction is that of Nesterov's form.
        iterations: Newton-Schulz iterations, at least 1.

    Example:
        >>> local_muon().parts
        (LocalMuon(beta=0.95, scale=1.0, nesterov=True, iterations=5),)

    References:
        The baseline of FedMuon (Liu et al., 2025), whose commands multiply matrices' steps by 10 for transformers, with
        a learning rate of 3e-4, and by 0.5 for ResNets, with 0.03. optax's Muon, the optimizer `muon`, corrects the
        momentum's bias in Nesterov's form and gives convolutions to Adam. Updates are averaged by number of samples;
        add `equal_weights` for the code's uniform average.
    """
    return Recipe("local_muon", (LocalMuon(beta, scale, nesterov, iterations),))


@recipe("drift", "liu2025fedmuon")
def fedmuon(
    alignment: BelowOne = 0.5,
    beta: BelowOne = 0.98,
    scale: Positive = 1.0,
    nesterov: bool = True,
    iterations: Count = 5,
) -> Recipe:
    r"""Local Muon whose clients start from the mean momentum, and step partly along the last mean update.

    Args:
        alignment: share of the last mean update in a step, at least 0 and below 1.
        beta: decay of the momentum, in [0, 1).
        scale: length of a matrix's step relative to that of a vector, above 0.
        nesterov: whether the direction is that of Nesterov's form.
        iterations: Newton-Schulz iterations, at least 1.

    Example:
        >>> [part.slot for part in fedmuon().parts]
        ['LocalMuon', 'ClientMomentum']

    References:
        Liu et al., 2025, Algorithm 2; the defaults are those of the authors' commands, which have Nesterov's form that
        the paper doesn't mention, and the scales that `local_muon` gives. `ClientMomentum` divides the mean update by
        the clients' own numbers of steps, the code by the largest allowed number. There gradients are clipped at 10 and
        the weight decay is 0.01: set the optimizer's clip_norm and weight_decay. Updates are averaged by number of
        samples; add `equal_weights` for the code's uniform average.
    """
    return Recipe("fedmuon", (SharedMuon(beta, scale, nesterov, iterations), ClientMomentum(1.0 - alignment)))
