"""Privacy attacks on generated images and shared prototypes, and the epsilon of differential privacy.

An attack's result is reported together with its controls: the same attack on features of single images, whose truth is
known, and on the gradient of a single image, where it is known to succeed.
"""

from fedjax_bal.contrib.privacy.decoder import (
    Decoder,
    FittedDecoder,
    check_sides,
    decode,
    features_of,
    fit_decoder,
    kl_to_standard_normal,
)
from fedjax_bal.contrib.privacy.regression import Regression, regress, single_gradients, total_variation
from fedjax_bal.contrib.privacy.similarity import nearest, recovered
from fedjax_bal.parts import epsilon

__all__ = [
    "Decoder",
    "FittedDecoder",
    "Regression",
    "check_sides",
    "decode",
    "epsilon",
    "features_of",
    "fit_decoder",
    "kl_to_standard_normal",
    "nearest",
    "recovered",
    "regress",
    "single_gradients",
    "total_variation",
]
