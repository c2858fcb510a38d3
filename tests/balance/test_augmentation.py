"""Numbers of copies against exact arithmetic, at integers and at the mean, and the law of the random modes."""

import inspect
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedjax_bal.balance import augmentation_copies, augmentation_counts

COUNTS = np.array([1000, 100, 30, 70, 0, 7])  # mean 201.1..., so that all but the first and the empty one are rare
MANY = 4000


def exact_at_one(counts, whole):
    """Copies at alpha 1 in rational arithmetic; `whole` makes an integer of a ratio."""
    mean = Fraction(sum(counts), len(counts))
    return [whole(mean / count) if 0 < count < mean else 0 for count in counts]


def ratios(counts, alpha):
    """The ratios in float64, 0 for classes without copies."""
    counts = np.asarray(counts, np.float64)
    rare = (counts > 0) & (counts < counts.mean())
    return np.where(rare, (counts.mean() / np.where(rare, counts, 1)) ** alpha, 0)


@given(counts=st.lists(st.integers(0, 150_000), min_size=6, max_size=6))
def test_alpha_one_equals_exact_arithmetic(counts):
    for given_counts in (np.array(counts, np.int32), np.array(counts, np.float32)):
        assert augmentation_counts(given_counts, 1.0).tolist() == exact_at_one(counts, int)
        assert augmentation_counts(given_counts, 1.0, "round").tolist() == exact_at_one(counts, round)


@given(
    least=st.integers(1, 500) | st.integers(1, 299_999),  # few and many copies alike: up to 299,999 or up to 1 for most
    times=st.floats(0, 1, width=16),
    off=st.integers(-1, 1),
)
def test_a_sample_more_or_less_at_an_integer_ratio_is_seen(least, times, off):
    mean = least * (1 + int(times * (299_999 // least - 1)))
    rest = 3 * mean + off - least
    counts = [least, rest // 2, rest - rest // 2]
    assert augmentation_counts(np.array(counts, np.int32), 1.0).tolist() == exact_at_one(counts, int)


@pytest.mark.parametrize("power", [2, 3, 4])
def test_a_root_that_is_an_integer_keeps_its_last_copy(power):
    for root in range(2, 30):
        counts = np.array([1, 2 * root**power - 1])  # the mean is root^power
        assert augmentation_counts(counts, 1 / power).tolist() == [root, 0]
        assert augmentation_counts(counts, 1 / power, "target", jax.random.key(root)).tolist() == [root - 1, 0]


@pytest.mark.parametrize(("alpha", "base"), [(0.7, 2), (0.7, 3), (0.9, 2), (0.9, 3)])
def test_an_alpha_that_is_less_in_32_bits_takes_no_copy_away(alpha, base):
    assert float(np.float32(alpha)) < alpha
    wanted = base ** round(10 * alpha)
    assert augmentation_counts(np.array([1, 2 * base**10 - 1]), alpha).tolist() == [wanted, 0]


@given(counts=st.lists(st.integers(0, 10**6), min_size=6, max_size=6), alpha=st.floats(0, 1.5, width=32))
@example(counts=[999933, 999605, 999866, 999962, 999930, 999858], alpha=0.0)
def test_any_alpha_equals_the_formula_in_float64(counts, alpha):
    wanted = ratios(counts, alpha)
    clear = lambda values: np.abs(values - np.round(values)) > 1e-5 * (1 + values)
    got = augmentation_counts(np.array(counts), alpha), augmentation_counts(np.array(counts), alpha, "round")
    off_mean = np.abs(np.array(counts) - np.mean(counts)) >= 2e-6 * np.mean(counts)  # a millionth counts as at the mean
    sure = off_mean & (clear(wanted) | (wanted == 0))
    assert (np.asarray(got[0])[sure] == np.floor(wanted[sure])).all()
    sure = off_mean & (clear(wanted + 0.5) | (wanted == 0))
    assert (np.asarray(got[1])[sure] == np.round(wanted[sure])).all()


@pytest.mark.parametrize("classes", [7, 1000])
def test_equal_classes_get_nothing_however_many_and_large(classes):
    for count in [1, 2**24 + 1, 2**31 - 1, *np.random.default_rng(0).integers(1, 2**31, 600)]:
        for dtype in (np.int32, np.float32):
            assert (augmentation_counts(np.full(classes, count).astype(dtype), 1.0) == 0).all()


def test_large_counts_give_what_small_ones_of_the_same_shares_give():
    small = augmentation_counts(COUNTS, 0.67).tolist()
    assert small == np.floor(ratios(COUNTS, 0.67)).tolist()
    assert augmentation_counts(COUNTS * 2_000_003, 0.67).tolist() == small
    assert augmentation_counts((COUNTS / COUNTS.sum()).astype(np.float32), 0.67).tolist() == small
    fewer = COUNTS // 5
    bytes_ = augmentation_counts(fewer.astype(np.uint8), 0.67)
    assert bytes_.tolist() == np.floor(ratios(fewer, 0.67)).tolist()


def test_at_alpha_zero_the_literal_count_is_one_and_the_target_is_reached():
    key = jax.random.key(0)
    for mode in ("floor", "round", "stochastic"):
        assert augmentation_counts(COUNTS, 0.0, mode, key).tolist() == [0, 1, 1, 1, 0, 1]
    assert augmentation_counts(COUNTS, 0.0, "target", key).tolist() == [0] * 6
    assert augmentation_counts(np.zeros(4, int), 1.0).tolist() == [0] * 4


@pytest.mark.parametrize("mode", ["stochastic", "target"])
@pytest.mark.parametrize("alpha", [0.3, 0.67, 1.0])
def test_random_modes_draw_a_neighbouring_integer_with_the_right_mean(mode, alpha):
    wanted = ratios(COUNTS, alpha)
    wanted = np.where(wanted > 0, wanted - (mode == "target"), 0)
    keys = jax.random.split(jax.random.key(1), MANY)
    drawn = np.asarray(jax.vmap(lambda key: augmentation_counts(COUNTS, alpha, mode, key))(keys))
    assert ((drawn == np.floor(wanted)) | (drawn == np.ceil(wanted))).all()
    left = wanted - np.floor(wanted)
    error = drawn.mean(0) - wanted
    assert (np.abs(error) <= 4.5 * np.sqrt(left * (1 - left) / MANY) + 1e-5).all()
    rare = wanted > 0
    correlation = np.corrcoef(drawn[:, rare].T) - np.eye(rare.sum())
    assert np.abs(correlation).max() < 4.5 / np.sqrt(MANY)  # classes draw apart


def test_integer_ratios_are_not_drawn():
    keys = jax.random.split(jax.random.key(2), MANY)
    drawn = jax.vmap(lambda key: augmentation_counts(np.array([10, 50, 0, 140]), 1.0, "target", key))(keys)
    assert (np.asarray(drawn) == [4, 0, 0, 0]).all()


def test_rows_draw_for_themselves():
    labels = np.repeat(np.arange(6), COUNTS)
    copies = np.asarray(augmentation_copies(labels, COUNTS, 0.67, "target", jax.random.key(3)))
    wanted = np.maximum(ratios(COUNTS, 0.67) - 1, 0)
    for label in (1, 2, 3):
        own, left = copies[labels == label], wanted[label] % 1
        assert set(own) <= {np.floor(wanted[label]), np.ceil(wanted[label])}
        assert abs(own.mean() - wanted[label]) < 4.5 * np.sqrt(left * (1 - left) / len(own))
    assert len(set(copies[labels == 2])) == 2
    assert (copies[labels == 0] == 0).all()


def test_a_row_draws_the_same_whatever_stands_behind_it():
    labels = np.random.default_rng(0).integers(0, 6, 300)
    draw = lambda labels, key: np.asarray(augmentation_copies(labels, COUNTS, 0.5, "stochastic", jax.random.key(key)))
    np.testing.assert_array_equal(draw(labels, 0)[:77], draw(labels[:77], 0))
    assert (draw(labels, 0) != draw(labels, 1)).any()


@pytest.mark.parametrize("mode", ["floor", "round"])
def test_rows_get_what_their_class_gets_where_nothing_is_drawn(mode):
    labels = np.random.default_rng(1).integers(0, 6, 50)
    counts = augmentation_counts(COUNTS, 0.67, mode, max_copies=5)
    np.testing.assert_array_equal(augmentation_copies(labels, COUNTS, 0.67, mode, max_copies=5), counts[labels])


def test_no_more_than_the_most_copies():
    assert augmentation_counts(COUNTS, 1.0).tolist() == [0, 2, 6, 2, 0, 28]
    assert augmentation_counts(COUNTS, 1.0, max_copies=4).tolist() == [0, 2, 4, 2, 0, 4]
    assert augmentation_counts(COUNTS, 1.0, max_copies=jnp.int32(0)).tolist() == [0] * 6
    huge = np.array([1, 10**9])
    assert augmentation_counts(huge, 3.0).tolist() == [2**31 - 128, 0]
    assert augmentation_counts(huge, 99.0, "stochastic", jax.random.key(0)).tolist() == [2**31 - 128, 0]
    assert augmentation_counts(huge, 3.0, max_copies=2**31 - 1).dtype == jnp.int32


LETTERS = (
    "e12.70 t9.06 a8.17 o7.51 i6.97 n6.75 s6.33 h6.09 r5.99 d4.25 l4.03 c2.78 u2.76 m2.41 w2.36 f2.23 g2.02 y1.97 "
    "p1.93 b1.49 v.98 k.77 j.15 x.15 q.095 z.074"
)


def letter_counts(total):
    """47 classes: digits all alike, then 26 upper-case and 11 lower-case letters by how often English has them."""
    often = {word[0]: float(word[1:]) for word in LETTERS.split()}
    letters = np.array([often[letter] for letter in sorted(often)] + [often[letter] for letter in "abdefghnqrt"])
    return np.rint(total * np.concatenate([np.full(10, 1 / 47), 37 / 47 * letters / letters.sum()])).astype(int)


@pytest.mark.parametrize(("alpha", "floor", "target"), [(0.67, 25.6, 12.1), (0.83, None, 17.8), (1.0, None, 26.7)])
def test_extra_storage_of_english_letters(alpha, floor, target):
    """In percent; the paper has 25.5 at 0.67."""
    counts = letter_counts(230_752)
    if floor:
        extra = (counts * augmentation_counts(counts, alpha)).sum()
        assert 100 * extra / counts.sum() == pytest.approx(floor, abs=0.05)
    labels = np.repeat(np.arange(47), counts)
    extra = augmentation_copies(labels, counts, alpha, "target", jax.random.key(0)).sum()
    assert 100 * extra / counts.sum() == pytest.approx(target, abs=0.2)  # chance is 0.1 at most


def test_vmap_with_keys_and_a_swept_alpha():
    counts, keys = np.stack([COUNTS, COUNTS[::-1], COUNTS * 3]), jax.random.split(jax.random.key(4), 3)
    alphas = jnp.array([0.2, 0.67, 1.0])
    for mode in ("floor", "target"):
        function = lambda counts, alpha, key, mode=mode: augmentation_counts(counts, alpha, mode, key)
        together = jax.vmap(function)(counts, alphas, keys)
        for i in range(3):
            np.testing.assert_array_equal(together[i], function(counts[i], alphas[i], keys[i]))
    apart = augmentation_counts(np.tile(COUNTS, (50, 1)), 0.67, "stochastic", keys[0])
    assert (apart != apart[0]).any()


@pytest.mark.parametrize("given", [(augmentation_counts,), (augmentation_copies, jnp.array([1, 2]))])
def test_a_wrong_mode_and_a_missing_key_are_refused(given):
    function, *labels = given
    refused = partial(inspect.unwrap(function), *labels, jnp.asarray(COUNTS), 0.67)
    with pytest.raises(ValueError, match="mode: received 'flor'"):
        refused("flor")
    with pytest.raises(ValueError, match="key: received None"):
        refused("target")


def test_double_precision_sees_further():
    with jax.enable_x64(True):
        counts = np.array([10**12, 10**12 - 1])
        assert augmentation_counts(counts, 1.0).tolist() == [0, 1]
        assert augmentation_counts(counts, 1.0).dtype == np.int64
