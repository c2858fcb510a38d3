"""Layers of the model, or all of it, that clients keep to themselves."""

from typing import Any

import jax

from fedjax_bal.parts.fedbabu import classifier_shapes
from fedjax_bal.parts.part import RunSetting, part
from fedjax_bal.parts.roles import Personal
from fedjax_bal.types import PyTree


@part
class OwnHead(Personal):
    """Every client has a classifier of its own, `params["head"]`, on a body that all share.

    References:
        FedPer (Arivazhagan et al., 2019), Algorithms 1 and 2, with one personal layer.
    """

    def check(self, setting: RunSetting) -> None:
        """Refuses a model without a classifier of that name."""
        classifier_shapes(setting.model)

    def personal(self, params: PyTree) -> PyTree:
        """The classifier."""
        return {name: name == "head" for name in params}


@part
class OwnNormalisation(Personal):
    """Every client has normalisation layers of its own, with their running statistics.

    They are the layers with "norm" in their name, in any case, or a name that begins with "bn".

    References:
        FedBN (Li et al., 2021), Algorithm 1.
    """

    keeps_statistics = True

    def check(self, setting: RunSetting) -> None:
        """Refuses a model without such a layer."""
        params = jax.eval_shape(setting.model.init, jax.random.key(0)).params
        if not any(jax.tree.leaves(self.personal(params))):
            raise ValueError(
                f"fedbn: received the model {setting.model.name}, none of whose layers has 'norm' in its name: take a "
                "model with normalisation layers, or name them so"
            )

    def personal(self, params: PyTree) -> PyTree:
        """Scales and shifts of these layers."""
        return jax.tree_util.tree_map_with_path(lambda path, _: any(map(_normalises, path)), params)


@part
class OwnModel(Personal):
    """Every client has a model of its own, with its running statistics, and nothing is shared."""

    keeps_statistics = True

    def personal(self, params: PyTree) -> PyTree:
        """All of it."""
        return True


def _normalises(key: Any) -> bool:
    name = jax.tree_util.keystr((key,), simple=True).lower()
    return "norm" in name or name.startswith("bn")
