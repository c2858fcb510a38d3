"""Models as pure functions, with exact parameter counts and a convolution that is fast for many clients.

`build(name, num_classes, input_shape)` builds a `fedjax_bal.types.Model`; `MODELS` has the names, `options(name)` a
model's options. `from_linen`, `from_nnx` and `from_torch` make a model from your own network. `with_weights` starts a
model from pretrained weights; `weights_from_torch` and `weights_to_torch` convert them from and to PyTorch's layouts.
"""

from typing import TYPE_CHECKING, Any

from fedjax_bal.models import convolution
from fedjax_bal.models.adapters import check_is_model, from_linen
from fedjax_bal.models.convolution import automatic
from fedjax_bal.models.derivatives import any_derivative, differentiable
from fedjax_bal.models.generator import Generator, build_feature_generator, build_generator
from fedjax_bal.models.heads import FORMS, simplex, unit, with_cosine_head, with_normalised_features, with_projection
from fedjax_bal.models.normalization import Normalisation, normalisation_of, normalises
from fedjax_bal.models.pytorch import weights_from_torch, weights_to_torch
from fedjax_bal.models.registry import (
    BATCH_NORMALISED,
    MODELS,
    build,
    convolves,
    normalisation,
    num_params,
    options,
    own_model,
)
from fedjax_bal.models.switches import SwitchError, linen_interceptor
from fedjax_bal.models.torch_modules import from_torch
from fedjax_bal.models.weights import check_finite, match_weights, named_leaves, with_weights

if TYPE_CHECKING:
    from fedjax_bal.models.nnx import from_nnx

__all__ = [
    "BATCH_NORMALISED",
    "FORMS",
    "MODELS",
    "Generator",
    "Normalisation",
    "SwitchError",
    "any_derivative",
    "automatic",
    "build",
    "build_feature_generator",
    "build_generator",
    "check_finite",
    "check_is_model",
    "convolution",
    "convolves",
    "differentiable",
    "from_linen",
    "from_nnx",
    "from_torch",
    "linen_interceptor",
    "match_weights",
    "named_leaves",
    "normalisation",
    "normalisation_of",
    "normalises",
    "num_params",
    "options",
    "own_model",
    "simplex",
    "unit",
    "weights_from_torch",
    "weights_to_torch",
    "with_cosine_head",
    "with_normalised_features",
    "with_projection",
    "with_weights",
]


def __getattr__(name: str) -> Any:
    if name == "from_nnx":  # flax.nnx takes a while to import
        from fedjax_bal.models.nnx import from_nnx

        return from_nnx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
