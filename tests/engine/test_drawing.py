"""Orders and draws: exact, independent of padding, with the right law."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.engine.device import drawing

shuffled, weighted = jax.jit(drawing.shuffled, static_argnums=2), jax.jit(drawing.weighted, static_argnums=3)
KEY = jax.random.key(5)


def test_shuffled_is_a_permutation_that_padding_does_not_change():
    short = np.asarray(shuffled(KEY, 13, 16))[:13]
    long = np.asarray(shuffled(KEY, 13, 400))[:13]
    assert sorted(short) == list(range(13))
    assert (short == long).all()


@pytest.mark.slow
def test_sorting_less_padding_changes_nothing():
    whole = np.asarray(shuffled(KEY, 90, 1000))[:90]
    for longest in (90, 125, 126, 300, 1000):
        assert (np.asarray(shuffled(KEY, 90, 1000, jnp.int32(longest)))[:90] == whole).all()


def test_shuffled_under_vmap_equals_one_by_one():
    keys, sizes = jax.random.split(KEY, 4), jnp.array([1, 7, 16, 3])
    stacked = jax.vmap(lambda k, n: shuffled(k, n, 16))(keys, sizes)
    for row, key, size in zip(stacked, keys, sizes, strict=True):
        assert (row[:size] == shuffled(key, size, 16)[:size]).all()


def test_every_position_is_as_likely_at_every_place():
    orders = np.asarray(jax.vmap(lambda k: shuffled(k, 5, 8))(jax.random.split(KEY, 8000)))[:, :5]
    shares = np.stack([(orders == position).mean(0) for position in range(5)])
    assert abs(shares - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / 8000)


def test_weighted_draws_follow_class_weights_and_are_even_within_a_class():
    counts = jnp.array([30, 0, 10, 60])
    drawn = np.asarray(weighted(KEY, counts, jnp.log(jnp.array([1.0, 5.0, 6.0, 1.0])), 30_000))
    law = np.repeat([1.0, 6.0, 1.0], [30, 10, 60])
    law /= law.sum()
    seen = np.bincount(drawn, minlength=100) / 30_000
    assert (abs(seen - law) < 5 * np.sqrt(law * (1 - law) / 30_000)).all()


def test_weighted_draws_do_not_depend_on_padding():
    counts, flat = jnp.array([3, 5]), jnp.zeros(2)
    assert (weighted(KEY, counts, flat, 8) == weighted(KEY, counts, flat, 100)[:8]).all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unrolled_keys_draw_the_words_of_jaxs_own_keys(dtype):
    with jax.enable_x64(dtype == "uint64"):
        compare_words(dtype)


def compare_words(dtype):
    ours = drawing.purpose_key(drawing.unrolled(KEY), "init")
    plain = jax.random.fold_in(KEY, zlib.crc32(b"init"))

    def words(key):
        keys = jax.random.split(jax.random.fold_in(key, jnp.uint32(2**32 - 1)), (2, 3))
        return jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (5, 7), dtype)))(keys)

    assert (np.asarray(jax.jit(words)(ours)) == np.asarray(jax.jit(words)(plain))).all()
    assert (jax.random.key_data(ours) == jax.random.key_data(plain)).all()


def test_keys_of_other_kinds_are_kept():
    other = jax.random.key(5, impl="rbg")
    assert jax.random.key_impl(drawing.unrolled(other)) == jax.random.key_impl(other)
