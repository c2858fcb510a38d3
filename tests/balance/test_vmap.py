"""Every function under `vmap`, over all of its arguments, equals its calls one by one."""

import jax
import numpy as np
import pytest
import quick
from rounding import SUM

from fedjax_bal import balance

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 50, (3, 4)).astype(np.float32)
SHARES, NORMS, LOGITS = RNG.dirichlet(np.ones(4), 3), RNG.uniform(0.1, 2, (3, 4)), RNG.normal(size=(3, 2, 6, 5))
IMAGES, RANGES = RNG.normal(size=(3, 2, 5, 7, 2)), RNG.uniform(0.1, 0.3, (3, 4))
LABELS = RNG.integers(0, 4, (3, 6))
STATISTICS = [(RNG.uniform(0.3, 3, (3, 3)), RNG.uniform(0.3, 3, (3, 5))) for _ in range(4)]
MAPS = [(RNG.normal(size=(3, 2, 4, 3, 5)), RNG.normal(size=(3, 2, 2, 2, 3))) for _ in range(2)]
TWO = np.array([0.2, 0.67, 1.0])
CASES = {
    "kl_divergence": (SHARES, SHARES[::-1]),
    "hellinger_distance": (SHARES, SHARES[::-1]),
    "jensen_shannon_distance": (SHARES, SHARES[::-1]),
    "kl_to_uniform": (COUNTS,),
    "multiclass_imbalance_degree": (COUNTS,),
    "weighted_cosine_similarity": (np.stack([COUNTS, COUNTS[::-1]]),),
    "augmentation_counts": (COUNTS, TWO),
    "random_affine": (jax.random.split(jax.random.key(0), (3, 2)), IMAGES, *RANGES.T),
    "inverse_class_probs": (COUNTS,),
    "distillation_loss": (LOGITS[:, 0], LOGITS[:, 1], TWO),
    "attention_transfer_loss": tuple(MAPS),
    "batch_norm_statistics_loss": tuple(STATISTICS),
    "smoothed_prior": (COUNTS, TWO),
    "prior_calibrated_cross_entropy": (LOGITS[:, 0, :, :4], LABELS, SHARES),
    "effective_number_weights": (COUNTS, TWO),
    "decayed_beta": (np.arange(3), TWO, 0.8 * TWO, TWO),
    "composition_from_gradients": (NORMS,),
    "composition_reward": (SHARES,),
    "logit_calibration": (COUNTS, TWO),
    "restricted_scale": (COUNTS, TWO),
    "transfer_features": (LOGITS[:, 0], LABELS, RNG.normal(size=(3, 4, 5)), RNG.random((3, 4)) < 0.8, TWO),
}


@pytest.mark.parametrize("name", quick.only(CASES, "augmentation_counts", "random_affine", "transfer_features"))
def test_vmap_equals_one_by_one(name):
    function, given = getattr(balance, name), jax.tree.map(jax.numpy.asarray, CASES[name])
    together = jax.vmap(function)(*given)
    count = len(jax.tree.leaves(together)[0])
    alone = [function(*jax.tree.map(lambda leaf, at=at: leaf[at], given)) for at in range(count)]
    stacked = jax.tree.map(lambda *own: np.stack(own), *alone)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=2e-5), together, stacked)
