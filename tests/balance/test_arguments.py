"""Every function checks shapes when it is traced, and waits for no value; a NaN never looks balanced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal import balance

NAN = float("nan")
LOGITS, PRIOR = np.zeros((2, 3), np.float32), np.array([0.5, 0.5, 0.0], np.float32)
BOTH = np.array([0, 1])
KEY = jax.random.key(0)
IMAGE = np.zeros((1, 3, 3, 1), np.uint8)
REFUSED = {
    "labels: received shape (1,), must be [B] = (2,)": ("prior_calibrated_cross_entropy", LOGITS, BOTH[:1], PRIOR),
    "prior: received shape (1,), must be [C] = (3,)": ("prior_calibrated_cross_entropy", LOGITS, BOTH, PRIOR[:1]),
    "prior: received shape (), must be [C] = (3,)": ("prior_calibrated_cross_entropy", LOGITS, BOTH, 0.5),
    "; for a single row add an axis, logits[None]": ("prior_calibrated_cross_entropy", LOGITS[0], BOTH, PRIOR),
    "labels: received type float": ("prior_calibrated_cross_entropy", LOGITS, BOTH / 1.0, PRIOR),
    "q: received shape (1,), must be [..., C] with C = 3": ("kl_divergence", PRIOR, PRIOR[:1]),
    "counts: received shape (), must be [..., C] with at least one class": ("kl_to_uniform", 3.0),
    "counts: received shape (0,)": ("kl_to_uniform", np.zeros(0)),
    "mask: received None, must be [B] = (2,)": ("class_prototypes", LOGITS, BOTH, None, 3),
    "real: received type float": ("distillation_loss", LOGITS, LOGITS, 1.0, "student_teacher", [1.0, 0.5]),
    "num_classes: received 2.5, must be an integer": ("class_prototypes", LOGITS, BOTH, BOTH, 2.5),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message):
    name, *given = REFUSED[message]
    with pytest.raises(ValueError) as error:
        getattr(balance, name)(*given)
    assert message in str(error.value)


def test_shapes_are_checked_under_jit():
    with pytest.raises(ValueError, match=r"labels: received shape \(1,\)"):
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
    assert np.isnan(balance.effective_number_weights([1, 3], NAN)).all()


def test_parts_of_rows_keep_the_mean():
    means, counts = balance.class_prototypes(np.array([[4.0]], np.float32), [0], [0.5], 1)
    assert (means.item(), counts.item()) == (4.0, 0.5)


@pytest.mark.parametrize("name", ["kl_divergence", "hellinger_distance", "jensen_shannon_distance"])
def test_a_nan_is_no_distance(name):
    assert np.isnan(getattr(balance, name)([NAN, 0.5], [0.5, 0.5]))


@pytest.mark.parametrize("label, prior", [(-1, 0.5), (3, 0.5), (0, NAN), (0, -0.5)])
def test_a_traced_label_or_prior_out_of_range_gives_nan(label, prior):
    loss = jax.jit(balance.prior_calibrated_cross_entropy)
    assert np.isnan(loss(LOGITS[:1], jnp.array([label]), jnp.array([prior, 0.5, 0.0])))


def test_lists_are_arrays():
    assert float(balance.kl_divergence([1, 0], [0.5, 0.5])) == pytest.approx(np.log(2))


def test_no_call_can_wait_for_the_values_of_its_arguments():
    functions = [each for name in balance.__all__ if callable(each := getattr(balance, name))]
    assert len(functions) > 20
    assert all(isinstance(each, type(jax.jit(len))) for each in functions)
