"""The mathematics of balancing, as pure jitted functions of arrays.

Nothing here knows of clients, rounds or models: use these functions in any JAX training loop.
"""

from fedjax_bal.balance.divergence import kl_divergence, kl_to_uniform
from fedjax_bal.balance.prior import prior_calibrated_cross_entropy, prior_calibrated_logits, smoothed_prior
from fedjax_bal.balance.prototypes import class_prototypes, class_sums, transfer_features

__all__ = [
    "class_prototypes",
    "class_sums",
    "kl_divergence",
    "kl_to_uniform",
    "prior_calibrated_cross_entropy",
    "prior_calibrated_logits",
    "smoothed_prior",
    "transfer_features",
]
