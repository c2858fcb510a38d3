"""Class balancing as pure jitted functions of arrays.

The functions don't depend on clients, rounds or models: use them in any JAX training loop.

Ranks and shapes whose mismatch would broadcast to a wrong result are checked while a function is traced. Values aren't
checked, as no call waits for them; docstrings state the domains. A NaN or a negative number in counts, shares or a
prior makes the result NaN; numbers of copies, which are integers, can show neither.
"""

from fedjax_bal.balance.affine import affine_matrix, random_affine, random_matrices, warp
from fedjax_bal.balance.augmentation import augmentation_copies, augmentation_counts
from fedjax_bal.balance.batch_statistics import batch_norm_statistics_loss
from fedjax_bal.balance.class_weights import decayed_beta, effective_number_weights, inverse_class_probs
from fedjax_bal.balance.composition import composition_from_gradients, composition_reward
from fedjax_bal.balance.distillation import attention_transfer_loss, distillation_loss
from fedjax_bal.balance.imbalance import (
    hellinger_distance,
    jensen_shannon_distance,
    kl_divergence,
    kl_to_uniform,
    multiclass_imbalance_degree,
    weighted_cosine_similarity,
)
from fedjax_bal.balance.logit_scale import logit_calibration, restricted_scale
from fedjax_bal.balance.prior import prior_calibrated_cross_entropy, prior_calibrated_logits, smoothed_prior
from fedjax_bal.balance.prototypes import class_prototypes, class_sums, transfer_features

__all__ = [
    "affine_matrix",
    "attention_transfer_loss",
    "augmentation_copies",
    "augmentation_counts",
    "batch_norm_statistics_loss",
    "class_prototypes",
    "class_sums",
    "composition_from_gradients",
    "composition_reward",
    "decayed_beta",
    "distillation_loss",
    "effective_number_weights",
    "hellinger_distance",
    "inverse_class_probs",
    "jensen_shannon_distance",
    "kl_divergence",
    "kl_to_uniform",
    "logit_calibration",
    "multiclass_imbalance_degree",
    "prior_calibrated_cross_entropy",
    "prior_calibrated_logits",
    "random_affine",
    "random_matrices",
    "restricted_scale",
    "smoothed_prior",
    "transfer_features",
    "warp",
    "weighted_cosine_similarity",
]


def __dir__() -> list[str]:
    return __all__
