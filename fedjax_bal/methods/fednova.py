"""FedNova: updates are normalised by the number of local steps, so that more steps don't get more weight."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.methods.combine import BelowOne, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedprox import Proximal
from fedjax_bal.methods.needs import fresh_momentum, plain_sgd, without_other
from fedjax_bal.methods.roles import Need, NeedsContext, Reduce, Step, Weigh, part, parts_with
from fedjax_bal.optim import optimizer
from fedjax_bal.types import Array, Cohort, PyTree, ServerContext

BITS = 31  # bits of the largest number of steps, Int32


def accumulated_steps(steps: Array, momentum: Array | float = 0.0, shrink: Array | float = 0.0) -> Array:
    r"""Returns the equivalent number of plain local steps, `Float[...]`: the L1 norm of FedNova's a.

    Starting from zeros, each step applies $c \leftarrow \rho c + 1$ and $a \leftarrow a + c$ with momentum $\rho > 0$;
    $a \leftarrow (1 - \eta \mu) a + 1$ with a proximal term (`shrink` is $\eta \mu$); $a \leftarrow a + 1$ with
    neither. With both, a step applies the first rule and then the second, so that it counts twice, as in the authors'
    code. With a momentum alone, so many plain steps move as far along a constant gradient (Wang et al., 2020, section
    4.1).
    """
    # A step is linear in (c, a, 1), so powers of one matrix replace the loop over steps. The matrix has no negative
    # entries as long as eta mu is at most 1, so there is no cancellation.
    rho = jnp.asarray(momentum, float)
    keep = 1.0 - jnp.asarray(shrink, float)
    moves = (rho > 0).astype(float)
    plain = ((jnp.asarray(shrink) > 0) | (rho == 0)).astype(float)
    zero = jnp.zeros(())
    one = jnp.ones(())
    step = [[rho, zero, one], [keep * moves * rho, keep, keep * moves + plain], [zero, zero, one]]
    counts = jnp.asarray(steps)

    def apply_bit(bit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        power, state = carry
        odd = ((counts >> bit) & 1)[..., None] == 1
        return _product(power, power), jnp.where(odd, (power * state[..., None, :]).sum(-1), state)

    start = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0]), (*counts.shape, 3))
    return lax.fori_loop(0, BITS, apply_bit, (jnp.array(step), start))[1][..., 1]


@part
class NormalisedAveraging(Weigh, Step):
    r"""Averages directions instead of changes, then rescales the mean to the effective number of steps.

    A chain's change $\Delta_k$ is divided by $a_k$, the equivalent number of plain steps, summed over the chain's
    clients. The server moves by $\tau_{eff} \sum_k p_k \Delta_k / a_k$, where $p_k$ are the cohort weights without
    this part, and $\tau_{eff} = \sum_k p_k a_k$, or $\sum_k p_k \tau_k$ with a proximal term.

    The engine normalises weights once. They are therefore divided by $a_k$ beforehand; with the result $v_k$, the mean
    change is $\sum_k v_k \Delta_k$ and $p_k = v_k a_k / \sum_j v_j a_j$.

    Attributes:
        mu: weight of the proximal term that is combined with this part, 0 for none.

    References:
        FedNova (Wang et al., 2020), section 4, and the authors' code for a proximal term: equal steps give FedAvg only
        without one. All parameters are normalised; batch statistics are averaged as in FedAvg. The proximal term is
        part of the loss, so that momentum sees it; the authors' code adds it after the momentum. As there, the
        effective number of steps ignores a momentum rho if mu is set: over many local steps, updates are then shorter
        by a factor of (1 - rho) / (2 - rho).
    """

    mu: float = 0.0

    weighs_statistics: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires changes that are equivalent to a known number of plain SGD steps."""
        reason = "how far its steps reach is known for plain SGD only"
        why = "which makes one update of all without looking at the weights that normalise them"
        alone = without_other("fednova", self, Reduce, because=why)
        return fresh_momentum(self.slot), plain_sgd("fednova", reason), Need("", self._check_reach), alone

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Returns the weights for directions; 0 for a chain that takes no step."""
        reach = self._equivalent_steps(cohort)
        return jnp.where(reach > 0, weights / jnp.where(reach > 0, reach, 1.0), 0.0)

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the mean direction times the effective number of steps, shaped like the parameters."""
        weights = server.aggregate.weights
        reach = self._equivalent_steps(server.cohort)
        mean = (weights * reach).sum()
        mean = jnp.where(mean > 0, mean, 1.0)
        lengths = jnp.where(self.mu > 0, server.cohort.steps, reach)
        effective = (weights * reach / mean * lengths).sum()
        return jax.tree.map(lambda leaf: effective / mean * leaf, delta), server.state

    def _check_reach(self, context: NeedsContext) -> None:
        mu = sum(other.mu for other in parts_with(context.parts, Proximal))
        local = context.local
        if mu != self.mu:
            raise ValueError(
                f"fednova: received a proximal term of mu={mu:g} in addition to its own mu={self.mu:g}, which counts "
                f"steps without it: give fednova mu={mu:g} and leave the other recipe's proximal term out"
            )
        if local.step_schedule is not None and (local.options.get("momentum") or self.mu):
            raise ValueError(
                "fednova: received a step_schedule together with a local momentum or a proximal term; how far such "
                "steps reach is known for plain steps only: leave the schedule, or the other two, out"
            )

    def _equivalent_steps(self, cohort: Cohort) -> Array:
        """Returns each chain's equivalent number of plain steps, `Float[G]`; every client starts without momentum."""
        reach = accumulated_steps(cohort.local_steps, cohort.momentum, cohort.learning_rate * self.mu)
        reach = reach if cohort.full_steps is None else cohort.full_steps
        return cohort.passes * reach.sum(-1)


def _product(left: Array, right: Array) -> Array:
    # Not `@`: accelerators compute matrix products with reduced precision.
    return (left[:, :, None] * right[None, :, :]).sum(1)


@recipe("drift", "wang2020fednova")
def fednova(mu: NonNegative = 0.0, server_momentum: BelowOne = 0.0) -> Recipe:
    """Normalised averaging: updates are divided by their equivalent number of plain steps, momentum included.

    Args:
        mu: weight of a proximal term, at least 0. It changes the equivalent number of steps: set it here, not with
            fedprox.
        server_momentum: momentum of the server, in [0, 1).

    Example:
        >>> fednova(mu=0.01).parts
        (NormalisedAveraging(mu=0.01), Proximal(mu=0.01))
    """
    return Recipe(
        "fednova",
        (NormalisedAveraging(mu), Proximal(mu)) if mu else (NormalisedAveraging(),),
        server_optimizer=optimizer("sgd", 1.0, momentum=server_momentum) if server_momentum else None,
    )
