"""Layers of the model, or all of it, that clients keep to themselves."""

import jax

from fedjax_bal.models import normalises
from fedjax_bal.parts.fedbabu import classifier_shapes
from fedjax_bal.parts.part import Need, RunFacts, RunSetting, part
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

    @property
    def needs(self) -> tuple[Need, ...]:
        """Such layers."""
        return (Need("a model with normalisation layers", _check_layers),)

    def personal(self, params: PyTree) -> PyTree:
        """Scales and shifts of these layers."""
        return jax.tree_util.tree_map_with_path(lambda path, _: any(map(normalises, path)), params)


@part
class OwnModel(Personal):
    """Every client has a model of its own, with its running statistics, and nothing is shared."""

    keeps_statistics = True

    def personal(self, params: PyTree) -> PyTree:
        """All of it."""
        return True


def _check_layers(facts: RunFacts) -> None:
    if facts.normalisation and not facts.normalisation.layers:
        raise ValueError(
            f"fedbn: received the model {facts.model}, none of whose layers has 'norm' in its name: take a "
            "model with normalisation layers, or name them so"
        )
