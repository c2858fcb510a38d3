"""Models with exact parameter counts, as pure functions, on a convolution that is fast for many clients.

`build(name, num_classes, input_shape)` gives a `fedjax_bal.types.Model`; `MODELS` lists the names, `options(name)` what
else a model takes.
"""

from fedjax_bal.models.registry import (
    BATCH_NORMALISED,
    MODELS,
    build,
    num_params,
    options,
    with_plain_convolution,
)

__all__ = ["BATCH_NORMALISED", "MODELS", "build", "num_params", "options", "with_plain_convolution"]
