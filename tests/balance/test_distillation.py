"""Distillation and attention transfer against float64, their gradients, and rows, maps and classes that are nothing."""

import inspect

import jax
import numpy as np
import pytest
from rounding import DOUBLE, FORMULA, STEPS, SUM

from fedjax_bal.balance import attention_transfer_loss, distillation_loss

RNG = np.random.default_rng(0)
STUDENT, TEACHER = (RNG.normal(0, 2, (2, 6, 5))).astype(np.float32)
REAL = np.array([True, False, True, True, False, True])
SHAPES = ((4, 3, 5), (2, 2, 3), (1, 1, 2))
DISTILLATION = jax.jit(jax.value_and_grad(distillation_loss, (0, 1)), static_argnums=3)
ATTENTION = jax.jit(jax.value_and_grad(attention_transfer_loss, (0, 1)))
MAPS, OTHERS = ([RNG.normal(size=(6, *shape)).astype(np.float32) for shape in SHAPES] for _ in range(2))
SHIFTS, DIRECTIONS = RNG.normal(size=(6, 1)).astype(np.float32), [RNG.normal(size=layer.shape) for layer in MAPS]


def softmax(logits):
    powers = np.exp(np.asarray(logits, np.float64))
    return powers / powers.sum(-1, keepdims=True)


def distilled(student, teacher, temperature, direction):
    p, q = softmax(np.float64(teacher) / temperature), softmax(np.float64(student) / temperature)
    if direction == "student_teacher":
        p, q = q, p
    return temperature**2 * np.mean(np.sum(p * np.log(p / q), -1))


def attended(student, teacher):
    """Image by image and layer by layer, in float64."""
    total = 0.0
    for own, other in zip(student, teacher, strict=True):
        errors = []
        for pair in zip(own, other, strict=True):
            maps = [np.sum(np.float64(features) ** 2, -1) for features in pair]
            first, second = (spread / (np.linalg.norm(spread) + 1e-6) for spread in maps)
            errors.append(np.mean((first - second) ** 2))
        total += np.mean(errors)
    return total


def without_padding(maps):
    return [layer[REAL] for layer in maps]


def with_nan(values):
    return np.where(REAL.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
@pytest.mark.parametrize("temperature", [1, 5.0])
def test_distillation_equals_float64(temperature, direction):
    wanted = distilled(STUDENT, TEACHER, temperature, direction)
    np.testing.assert_allclose(distillation_loss(STUDENT, TEACHER, temperature, direction), wanted, rtol=SUM)
    shifted = STUDENT + np.float32(3), TEACHER - SHIFTS
    np.testing.assert_allclose(distillation_loss(*shifted, temperature, direction), wanted, rtol=STEPS)
    padded = distillation_loss(with_nan(STUDENT), with_nan(TEACHER), temperature, direction, REAL)
    np.testing.assert_allclose(padded, distilled(STUDENT[REAL], TEACHER[REAL], temperature, direction), rtol=SUM)


def test_distillation_teaches_the_teacher_s_probabilities_by_default():
    _, (of_student, of_teacher) = DISTILLATION(STUDENT, TEACHER, 5.0)
    np.testing.assert_allclose(of_student, 5 * (softmax(STUDENT / 5) - softmax(TEACHER / 5)) / 6, rtol=STEPS, atol=1e-7)
    assert (of_teacher == 0).all()
    value, (gradient, _) = DISTILLATION(TEACHER, TEACHER, 5.0)
    assert float(value) == pytest.approx(0, abs=FORMULA)
    np.testing.assert_allclose(gradient, 0, atol=FORMULA)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_padded_logits_and_excluded_classes_have_no_gradient(direction):
    gradient = lambda *given: np.asarray(DISTILLATION(*given)[1][0])
    of_padded = gradient(with_nan(STUDENT), with_nan(TEACHER), 2.0, direction, REAL)
    assert (of_padded[~REAL] == 0).all()
    of_real = gradient(STUDENT[REAL], TEACHER[REAL], 2.0, direction)
    np.testing.assert_allclose(of_padded[REAL], of_real, rtol=SUM, atol=1e-7)
    nobody = np.zeros(6, bool)
    value, (of_nobody, _) = DISTILLATION(STUDENT, TEACHER, 2.0, direction, nobody)
    assert value == 0 and not of_nobody.any()
    without = [np.where(np.arange(5) == 1, -np.inf, logits).astype(np.float32) for logits in (STUDENT, TEACHER)]
    kept = [np.delete(logits, 1, axis=1) for logits in (STUDENT, TEACHER)]
    wanted = distilled(*kept, 2.0, direction)
    value, (of_excluded, _) = DISTILLATION(*without, 2.0, direction)
    np.testing.assert_allclose(value, wanted, rtol=SUM)
    assert np.isfinite(of_excluded).all()
    assert not of_excluded[:, 1].any()


def test_distillation_of_extreme_logits_is_finite():
    student = np.array([[1e4, -1e4, 0.0], [0.0, 1e4, -1e9]], np.float32)
    for direction in ("teacher_student", "student_teacher"):
        value, (gradient, _) = DISTILLATION(student, student[:, ::-1].copy(), 1.0, direction)
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_an_unknown_direction_is_refused():
    with pytest.raises(ValueError, match="direction: received 'both'"):
        inspect.unwrap(distillation_loss)(STUDENT, TEACHER, 1.0, "both")


def test_attention_equals_float64_and_ignores_padding():
    np.testing.assert_allclose(attention_transfer_loss(MAPS, OTHERS), attended(MAPS, OTHERS), rtol=SUM)
    padded = [[with_nan(layer) for layer in maps] for maps in (MAPS, OTHERS)]
    wanted = attended(without_padding(MAPS), without_padding(OTHERS))
    value, (gradient, _) = ATTENTION(*padded, REAL)
    np.testing.assert_allclose(value, wanted, rtol=SUM)
    assert all((layer[~REAL] == 0).all() for layer in map(np.asarray, gradient))
    assert all(np.isfinite(layer).all() for layer in gradient)
    assert ATTENTION(MAPS, OTHERS, np.zeros(6, bool))[0] == 0


def test_attention_is_nothing_between_equals_of_any_scale_and_sign():
    np.testing.assert_allclose(attention_transfer_loss(MAPS, MAPS), 0, atol=DOUBLE)
    scaled = [np.float32(-factor) * layer for factor, layer in zip((3.0, 1e12, 0.5), MAPS, strict=True)]
    np.testing.assert_allclose(attention_transfer_loss(scaled, MAPS), 0, atol=1e-9)
    np.testing.assert_allclose(attention_transfer_loss(scaled, OTHERS), attended(MAPS, OTHERS), rtol=STEPS)


def test_attention_of_faint_features_has_the_added_length():
    faint = [np.float32(1e-3) * layer for layer in MAPS]
    wanted = attended(faint, OTHERS)
    assert abs(wanted - attended(MAPS, OTHERS)) > 0.01 * wanted
    np.testing.assert_allclose(attention_transfer_loss(faint, OTHERS), wanted, rtol=STEPS)


def test_the_gradient_of_attention_equals_differences_and_stops_at_the_teacher():
    _, (of_student, of_teacher) = ATTENTION(MAPS, OTHERS)
    assert not any(np.asarray(layer).any() for layer in of_teacher)
    moved = lambda step: [layer + step * way for layer, way in zip(MAPS, DIRECTIONS, strict=True)]
    ahead, behind = attended(moved(1e-5), OTHERS), attended(moved(-1e-5), OTHERS)
    slope = sum(np.sum(np.float64(g) * way) for g, way in zip(of_student, DIRECTIONS, strict=True))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=STEPS)


def test_maps_of_zeros_and_dead_channels_are_finite_in_value_and_gradient():
    dead = [layer * (np.arange(layer.shape[-1]) > 0) for layer in MAPS]
    dead[0][2] = 0.0
    zeros = [np.zeros_like(layer) for layer in MAPS]
    for student, teacher in ((dead, OTHERS), (zeros, OTHERS), (zeros, zeros), (MAPS, zeros)):
        student = [layer.astype(np.float32) for layer in student]
        teacher = [layer.astype(np.float32) for layer in teacher]
        value, (gradient, _) = ATTENTION(student, teacher)
        np.testing.assert_allclose(value, attended(student, teacher), rtol=SUM)
        assert all(np.isfinite(layer).all() for layer in gradient)
        if student[0].max() == 0:
            assert not any(np.asarray(layer).any() for layer in gradient)


def test_attention_compares_maps_of_other_channels():
    wide = [np.concatenate([layer, layer], -1) for layer in MAPS]
    np.testing.assert_allclose(attention_transfer_loss(wide, OTHERS), attended(MAPS, OTHERS), rtol=SUM)
    assert float(attention_transfer_loss((), ())) == 0


def test_maps_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        attention_transfer_loss(MAPS, OTHERS[:2])
    with pytest.raises(AssertionError, match=r"\(6, 3, 4\)"):
        attention_transfer_loss(MAPS, [OTHERS[0].transpose(0, 2, 1, 3), *OTHERS[1:]])
