"""Privacy attacks on generated images and shared prototypes.

    fedjax-bal run configs/papers/rebafl/figure11_c10.yaml --data-dir DIR --plugin fedjax_bal.contrib.privacy

The plug-in registers the analysis `privacy`, which `evaluation.analyses: [privacy]` asks for.

An attack's result is reported together with its controls: the same attack on features of single images, whose truth is
known, and on the gradient of a single image, where it is known to succeed.
"""

from fedjax_bal.contrib.privacy.attacks import PrivacyAttacks
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
from fedjax_bal.plugins import register

__all__ = [
    "Decoder",
    "FittedDecoder",
    "PrivacyAttacks",
    "Regression",
    "check_sides",
    "decode",
    "features_of",
    "fit_decoder",
    "kl_to_standard_normal",
    "nearest",
    "recovered",
    "regress",
    "single_gradients",
    "total_variation",
]

register("analysis", "privacy")(PrivacyAttacks)
