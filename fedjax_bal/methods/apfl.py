"""APFL: every client trains a second model, and predicts with its own mixture of that and the global model."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.methods.combine import NonNegative, Recipe, Share, recipe
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import CheckContext, Loss, Need, Separate, Steps, Update, part, static
from fedjax_bal.methods.twins import check_twin, no_statistics, with_twin, without
from fedjax_bal.types import Array, Batch, Context, Model, Outputs, PyTree, Variables

_TWIN = "own_model"
_SHARE = "own_share"


@part
class MixedModel(Separate, Loss, Steps, Update):
    r"""Trains the client's part v of the mixture $\bar v = \alpha v + (1 - \alpha) w$, and $\alpha$ itself.

    While w takes its steps as in FedAvg, v descends the gradient of $F_k(\bar v)$ with respect to v, which is
    $\alpha \nabla F_k(\bar v)$, on the same batches with the same optimizer. The share follows
    $\alpha \leftarrow \alpha - \eta (\langle v - w, \nabla F_k(\bar v) \rangle + \gamma \alpha)$, then is cut to
    [0, 1]. All three gradients are those before the step. A client's own test rows are classified by the mixture of its
    v and the current global model.

    v is a second set of parameters, `params["own_model"]`, initialised like the first; `params["own_share"]` is the
    difference between the client's alpha and its initial value. Loss terms, corrections and ascents of other parts
    don't affect them. An optimizer with momentum or weight decay applies these to both.

    Attributes:
        alpha: the initial share of v, in [0, 1].
        shrinkage: gamma.
        adapts: whether alpha changes in the first local step of each local training ("round"), in every local step
            ("step") or not at all ("never").

    References:
        APFL (Deng et al., 2020), Algorithm 1, with its adaptive share, which has no shrinkage there. Defaults are those
        of the authors' code (FedTorch), which departs from the paper: it mixes the two models' logits instead of their
        parameters, steps v with a w that has already taken its step, and multiplies the terms of alpha's gradient by
        alpha and 1 - alpha once more. The mixture's loss is the plain cross-entropy, without dropout. Updates are
        averaged by number of samples; add `equal_weights` for the paper's uniform average.
    """

    alpha: float = 0.5
    shrinkage: float = 0.02
    adapts: str = static("round")

    own = (_TWIN, _SHARE)

    def bind(self, model: Model) -> Model:
        """Returns the network with a second set of parameters and the share."""
        return with_twin(model, _TWIN, _SHARE)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model without batch statistics, and that no other part gives each client another model."""
        why = "by which each client has another classifier or model"
        return no_statistics("apfl"), without_other("apfl", self, Separate, because=why)

    def check(self, context: CheckContext) -> None:
        """Rejects parts that change the network after it was doubled."""
        check_twin("apfl", _TWIN, context)

    def own_model(self, variables: Variables) -> Variables:
        """Returns the mixture of the client's parameters and the others."""
        params = variables.params
        mixed = _mixture(self.alpha + params[_SHARE], params[_TWIN], without(params, *self.own))
        return variables._replace(params={**params, **mixed})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the mixture's loss and the shrinkage term, `Float[]`."""
        alpha = self.alpha + params[_SHARE]
        shared = lax.stop_gradient(without(params, *self.own))
        mixed = Variables(_mixture(alpha, params[_TWIN], shared), ctx.start.stats)
        theirs, _ = ctx.model.apply(mixed, batch.images, train=False)
        return batch_loss(theirs.logits, batch) + 0.5 * self.shrinkage * alpha**2

    def init_steps(self, ctx: Context) -> Array:
        """Returns the initial number of steps, 0."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """Counts the step."""
        return carry + 1

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Keeps alpha in [0, 1], and as it is in steps in which it doesn't change."""
        alpha = self.alpha + params[_SHARE]
        moved = jnp.clip(alpha + updates[_SHARE], 0.0, 1.0) - alpha
        if self.adapts != "step":
            moved = jnp.where((self.adapts == "round") & (ctx.steps_state[self.slot] == 0), moved, 0.0)
        return {**updates, _SHARE: moved}


def _mixture(alpha: Array, own: PyTree, shared: PyTree) -> PyTree:
    return jax.tree.map(lambda v, w: alpha * v + (1.0 - alpha) * w, own, shared)


@recipe("personal", "deng2020apfl")
def apfl(
    alpha: Share = 0.5, shrinkage: NonNegative = 0.02, adapts: Literal["round", "step", "never"] = "round"
) -> Recipe:
    """FedAvg, plus a second model for each client, mixed with the global one in a proportion that is trained, too.

    Args:
        alpha: the initial share of the client's second model, in [0, 1]; 0 without adaptation is FedAvg.
        shrinkage: gamma, by which alpha is pulled towards 0; at least 0, and 0 in the paper.
        adapts: whether alpha changes once a "round", in every local "step" as in the paper, or "never".

    Example:
        >>> apfl(adapts="step").parts
        (MixedModel(alpha=0.5, shrinkage=0.02, adapts='step'),)
    """
    return Recipe("apfl", (MixedModel(alpha, shrinkage, adapts),))
