"""Every function checks shapes when it is traced, and waits for no value; a NaN never looks balanced."""

import inspect

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from fedjax_bal import balance

NAN = float("nan")
LOGITS, PRIOR = np.zeros((2, 3), np.float32), np.array([0.5, 0.5, 0.0], np.float32)
BOTH = np.array([0, 1])
KEY = jax.random.key(0)
MAPS = np.zeros((2, 4, 3, 1), np.float32)
REFUSED = {
    "labels of fewer rows": ("prior_calibrated_cross_entropy", LOGITS, BOTH[:1], PRIOR),
    "a prior of fewer classes": ("prior_calibrated_cross_entropy", LOGITS, BOTH, PRIOR[:1]),
    "a prior that is a number": ("prior_calibrated_cross_entropy", LOGITS, BOTH, 0.5),
    "logits of a single row": ("prior_calibrated_cross_entropy", LOGITS[0], BOTH, PRIOR),
    "a prior that would be broadcast": ("prior_calibrated_logits", LOGITS, PRIOR[:1]),
    "a distribution that would be broadcast": ("kl_divergence", PRIOR, PRIOR[:1]),
    "a distance to a number": ("hellinger_distance", PRIOR, PRIOR[0]),
    "labels that would be broadcast": ("class_sums", LOGITS, BOTH[:1], BOTH, 3),
    "labels that aren't integers": ("class_sums", LOGITS, BOTH / 1.0, BOTH, 3),
    "a mask that would be broadcast": ("class_sums", LOGITS, BOTH, BOTH[:1], 3),
    "prototypes of other features": ("transfer_features", LOGITS, BOTH, LOGITS[:, :1], BOTH == 1),
    "presence in numbers": ("transfer_features", LOGITS, BOTH, LOGITS, BOTH),
    "a teacher that would be broadcast": ("distillation_loss", LOGITS, LOGITS[:1], 1.0),
    "rows that aren't booleans": ("distillation_loss", LOGITS, LOGITS, 1.0, "student_teacher", PRIOR[:2]),
    "rows that would be broadcast": ("attention_transfer_loss", [MAPS], [MAPS], BOTH[:1] == 0),
    "maps of other sides": ("attention_transfer_loss", [MAPS], [MAPS.transpose(0, 2, 1, 3)]),
    "counts for each row": ("augmentation_copies", BOTH, LOGITS, 1.0),
    "a range for each image": ("random_matrices", jax.random.split(KEY, 2), 3, 3, PRIOR[:2], 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_shape_that_would_give_a_wrong_result_is_refused(what):
    name, *given = REFUSED[what]
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, given)
    # The function itself, without the annotations' check, which exists in tests only.
    with pytest.raises(AssertionError, match="Chex"):
        inspect.unwrap(getattr(balance, name))(*given)


def test_shapes_are_checked_under_jit():
    with pytest.raises((AssertionError, jaxtyping.TypeCheckError)):
        jax.eval_shape(balance.prior_calibrated_cross_entropy, LOGITS, BOTH[:1], PRIOR)


COUNTS = {
    "kl_to_uniform": (),
    "multiclass_imbalance_degree": (),
    "inverse_class_probs": (),
    "effective_number_weights": (0.9,),
    "smoothed_prior": (0.1,),
    "composition_from_gradients": (),
    "composition_reward": (),
    "logit_calibration": (1.0,),
    "restricted_scale": (0.5,),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_nan_or_a_traced_negative_count_gives_nan(name):
    function = jax.jit(lambda counts: getattr(balance, name)(counts, *COUNTS[name]))
    for odd in (NAN, -2.0):
        assert np.isnan(function(jnp.array([odd, 3.0]))).any()
    assert np.isfinite(function(jnp.array([1.0, 3.0]))).all()


def test_a_beta_that_is_nan_gives_no_balanced_weights():
    assert np.isnan(balance.effective_number_weights(np.array([1, 3]), NAN)).all()


def test_parts_of_rows_keep_the_mean():
    means, counts = balance.class_prototypes(np.array([[4.0]], np.float32), np.array([0]), np.array([0.5]), 1)
    assert (means.item(), counts.item()) == (4.0, 0.5)


@pytest.mark.parametrize("name", ["kl_divergence", "hellinger_distance", "jensen_shannon_distance"])
def test_a_nan_is_no_distance(name):
    assert np.isnan(getattr(balance, name)(np.array([NAN, 0.5]), np.array([0.5, 0.5])))


@pytest.mark.parametrize("label, prior", [(-1, 0.5), (3, 0.5), (0, NAN), (0, -0.5)])
def test_a_traced_label_or_prior_out_of_range_gives_nan(label, prior):
    loss = jax.jit(balance.prior_calibrated_cross_entropy)
    assert np.isnan(loss(LOGITS[:1], jnp.array([label]), jnp.array([prior, 0.5, 0.0])))


def test_no_call_can_wait_for_the_values_of_its_arguments():
    functions = [each for name in balance.__all__ if callable(each := getattr(balance, name))]
    assert len(functions) > 20
    assert all(isinstance(each, type(jax.jit(len))) for each in functions)
